"""What a renewal costs: written with others, written alone, and not written at all.

    python -m benchmarks.renewals [--quick]

The real agent API runs in a process of its own over PostgreSQL with fsync; asyncio clients renew
over HTTP as agents do. Costs are CPU seconds of API and PostgreSQL together, read from /proc. A
request that names no lease takes the same way and touches no store: it is the no-op. Prints a table
to stderr, one JSON object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import sqlalchemy as sa

from benchmarks.measures import Goal, at_least, at_most, stopwatch
from forgeyard.config import Config, StoreConfig
from forgeyard.model.ids import LeaseId, SessionId
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Renew, Renewal
from forgeyard.store import bulk, codec, leases, migrate, tables
from forgeyard.store.engine import database_now, open_engine, write
from forgeyard.store.renewals import renew_together
from tests.builders import a_job_spec, some_resources
from tests.conftest import start_postgresql, stop_postgresql
from tests.leasing import Desk

POLICY = SchedulingPolicy()
AGENTS, CONNECTIONS = 1_000, 50
TICK = os.sysconf("SC_CLK_TCK")
SERVER = """
import asyncio, sys
from forgeyard import config
from forgeyard.api import batches
from forgeyard.api.serve import serve
if sys.argv[1] == "alone":
    # As many transactions as renewals, as it was before they were written together.
    pace = batches.Batches.__init__.__kwdefaults__
    pace["most"], pace["pace_s"] = 1, 0.0
def listening(at):
    print(at.agent_url, flush=True)
