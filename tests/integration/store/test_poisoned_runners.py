"""A runner for which every commit refuses what was planned is left alone, told, and tried again."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import ReconcilePolicy
from forgeyard.model.runner import Suspicion
from forgeyard.scheduler.findings import FindingKind, FindingOutcome
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import tables
from forgeyard.store.engine import read, write
from forgeyard.store.reconcile import passes
from forgeyard.store.runner_cache import RunnerCache
from tests.builders import a_job_spec
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
CYCLES = 3
MINUTE = 60_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine, replace(POLICY, reconcile=ReconcilePolicy(conflicts=CYCLES)))


def found(desk: Desk) -> list[tuple[FindingKind, str, FindingOutcome]]:
    done = passes.reconcile(desk.engine, desk.policy).findings
    return [(one.kind, one.entity, one.outcome) for one in done]


def a_vain_cycle(desk: Desk, *runner_ids: str) -> Verdict:
    """Plan for these runners, as a stale view would, what they have no room for any more."""
    (job_id,) = (row["job_id"] for row in desk.rows(tables.jobs, name="wanting"))
    candidates = tuple((runner_id, 500) for runner_id in runner_ids)
    decision = Decision(job_id=job_id, candidates=candidates)
    plan = Plan(decisions=(decision,), diagnoses=(), eligible=1, runners=1)
    return desk.commit(desk.plan(plan)).verdicts[0][1]


def poison(desk: Desk, runner_id: str) -> None:
    """Make a runner refuse everything by its locked row, whatever a plan believes."""
    row = desk.row(tables.runners, runner_id)
    desk.overwrite(tables.runners, runner_id, headroom_slots=row["total_slots"])


def suspicion(desk: Desk, runner_id: str) -> int:
    return int(desk.row(tables.runners, runner_id)["suspect"])


def later(desk: Desk, milliseconds: int) -> None:
    """Let the cycles so far lie back, for nothing else here has a time."""
    cycles = tables.cycles
    with write(desk.engine) as connection:
        past = cycles.c.created_at - milliseconds
        connection.execute(sa.update(cycles).values(created_at=past))


@pytest.mark.case("SP-036")
def test_a_runner_refused_in_every_cycle_is_suspect_told_and_recovers(desk: Desk) -> None:
    session = desk.register()
    runner_id = session.runner_id
    poison(desk, runner_id)
    desk.submit(a_job_spec("wanting"))
    for _ in range(CYCLES - 1):
        assert a_vain_cycle(desk, runner_id) is Verdict.NO_CAPACITY
    assert found(desk) == [], "a conflict now and then is normal"
    a_vain_cycle(desk, runner_id)
    cache = RunnerCache()
    assert seen(desk, cache) == {runner_id: False}
    (told,) = found(desk)
    assert told == (FindingKind.RUNNER_CONFLICTED, runner_id, FindingOutcome.REPAIRED)
    assert suspicion(desk, runner_id) == Suspicion.CONFLICTS
    assert desk.row(tables.runners, runner_id)["penalty"] > 0, "it comes last afterwards"
    assert seen(desk, cache) == {runner_id: True}, "whoever remembers it reads it anew"
    desk.heartbeat(session.session_id)
    assert suspicion(desk, runner_id) == Suspicion.CONFLICTS, "a sign of life is no cure"
    assert a_vain_cycle(desk, runner_id) is Verdict.RUNNER_UNAVAILABLE
    assert found(desk) == []

    desk.overwrite(tables.runners, runner_id, headroom_slots=0)
    later(desk, 6 * MINUTE)
    assert [one[0] for one in found(desk)] == [FindingKind.RUNNER_RESTED]
    assert suspicion(desk, runner_id) == Suspicion.NONE
    assert desk.cycle().granted == 1
    recorded = [row["kind"] for row in desk.rows(tables.findings)]
    assert recorded == ["runner_conflicted", "runner_rested"]


def seen(desk: Desk, cache: RunnerCache) -> dict[str, bool]:
    with read(desk.engine) as connection:
        return {one.runner_id: one.suspect for one in cache.read(connection, desk.policy)}


def test_a_runner_that_is_also_granted_something_is_only_popular(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    desk.submit(a_job_spec("fits"))
    assert desk.cycle().granted == 1
    poison(desk, runner_id)
    desk.submit(a_job_spec("wanting"))
    for _ in range(CYCLES):
        a_vain_cycle(desk, runner_id)
    assert found(desk) == [(FindingKind.RUNNER_OVERFULL, runner_id, FindingOutcome.REPORTED)]
    assert suspicion(desk, runner_id) == Suspicion.NONE


def test_a_first_choice_that_the_next_candidate_replaces_counts_as_refused(desk: Desk) -> None:
    bad, good = desk.register("bad").runner_id, desk.register("good").runner_id
    poison(desk, bad)
    for number in range(CYCLES):
        desk.submit(a_job_spec("wanting"), name=f"run-{number}")
        assert a_vain_cycle(desk, bad, good) is Verdict.GRANTED
        (job,) = desk.rows(tables.jobs, name="wanting")
        desk.overwrite(tables.jobs, job["job_id"], name=f"placed-{number}")
    assert found(desk) == [(FindingKind.RUNNER_CONFLICTED, bad, FindingOutcome.REPAIRED)]
    assert suspicion(desk, good) == Suspicion.NONE


def test_none_is_left_alone_where_the_policy_says_so(engine: sa.Engine) -> None:
    desk = Desk(engine, replace(POLICY, reconcile=ReconcilePolicy(conflicts=0)))
    runner_id = desk.register().runner_id
    poison(desk, runner_id)
    desk.submit(a_job_spec("wanting"))
    for _ in range(CYCLES):
        a_vain_cycle(desk, runner_id)
    assert found(desk) == []
    assert suspicion(desk, runner_id) == Suspicion.NONE
