"""Breaks one thing in the product, lets it run on real SQL, and sees the checker complain.

Where several defences stand behind each other, a test takes away all of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from forgeyard.errors import IllegalTransition
from forgeyard.model.protocol import CompletionVerdict, Holder
from forgeyard.model.transitions import JobState, LeaseState
from forgeyard.scheduler import grant
from forgeyard.scheduler.grant import JobStanding
from forgeyard.store import changes, commit, fence, grants, lapse, leases, release, settle, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row
from forgeyard.store.release import lock_lease
from tests.builders import a_job_spec, some_resources
from tests.history.checker import complaints
from tests.history.entries import read
from tests.history.recorder import recording
from tests.integration.store.test_commit import a_plan
from tests.leasing import HOUR, Desk

pytestmark = pytest.mark.integration
SMALL = some_resources(cpu=1_000, slots=1, memory=2**40, disk=2**40)
REGISTER = {"answers_are_explained", "small_histories_are_linearizable"}


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[set[str]]:
    """Record what the test does; check it when the test asks."""
    with recording(tmp_path):
        yield Complaints(tmp_path)


class Complaints(set[str]):
    """The rules that have been broken, once `found` was called."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def found(self) -> set[str]:
        self.update(complaints(read(self._folder)))
        return set(self)


def lapsed(desk: Desk) -> Any:
    """Let an accepted lease expire, so that its job waits for another runner, which is there."""
    lease = desk.active()
    desk.later(HOUR)
    desk.heartbeat(lease.session_id)
    assert desk.sweep().expired == 1
    desk.settle(lease)
    desk.register("runner-2")
    return lease


def test_without_mutation_nothing_is_complained_of(desk: Desk, broken: Complaints) -> None:
    lease = lapsed(desk)
    assert desk.cycle().granted == 1
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    (again,) = desk.leases(state="offered")
    desk.accept(again)
    assert desk.complete(again) is CompletionVerdict.ACCEPTED
    assert broken.found() == set()