asyncio.run(serve(config.load(), asyncio.Event(), listening=listening))
"""
Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Api:
    """A running API: where agents reach it, and the processes whose time it takes."""

    url: str
    token: str
    pid: int
    postgresql: int

    def cpu_s(self) -> float:
        """Read the CPU seconds that it and PostgreSQL have used so far."""
        return _cpu_s(self.pid) + sum(_cpu_s(pid) for pid in _family(self.postgresql))


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.renewals")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    requests = 2_000 if parser.parse_args().quick else 20_000
    directory = Path(tempfile.mkdtemp(prefix="forgeyard-renewals-"))
    server = start_postgresql(str(directory / "data"))
    try:
        figures = _measured(server.get_uri(), directory, requests)
    finally:
        stop_postgresql(server)
        shutil.rmtree(directory, ignore_errors=True)
    goals = _goals(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "renewals",
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def _measured(url: str, directory: Path, requests: int) -> Figures:
    engine = open_engine(url, StoreConfig())
    migrate.upgrade(engine)
    bodies = _agents(engine)
    postgresql = int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])
    figures = _in_the_store(engine, bodies)
    for way, share in (("together", 1), ("alone", 4)):
        with _served(way, url, directory, postgresql) as api:
            asyncio.run(_loaded(api, bodies, requests // 10))  # everything is compiled by then
            figures |= _load(way, api, bodies, requests // share)
            if way == "together":
                empty = [Renew(session_id=SessionId("ses_x"), leases=())]
                figures |= _load("noop", api, empty, requests)
    engine.dispose()
    return figures


def _agents(engine: sa.Engine) -> list[Renew]:
    """Make agents with one running job each."""
    desk = Desk(engine)
    wide = some_resources(cpu=10**9, memory=2**55, disk=2**55, slots=10**6)
    registered = desk.register("template", total=wide)
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(AGENTS)))
    while desk.cycle().granted:
        pass
    with write(engine) as connection:
        now = database_now(connection)
        # On a busy machine a round may take longer than any lease would live.
        active = {"state": "active", "accepted_at": now, "grace_ms": 86_400_000}
        connection.execute(sa.update(tables.leases).values(active))
        held = list(connection.execute(sa.select(tables.leases.c.lease_id)).scalars())
        sessions = [
            {
                "session_id": f"ses_bench_{number}",
                "runner_id": registered.runner_id,
                "state": "open",
                "opened_at": now,
                "last_seen_at": now,
            }
            for number in range(len(held))
        ]
        bulk.insert(connection, tables.sessions, sessions)
        owners = [
            {"lease_id": lease_id, "session_id": f"ses_bench_{number}"}
            for number, lease_id in enumerate(held)
        ]
        bulk.update(connection, tables.leases, owners, keys=("lease_id",))
    return [
        Renew(
            session_id=SessionId(row["session_id"]),
            leases=(Renewal(lease_id=LeaseId(row["lease_id"]), epoch=1),),
        )
        for row in owners
    ]


def _in_the_store(engine: sa.Engine, bodies: Sequence[Renew]) -> Figures:
    """Measure the set-based statement by itself, and the one for a single agent."""
    elapsed, rounds = stopwatch(), 10
    for _ in range(rounds):
        with write(engine) as connection:
            answers = renew_together(connection, bodies, policy=POLICY.lease)
    assert all(answer is not None for answer in answers)
    together = rounds * len(bodies) / elapsed()
    elapsed = stopwatch()
    for body in bodies[:200]:
        with write(engine) as connection:
            leases.renew(connection, body, policy=POLICY.lease)
    return {"store_rows_per_s": together, "store_alone_per_s": 200 / elapsed()}


@contextmanager
def _served(way: str, url: str, directory: Path, postgresql: int) -> Generator[Api]:
    environment = {
        **os.environ,
        "FORGEYARD_DATA_DIR": str(directory / way),
        "FORGEYARD_STORE__URL": url,
        "FORGEYARD_API__PORT": "0",
        "FORGEYARD_API__AGENT_PORT": "0",
    }
    (directory / way).mkdir()
    process = subprocess.Popen(
        (sys.executable, "-c", SERVER, way), env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        token = Config(data_dir=directory / way).token_path().read_text().strip()
        yield Api(url=address, token=token, pid=process.pid, postgresql=postgresql)
    finally:
        process.kill()
        process.wait()


def _load(way: str, api: Api, bodies: Sequence[Renew], requests: int) -> Figures:
    began, elapsed = api.cpu_s(), stopwatch()
    asyncio.run(_loaded(api, bodies, requests))
    spent, took = api.cpu_s() - began, elapsed()
    return {f"{way}_cpu_ms": 1000 * spent / requests, f"{way}_per_s": requests / took}


async def _loaded(api: Api, bodies: Sequence[Renew], requests: int) -> None:
    """Send so many requests over a few connections, each as soon as the one before is answered."""
    encoded = [codec.encode(body) for body in bodies]
    numbers = iter(range(requests))
    headers = {"authorization": f"Bearer {api.token}", "content-type": "application/json"}
    limits = httpx.Limits(max_connections=CONNECTIONS)

    async with httpx.AsyncClient(
        base_url=api.url, headers=headers, limits=limits, timeout=60, trust_env=False
    ) as client:

        async def one_connection() -> None:
            for number in numbers:
                body = encoded[number % len(encoded)]
                answer = await client.post("/agent/v1/renewals", content=body)
                verdicts = [one["verdict"] for one in answer.json()["leases"]]
                assert verdicts in (["renewed"], []), answer.text

        await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Of itself, and of its children that have ended.
    return sum(int(field) for field in fields[11:15]) / TICK


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


def _goals(figures: Figures) -> Sequence[Goal]:
    agents = 10_000 / figures["together_cpu_ms"]
    return (
        at_most("CPU-ms per renewal, API + PostgreSQL", figures["together_cpu_ms"], 1.0),
        at_least("agents at 10 s per core", agents, 10_000),
        at_least(
            "alone ÷ together, CPU", figures["alone_cpu_ms"] / figures["together_cpu_ms"], 1.5
        ),
        at_most("together ÷ no-op, CPU", figures["together_cpu_ms"] / figures["noop_cpu_ms"], 2.0),
        at_least(
            "set-based ÷ one by one in the store",
            figures["store_rows_per_s"] / figures["store_alone_per_s"],
            20,
        ),
    )


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<40}{value:>12.2f}", file=sys.stderr)
    for goal in goals:
        print(
            f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<44}{goal.value:>10.2f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
