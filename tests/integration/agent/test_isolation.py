"""The steps of a job are shut in: as another user, in namespaces, under limits (S2).

Every test here is run by whoever runs the tests; root runs them once more as an ordinary user.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forgeyard import proctable
from forgeyard.agent import isolation
from forgeyard.agent.lease import StopReason
from forgeyard.agent.workspace import prepare_work_dir
from forgeyard.config import child_environment
from forgeyard.errors import InvalidRequest
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.equipment import NetworkMode, SandboxKind
from tests.integration.agent.prison import (
    GROUND,
    IS_ROOT,
    ORDINARY,
    USER,
    Prison,
    a_prison,
    as_somebody_ordinary,
    rules_undone,
    some_ground,
    usual,
)
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_steps import a_yard

pytestmark = pytest.mark.integration
Record = Callable[[str, object], None]
BOTH = ("test_isolation.py", "test_isolation_end_to_end.py")
"""What an ordinary user tries as well."""
root_only = pytest.mark.skipif(not IS_ROOT, reason="only root may run a job as another user")


@pytest.fixture
def ground() -> Iterator[Path]:
    """Make a directory for agents."""
    with some_ground() as folder, rules_undone():
        yield folder


@pytest.fixture
def prison(ground: Path, record_property: Record) -> Prison:
    """Shut jobs in as well as whoever runs this can."""
    record_property("ran as", f"uid {os.geteuid()}")
    return a_prison(ground, **usual())


@pytest.fixture
def other_user(ground: Path) -> Prison:
    """Run jobs as another user, and nothing else."""
    return a_prison(ground, job_user=USER)


async def said(
    prison: Prison, *scripts: str, network: NetworkMode = NetworkMode.HOST, shell: str = "sh"
) -> tuple[list[int | None], str]:
    """Run the steps of one attempt; return their exit codes and what they printed."""
    cell, codes = prison.cell(network=network), list[int | None]()
    try:
        async with a_yard(prison.work_dir, cell=cell) as yard:
            for script in scripts:
                codes.append((await yard.run(script, shell=shell)).result.exit_code)
            return codes, await yard.output()
    finally:
        cell.close()
        assert cell.folders.remove()


@contextmanager
def a_listener() -> Iterator[int]:
    """Listen on this host's loopback; a connection is all it takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@root_only
async def test_a_step_is_another_user_without_groups_and_without_a_way_to_privileges(
    other_user: Prison,
) -> None:
    before = os.getgroups()
    os.setgroups([*before, 4])
    try:
        codes, text = await said(
            other_user, "id -un; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"
        )
    finally:
        os.setgroups(before)
    assert codes == [0]
    name, groups, *status = text.split("\n")[:-1]
    assert name == USER
    assert groups.isdigit(), "one group, its own"
    assert sorted(re.sub(r"\s+", " ", line) for line in status) == [
        "CapBnd: 0000000000000000",
        "CapEff: 0000000000000000",
        "NoNewPrivs: 1",
    ]


@root_only
async def test_what_was_brought_for_the_job_is_the_users_own_and_nothing_else_is(
    other_user: Prison,
) -> None:
    cell = other_user.cell()
    (other_user.work_dir / "journal.db").write_text("secret")
    (other_user.work_dir / "journal.db").chmod(0o600)
    async with a_yard(other_user.work_dir, cell=cell) as yard:
        assert cell.folders.workspace.stat().st_uid != 0
        assert cell.folders.root.stat().st_uid == 0
        run = await yard.run(
            "echo x > made; echo x > $HOME/made; echo x > $TMPDIR/made; echo spoken > /dev/stdout\n"
            f"cat {other_user.work_dir}/journal.db || ls {cell.folders.transfer} || ls ../.. ||"
            f" mv ../workspace ../other || echo closed"
        )
        text = await yard.output()
    assert run.result.exit_code == 0
    assert "spoken\n" in text
    assert "secret" not in text
    assert text.endswith("closed\n")
    assert text.count("Permission denied") == 4
    assert cell.folders.remove()


