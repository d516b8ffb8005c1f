"""A command runs in a group of its own, and nothing of it is left."""

import asyncio
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from forgeyard import proctable
from forgeyard.agent.process import GroupId, kill_marked, kill_recorded, start
from forgeyard.agent.usage import Meter, Sampler
from tests.integration.agent.scripts import (
    a_command,
    ended,
    eventually,
    is_alive,
    number_in,
    running,
)

pytestmark = pytest.mark.integration


def never() -> bool:
    """Let a termination take its time."""
    return False


async def test_the_exit_code_is_the_scripts_own(tmp_path: Path) -> None:
    assert (await ended("exit 7", tmp_path)).code == 7
    assert (await ended("kill -9 $$", tmp_path)).code == -9
    assert (await ended("true", tmp_path)).code == 0


async def test_both_streams_go_to_the_output_in_order(tmp_path: Path) -> None:
    await ended("echo a; echo b >&2; echo c", tmp_path)
    assert (tmp_path / "output").read_text() == "a\nb\nc\n"


async def test_a_script_sees_only_the_environment_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_TOKEN", "sesame")
    await ended("exec env", tmp_path, HOME="/nowhere")
    names = {line.split("=")[0] for line in (tmp_path / "output").read_text().splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "HOME"}


async def test_a_script_inherits_no_descriptor_and_reads_nothing(tmp_path: Path) -> None:
    leaked = os.dup2(0, 200, inheritable=True)
    try:
        await ended("ls /proc/$$/fd; cat", tmp_path)
    finally:
        os.close(leaked)
    found = (tmp_path / "output").read_text().split()
    assert {"0", "1", "2"} <= set(found)
    assert "200" not in found


async def test_it_is_a_session_and_a_group_of_its_own(tmp_path: Path) -> None:
    async with running("exec sleep 60", tmp_path) as group:
        assert os.getpgid(group.id.pid) == os.getsid(group.id.pid) == group.id.pid
        assert group.id.pid != os.getpgrp()


async def test_ending_a_group_ends_its_grandchildren(tmp_path: Path) -> None:
    script = "sh -c 'sleep 60 & echo $! > grandchild; wait' & wait"
    async with running(script, tmp_path) as group:
        grandchild = await number_in(tmp_path / "grandchild")
        await group.terminate(kill_after=5.0, give_up=never)
        end = await group.reap()
    assert end.code == -signal.SIGTERM
    assert not is_alive(grandchild)


async def test_a_group_that_ignores_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; sleep 60' & sleep 60"
    async with running(script, tmp_path) as group:
        child = await number_in(tmp_path / "child")
        begun = time.monotonic()
        await group.terminate(kill_after=0.3, give_up=never)
        end = await group.reap()
    assert 0.3 <= time.monotonic() - begun < 5.0
    assert end.code == -signal.SIGKILL
    assert not is_alive(child)


async def test_a_group_may_clean_up_when_it_is_asked_to_end(tmp_path: Path) -> None:
    script = (
        "trap 'echo bye > farewell; exit 3' TERM; echo $$ > ready; while :; do sleep 0.05; done"
    )
    async with running(script, tmp_path) as group:
        await number_in(tmp_path / "ready")
        await group.terminate(kill_after=10.0, give_up=never)
        assert (await group.reap()).code == 3
    assert (tmp_path / "farewell").read_text() == "bye\n"


async def test_a_child_may_clean_up_although_its_leader_has_ended(tmp_path: Path) -> None:
    child = tmp_path / "child.sh"
    child.write_text(
        "trap 'sleep 0.2; echo bye > farewell; exit' TERM\n"
        "echo $$ > child; while :; do sleep 0.05; done\n"
    )
    async with running("sh child.sh & wait", tmp_path) as group:
        await number_in(tmp_path / "child")
        await group.terminate(kill_after=10.0, give_up=never)
        await group.reap()
    assert (tmp_path / "farewell").read_text() == "bye\n"


