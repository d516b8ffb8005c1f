"""A whole Forgeyard of real processes that can be killed, frozen and started again one by one.

Temporal's server, worker, API and agents run as they do in production; a test submits runs over
HTTP, reads SQL, and asks Temporal as an operator does, with Temporal's own command line.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import sqlalchemy as sa

from activities import contracts
from forgeyard.config import StoreConfig
from forgeyard.errors import StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import tables
from forgeyard.store.engine import open_engine, read
from tests.chaos import standin
from tests.chaos.invariants import ALWAYS, AT_REST, violations
from tests.chaos.process import Process
from tests.integration.agent.scripts import is_alive
from tests.integration.temporal.server import Server, free_port
from worker.standalone import temporal_binary

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ("sh", "sleep", "cat", "touch", "env")
SMALL: Final = {"cpu": 0.1, "memory": "16Mi", "disk": "16Mi"}
DEFAULT: Final = SchedulingPolicy()


def until(
    holds: Callable[[], object],
    *,
    within_s: float = 120.0,
    every_s: float = 0.05,
    or_say: Callable[[], object] = lambda: "it did not come to be",
) -> None:
    """Ask again and again until something holds; fail with what is instead."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, or_say()
        time.sleep(every_s)


@dataclass(kw_only=True)
class Plant:
    """The processes, their database, and what a test asks of them."""

    folder: Path
    url: str
    policy: SchedulingPolicy = DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    agent_names: int = 0

    def __post_init__(self) -> None:
        self.api_port, self.agent_port = free_port(), free_port()
        self.temporal = Server(file=self.folder / "temporal.db")
        self.engine = open_engine(self.url, StoreConfig())
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.api_port}", trust_env=False)
        tools = self.folder / "bin"
        tools.mkdir()
        for name in TOOLS:
            (tools / name).symlink_to(str(shutil.which(name)))

    # Processes

    def heal(self) -> None:
        """Start whatever does not run, so that one test's faults are not another's."""
        for name, start in (("worker", self.start_worker), ("api", self.start_api)):
            process = self.processes.get(name)
            if process is None or not process.is_running:
                start()
        if self.temporal.process is None:
            self.temporal.start()
        self.until_ready()

    def start_worker(
        self, *, name: str = "worker", settings: Mapping[str, str] = {}, **fault: Any
    ) -> Process:
        """Start a worker: a stand-in of the product's, which records what it does to leases."""
        return self._start_part("worker", name, settings, fault)

    def start_api(
        self, *, name: str = "api", settings: Mapping[str, str] = {}, **fault: Any
    ) -> Process:
        """Start an API."""
        return self._start_part("api", name, settings, fault)

    def start_agent(
        self,
        name: str = "",
        *,
        url: str = "",
        jobs: int = 8,
        labels: Mapping[str, str] = {},
        **fault: Any,
    ) -> Process:
        """Start an agent that registers by this name, or by a fresh one."""
        self.agent_names += not name
        name = name or f"runner-{self.agent_names}"
        url = url or f"http://127.0.0.1:{self.agent_port}"
        work_dir = self.folder / "agents" / name
        join = ("agent", "--join", url, "--token-file", str(self._token_file))
        command = (*join, "--name", name, "--work-dir", str(work_dir))
        order = {"part": "agent", "arguments": command, **fault}
        return self._open(
            name,
            _stand_in(order) if fault else (*_forgeyard(), *command),
            FORGEYARD_AGENT__JOBS=str(jobs),
            FORGEYARD_AGENT__LABELS=json.dumps(dict(labels)),
            FORGEYARD_AGENT__HEADROOM_MEMORY="0",
            FORGEYARD_AGENT__HEADROOM_DISK="0",
            FORGEYARD_AGENT__PATH=str(self.folder / "bin"),
        )

    def until_online(self, *agents: Process) -> None:
        """Wait until these agents can be given work."""
        names = {agent.name for agent in agents}
        runners = tables.runners
        online = sa.select(runners.c.name).where(runners.c.state == "online")
        until(
            lambda: names <= {row["name"] for row in self.rows(online)},
            or_say=lambda: f"not online: {names}\n{self.tails()}",
        )

    def until_offline(self, agent: Process) -> None:
        """Wait until an agent is not given work any more."""
        until(lambda: self.runner(agent.name)["state"] == "offline", or_say=self.tails)

    def until_ready(self, port: int = 0) -> None:
        """Wait until the API answers, or the one on another port."""
        url = f"http://127.0.0.1:{port or self.api_port}/readyz"

        def answers() -> bool:
            with suppress(httpx.HTTPError):
                return self.http.get(url).is_success
            return False

        until(answers, within_s=150, or_say=lambda: f"the API does not answer\n{self.tails()}")

    def end_agents(self) -> None:
        """End every agent and whatever its jobs left."""
        for name in self.agents():
            self.processes.pop(name).end(signal.SIGINT)

    def close_sessions(self) -> None:
        """Say goodbye for agents that could not, so that nothing is offered to the dead."""
        sessions = tables.sessions
        is_open = sessions.c.state == "open"
        for row in self.rows(sa.select(sessions.c.session_id).where(is_open)):
            path = f"http://127.0.0.1:{self.agent_port}/agent/v1/sessions/{row['session_id']}"
            self._send("DELETE", path).raise_for_status()

    def agents(self) -> Sequence[str]:
        """Name the agents that were started."""
        kept = ("worker", "api", "old")
        return [name for name in self.processes if not name.startswith(kept)]

    def close(self) -> None:
        """End everything."""
        self.end_agents()
        for process in self.processes.values():
            process.end(signal.SIGKILL)
        self.temporal.kill()
        self.http.close()
        self.engine.dispose()

    def _start_part(
        self, part: str, name: str, settings: Mapping[str, str], fault: Mapping[str, Any]
    ) -> Process:
        usual = {"policy": asdict(self.policy), "history": str(self.history)}
        return self._open(name, _stand_in({"part": part, **usual, **fault}), **settings)

    def _open(self, name: str, command: Sequence[str], **extra: str) -> Process:
        log = self.folder / f"{name}.log"
        environment = {**self.environment(), **extra}
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process = Process(name=name, command=command, environment=environment, log=log, popen=popen)
        self.processes[name] = process
        return process

    def environment(self) -> dict[str, str]:
        """Give a process what it needs to find the others, and nothing of this one's settings."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "FORGEYARD_DATA_DIR": str(self.folder / "data"),
            "FORGEYARD_STORE__URL": self.url,
            "FORGEYARD_TEMPORAL__ADDRESS": self.temporal.address,
            "FORGEYARD_API__PORT": str(self.api_port),
            "FORGEYARD_API__AGENT_PORT": str(self.agent_port),
            **self.settings,
        }

    @property
    def token(self) -> str:
        """Give the secret that people and agents present."""
        return self._token_file.read_text().strip()

    @property
    def history(self) -> Path:
        """Tell where every worker and API records what it does to leases."""
        return self.folder / "history"

    @property
    def _token_file(self) -> Path:
        return self.folder / "data" / "token"

    # Work

    def submit(self, *, name: str = "chaos", **jobs: Mapping[str, object]) -> str:
        """Submit a run over HTTP; return its id."""
        answer = self.offer(name=name, **jobs)
        answer.raise_for_status()
        return str(answer.json()["run_id"])

    def offer(self, *, name: str = "chaos", **jobs: Mapping[str, object]) -> httpx.Response:
        """Submit a run over HTTP, whatever the answer."""
        document = {"name": name, "jobs": {key.replace("_", "-"): job for key, job in jobs.items()}}
        return self._post("/v1/runs", {"document": document, "submitted_by": "chaos"})

    def order(self, path: str, body: Mapping[str, object]) -> None:
        """Do over HTTP what an operator does."""
        self._post(path, body).raise_for_status()

    def _post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        return self._send("POST", path, body)

    def ask(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Read over HTTP what an operator asks for, or is answered to an order."""
        answer = self._send("GET" if body is None else "POST", path, body)
        answer.raise_for_status()
        return answer.json()

    def _send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"}
        return self.http.request(method, path, json=body, headers=headers, timeout=30)

    def file(self, name: str) -> Path:
        """Name a file that jobs and tests both see."""
        path = self.folder / "shared" / name
        path.parent.mkdir(exist_ok=True)
        return path

    # What is so

    def rows(self, query: sa.Select) -> list[dict[str, Any]]:
        """Read rows."""
        with read(self.engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def has_database(self) -> bool:
        """Tell whether rows can be read."""
        try:
            self.gaps()
        except StoreUnavailable:
            return False
        return True

    def run_state(self, run_id: str) -> str:
        """Read the state of a run."""
        runs = tables.runs
        return str(self.rows(sa.select(runs.c.state).where(runs.c.run_id == run_id))[0]["state"])

    def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """Read a run's attempts with their jobs' names, oldest first."""
        attempts, jobs = tables.attempts, tables.jobs
        return self.rows(
            sa.select(attempts, jobs.c.name.label("job"))
            .join(jobs, jobs.c.job_id == attempts.c.job_id)
            .where(attempts.c.run_id == run_id)
            .order_by(jobs.c.name, attempts.c.number)
        )

    def states(self, run_id: str, job: str) -> list[str]:
        """Read how the attempts of a job stand, oldest first."""
        return [row["state"] for row in self.attempts(run_id) if row["job"] == job]

    def job_state(self, run_id: str, job: str) -> str:
        """Read the state of a job."""
        jobs = tables.jobs
        query = sa.select(jobs.c.state).where(jobs.c.run_id == run_id, jobs.c.name == job)
        return str(self.rows(query)[0]["state"])

    def leases(self, run_id: str) -> list[dict[str, Any]]:
        """Read a run's leases."""
        leases, jobs = tables.leases, tables.jobs
        return self.rows(
            sa.select(leases)
            .join(jobs, jobs.c.job_id == leases.c.job_id)
            .where(jobs.c.run_id == run_id)
            .order_by(leases.c.lease_id)
        )

    def undelivered(self, run_id: str, kind: str = "") -> list[dict[str, Any]]:
        """Read the events of a run, of one kind or of any, that the relay has not delivered."""
        ids = [row["attempt_id"] for row in self.attempts(run_id)]
        outbox = tables.outbox
        waiting = outbox.c.delivered_at.is_(None)
        rows = self.rows(sa.select(outbox).where(outbox.c.stream.in_(ids), waiting))
        return [row for row in rows if kind in ("", row["kind"])]

    def gaps(self) -> int:
        """Count the outages of ours that were bridged so far."""
        query = sa.select(sa.func.coalesce(sa.func.sum(tables.liveness.c.gaps), 0).label("gaps"))
        return int(self.rows(query)[0]["gaps"])

    def runner(self, name: str) -> dict[str, Any]:
        """Read the row of a runner."""
        (row,) = self.rows(sa.select(tables.runners).where(tables.runners.c.name == name))
        return row

    def audited(self, action: str, lease_id: str) -> list[str]:
        """Read what the audit trail says of a lease."""
        audit = tables.audit
        query = sa.select(audit.c.detail).where(
            audit.c.action == action, audit.c.target == lease_id
        )
        return [row["detail"] for row in self.rows(query)]

    def until_state(self, run_id: str, state: str, *, within_s: float = 120.0) -> None:
        """Wait until a run is in a state."""
        until(
            lambda: self.run_state(run_id) == state,
            within_s=within_s,
            or_say=lambda: f"{self.run_state(run_id)}: {self._told(run_id)}\n{self.tails()}",
        )

    def until_running(self, run_id: str, *jobs: str) -> None:
        """Wait until the newest attempts of these jobs run."""
        until(
            lambda: all(self.states(run_id, job)[-1:] == ["running"] for job in jobs),
            or_say=lambda: f"{self._told(run_id)}\n{self.tails()}",
        )

    def demand_safe(self) -> None:
        """Insist on what must hold at any moment."""
        assert not violations(self.engine, of=ALWAYS)

    def demand_rest(self, *, within_s: float = 90.0) -> None:
        """Insist that everything comes to rest, and on what must hold then."""
        until(
            lambda: not violations(self.engine, of=AT_REST),
            within_s=within_s,
            every_s=0.2,
            or_say=lambda: f"{violations(self.engine, of=AT_REST)}\n{self.tails()}",
        )
        self.demand_safe()

    def _told(self, run_id: str) -> list[tuple[object, ...]]:
        return [
            (row["job"], row["number"], row["state"], row["message"])
            for row in self.attempts(run_id)
        ]

    def story(self, lines: int = 60) -> str:
        """Give the last changes of state that SQL knows of."""
        history = tables.history
        newest = self.rows(sa.select(history).order_by(history.c.history_id.desc()).limit(lines))
        return "\n".join(
            f"{row['at']} {row['kind']} {row['entity_id']} {row['before']} → {row['after']}: "
            f"{row['reason']}"
            for row in reversed(newest)
        )

    def tails(self, lines: int = 12) -> str:
        """Give the last lines of every log."""
        told = []
        for log in sorted(self.folder.glob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-lines:]
            told.append(f"--- {log.name}\n" + "\n".join(last))
        return "\n".join(told)

    # Temporal, as an operator sees it

    def temporal_cli(self, *words: str) -> str:
        """Type a command of Temporal's own command line; return what it prints."""
        done = subprocess.run(
            (temporal_binary(), *words, "--address", self.temporal.address),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if "workflow not found" in done.stderr:
            raise LookupError(done.stderr)
        assert done.returncode == 0, f"temporal {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def terminate(self, workflow_id: str) -> None:
        """End a workflow's run as the button in the Web UI does."""
        self.temporal_cli("workflow", "terminate", "-w", workflow_id, "--reason", "chaos")

    def reset(self, workflow_id: str) -> None:
        """Throw away everything that a workflow did after its first task."""
        first, done = ("--type", "FirstWorkflowTask"), "workflowTaskCompletedEventAttributes"
        until(lambda: any(done in event for event in self.events(workflow_id)), every_s=0.3)
        self.temporal_cli("workflow", "reset", "-w", workflow_id, *first, "--reason", "chaos")

    def until_workflow(self, workflow_id: str, status: str) -> None:
        """Wait until a workflow has a status."""
        until(
            lambda: self.workflow_status(workflow_id) == status,
            every_s=0.3,
            or_say=lambda: f"{workflow_id} is not {status}\n{self.tails()}",
        )

    def timer_of(self, workflow_id: str) -> datetime | None:
        """Tell when the timer that a workflow waits for fires, if it waits for one."""
        pending: dict[str, datetime] = {}
        for event in self.events(workflow_id):
            if started := event.get("timerStartedEventAttributes"):
                after = timedelta(seconds=float(started["startToFireTimeout"].removesuffix("s")))
                pending[started["timerId"]] = datetime.fromisoformat(event["eventTime"]) + after
            for key in ("timerFiredEventAttributes", "timerCanceledEventAttributes"):
                pending.pop(event.get(key, {}).get("timerId"), None)
        return max(pending.values(), default=None)

    def newest_cycle(self) -> str:
        """Name the workflow of the cycle that the loop started last."""
        key = "startChildWorkflowExecutionInitiatedEventAttributes"
        loop = self.events(contracts.loop_workflow_id("default"))
        return str([event[key]["workflowId"] for event in loop if key in event][-1])

    def events(self, workflow_id: str) -> list[dict[str, Any]]:
        """Read the history of a workflow's newest run."""
        shown = self.temporal_cli("workflow", "show", "-w", workflow_id, "--output", "json")
        return list(json.loads(shown)["events"])

    def workflow_status(self, workflow_id: str) -> str:
        """Ask how a workflow's newest run stands, such as RUNNING or COMPLETED; or ABSENT."""
        try:
            told = self.temporal_cli("workflow", "describe", "-w", workflow_id, "--output", "json")
        except LookupError:
            return "ABSENT"
        info = json.loads(told)["workflowExecutionInfo"]
        return str(info["status"]).removeprefix("WORKFLOW_EXECUTION_STATUS_")


def waits_for(gate: Path, *, say: str = "true", within_s: int = 90) -> str:
    """Write a script that ends when a file is there, or by itself after a while."""
    tries = 10 * within_s
    return (
        f"{say}\ni=0\n"
        f"while [ ! -e {gate} ] && [ $i -lt {tries} ]; do sleep 0.1; i=$((i+1)); done\n"
        f"[ -e {gate} ]"
    )


def a_job(script: str, **more: object) -> dict[str, object]:
    """Describe a small job in the words of a run file."""
    return {"resources": SMALL, "steps": [{"run": script}], "retry": {"max-attempts": 8}, **more}


FAILS_ONCE: Final = a_job(
    "[ $FORGEYARD_ATTEMPT -ge 2 ]", retry={"max-attempts": 2, "on": ["user_command"]}
)


def works_until(gate: Path, beat: Path) -> str:
    """Write a script that touches a file of its attempt ten times a second until another is there.

    `BEAT-N.began` tells when attempt N began, `BEAT-N` when it was last at work.
    """
    mine = f"{beat}-$FORGEYARD_ATTEMPT"
    return (
        f"touch {mine} {mine}.began\ni=0\n"
        f"while [ ! -e {gate} ] && [ $i -lt 900 ]; do touch {mine}; sleep 0.1; i=$((i+1)); done"
    )


def lives(pid: int) -> bool:
    """Tell whether a process can still do anything."""
    return is_alive(pid)


@contextmanager
def running(plant: Plant) -> Iterator[Plant]:
    """Start a plant, and end it whatever happens."""
    try:
        plant.heal()
        yield plant
    finally:
        plant.close()


def _stand_in(order: Mapping[str, Any]) -> tuple[str, ...]:
    return (sys.executable, str(Path(standin.__file__)), json.dumps(order))


def _forgeyard() -> tuple[str, ...]:
    return (sys.executable, "-m", "forgeyard.cli.main")