def test_a_fence_that_ignores_the_epoch(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fence.staleness

    def blind(lease: Row, holder: Holder, now: int, *states: LeaseState) -> str | None:
        return real({**lease, "epoch": holder.epoch}, holder, now, *states)

    monkeypatch.setattr(fence, "staleness", blind)
    lease = desk.offered()
    desk.accept(lease, Holder(session_id=lease.holder.session_id, epoch=lease.epoch + 1))
    assert broken.found() == {"only_the_last_grant_is_accepted", *REGISTER}


def test_no_fence_at_all(desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it the table of transitions still refuses the late result, as a bug of ours."""
    monkeypatch.setattr(fence, "staleness", lambda *_: None)
    lease = lapsed(desk)
    with pytest.raises(ValueError, match="not in tuple"):  # the phases know no way back either
        desk.complete(lease)
    with pytest.raises(IllegalTransition):
        desk.accept(lease)
    assert broken.found() == {"only_what_was_foreseen_is_refused"}


def test_no_fence_no_table_and_no_order_of_phases(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lapsed(desk)
    monkeypatch.setattr(fence, "staleness", lambda *_: None)
    monkeypatch.setattr(changes, "check", lambda *_: None)
    monkeypatch.setattr(leases.phases, "advance", lambda _, held, *__, **___: held)
    assert desk.cycle().granted == 1
    assert not isinstance(desk.accept(lease), leases.Refused)
    assert broken.found() == {"only_the_last_grant_is_accepted", *REGISTER}


def test_grants_that_do_not_raise_the_epoch(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = grants._lease_jobs

    def kept(granted: sa.CTE) -> sa.Update:
        return real(granted).values(epoch=tables.jobs.c.epoch)

    monkeypatch.setattr(grants, "_lease_jobs", kept)
    monkeypatch.setattr(grants, "_changes", grants._changes.__wrapped__)
    lease = lapsed(desk)
    with pytest.raises(IntegrityError):
        desk.cycle()
    assert broken.found() == {"only_what_was_foreseen_is_refused"}
    # Behind it no two leases of a job may have one epoch; let the first have another.
    desk.overwrite(tables.leases, lease.lease_id, epoch=99)
    assert desk.cycle().granted == 1
    assert broken.found() == {"only_what_was_foreseen_is_refused", "epochs_grow", *REGISTER}


def test_a_commit_that_subtracts_nothing(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grant._Left, "give", lambda *_: None)
    runner = [desk.register(total=SMALL).runner_id]
    run_id = desk.submit(a_job_spec("first"), a_job_spec("second"))
    jobs = [row["job_id"] for row in desk.rows(tables.jobs, run_id=run_id)]
    assert desk.commit(desk.plan(a_plan(*((job, runner) for job in jobs)))).granted == 2
    assert broken.found() == {"capacity_holds"}


def test_a_commit_that_does_not_look_at_the_runner_again(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = commit._runner_standing

    def as_if_empty(row: Row, **named: Any) -> grant.RunnerStanding:
        empty = {f"reserved_{name}": 0 for name in DIMENSIONS}
        return real({**row, **empty}, **named)

    monkeypatch.setattr(commit, "_runner_standing", as_if_empty)
    runner = [desk.register(total=SMALL).runner_id]
    run_id = desk.submit(a_job_spec("first"), a_job_spec("second"))
    jobs = [row["job_id"] for row in desk.rows(tables.jobs, run_id=run_id)]
    cycles = [desk.plan(a_plan((job, runner))) for job in jobs]
    assert sum(desk.commit(cycle).granted for cycle in cycles) == 2
    assert broken.found() == {"capacity_holds"}


def test_a_commit_that_does_not_look_at_the_job_again(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_job_standing", lambda _: JobStanding.ELIGIBLE)
    monkeypatch.setattr(grants, "check", lambda *_: None)
    desk.register()
    desk.submit(a_job_spec())
    cycles = [desk.plan(), desk.plan()]
    assert [desk.commit(cycle).granted for cycle in cycles] == [1, 1]
    assert broken.found() == {"intervals_are_disjoint", *REGISTER}


def test_a_cycle_that_forgets_that_it_was_committed(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = commit.locked.plan

    def forgotten(connection: sa.Connection, cycle_id: int) -> tuple[Row, list[Row]]:
        cycle, planned = real(connection, cycle_id)
        return {**cycle, "committed_at": None}, planned

    monkeypatch.setattr(commit.locked, "plan", forgotten)
    desk.register()
    desk.submit(a_job_spec())
    cycle = desk.plan()
    assert [desk.commit(cycle).granted for _ in range(2)] == [1, 0]
    assert broken.found() == {"the_same_key_gives_the_same_answer"}


def test_an_expiry_judged_on_what_was_read_before(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that every change expects is the second defence: Conflict, and no harm."""
    lease = desk.active()
    desk.later(HOUR)
    before = desk.change(lock_lease, lease.lease_id)
    desk.later(-HOUR)
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    monkeypatch.setattr(lapse, "lock_lease", lambda *_: before)
    with pytest.raises(Exception, match="changed meanwhile"):
        desk.change(lapse.expire, lease.lease_id, policy=desk.policy)
    assert broken.found() == set()
    monkeypatch.setattr(changes, "move", _move_whatever_the_version)
    monkeypatch.setattr(release.changes, "clear_deadlines", lambda *_: None)
    assert desk.change(lapse.expire, lease.lease_id, policy=desk.policy)
    assert broken.found() == {"intervals_are_disjoint", *REGISTER}


def _move_whatever_the_version(
    connection: sa.Connection, kind: Any, row: Row, after: Any, **told: Any
) -> Row:
    newest = changes.find(connection, kind, row[kind.key])
    values = {key: value for key, value in told.items() if key not in ("reason", "now")}
    changed = {"state": after.value, "version": newest["version"] + 1, **values}
    connection.execute(
        sa.update(kind.table).where(kind.table.c[kind.key] == row[kind.key]).values(changed)
    )
    return {**row, **changed}


def test_a_completion_that_does_not_know_itself_again(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_is_repeated", lambda *_: False)
    lease = desk.active()
    desk.complete(lease)
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    assert broken.found() == REGISTER


def test_a_lease_that_is_marked_as_ended_but_holds_its_runner(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps(_connection: sa.Connection, lease: Row, **_: Any) -> Row:
        return lease

    lease = desk.active()
    monkeypatch.setattr(release, "release", keeps)
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert broken.found() == {"an_end_frees_its_runner"}


def test_success_that_is_not_final(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases.jobs, "finish_job", lambda *_, **__: None)
    lease = desk.active()
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    desk.overwrite(tables.jobs, lease.job_id, state=JobState.ELIGIBLE.value)
    assert desk.cycle().granted == 1
    assert broken.found() == REGISTER


def test_a_settlement_that_forgets_that_it_was_made(
    desk: Desk, broken: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_mark", lambda *_, **__: None)
    lease = desk.active()
    desk.complete(lease)
    for _ in range(2):
        desk.settle(lease)
    assert broken.found() == {"the_same_key_gives_the_same_answer"}
