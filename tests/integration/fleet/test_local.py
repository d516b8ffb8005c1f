"""Local machines: found again after any crash, ended for good, and with nothing left behind."""

import asyncio
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard import config
from forgeyard.errors import InvalidSpec, Unavailable
from forgeyard.fleet.ports import Bootstrap, CheckLevel, ProvisionRequest
from forgeyard.model.capability import TrustClass
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import CapacityClass, IsolationClass, Market, Offering
from forgeyard.model.units import GIB, Bytes, MilliCpu, Resources
from forgeyard.store import tables
from providers import local
from providers.local import REMEMBERED_MS, START_WITHIN_MS, LocalProvider, Starter
from tests.fleet.requests import OURS, a_request, sought
from tests.integration.agent.control import TOKEN, a_control
from tests.integration.agent.scripts import eventually, is_alive
from tests.integration.contract.benches import LocalBench, now_ms, running, state_of
from tests.serving import config_of, make_authority, served

pytestmark = pytest.mark.integration
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(600)
"""
ROOT = Path(__file__).parents[3]
CRASH = """
import os, sys
from pathlib import Path
from providers import records
from tests.integration.contract.benches import LocalBench
from tests.fleet.requests import a_request

write, times = records.Shelf.write, []

def dying(self, record):
    times.append(1)
    if len(times) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    write(self, record)

records.Shelf.write = dying
LocalBench(Path(sys.argv[1])).provider.provision(a_request())
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalBench]:
    """Keep machines in a directory of the test's own."""
    made = LocalBench(tmp_path / "machines")
    try:
        yield made
    finally:
        made.close()


def crash(bench: LocalBench, write: int) -> None:
    """Provision in another process, which is killed in place of its n-th record."""
    command = (sys.executable, "-c", CRASH, str(bench.folder), str(write))
    done = subprocess.run(command, env=config.child_environment(PYTHONPATH=str(ROOT)), check=False)
    assert done.returncode == -signal.SIGKILL


def pid_of(bench: LocalBench) -> int:
    (process,) = bench.processes()
    return process.pid


def record_of(bench: LocalBench) -> Path:
    return bench.folder / a_request().operation_key / "record.json"


def change_record(bench: LocalBench, **fields: object) -> None:
    record = json.loads(record_of(bench).read_text())
    record_of(bench).write_text(json.dumps({**record, **fields}))


# Crashes


@pytest.mark.requirement("PRV-002", "PRV-004")
def test_a_worker_that_dies_between_start_and_record_leaves_one_machine(bench: LocalBench) -> None:
    """F2 of the fault scenarios: killed after the create, before it was recorded."""
    crash(bench, write=2)
    pid = pid_of(bench)
    assert json.loads(record_of(bench).read_text())["pid"] == 0
    assert state_of(bench, a_request()) is MachineState.RUNNING
    bench.provider.provision(a_request())
    assert pid_of(bench) == pid


def test_a_worker_that_dies_before_the_start_is_followed_by_one_that_starts(
    bench: LocalBench,
) -> None:
    crash(bench, write=1)
    assert bench.processes() == []
    assert state_of(bench, a_request()) is None
    running(bench, a_request())


def test_what_was_recorded_and_never_started_is_gone_after_a_while_and_for_good(
    bench: LocalBench,
) -> None:
    made = LocalProvider(bench.folder, bench.starter, now=lambda: 1_000)
    crash(bench, write=2)
    os.kill(pid_of(bench), signal.SIGKILL)
    change_record(bench, created_at=1_000)
    bench.until(lambda: not bench.processes())
    found = made.inspect(sought(a_request()))
    assert found is not None
    assert found.state is MachineState.PENDING
    later = LocalProvider(bench.folder, bench.starter, now=lambda: 1_000 + START_WITHIN_MS)
    found = later.inspect(sought(a_request()))
    assert found is not None
    assert (found.state, found.detail) == (MachineState.GONE, "it was never started")


