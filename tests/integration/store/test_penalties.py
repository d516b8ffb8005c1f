"""Losses and failures of a runner's own are written down where they happen, and fade."""

from itertools import pairwise

import pytest
import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import Outcome
from forgeyard.model.runner import RejectReason
from forgeyard.scheduler.reliability import DISCONNECT, FAULT, FAULTS, MOST
from forgeyard.store import silence, snapshot, tables
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec
from tests.leasing import HOUR, Desk

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def penalty(desk: Desk) -> int:
    """Look at the one runner as a cycle does."""
    with read(desk.engine) as connection:
        (runner,) = snapshot.load(connection, PARTITION, desk.policy).runners
    return runner.penalty


def another(desk: Desk, session_id: str) -> None:
    """Give the runner one more job and let it accept."""
    run_id = desk.submit(a_job_spec("again"))
    assert desk.cycle().granted == 1
    (lease,) = (one for one in desk.leases(state="offered") if one.run_id == run_id)
    assert lease.session_id == session_id
    desk.accept(lease)


@pytest.mark.requirement("SCO-014")
@pytest.mark.case("SP-042")
@pytest.mark.parametrize("blame", list(FailureClass))
def test_only_a_failure_of_the_runners_own_counts_against_it(
    desk: Desk, blame: FailureClass
) -> None:
    lease = desk.active(a_job_spec("build"))
    desk.complete(lease, Outcome.FAILED, failure_class=blame)
    assert penalty(desk) == (FAULT if blame in FAULTS else 0)
    desk.complete(lease, Outcome.FAILED, failure_class=blame)
    assert penalty(desk) == (FAULT if blame in FAULTS else 0), "said twice, counted once"


@pytest.mark.case("SP-042")
def test_a_success_and_a_refusal_leave_a_runner_blameless(desk: Desk) -> None:
    desk.complete(desk.active(a_job_spec("build")))
    assert penalty(desk) == 0
    desk.reject(desk.offered(a_job_spec("other")), reason=RejectReason.DISK_INSUFFICIENT)
    assert penalty(desk) == 0


@pytest.mark.requirement("SCO-014")
def test_an_attempt_that_is_lost_counts_however_it_was_lost(desk: Desk) -> None:
    desk.active(a_job_spec("build"))
    desk.later(HOUR)
    desk.sweep()
    lost = penalty(desk)
    assert lost >= FAULT
    desk.overwrite(tables.runners, desk.rows(tables.runners)[0]["runner_id"], penalty=0)
    desk.active(a_job_spec("other"))
    desk.register()
    assert penalty(desk) == FAULT, "fenced by the agent that came after it"


@pytest.mark.requirement("SCO-014")
def test_a_session_that_fell_silent_counts_half(desk: Desk) -> None:
    desk.register()
    desk.later(HOUR)
    assert desk.change(silence.lose_silent_sessions, policy=desk.policy) == 1
    assert penalty(desk) == DISCONNECT


@pytest.mark.case("SP-044")
@pytest.mark.requirement("SCO-014", "SCO-015")
def test_a_runner_that_fails_everything_is_known_by_it_until_it_is_forgotten(desk: Desk) -> None:
    session_id = desk.register().session_id
    (runner,) = desk.rows(tables.runners)
    grown: list[int] = []
    for _ in range(20):
        another(desk, session_id)
        (lease,) = desk.leases(state="active")
        desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
        desk.change(withdraw, lease.job_id)
        grown.append(penalty(desk))
    # The clock of the database runs on meanwhile, so a little is forgotten already.
    assert all(later > earlier for earlier, later in pairwise(grown[:12]))
    assert MOST - FAULT < grown[-1] <= MOST
    half_life = desk.policy.lease.penalty_half_life
    at = desk.row(tables.runners, runner["runner_id"])["penalty_at"]
    desk.overwrite(tables.runners, runner["runner_id"], penalty_at=at - 20 * half_life)
    another(desk, session_id)
    (lease,) = desk.leases(state="active")
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
    assert penalty(desk) == FAULT, "what was long ago does not count any more"


def withdraw(connection: sa.Connection, job_id: str) -> None:
    """Take a job out of the queue that would be tried again."""
    jobs = tables.jobs
    connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(cancel_reason="done"))
