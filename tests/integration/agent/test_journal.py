"""What an agent remembers across its own death, and what it then clears away."""

import asyncio
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forgeyard.agent.health import Health
from forgeyard.agent.journal import REMEMBER, Journal, Leftover
from forgeyard.agent.loop import clear_leftovers
from forgeyard.agent.process import GroupId
from forgeyard.agent.workspace import Folders, folders_of, prepare_work_dir
from forgeyard.errors import Conflict, Corrupt
from forgeyard.model.ids import LeaseId
from tests.integration.agent.scripts import eventually, is_alive, number_in, running
from tests.unit.agent.deals import Watch

pytestmark = pytest.mark.integration
NOW = datetime(2026, 11, 29, tzinfo=UTC)
LEASE = LeaseId("lea_01")
GROUP = GroupId(pid=4_000_000, started=17, boot="boot")


@pytest.mark.requirement("DSP-002", "DSP-005")
def test_a_lease_is_taken_once_even_across_a_restart(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.take(LEASE, now=NOW)
        assert not journal.take(LEASE, now=NOW)
    with Journal(tmp_path) as journal:
        assert journal.knows(LEASE)
        assert not journal.take(LEASE, now=NOW)


def test_the_newest_mark_of_the_store_is_remembered_across_a_restart(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.mark() == ""
        journal.keep_mark("str_1.0.7.a")
        journal.keep_mark("str_1.0.8.b")
    with Journal(tmp_path) as journal:
        assert journal.mark() == "str_1.0.8.b"


def test_leases_that_never_ended_are_left_over_with_their_groups(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.take(LEASE, now=NOW)
        journal.started(LEASE, GROUP)
        journal.take(LeaseId("lea_02"), now=NOW)
        journal.started(LeaseId("lea_02"), GROUP)
        journal.ended(LeaseId("lea_02"), now=NOW)
    with Journal(tmp_path) as journal:
        assert journal.leftovers() == (Leftover(lease_id=LEASE, groups=(GROUP,)),)


def test_an_ended_lease_is_remembered_for_a_day_and_then_forgotten(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for number, ended_at in ((1, NOW), (2, NOW + timedelta(hours=12))):
            lease_id = LeaseId(f"lea_{number}")
            journal.take(lease_id, now=NOW)
            journal.ended(lease_id, now=ended_at)
        journal.take(LEASE, now=NOW)
        journal.ended(LEASE, now=NOW + REMEMBER + timedelta(seconds=1))
        assert not journal.knows(LeaseId("lea_1"))
        assert journal.knows(LeaseId("lea_2"))


def test_two_agents_cannot_share_a_work_directory(tmp_path: Path) -> None:
    with Journal(tmp_path):
        with pytest.raises(Conflict) as caught:
            Journal(tmp_path)
        assert caught.value.field == "agent.work_dir"
    Journal(tmp_path).close()


def test_the_lock_of_a_killed_agent_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from forgeyard.agent.journal import Journal\n"
        "Journal(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    Journal(tmp_path).close()


def test_a_damaged_journal_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(Corrupt):
        Journal(tmp_path)


def test_it_may_be_used_from_many_threads(tmp_path: Path) -> None:
    async def use(journal: Journal) -> None:
        taken = await asyncio.gather(
            *(
                asyncio.to_thread(journal.take, LeaseId(f"lea_{n % 50}"), now=NOW)
                for n in range(200)
            )
        )
        assert sum(taken) == 50

    with Journal(tmp_path) as journal:
        asyncio.run(use(journal))
    with sqlite3.connect(tmp_path / "journal.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


async def test_a_leftover_is_killed_and_its_files_are_removed(tmp_path: Path) -> None:
    work_dir = prepare_work_dir(str(tmp_path / "agent"), name="x")
    folders_of(work_dir, LEASE).make()
    daemonise = (
        "setsid sh -c 'echo $$ > daemon; exec sleep 60' &\n"
        "while [ ! -s daemon ]; do sleep 0.01; done; echo $$ > leader; sleep 60"
    )
    with Journal(work_dir) as journal:
        journal.take(LEASE, now=NOW)
        async with running(daemonise, tmp_path, FORGEYARD_LEASE_ID=LEASE) as group:
            journal.started(LEASE, group.id)
            leader, daemon = (
                await number_in(tmp_path / "leader"),
                await number_in(tmp_path / "daemon"),
            )
            await asyncio.to_thread(clear_leftovers, journal, work_dir, Health(Watch()))
            await eventually(lambda: not is_alive(leader) and not is_alive(daemon))
        assert journal.leftovers() == ()
        assert journal.knows(LEASE)
    assert not folders_of(work_dir, LEASE).root.exists()


async def test_a_process_that_was_started_but_never_recorded_is_found_too(tmp_path: Path) -> None:
    work_dir = prepare_work_dir(str(tmp_path / "agent"), name="x")
    with Journal(work_dir) as journal:
        journal.take(LEASE, now=NOW)
        async with running("echo $$ > leader; sleep 60", tmp_path, FORGEYARD_LEASE_ID=LEASE):
            leader = await number_in(tmp_path / "leader")
            await asyncio.to_thread(clear_leftovers, journal, work_dir, Health(Watch()))
            await eventually(lambda: not is_alive(leader))


def test_directories_that_a_job_made_read_only_are_removed_all_the_same(tmp_path: Path) -> None:
    folders = Folders(root=tmp_path / "job")
    folders.make()
    locked = folders.workspace / "cache" / "module"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    (tmp_path / "outside").write_text("stays")
    (locked / "link").symlink_to(tmp_path / "outside")
    for folder in (locked, locked.parent):
        folder.chmod(0o555)
    folders.remove()
    assert not folders.root.exists()
    assert (tmp_path / "outside").read_text() == "stays"


@pytest.mark.parametrize("lease_id", ["../x", "a/b", "", ".", "x\0"])
def test_a_lease_id_that_is_no_plain_name_makes_no_directory(tmp_path: Path, lease_id: str) -> None:
    with pytest.raises(ValueError, match="lease id"):
        folders_of(tmp_path, LeaseId(lease_id))


def test_nobody_else_may_read_a_journal_or_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch(mode=0o644)
    with Journal(tmp_path) as journal:
        journal.keep_mark("mark")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"journal.db", "journal.db-wal", "lock"} <= modes.keys()
    assert set(modes.values()) == {0o600}