def test_a_machine_outlives_its_worker_and_another_one_ends_it(bench: LocalBench) -> None:
    request = a_request()
    command = (sys.executable, "-c", CRASH, str(bench.folder), "0")
    subprocess.run(command, env=config.child_environment(PYTHONPATH=str(ROOT)), check=True)
    pid = pid_of(bench)
    assert os.getsid(pid) == pid != os.getsid(0)
    other = bench.another()
    assert other.list_machines(OURS).machines[0].state is MachineState.RUNNING
    other.terminate(sought(request))
    bench.until(lambda: state_of(bench, request) is MachineState.GONE)
    assert not is_alive(pid)


def test_a_number_that_another_process_got_is_not_the_machine(bench: LocalBench) -> None:
    running(bench, a_request())
    pid = pid_of(bench)
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: not is_alive(pid))
    stranger = subprocess.Popen(("sleep", "60"), start_new_session=True)
    try:
        change_record(bench, pid=stranger.pid)
        assert state_of(bench, a_request()) is MachineState.GONE
        bench.provider.terminate(sought(a_request()))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_no_zombie_is_left_of_machines_that_ended(bench: LocalBench) -> None:
    running(bench, a_request())
    pid = pid_of(bench)
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: state_of(bench, a_request()) is MachineState.GONE)
    bench.until(lambda: state_of(bench, a_request()) is not None and not _exists(pid))


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# Ends


def test_terminate_returns_at_once_and_a_stubborn_machine_is_killed_after_its_graces(
    bench: LocalBench,
) -> None:
    time_ms = [now_ms()]
    starter = replace(bench.starter, command=(sys.executable, "-c", STUBBORN, "agent"))
    provider = LocalProvider(bench.folder, starter, now=lambda: time_ms[0])
    provider.provision(a_request())
    pid = pid_of(bench)
    bench.until(lambda: _ignores(pid, signal.SIGTERM) and _ignores(pid, signal.SIGINT))
    provider.terminate(sought(a_request()))
    for _ in range(2):
        found = provider.inspect(sought(a_request()))
        assert found is not None
        assert found.state is MachineState.STOPPING
        assert is_alive(pid)
        time_ms[0] += starter.grace_ms
    provider.terminate(sought(a_request()))
    provider.inspect(sought(a_request()))
    bench.until(lambda: not is_alive(pid))


def _ignores(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
    return bool(mask >> (number - 1) & 1)


def test_the_jobs_and_files_of_a_killed_agent_go_with_it(bench: LocalBench) -> None:
    running(bench, a_request())
    work = bench.folder / a_request().operation_key / "work"
    locked = work / "jobs" / "1" / "home"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0o500)
    job = subprocess.Popen(("sleep", "600"), env={"HOME": str(locked)}, start_new_session=True)
    bystander = subprocess.Popen(("sleep", "600"), env={"HOME": "/", "PWD": str(locked)})
    try:
        os.kill(pid_of(bench), signal.SIGKILL)
        bench.until(lambda: state_of(bench, a_request()) is MachineState.GONE)
        assert job.wait(20) == -signal.SIGKILL
        assert bystander.poll() is None
        assert not work.exists()
    finally:
        for process in (job, bystander):
            process.kill()
            process.wait()


def test_a_machine_that_ended_by_itself_is_gone_and_says_its_last_words(bench: LocalBench) -> None:
    starter = replace(bench.starter, command=("/bin/sh", "-c", "echo no such server >&2; exit 5"))
    provider = LocalProvider(bench.folder, starter, now=now_ms)
    provider.provision(a_request())

    def is_gone() -> bool:
        found = provider.inspect(sought(a_request()))
        return found is not None and found.state is MachineState.GONE

    bench.until(is_gone)
    found = provider.inspect(sought(a_request()))
    assert found is not None
    assert found.detail == "its process ended: no such server"
    later = LocalProvider(bench.folder, starter, now=lambda: now_ms() + REMEMBERED_MS + 1)
    assert later.list_machines(OURS).machines == ()
    assert not record_of(bench).parent.exists()


