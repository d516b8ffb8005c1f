"""A step runs in a clean place, within its time and its lease, and its output arrives."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forgeyard.agent.cell import Cell
from forgeyard.agent.lease import Interrupted, StopReason
from forgeyard.agent.logs import LogChunk, LogStream
from forgeyard.agent.masking import Masker
from forgeyard.agent.process import GroupId
from forgeyard.agent.steps import Bench, StepRun, environment, run_step
from forgeyard.agent.usage import Meter, Sampler
from forgeyard.agent.workspace import Folders, folders_of
from forgeyard.model.job import Step
from forgeyard.model.run import GitSource
from forgeyard.model.units import Millis
from tests.builders import a_job_spec
from tests.integration.agent.scripts import PATH, eventually, is_alive, number_in
from tests.unit.agent.deals import LEASE_ID, Watch, a_held_lease, an_offer

pytestmark = pytest.mark.integration


@dataclass(kw_only=True)
class Yard:
    """A bench, what was logged on it, and what was started."""

    bench: Bench
    watch: Watch
    chunks: list[LogChunk]
    started: list[GroupId]
    sending: "asyncio.Task[None]"
    folders: Folders
    server_answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, script: str, *, shell: str = "sh", within: float = 30.0) -> StepRun:
        """Run one step."""
        until = self.watch() + within
        return await run_step(Step(name="step", run=script, shell=shell), self.bench, until=until)

    async def output(self) -> str:
        """End the log and read it."""
        await self.bench.logs.close()
        await self.sending
        return b"".join(chunk.data for chunk in self.chunks).decode()

    def file(self, name: str) -> Path:
        """Name a file of the workspace."""
        return self.folders.workspace / name


class RealTime(Watch):
    """A clock that runs, and that a test can move forward."""

    def __call__(self) -> float:
        """Read it."""
        return time.monotonic() + self.at


@asynccontextmanager
async def a_yard(
    folder: Path, *, secret: str = "", limit: int = 2**22, cell: Cell | None = None
) -> AsyncIterator[Yard]:
    """Set up a bench with a lease that holds for an hour; a cell brings its own directories."""
    watch = RealTime(0.0)
    held = a_held_lease(
        watch,
        spec=a_job_spec(env={"GREETING": "hi"}, secrets=("SECRET",) if secret else ()),
    )
    held.acknowledged(sent_at=watch(), ttl=Millis(3_600_000))
    folders = Folders(root=folder / "job") if cell is None else cell.folders
    folders.make()
    if cell is not None:
        cell.open()
    chunks: list[LogChunk] = []
    started: list[GroupId] = []
    answers = asyncio.Event()
    answers.set()

    async def take(chunk: LogChunk) -> None:
        await answers.wait()
        chunks.append(chunk)

    logs = LogStream(take, masker=Masker([secret] if secret else []), limit=limit)
    secrets = {"SECRET": secret, "OTHER": "not asked for"}
    bench = Bench(
        accepted=watch(),
        held=held,
        folders=folders,
        env=environment(
            held.offer, folders, passed={"LANG": "C.UTF-8"}, path=PATH, secrets=secrets, devices={}
        ),
        logs=logs,
        meter=Meter(),
        sampler=Sampler(),
        started=started.append,
        kill_after=0.5,
        cell=cell,
    )
    yard = Yard(
        bench=bench,
        watch=watch,
        chunks=chunks,
        started=started,
        sending=asyncio.create_task(logs.run()),
        folders=folders,
        server_answers=answers,
    )
    try:
        yield yard
    finally:
        yard.sending.cancel()
        await asyncio.gather(yard.sending, return_exceptions=True)


async def test_a_step_runs_in_the_workspace_with_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_TOKEN", "sesame")
    async with a_yard(tmp_path) as yard:
        run = await yard.run("pwd; env | sort")
        text = await yard.output()
    lines = text.splitlines()
    assert lines[0] == str(yard.folders.workspace)
    seen = dict(line.split("=", 1) for line in lines[1:])
    for shells_own in ("PWD", "OLDPWD", "SHLVL", "_"):
        seen.pop(shells_own, None)
    assert seen == {
        "LANG": "C.UTF-8",
        "PATH": PATH,
        "HOME": str(yard.folders.home),
        "TMPDIR": str(yard.folders.tmp),
        "CI": "true",
        "GREETING": "hi",
        "FORGEYARD": "true",
        "FORGEYARD_RUN_ID": "run_1",
        "FORGEYARD_RUN_NAME": "demo",
        "FORGEYARD_JOB_ID": "job_1",
        "FORGEYARD_JOB_NAME": "build",
        "FORGEYARD_ATTEMPT": "2",
        "FORGEYARD_WORKSPACE": str(yard.folders.workspace),
        "FORGEYARD_LEASE_ID": LEASE_ID,
    }
    assert run.result.exit_code == 0


async def test_a_script_stops_at_its_first_failing_command(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        run = await yard.run("echo before\nfalse\necho after")
        assert await yard.output() == "before\n"
    assert run.result.exit_code == 1


async def test_an_unset_variable_is_a_failure(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        run = await yard.run('rm -rf "$NOWHERE/x"')
        assert "NOWHERE" in await yard.output()
    assert run.result.exit_code == 2


async def test_bash_notices_a_failure_within_a_pipe(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        assert (await yard.run("false | true", shell="sh")).result.exit_code == 0
        assert (await yard.run("false | true", shell="bash")).result.exit_code == 1


async def test_secrets_that_the_job_named_are_given_and_masked(tmp_path: Path) -> None:
    async with a_yard(tmp_path, secret="hunter22") as yard:
        await yard.run('printf hun; sleep 0.3; printf "ter22\\n"; echo "<$SECRET>"; env')
        text = await yard.output()
    assert "<***>" in text
    assert "hunter22" not in text
    assert "not asked for" not in text


async def test_much_output_arrives_whole(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        await yard.run("seq 200000; printf 'the last line'")
        text = await yard.output()
    assert text == "".join(f"{number}\n" for number in range(1, 200_001)) + "the last line"


async def test_output_past_the_limit_neither_stops_nor_fails_the_step(tmp_path: Path) -> None:
    async with a_yard(tmp_path, limit=1_000) as yard:
        run = await yard.run("yes | head -c 5000000; exit 4")
        assert len(await yard.output()) == 1_001
    assert run.result.exit_code == 4


async def test_a_step_that_prints_waits_while_the_server_is_away(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        yard.server_answers.clear()
        running = asyncio.create_task(yard.run("head -c 2000000 /dev/zero; echo done > finished"))
        await asyncio.wait((running,), timeout=0.5)
        assert not yard.file("finished").exists()
        yard.server_answers.set()
        assert (await running).result.exit_code == 0
        assert len(await yard.output()) == 2_000_000


async def test_a_step_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        run = await yard.run("sleep 60 & echo $! > child; echo started; sleep 60", within=0.5)
        assert await yard.output() == "started\n"
        assert run.stopped is StopReason.TIMED_OUT
        assert run.result.exit_code == -15
        assert not is_alive(await number_in(yard.file("child")))


async def test_what_ignores_term_is_killed(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        script = (
            "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; sleep 60; sleep 60'; sleep 9"
        )
        run = await yard.run(script, within=0.5)
        assert run.stopped is StopReason.TIMED_OUT
        assert run.result.exit_code == -9
        assert not is_alive(await number_in(yard.file("child")))


async def test_a_cancelled_step_may_say_goodbye(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        script = "trap 'echo goodbye; exit 1' TERM; echo $$ > ready; while :; do sleep 0.05; done"
        running = asyncio.create_task(yard.run(script))
        await number_in(yard.file("ready"))
        yard.bench.held.stop(StopReason.CANCELLED)
        assert (await running).stopped is StopReason.CANCELLED
        assert (await yard.output()).endswith("goodbye\n")


async def test_a_lost_lease_kills_without_a_grace(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        script = "trap 'echo goodbye; exit 1' TERM; echo $$ > ready; while :; do sleep 0.05; done"
        running = asyncio.create_task(yard.run(script))
        leader = await number_in(yard.file("ready"))
        yard.bench.held.stop(StopReason.LOST)
        run = await running
        assert run.stopped is StopReason.LOST
        assert run.result.exit_code == -9
        assert not is_alive(leader)


async def test_a_lease_that_lapses_while_a_step_runs_kills_it(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        running = asyncio.create_task(yard.run("echo $$ > ready; sleep 60"))
        leader = await number_in(yard.file("ready"))
        yard.watch.advance(3_700.0)
        assert (await running).stopped is StopReason.LAPSED
        assert not is_alive(leader)


async def test_no_process_starts_after_the_lease_lapsed(tmp_path: Path) -> None:
    """The agent was frozen between accepting and starting: only the clock can tell it."""
    async with a_yard(tmp_path) as yard:
        yard.watch.advance(3_700.0)
        with pytest.raises(Interrupted) as caught:
            await yard.run("touch started")
        assert caught.value.reason is StopReason.LAPSED
        assert yard.started == []
        assert not yard.file("started").exists()


async def test_no_process_starts_after_a_cancellation_or_the_end_of_the_time(
    tmp_path: Path,
) -> None:
    async with a_yard(tmp_path) as yard:
        with pytest.raises(Interrupted):
            await yard.run("touch started", within=0.0)
        yard.bench.held.stop(StopReason.CANCELLED)
        with pytest.raises(Interrupted):
            await yard.run("touch started")
        assert yard.started == []


async def test_a_daemon_does_not_outlive_its_step(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        script = (
            "setsid sh -c 'echo $$ > daemon; exec sleep 60' &\n"
            "while [ ! -s daemon ]; do sleep 0.01; done; echo out"
        )
        run = await yard.run(script)
        daemon = await number_in(yard.file("daemon"))
        assert run.result.exit_code == 0
        await eventually(lambda: not is_alive(daemon))
        assert await yard.output() == "out\n"


async def test_a_stranger_who_keeps_the_output_open_does_not_hold_up_the_job(
    tmp_path: Path,
) -> None:
    async with a_yard(tmp_path) as yard:
        script = (
            "setsid env -i sh -c 'echo $$ > daemon; exec /bin/sleep 60' &\n"
            "while [ ! -s daemon ]; do sleep 0.01; done; echo out"
        )
        begun = time.monotonic()
        run = await yard.run(script)
        daemon = await number_in(yard.file("daemon"))
        assert run.result.exit_code == 0
        assert time.monotonic() - begun < 10
        assert await yard.output() == "out\n"
        os.kill(daemon, 9)  # nothing tells the agent whose it is


async def test_usage_is_measured(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        await yard.run("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done")
    usage = yard.bench.meter.total(wall=1.5)
    assert usage.wall == 1_500
    assert usage.cpu > 10


async def test_each_group_is_remembered_as_soon_as_it_runs(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        await yard.run("echo $$ > leader")
        assert [group.pid for group in yard.started] == [await number_in(yard.file("leader"))]


async def test_a_script_that_cannot_be_started_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    async with a_yard(tmp_path) as yard:
        run = await yard.run(f": {'x' * 2**18}")
    assert run.result.exit_code is None
    assert "too long" in run.problem


def test_a_job_of_a_commit_is_told_which_one(tmp_path: Path) -> None:
    git = GitSource(repository="https://example.org/app.git", ref="main", commit="a" * 40)
    offer = an_offer(git=git, spec=a_job_spec(env={"A": "1"}))
    env = environment(
        offer, folders_of(tmp_path, offer.lease_id), passed={}, path=PATH, secrets={}, devices={}
    )
    told = tuple(env[f"FORGEYARD_{name}"] for name in ("REPOSITORY", "REF", "COMMIT"))
    assert told == (git.repository, git.ref, git.commit)
