"""Three runners elsewhere work on one run, and one of them leaves in the middle of it."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.connection import connect
from forgeyard import clock
from forgeyard.api import serve as api
from forgeyard.config import ApiConfig, Config, StoreConfig, TemporalConfig
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from forgeyard.store import tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import open_engine
from forgeyard.trust.authority import Authority
from tests.acceptance.conftest import Forgeyard
from tests.integration.temporal.server import Server
from tests.networks import OtherHost, other_hosts
from worker import main as worker
from worker.wiring import Parts, register_search_attributes

pytestmark = pytest.mark.integration

HOSTS = ("one", "two", "three")
JOBS = 12
SECONDS = 4
UI = "http://127.0.0.1:1"
QUICK = SchedulingPolicy(
    lease=LeasePolicy(
        offer_ttl=Millis(8_000),
        execution_ttl=Millis(8_000),
        renew_every=Millis(2_000),
        connectivity_grace=Millis(2_000),
        longest_back_off=Millis(1_000),
        deadline_slack=Millis(2_000),
        settle_within=Millis(1_000),
        session_silence=Millis(8_000),
    ),
    sweep=SweepPolicy(period=Millis(500), outbox_age=Millis(1_000)),
)
"""Deadlines short enough to wait for; the shipped ones are a minute."""


def a_run() -> str:
    """Write twelve jobs that each leave something, and one that needs all of it."""
    small = {"resources": {"cpu": "50m", "memory": "16Mi", "disk": "16Mi"}}
    parts = {
        f"part-{n}": {
            **small,
            "steps": [{"run": f"sleep {SECONDS}; echo {n} > part-{n}.txt"}],
            "outputs": {"part": f"part-{n}.txt"},
            "retry": {"delay": "0s"},
        }
        for n in range(JOBS)
    }
    count = {"run": f'test "$(cat part-*.txt | sort -n | uniq | wc -l)" -eq {JOBS}'}
    return json.dumps({"jobs": {**parts, "sum": {**small, "needs": [*parts], "steps": [count]}}})


def _agent(
    host: OtherHost, home: Path, url: str, invited: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start an agent that knows nothing but URL, its token and the pin."""
    home.mkdir()
    (home / "token").write_text(invited["token"])
    command = host.command(
        *(sys.executable, "-m", "forgeyard.cli.main", "agent", "--join", url, "--jobs", "2"),
        *("--enrol-token-file", str(home / "token"), "--ca-pin", invited["pin"]),
        *("--work-dir", str(home / "work")),
    )
    with (home / "agent.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=home, env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log
        )


@pytest.fixture
def hosts() -> Iterator[list[OtherHost]]:
    """Make three, of which each reaches the first one's end of its cable."""
    with other_hosts(len(HOSTS)) as made:
        yield made


@pytest.fixture
def temporal() -> Iterator[Server]:
    """Run a Temporal server in memory."""
    server = Server()
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def a_system(
    folder: Path, *, database: str, temporal: Server, host: str
) -> AsyncIterator[tuple[Forgeyard, str]]:
    """Run API and worker under quick deadlines; give a command line and the agents' URL."""
    config = Config(
        data_dir=folder / "data",
        store=StoreConfig(url=database),
        api=ApiConfig(port=0, agent_host=host, agent_port=0, agent_identity="certificate"),
        temporal=TemporalConfig(address=temporal.address),
    )
    config.data_dir.mkdir(mode=0o700)
    authority = Authority(config.authority_dir())
    authority.create("forgeyard.internal", now=clock.now())
    authority.server([host], now=clock.now())
    client = await connect(config.temporal)
    await register_search_attributes(client)
    engine = open_engine(database, config.store)
    parts = Parts(
        engine=engine,
        policy=QUICK,
        blobs=FileBlobStore(config.blob_dir()),
        task_queue=contracts.TASK_QUEUE,
        upkeep_check_s=0.5,
    )
    stop, heard = asyncio.Event(), asyncio.Queue[api.Listening]()
    running = [
        asyncio.create_task(
            api.serve(config, stop, client=client, policy=QUICK, listening=heard.put_nowait)
        ),
        asyncio.create_task(worker.serve(client, config.partition, parts, stop)),
    ]
    try:
        urls = await asyncio.wait_for(heard.get(), 20)
        known = {"api_url": urls.api_url, "agent_url": urls.agent_url, "ui_url": UI}
        (config.data_dir / "endpoints.json").write_text(json.dumps(known))
        yield Forgeyard(home=folder), urls.agent_url
    finally:
        stop.set()
        await asyncio.gather(*running)
        engine.dispose()