def announce(bench: LocalBench, text: str) -> None:
    """Write, as an operator does, when the machine is taken away."""
    (record_of(bench).parent / "interruption").write_text(text)


@pytest.mark.requirement("SPT-009")
def test_an_operator_has_a_machine_taken_away_with_notice_and_whatever_runs_there_goes_too(
    bench: LocalBench,
) -> None:
    starter = replace(bench.starter, command=(sys.executable, "-c", STUBBORN))
    patient = LocalProvider(bench.folder, starter, now=now_ms)
    request = a_request()
    patient.provision(request)
    assert patient.interruptions() == ()
    leaves_at = now_ms() // 1000 + 3
    announce(bench, f"{leaves_at}\n")
    (told,) = patient.interruptions()
    assert (told.ref, told.at, told.is_final) == (request.operation_key, 1000 * leaves_at, True)
    assert state_of(bench, request) is MachineState.RUNNING
    later = LocalProvider(bench.folder, starter, now=lambda: 1000 * leaves_at)

    def is_gone() -> bool:
        found = later.inspect(sought(request))
        return found is not None and found.state is MachineState.GONE

    bench.until(is_gone)
    assert bench.processes() == []
    found = later.inspect(sought(request))
    assert found is not None
    assert found.detail.startswith("it was taken away")


def test_an_announcement_that_says_nothing_readable_says_nothing(bench: LocalBench) -> None:
    running(bench, a_request())
    for text in ("", "soon", "-5", "1e9", "99999999999999999999"):
        announce(bench, text)
        assert all(one.at and one.at > now_ms() for one in bench.provider.interruptions()), text
        assert state_of(bench, a_request()) is MachineState.RUNNING


# What it is asked


def test_a_machine_that_needs_more_than_a_process_is_refused(bench: LocalBench) -> None:
    request = a_request(capacity=CapacityClass(isolation=IsolationClass.VM))
    with pytest.raises(InvalidSpec, match="nothing stands between"):
        bench.provider.provision(request)
    request = a_request(offering=Offering(name="x", settings={"secrets_file": "/etc/shadow"}))
    with pytest.raises(InvalidSpec, match="no such setting"):
        bench.provider.provision(request)
    with pytest.raises(InvalidSpec, match="name a directory"):
        bench.provider.provision(a_request(operation_key="../../etc"))
    assert bench.processes() == []


def test_a_command_that_cannot_be_run_is_an_error_for_later_and_found_by_the_doctor(
    bench: LocalBench,
) -> None:
    provider = LocalProvider(
        bench.folder, replace(bench.starter, command=("/nowhere/agent",)), now=now_ms
    )
    with pytest.raises(Unavailable, match="No such file"):
        provider.provision(a_request())
    levels = {check.name: check.level for check in provider.check(())}
    assert levels["agent"] is CheckLevel.FAILED
    assert levels["records"] is CheckLevel.OK


