"""A process remembers runners and is never wrong about them."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.errors import StaleRejected
from forgeyard.model.ids import LeaseId
from forgeyard.model.protocol import Outcome
from forgeyard.model.runner import ResourcePressure
from forgeyard.store import runners, snapshot, tables
from forgeyard.store.engine import read
from forgeyard.store.runner_cache import RunnerCache
from tests.builders import PARTITION, a_job_spec, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration
NAMES = [f"runner-{number}" for number in range(5)]


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def check(desk: Desk, cache: RunnerCache) -> None:
    """Compare what is remembered with a fresh look, in one transaction."""
    with read(desk.engine) as connection:
        fresh = snapshot.load(connection, PARTITION, desk.policy)
        kept = snapshot.load(connection, PARTITION, desk.policy, read_runners=cache.read)
    assert kept.runners == fresh.runners


def _sessions(desk: Desk) -> list[str]:
    return [row["session_id"] for row in desk.rows(tables.sessions, state="open")]


def register(desk: Desk, rng: Random) -> None:
    total = some_resources(cpu=rng.choice((4_000, 8_000)), memory=2**33, disk=2**36, slots=4)
    desk.register(rng.choice(NAMES), total=total)


def beat(desk: Desk, rng: Random) -> None:
    for session_id in _sessions(desk):
        pressure = rng.choice(list(ResourcePressure))
        held = tuple(LeaseId(lease.lease_id) for lease in desk.leases(session_id=session_id))
        desk.heartbeat(session_id, pressure=pressure, held=held)


def calm(desk: Desk, _rng: Random) -> None:
    for session_id in _sessions(desk):
        desk.heartbeat(session_id)


def place(desk: Desk, _rng: Random) -> None:
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    desk.cycle()


def accept(desk: Desk, _rng: Random) -> None:
    for lease in desk.leases(state="offered"):
        desk.accept(lease)


def finish(desk: Desk, rng: Random) -> None:
    for lease in desk.leases(state="active")[:2]:
        desk.complete(lease, rng.choice((Outcome.SUCCEEDED, Outcome.FAILED)))


def reject(desk: Desk, _rng: Random) -> None:
    for lease in desk.leases(state="offered")[:1]:
        desk.reject(lease)


def drain(desk: Desk, rng: Random) -> None:
    for row in desk.rows(tables.runners)[:2]:
        turn = rng.choice((runners.drain, runners.undrain))
        desk.change(turn, row["name"], reason="so", actor="ann", channel="test")


def leave(desk: Desk, _rng: Random) -> None:
    for session_id in _sessions(desk)[:1]:
        desk.change(runners.close, session_id, policy=desk.policy.lease)


def lapse(desk: Desk, _rng: Random) -> None:
    """Let leases lapse, which makes their runners suspect, and silent sessions be lost."""
    desk.later(10 * 60_000)
    desk.sweep()


def mend(desk: Desk, _rng: Random) -> None:
    """Damage the accounts behind the cache's back, as no transition ever does, and repair them."""
    desk.sweep()


STEPS: tuple[Callable[[Desk, Random], None], ...] = (
    *(register, register, beat, calm, place, place, accept),
    *(accept, finish, reject, drain, leave, lapse, mend),
)


@pytest.mark.requirement("IDX-005")
@pytest.mark.parametrize("seed", range(2))
def test_what_is_remembered_is_what_a_fresh_look_finds(desk: Desk, seed: int) -> None:
    rng, cache = Random(seed), RunnerCache(overlap_ms=0)
    happened: set[str] = set()
    for _ in range(30):
        step = rng.choice(STEPS)
        try:
            step(desk, rng)
        except StaleRejected:
            continue
        happened.add(step.__name__)
        check(desk, cache)
    assert cache.reloads == 0
    assert len(happened) >= 9