async def test_a_step_in_namespaces_sees_none_of_the_agents_files_and_processes(
    prison: Prison,
) -> None:
    (prison.work_dir / "key").write_text("secret")
    codes, text = await said(
        prison,
        f"ls {prison.work_dir} 2>/dev/null || echo jobs; ls /dev/shm | wc -l\n"
        f"cat {prison.work_dir}/key 2>/dev/null || echo no key\n"
        "for it in /proc/[0-9]*; do echo ${it#/proc/}; done | wc -l",
        f"cat /proc/{os.getpid()}/environ || cat /proc/1/environ || ls /proc/1/root || echo closed",
    )
    assert codes == [0, 0]
    folder, shared, key, processes, *rest = text.splitlines()
    assert (folder, shared, key) == ("jobs", "0", "no key")
    assert int(processes) <= 4, "the first one, the shell and what it runs"
    assert rest[-1] == "closed"


async def test_a_job_in_namespaces_has_a_tmp_of_its_own_from_step_to_step(prison: Prison) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="forgeyard-") as outside:
        codes, text = await said(
            prison,
            f"test ! -e {outside.name}; echo kept > /tmp/mine; pwd; echo $TMPDIR",
            "cat /tmp/mine /var/tmp/mine $TMPDIR/mine; test -w /tmp; echo again > /tmp/mine",
        )
        assert codes == [0, 0]
        workspace, folder, *kept = text.splitlines()
        assert workspace.endswith("/workspace")
        assert folder.endswith("/tmp")
        assert kept == ["kept"] * 3
    assert not is_there("/tmp/mine")


async def test_a_step_in_namespaces_has_the_environment_of_a_job_and_ends_as_it_ended(
    prison: Prison,
) -> None:
    codes, text = await said(prison, "echo $GREETING $CI; readlink /proc/self/fd/0", "exit 7")
    assert codes == [0, 7]
    assert text == "hi true\n/dev/null\n"
    codes, text = await said(prison, "kill -9 $$; echo no")
    assert codes == [137]
    assert text == ""


async def test_no_variable_of_a_job_reaches_a_program_that_has_the_rights_of_the_agent(
    prison: Prison,
) -> None:
    cell = prison.cell()
    command = cell.confinement.shut_in(
        isolation.Command(
            argv=("sh", "-c", "echo $LD_PRELOAD; exec env"),
            cwd=cell.folders.workspace,
            env={"LD_PRELOAD": "/evil.so", "PATH": "/usr/bin:/bin", "IFS": "x y\n'z", "UID": "0"},
        ),
        cell.folders,
        network=NetworkMode.HOST,
    )
    assert set(command.env) == {"PATH"}
    assert "/evil.so" not in repr(command)
    assert b"LD_PRELOAD=/evil.so" in command.feed
    assert b"UID" not in command.feed


async def test_a_daemon_that_forgot_everything_ends_with_its_step(prison: Prison) -> None:
    length = 90_000 + os.getpid()
    daemon = f"setsid env -i /bin/sh -c '/bin/sleep {length} & exec /bin/sleep {length}' &"
    codes, _ = await said(prison, f"{daemon}\nsleep 0.2; ls /proc | grep -q '^[0-9]'")
    assert codes == [0]
    await eventually(lambda: not sleeping(length))


def is_there(path: str) -> bool:
    """Look for a file."""
    return Path(path).exists()


def sleeping(length: int) -> list[int]:
    """Find the processes that sleep as long as this."""
    wanted = str(length).encode()
    return [p.pid for p in proctable.processes() if p.is_alive and wanted in words_of(p.pid)]