async def test_giving_up_cuts_the_grace_short(tmp_path: Path) -> None:
    async with running(
        "trap '' TERM; echo $$ > ready; sleep 60 & wait; sleep 60", tmp_path
    ) as group:
        await number_in(tmp_path / "ready")
        begun = time.monotonic()
        await group.terminate(kill_after=60.0, give_up=lambda: True)
        await group.reap()
    assert time.monotonic() - begun < 10.0


async def test_a_background_child_does_not_outlive_its_leader(tmp_path: Path) -> None:
    end = await ended("sleep 60 & echo $! > child", tmp_path)
    assert end.code == 0
    assert not is_alive(await number_in(tmp_path / "child"))


async def test_a_daemon_that_left_the_group_is_found_by_its_mark(tmp_path: Path) -> None:
    script = (
        "setsid sh -c 'echo $$ > daemon; exec sleep 60' > /dev/null 2>&1 &\n"
        "while [ ! -s daemon ]; do sleep 0.01; done"
    )
    await ended(script, tmp_path, FORGEYARD_LEASE_ID="lea_daemon")
    daemon = await number_in(tmp_path / "daemon")
    assert is_alive(daemon)
    assert await asyncio.to_thread(kill_marked, "FORGEYARD_LEASE_ID=lea_other") == 0
    assert is_alive(daemon)
    assert await asyncio.to_thread(kill_marked, "FORGEYARD_LEASE_ID=lea_daemon") == 1
    await eventually(lambda: not is_alive(daemon))


async def test_a_recorded_group_is_killed_only_if_it_is_still_the_same(tmp_path: Path) -> None:
    async with running("exec sleep 60", tmp_path) as group:
        other_start = GroupId(pid=group.id.pid, started=group.id.started - 1, boot=group.id.boot)
        other_boot = GroupId(pid=group.id.pid, started=group.id.started, boot="another")
        assert not await asyncio.to_thread(kill_recorded, other_start)
        assert not await asyncio.to_thread(kill_recorded, other_boot)
        assert is_alive(group.id.pid)
        assert await asyncio.to_thread(kill_recorded, group.id)
        assert not is_alive(group.id.pid)
        assert (await group.reap()).code == -signal.SIGKILL


async def test_cpu_time_of_the_whole_tree_is_counted(tmp_path: Path) -> None:
    burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    end = await ended(f"sh -c '{burn}'; sh -c '{burn}'", tmp_path)
    assert end.cpu >= 20


async def test_a_large_process_is_measured_by_the_kernel(tmp_path: Path) -> None:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 64 * 2**20
    end = await ended(f"python3 -c 'x = b\"x\" * {size}'", tmp_path)
    assert size < end.peak_memory < size + 2**27


async def test_a_small_process_is_not_charged_with_the_agents_own_memory(tmp_path: Path) -> None:
    assert (await ended("true", tmp_path)).peak_memory == 0


async def test_the_memory_of_a_whole_group_is_sampled_while_it_runs(tmp_path: Path) -> None:
    sampler, meter = Sampler(), Meter()
    (tmp_path / "big.py").write_text("import time\nx = b'x' * 30_000_000\ntime.sleep(60)\n")
    sampling = asyncio.create_task(sampler.run())
    try:
        async with running("python3 big.py & python3 big.py & wait", tmp_path) as group:
            with sampler.watching(group.id.pid, meter):
                await eventually(lambda: meter.peak_memory > 60_000_000)
    finally:
        sampling.cancel()


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start(a_command("true", tmp_path / "nowhere"), output=1)
    with pytest.raises(ValueError, match="null"):
        start(a_command("true\0", tmp_path), output=1)
    with pytest.raises(OSError, match="too long"):
        start(a_command("x" * 2**20, tmp_path), output=1)


async def test_members_of_a_group_are_the_living_ones(tmp_path: Path) -> None:
    async with running("sleep 60 & sleep 60 & wait", tmp_path) as group:
        await eventually(lambda: len(proctable.members(group.id.pid)) == 3)
        await group.reap()
        assert proctable.members(group.id.pid) == ()