def test_a_row_that_was_changed_behind_its_back_is_noticed(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    cache = RunnerCache()
    check(desk, cache)
    desk.overwrite(tables.runners, runner_id, reserved_slots=3, changed_at=7)
    check(desk, cache)
    assert cache.reloads == 1


def test_another_policy_has_runners_seen_anew(desk: Desk) -> None:
    desk.register()
    cache = RunnerCache()
    check(desk, cache)
    desk.policy = replace(desk.policy, degraded_takes=-1)
    check(desk, cache)
    assert cache.reloads == 0


def test_a_runner_that_is_gone_is_forgotten(desk: Desk) -> None:
    desk.register()
    runner_id = desk.register("runner-2").runner_id
    cache = RunnerCache()
    check(desk, cache)
    with desk.engine.begin() as connection:
        connection.execute(sa.delete(tables.sessions))
        connection.execute(sa.delete(tables.runners).where(tables.runners.c.runner_id == runner_id))
    check(desk, cache)
    assert cache.reloads == 1


def test_a_damaged_row_is_passed_over_and_comes_back(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    desk.register("runner-2")
    cache = RunnerCache()
    check(desk, cache)
    (row,) = desk.rows(tables.runners, runner_id=runner_id)
    desk.overwrite(
        tables.runners, runner_id, capabilities="{", changed_at=row["changed_at"] + 1, version=9
    )
    check(desk, cache)
    desk.register()
    check(desk, cache)
    assert cache.reloads == 0


def test_a_writer_that_commits_late_is_not_missed(postgresql_engine: sa.Engine) -> None:
    """It wrote its instant before another one that was seen already (DESIGN: standing traps)."""
    desk = Desk(postgresql_engine)
    late = desk.register("runner-1").runner_id
    desk.register("runner-2")
    cache = RunnerCache(overlap_ms=0)
    check(desk, cache)
    with postgresql_engine.connect() as connection, connection.begin() as transaction:
        runners.drain(connection, late, reason="slow", actor="ann", channel="test")
        desk.change(runners.drain, "runner-2", reason="fast", actor="ann", channel="test")
        check(desk, cache)
        transaction.commit()
    check(desk, cache)
    assert cache.reloads == 1


def test_what_lies_within_the_window_needs_no_reload(postgresql_engine: sa.Engine) -> None:
    desk = Desk(postgresql_engine)
    late = desk.register("runner-1").runner_id
    desk.register("runner-2")
    cache = RunnerCache()
    check(desk, cache)
    with postgresql_engine.connect() as connection, connection.begin() as transaction:
        runners.drain(connection, late, reason="slow", actor="ann", channel="test")
        desk.change(runners.drain, "runner-2", reason="fast", actor="ann", channel="test")
        check(desk, cache)
        transaction.commit()
    check(desk, cache)
    assert cache.reloads == 0


@pytest.mark.case("SP-006")
def test_a_runner_that_left_and_came_back_is_never_taken_for_what_it_was(desk: Desk) -> None:
    cache, sessions, versions = RunnerCache(overlap_ms=0), [desk.register().session_id], []
    who = {"reason": "so", "actor": "ann", "channel": "test"}
    for turn in (runners.drain, runners.undrain) * 2:
        desk.change(turn, "runner-1", **who)
    for _ in range(3):
        check(desk, cache)
        (row,) = desk.rows(tables.runners)
        versions.append(row["version"])
        assert row["session_id"] == sessions[-1]
        desk.change(runners.close, sessions[-1], policy=desk.policy.lease)
        total = some_resources(cpu=1_000 * len(versions), memory=2**33, disk=2**36, slots=4)
        sessions.append(desk.register(total=total).session_id)
        with read(desk.engine) as connection:
            (seen,) = cache.read(connection, desk.policy)
        assert (seen.session_id, seen.total.cpu) == (sessions[-1], total.cpu)
    assert versions[0] >= 5
    assert versions == sorted(set(versions)), "no version is ever used again"
    assert len(set(sessions)) == 4
    assert cache.reloads == 0


@pytest.mark.case("SP-006")
def test_a_row_made_anew_with_the_version_of_the_one_before_is_noticed(desk: Desk) -> None:
    """Nothing of ours does that; a hand that restores a row may."""
    runner_id = desk.register().runner_id
    cache = RunnerCache(overlap_ms=0)
    check(desk, cache)
    (row,) = desk.rows(tables.runners)
    desk.change(runners.close, row["session_id"], policy=desk.policy.lease)
    desk.register()
    check(desk, cache)
    desk.overwrite(tables.runners, runner_id, **{**row, "state": "draining"})
    check(desk, cache)
    assert cache.reloads == 1