async def _invited(yard: Forgeyard, name: str) -> dict[str, str]:
    words = ("runner", "invite", name, "--trust", "trusted_internal", "--reason", "a test")
    answer = await asyncio.to_thread(yard.type, *words, "--json")
    found: dict[str, str] = answer.ok().json()
    return found


async def _until_placed(database: str, runner: str) -> None:
    """Wait until a job runs there; looked up where it is written, as a job lasts but seconds."""
    attempts, runners = tables.attempts, tables.runners
    query = sa.select(runners.c.name, attempts.c.state).join_from(
        attempts, runners, attempts.c.runner_id == runners.c.runner_id
    )
    engine, deadline = sa.create_engine(database), time.monotonic() + 60
    seen: list[tuple[object, ...]] = []
    while (runner, "running") not in seen:
        assert time.monotonic() < deadline, f"nothing runs on {runner}: {seen}"
        await asyncio.sleep(0.05)
        with engine.connect() as connection:
            seen = [tuple(row) for row in connection.execute(query)]
    engine.dispose()


async def _until_states(yard: Forgeyard, wanted: dict[str, str]) -> None:
    """Wait until the runners stand so: the run may end before a silent one is given up."""
    deadline = time.monotonic() + 30
    states: dict[str, str] = {}
    while states != wanted:
        assert time.monotonic() < deadline, states
        listed = (await asyncio.to_thread(yard.type, "runner", "list", "--json")).ok().json()
        states = {runner["name"]: runner["state"] for runner in listed}


@pytest.mark.requirement("PRI-025")
@pytest.mark.parametrize("leaves", ["crashed", "drained"])
async def test_a_run_outlives_a_runner_that_leaves(
    leaves: str,
    hosts: list[OtherHost],
    temporal: Server,
    postgresql_url: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    system = a_system(tmp_path, database=postgresql_url, temporal=temporal, host=hosts[0].here)
    async with system as (yard, url):
        agents = [
            _agent(host, tmp_path / name, url, await _invited(yard, name))
            for name, host in zip(HOSTS, hosts, strict=True)
        ]
        try:
            await _until_states(yard, dict.fromkeys(HOSTS, "online"))
            (tmp_path / "run.yaml").write_text(a_run())
            submitted = ("run", "submit", "run.yaml", "--no-source", "--json")
            run_id = (await asyncio.to_thread(yard.type, *submitted)).ok().json()["run_id"]
            await _until_placed(postgresql_url, "two")
            left_at = time.time() * 1000
            if leaves == "crashed":
                hosts[1].crash()
            else:
                agents[1].send_signal(signal.SIGTERM)
            watched = ("run", "watch", run_id, "--timeout", "60s", "--json")
            run = (await asyncio.to_thread(yard.type, *watched)).ok().json()
            await _until_states(yard, {"one": "online", "two": "offline", "three": "online"})
        finally:
            for agent in agents:
                agent.terminate()
            ends = await asyncio.gather(*(asyncio.to_thread(agent.wait, 30) for agent in agents))
    assert run["state"] == "succeeded"
    attempts = [attempt for job in run["jobs"] for attempt in job["attempts"]]
    lost = [attempt for attempt in attempts if attempt["state"] == "lost"]
    again = [attempt for attempt in attempts if attempt["number"] > 1]
    assert {attempt["runner"] for attempt in attempts} == set(HOSTS)
    assert {len(job["outputs"]) for job in run["jobs"][:JOBS]} == {1}
    record_property("attempts lost", len(lost))
    if leaves == "drained":
        assert (lost, again, ends) == ([], [], [0, 0, 0])
        return
    assert lost
    assert {attempt["runner"] for attempt in lost} == {"two"}
    assert {attempt["failure_class"] for attempt in lost} == {"runner_lost"}
    assert len(again) == len(lost)
    assert {attempt["runner"] for attempt in again} <= {"one", "three"}
    waited = max(attempt["started_at"] for attempt in again) - left_at
    record_property("seconds until the last of them ran again", round(waited / 1000, 1))