def words_of(pid: int) -> list[bytes]:
    """Read the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


async def test_a_step_in_namespaces_ends_when_it_is_asked_to(prison: Prison) -> None:
    cell = prison.cell()
    async with a_yard(prison.work_dir, cell=cell) as yard:
        running = asyncio.ensure_future(
            yard.run("trap 'echo bye; exit 3' TERM; : > ready; while :; do sleep 0.05; done")
        )
        await eventually(lambda: yard.file("ready").exists())
        yard.bench.held.stop(StopReason.CANCELLED)
        run = await asyncio.wait_for(running, 20)
        assert run.stopped is StopReason.CANCELLED
        assert "bye\n" in await yard.output()
    assert cell.folders.remove()


async def test_a_job_that_is_denied_the_network_has_its_own_loopback_only(prison: Prison) -> None:
    assert NetworkMode.DENIED in prison.isolation.networks
    with a_listener() as port:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        assert await said(prison, connect, shell="bash") == ([0], "connected\n")
        codes, text = await said(
            prison,
            f"tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/route | wc -l; {connect}",
            network=NetworkMode.DENIED,
            shell="bash",
        )
    assert codes == [1]
    assert "lo" in text.split()
    assert "eth0" not in text.split()
    assert "1\n" in text, "the head of an empty table"
    assert "connected" not in text
    assert "Connection refused" in text, "there is a loopback, and nobody on it"


async def test_a_fork_bomb_comes_to_its_bound_and_the_next_step_runs(ground: Path) -> None:
    prison = a_prison(ground, **usual(max_processes=64))
    bomb = "n=0; while [ $n -lt 200 ]; do sleep 30 & n=$((n+1)); echo $n; done"
    codes, text = await said(prison, bomb, "echo alive")
    assert codes[0] != 0
    assert codes[1:] == [0]
    assert max(int(line) for line in text.splitlines() if line.isdigit()) < 64
    assert text.endswith("alive\n")


async def test_what_cannot_be_set_up_any_more_is_the_runners_failure_not_the_jobs(
    prison: Prison,
) -> None:
    cell = prison.cell()
    async with a_yard(prison.work_dir, cell=cell) as yard:
        cell.folders.tmp.rename(cell.folders.root / "gone")
        run = await yard.run("echo never")
        text = await yard.output()
    assert run.result.exit_code is None
    assert run.problem == "step 'step' could not be shut in"
    assert "never" not in text
    assert cell.folders.remove()


def refused(ground: Path, **settings: object) -> InvalidRequest:
    """Expect that an agent with these settings does not start."""
    work_dir = prepare_work_dir(str(ground / "agent"), name="x")
    with pytest.raises(InvalidRequest) as caught:
        isolation.establish(AgentConfig.model_validate(settings), work_dir)
    return caught.value


def test_an_agent_does_not_start_with_what_it_cannot_have(ground: Path) -> None:
    assert refused(ground, job_user="nobody-is-called-so").field == "agent.job_user"
    assert refused(ground, job_user="root").field == "agent.job_user"
    assert refused(ground, memory_limit_percent=100).field == "agent.memory_limit_percent"
    assert refused(ground, cgroup="../../etc").field == "agent.cgroup"
    if IS_ROOT:
        assert refused(ground, sandbox="linux_namespace").field == "agent.sandbox"
        ground.chmod(0o700)
        problem = refused(ground, job_user=USER)
        assert (problem.field, problem.value) == ("agent.job_user", USER)
        assert "Permission denied" in problem.message
    else:
        assert "only an agent that runs as root" in refused(ground, job_user=USER).message


def test_an_agent_says_what_a_trial_has_shown_and_nothing_more(ground: Path) -> None:
    work_dir = prepare_work_dir(str(ground / "agent"), name="x")
    plain = isolation.establish(AgentConfig(), work_dir)
    assert plain == isolation.NOTHING
    assert plain.sandboxes == (SandboxKind.NONE,)
    assert plain.networks == (NetworkMode.HOST,)
    if IS_ROOT:
        auto = isolation.establish(AgentConfig(sandbox="auto"), work_dir)
        assert auto.sandboxes == (SandboxKind.NONE,), "root without a user for jobs is no sandbox"
    prison = a_prison(ground, **usual())
    assert prison.isolation.sandboxes == (SandboxKind.LINUX_NAMESPACE,)
    assert not list((work_dir / "jobs").iterdir()), "a trial leaves nothing"


def test_everything_here_holds_for_an_ordinary_user_too(record_property: Record) -> None:
    if not IS_ROOT:
        record_property("ran as", f"uid {os.geteuid()}")
        pytest.skip("this run is an ordinary user's")
    with some_ground() as home:
        os.chown(home, ORDINARY, ORDINARY)
        here = Path(__file__).parent.relative_to(Path.cwd())
        command = (
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"),
            *(f"--basetemp={home}/tmp", *(str(here / name) for name in BOTH)),
        )
        done = subprocess.run(
            as_somebody_ordinary(command),
            env={**child_environment(), "HOME": str(home), GROUND: str(home)},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    print(done.stdout)
    record_property("ran as", f"uid {ORDINARY}: {done.stdout.splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, "this system shuts in nobody but root's jobs"
    assert int(passed.group(1)) >= 10, done.stdout
