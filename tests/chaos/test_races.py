"""Races that exactly one may win: for a job, and for the right to say how it ended. F11, F16."""

from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from forgeyard.errors import IllegalTransition
from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.protocol import CompletionVerdict, Outcome
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import fence, tables
from forgeyard.store.commit import save_plan
from tests.builders import PARTITION, RNG, a_job_spec, some_resources
from tests.chaos.invariants import violations
from tests.integration.store.test_commit import a_plan
from tests.integration.store.test_commit_races import at_once
from tests.leasing import Desk

pytestmark = pytest.mark.integration
SCHEDULERS = 3
RACES, FEW = 200, 20
"""As many in each round of `make chaos`; few in `make test`, which has one round."""
ONE = {"total": some_resources(cpu=1_000, memory=2**40, disk=2**40, slots=1)}
Record = Callable[[str, object], None]


@pytest.fixture
def desk(postgresql_engine: sa.Engine) -> Desk:
    return Desk(postgresql_engine)


@pytest.mark.requirement("LSE-005", "LSE-006", "RCN-025", "GAT-002", "GAT-003")
def test_of_three_schedulers_that_race_for_one_job_and_one_runner_exactly_one_wins(
    desk: Desk, pytestconfig: pytest.Config, record_property: Record
) -> None:
    """F16: the others hear why they did not, and nothing is granted twice or lost."""
    rounds = pytestconfig.getoption("--chaos-rounds")
    races = RACES * rounds if rounds > 1 else FEW
    runner_id = desk.register(**ONE).runner_id
    digests, verdicts = ("sha256:any", desk.policy.digest()), Counter[str]()
    for number in range(races):
        (job,) = desk.rows(tables.jobs, run_id=desk.submit(a_job_spec(f"job-{number}")))
        plan = a_plan((job["job_id"], [runner_id]))
        cycles = [
            desk.change(save_plan, PARTITION, plan, *digests, rng=RNG).cycle_id
            for _ in range(SCHEDULERS)
        ]
        outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in cycles])
        verdicts.update(verdict for outcome in outcomes for _, verdict in outcome.verdicts)
        assert [outcome.granted for outcome in outcomes].count(1) == 1
        (lease,) = desk.leases(job_id=job["job_id"])
        desk.accept(lease)
        assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert violations(desk.engine) == []
    assert verdicts[Verdict.GRANTED] == races
    assert sum(verdicts.values()) == SCHEDULERS * races
    told = {str(verdict): count for verdict, count in verdicts.items()}
    record_property(f"{races} races of {SCHEDULERS}", told)


def late_result_against_new_lease(desk: Desk, rounds: int) -> Counter[tuple[str, str]]:
    """Let the agent of a lost lease and the one of the new lease end the job at the same moment."""
    answers: Counter[tuple[str, str]] = Counter()
    again = RetryPolicy(max_attempts=2, on=(FailureClass.RUNNER_LOST,))
    for name in ("runner-1", "runner-2"):
        desk.register(name, **ONE)
    for number in range(rounds):
        desk.submit(a_job_spec(f"job-{number}", retry=again))
        assert desk.cycle().granted == 1
        (old,) = desk.leases(state="offered")
        desk.accept(old)
        desk.overwrite(tables.leases, old.lease_id, expires_at=1)
        assert desk.sweep().expired == 1
        desk.settle(old)
        assert desk.cycle().granted == 1
        (new,) = desk.leases(state="offered")
        assert new.runner_id != old.runner_id, "the one that lost it gets it again"
        desk.accept(new)
        late, rightful = at_once(
            [
                lambda lease=old: desk.complete(lease, Outcome.SUCCEEDED),
                lambda lease=new: desk.complete(lease, Outcome.FAILED),
            ]
        )
        answers[late, rightful] += 1
        assert desk.states(new)[:2] == ("released", "failed")
        assert desk.states(old)[:2] == ("expired", "lost")
        assert violations(desk.engine) == []
        desk.settle(new)
        for row in desk.rows(tables.sessions, state="open"):
            desk.heartbeat(row["session_id"])
    return answers


@pytest.mark.requirement("LSE-002", "LSE-005", "LSE-008", "GAT-007")
def test_a_late_result_never_counts_against_the_lease_that_came_after_it(
    desk: Desk, pytestconfig: pytest.Config, record_property: Record
) -> None:
    """F11: whoever is first, the old epoch is refused and the new one has its way."""
    rounds = 20 * pytestconfig.getoption("--chaos-rounds")
    answers = late_result_against_new_lease(desk, rounds)
    stale, accepted = CompletionVerdict.STALE_REJECTED, CompletionVerdict.ACCEPTED
    assert answers == {(stale, accepted): rounds}
    assert len(desk.audited("attempt.late_result_rejected")) == rounds
    record_property("late results against a new lease", f"{rounds} refused of {rounds}")


def test_without_the_fence_a_late_result_is_noticed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "staleness", lambda *_arguments: None)
    with pytest.raises((AssertionError, ValueError, IllegalTransition)):
        late_result_against_new_lease(desk, 20)
