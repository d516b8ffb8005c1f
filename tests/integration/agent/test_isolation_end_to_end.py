"""Real agents that shut their jobs in, and what a job finds that looks for secrets (S2, S3)."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import child_environment
from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import EquipmentRequirement, NetworkMode, SandboxKind
from forgeyard.model.job import JobSpec, OutputSpec
from forgeyard.model.units import MIB
from forgeyard.store import overview, tables
from forgeyard.store.engine import read
from tests.builders import some_resources
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.prison import (
    IS_ROOT,
    need_control_groups,
    rules_undone,
    some_ground,
    usual,
)
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import a_job, a_source, an_agent, ended

pytestmark = pytest.mark.integration
Record = Callable[[str, object], None]
TOOLS = (
    *("sh", "sleep", "cat", "cp", "cut", "grep", "head", "id", "ls", "mkdir", "mount", "tail"),
    "wc",
)
GROUP = f"forgeyard-tests-{os.getpid()}"


@pytest.fixture
def ground() -> Iterator[Path]:
    """Make a directory for agents."""
    with some_ground() as folder, rules_undone():
        (folder / "bin").mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, name
            (folder / "bin" / name).symlink_to(found)
        yield folder


def shut_in(ground: Path, **changed: object) -> dict[str, object]:
    """Set what shuts jobs in, for whoever runs this."""
    return usual(**here(ground), **changed)


def here(ground: Path) -> dict[str, object]:
    """Let an agent work where everybody may come, with few tools to ask for their versions."""
    return {"work_dir": str(ground / "agent"), "path": str(ground / "bin")}


@pytest.fixture
async def control(
    sqlite_engine: sa.Engine, tmp_path: Path, record_property: Record
) -> AsyncIterator[Control]:
    """Serve the agent API."""
    record_property("ran as", f"uid {os.geteuid()}")
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def wanting(run: str, name: str = "build", **equipment: object) -> JobSpec:
    """Describe a job that asks for what shuts it in."""
    wanted = Requirements(equipment=EquipmentRequirement(**equipment))
    return a_job(run, name, requires=wanted)


def log_of(control: Control, run_id: str) -> str:
    """Read the log of a run's only attempt."""
    (attempt,) = control.attempts(run_id)
    return control.log(attempt["attempt_id"])


@pytest.mark.requirement("ELG-024", "ELG-023")
async def test_a_job_that_wants_a_sandbox_and_no_network_goes_where_both_were_shown_to_work(
    control: Control, ground: Path
) -> None:
    run_id = control.submit(
        wanting(
            "cat file > kept; cut -d: -f1 /proc/net/dev; id -u",
            sandbox=SandboxKind.LINUX_NAMESPACE,
            network=NetworkMode.DENIED,
        ),
        source=a_source(control.folder),
    )
    async with an_agent(control, "plain"):
        assert control.schedule() == 0, "it has no sandbox, and says so"
        async with an_agent(control, "strict", **shut_in(ground)):
            run = await control.follow(run_id)
    assert run["state"] == "succeeded", log_of(control, run_id)
    assert "eth0" not in log_of(control, run_id)
    (attempt,) = control.attempts(run_id)
    (strict,) = control.rows(tables.runners, name="strict")
    assert attempt["runner_id"] == strict["runner_id"]


@pytest.mark.skipif(not IS_ROOT, reason="only root may run a job as another user")
async def test_a_job_of_another_user_changes_its_sources_and_hands_out_what_it_made(
    control: Control, ground: Path
) -> None:
    make = a_job(
        "echo more >> file; cp file made; id -un", outputs=(OutputSpec(name="o", path="made"),)
    )
    use = a_job("grep -q more made; echo more >> made", "use", needs=("build",))
    run_id = control.submit(make, use, source=a_source(control.folder))
    async with an_agent(control, job_user="nobody", **here(ground)):
        assert (await control.follow(run_id))["state"] == "succeeded"
        first, _ = control.attempts(run_id)
        assert "nobody\n" in control.log(first["attempt_id"])
        await eventually(lambda: not list((ground / "agent" / "jobs").iterdir()))


SERVE = """
import json, os, sys
from pathlib import Path
from forgeyard.agent.loop import AgentSettings, serve
from forgeyard.config import LimitsConfig
from forgeyard.machine_settings import AgentConfig
url, config, *private = sys.argv[1:]
sys.exit(serve(AgentSettings(
    urls=(url,), token=Path(private[0]).read_text(), config=AgentConfig.model_validate_json(config),
    limits=LimitsConfig(), private=tuple(Path(it) for it in private),
)))
"""
SEARCH = """
cd /
for it in /proc/[0-9]*/environ /proc/[0-9]*/cmdline {places}; do
  if grep -qs 'canar[y]-' "$it"; then echo "found in $it"; fi
done
ls -R {agent} 2>/dev/null | grep -c journal || :
echo searched
"""


def served(log_file: Path, arguments: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start an agent that has a secret in its environment."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            (sys.executable, "-c", SERVE, *arguments),
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=child_environment(FORGEYARD_TEST_SECRET="canary-in-the-environment"),
        )


def unmount(where: Path) -> None:
    """Take away what is mounted on the directory that a file names."""
    subprocess.run(("umount", where.read_text().strip()), check=True)