def test_a_record_that_cannot_be_read_makes_a_listing_incomplete(bench: LocalBench) -> None:
    running(bench, a_request())
    text = record_of(bench).read_text()
    record_of(bench).write_text(text[: len(text) // 2])
    assert not bench.provider.list_machines(OURS).complete
    levels = {check.name: check.level for check in bench.provider.check(())}
    assert levels["records"] is CheckLevel.FAILED


def test_the_token_lies_in_a_file_that_only_we_can_read_and_nowhere_else(
    bench: LocalBench,
) -> None:
    token = "fye1.very-secret-token"
    bench.provider.provision(
        a_request(bootstrap=Bootstrap(url="https://ci:8701", token=token, pin="sha256/x"))
    )
    folder = record_of(bench).parent
    file = folder / "enrolment-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert token not in record_of(bench).read_text()
    process = Path(f"/proc/{pid_of(bench)}")
    assert token.encode() not in (process / "environ").read_bytes()
    line = (process / "cmdline").read_bytes().split(b"\0")
    assert token.encode() not in line
    assert line[line.index(b"--enrol-token-file") + 1] == str(file).encode()
    assert line[line.index(b"--ca-pin") + 1] == b"sha256/x"


# A real agent


def real(bench: LocalBench, folder: Path, **changed: object) -> LocalProvider:
    """Make a provider whose machines are what they are in production."""
    starter = Starter(
        command=(sys.executable, "-m", "forgeyard.cli.main", "agent"),
        environment=config.child_environment(
            FORGEYARD_DATA_DIR=str(folder / "data"),
            FORGEYARD_AGENT='{"jobs": 3, "labels": {"zone.y": "b"}}',
        ),
        grace_ms=60_000,
    )
    return LocalProvider(bench.folder, replace(starter, **changed), now=now_ms)


async def ended(provider: LocalProvider, request: ProvisionRequest) -> None:
    """End a machine and wait until it is gone."""
    await asyncio.to_thread(provider.terminate, sought(request))

    def is_gone() -> bool:
        found = provider.inspect(sought(request))
        return found is not None and found.state is MachineState.GONE

    await eventually(is_gone, within=60, every=0.1)


async def test_a_real_agent_comes_up_as_its_class_promises_and_goes_when_it_is_told_to(
    sqlite_engine: sa.Engine, tmp_path: Path, bench: LocalBench
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    size = Resources(cpu=MilliCpu(500), memory=Bytes(GIB // 4), disk=Bytes(GIB), slots=1)
    capacity = CapacityClass(
        resources=size, labels={"zone.x": "a"}, trust=TrustClass.TRUSTED_INTERNAL
    )
    offering = Offering(name="o", market=Market.PREEMPTIBLE, settings={"local_cache": "64Mi"})
    provider = real(bench, tmp_path, token_file=token_file)
    async with a_control(sqlite_engine, tmp_path) as control, control.listening():
        request = a_request(
            capacity=capacity, offering=offering, bootstrap=Bootstrap(url=control.url)
        )
        await asyncio.to_thread(provider.provision, request)

        def is_online() -> bool:
            return bool(control.rows(tables.runners, name=request.runner_name, state="online"))

        await eventually(is_online, within=120)
        (runner,) = control.rows(tables.runners)
        for name in ("cpu_milli", "memory_bytes", "disk_bytes"):
            promised = getattr(size, name.partition("_")[0])
            assert runner[f"total_{name}"] - runner[f"headroom_{name}"] == promised
        assert runner["total_slots"] == 1
        for word in ("zone.x", "zone.y", "preemptible", TrustClass.TRUSTED_INTERNAL):
            assert word in runner["capabilities"]
        await ended(provider, request)
    assert not (bench.folder / request.operation_key / "work").exists()


@pytest.mark.requirement("PRI-055")
async def test_a_machine_with_a_token_enrols_by_itself_and_is_admitted(
    sqlite_engine: sa.Engine, tmp_path: Path, bench: LocalBench
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    make_authority(folder)
    url = sqlite_engine.url.render_as_string(hide_password=False)
    provider = real(bench, tmp_path)
    async with served(config_of(folder, url), sqlite_engine) as place:
        wish = {"runner_name": a_request().runner_name, "reason": "a test"}
        made = (await place.people.post("/v1/enrolments", json=wish)).json()
        home = Bootstrap(url=place.url, token=made["token"], pin=made["pin"])
        request = a_request(bootstrap=home)
        await asyncio.to_thread(provider.provision, request)

        def is_admitted() -> bool:
            with sqlite_engine.connect() as connection:
                found = connection.execute(sa.select(tables.runners)).mappings().one_or_none()
            return found is not None and found["admission"] == "verified"

        await eventually(is_admitted, within=120)
        await ended(provider, request)
    assert sorted(os.listdir(bench.folder / request.operation_key)) == ["agent.log", "record.json"]


def test_a_worker_that_froze_with_the_lock_of_the_host_holds_up_the_others_for_a_while_only(
    bench: LocalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOCK_TRIES", 3)
    with (bench.folder / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match=r"has held .*lock for too long"):
            bench.provider.list_machines(OURS)
    assert bench.provider.list_machines(OURS).complete