@asynccontextmanager
async def with_secrets(
    control: Control, ground: Path, **changed: object
) -> AsyncIterator[tuple[Path, ...]]:
    """Run an agent as a process that has secrets in its environment and its files."""
    files = ("token", "data/key.pem", "user-data.txt")
    private = tuple(ground / name for name in files)
    for place, path in enumerate(private):
        path.parent.mkdir(exist_ok=True)
        path.write_text("sesame-open" if place == 0 else "canary-in-a-file")
        path.chmod(0o600)
    work_dir = ground / "agent"
    config = control.settings(**{**here(ground), **changed}).config
    hidden = (private[0], private[1].parent, private[2])
    arguments = (control.url, config.model_dump_json(), *map(str, hidden))
    process = served(control.folder / "agent.log", arguments)
    try:
        await control.registered()
        await asyncio.to_thread((work_dir / "identity").write_text, "canary-in-the-work-directory")
        (work_dir / "identity").chmod(0o600)
        yield (*private, work_dir / "identity", work_dir / "journal.db")
    finally:
        process.kill()
        await ended(process)


async def found_by_a_job(control: Control, ground: Path, **settings: object) -> list[str]:
    """Let a job look for secrets wherever they may be."""
    async with with_secrets(control, ground, **settings) as places:
        search = SEARCH.format(places=" ".join(map(str, places)), agent=ground / "agent")
        run_id = control.submit(a_job(search))
        assert (await control.follow(run_id))["state"] == "succeeded", log_of(control, run_id)
    return log_of(control, run_id).splitlines()


@pytest.mark.requirement("BOO-023", "TST-027", "INV-056")
async def test_a_job_that_is_shut_in_finds_no_secret_of_its_agent(
    control: Control, ground: Path
) -> None:
    """Prove S2, as far as the runner goes."""
    assert await found_by_a_job(control, ground, **usual()) == ["0", "searched"]


@pytest.mark.skipif(not IS_ROOT, reason="only root may run a job as another user")
async def test_a_job_of_another_user_finds_no_secret_of_its_agent(
    control: Control, ground: Path
) -> None:
    """Prove S2 where there are no namespaces."""
    found = await found_by_a_job(control, ground, job_user="nobody")
    assert found == ["0", "searched"], "it may not even list the work directory"


async def test_the_same_job_finds_everything_where_nothing_was_configured(
    control: Control, ground: Path
) -> None:
    """Show that the search above can find what is there."""
    found = await found_by_a_job(control, ground)
    assert sum(line.startswith("found in /proc/") for line in found) >= 1
    assert {line for line in found if str(ground) in line} == {
        f"found in {ground / name}" for name in ("data/key.pem", "user-data.txt", "agent/identity")
    }
    assert found[-2:] != ["0", "searched"]


@contextmanager
def a_group() -> Iterator[str]:
    """Name a control group for agents of tests, and take it away afterwards."""
    need_control_groups()
    try:
        yield GROUP
    finally:
        root = Path("/sys/fs/cgroup")
        for folder in (root / GROUP, root / "memory" / GROUP, root / "pids" / GROUP):
            if folder.exists():
                folder.rmdir()


async def test_a_job_that_takes_too_much_memory_ends_alone_and_says_so(
    control: Control, ground: Path
) -> None:
    greedy = a_job(
        "echo begun; head -c 300000000 /dev/zero | tail > /dev/null",
        resources=some_resources(memory=32 * MIB),
    )
    modest = a_job("while [ ! -e /tmp/enough ]; do sleep 0.1; done", "modest")
    with a_group() as name:
        settings = shut_in(ground, cgroup=name, memory_limit_percent=100)
        async with an_agent(control, **settings) as agent:
            other = control.submit(modest)
            await control.until_running(other)
            run_id = control.submit(greedy)
            assert (await control.follow(run_id))["state"] == "failed"
            (attempt,) = control.attempts(run_id)
            assert attempt["failure_class"] == "out_of_memory", log_of(control, run_id)
            assert "more than 32 MiB" in str(attempt["message"])
            assert control.run(other)["state"] == "running"
            control.cancel(other)
            assert (await control.follow(other))["state"] == "cancelled"
            agent.drain()


@pytest.mark.requirement("FOP-012", "FOP-013")
@pytest.mark.skipif(not IS_ROOT, reason="what an ordinary user made, it can always remove")
async def test_a_host_that_cannot_be_reset_takes_no_further_job_until_it_is(
    control: Control, ground: Path
) -> None:
    """Prove the second half of S3."""
    stuck = "mkdir stuck; mount -t tmpfs left stuck; echo $FORGEYARD_WORKSPACE/stuck > {}"
    where = control.folder / "stuck"
    settings = here(ground)
    try:
        async with an_agent(control, **settings):
            assert (await control.follow(control.submit(a_job(stuck.format(where)))))[
                "state"
            ] == "succeeded"
            await eventually(lambda: bool(control.rows(tables.runners, state="unhealthy")))
            with read(control.engine) as connection:
                (shown,) = overview.runners(connection)
            assert shown.health_reason == (
                "quarantined: the workspace of job 'build' cannot be removed"
            )
            waiting = control.submit(a_job("true"))
            assert control.schedule() == 0
        async with an_agent(control, **settings):
            await eventually(lambda: bool(control.rows(tables.runners, state="unhealthy")))
            assert control.schedule() == 0, "starting anew does not help as long as it is there"
    finally:
        unmount(where)
    async with an_agent(control, **settings):
        assert (await control.follow(waiting))["state"] == "succeeded"
