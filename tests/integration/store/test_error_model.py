"""The six sorts of a scheduler's errors: each provoked for real, and what its caller does next."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from activities.failures import application_error
from forgeyard.config import StoreConfig
from forgeyard.errors import (
    AccountingCorrupt,
    ForgeyardError,
    IllegalTransition,
    InvalidPolicy,
    InvalidRequirements,
    StoreUnavailable,
)
from forgeyard.model import policy_document
from forgeyard.model.capability import Platform, Requirements
from forgeyard.model.transitions import JobState
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import changes, snapshot, tables
from forgeyard.store.changes import JOB
from forgeyard.store.engine import database_now, open_engine, read
from forgeyard.store.reconcile import passes
from tests.builders import PARTITION, a_job_spec
from tests.leasing import POLICY, Desk
from tests.scraping import a_free_port

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def store_unavailable(_desk: Desk) -> None:
    """Ask a database that is not there."""
    url = f"postgresql://nobody@127.0.0.1:{a_free_port()}/none"
    engine = open_engine(url, StoreConfig())
    try:
        with read(engine) as connection:
            database_now(connection)
    finally:
        engine.dispose()


def invalid_job_requirements(desk: Desk) -> None:
    """Submit two jobs that wait for each other."""
    desk.submit(a_job_spec("one", needs=("two",)), a_job_spec("two", needs=("one",)))


def resource_accounting_corrupt(desk: Desk) -> None:
    """End a job on a runner that says it holds nothing."""
    lease = desk.active()
    desk.overwrite(tables.runners, lease.runner_id, reserved_cpu_milli=0)
    desk.complete(lease)


def policy_error(_desk: Desk) -> None:
    """Read a policy that asks for what cannot be."""
    policy_document.read({"sweep": {"period": "yesterday"}})


def internal(desk: Desk) -> None:
    """Let a job skip the states that lie between."""
    desk.submit()
    (job,) = desk.rows(tables.jobs)
    desk.change(changes.move, JOB, job, JobState.SUCCEEDED, reason="a bug", now=1)


@pytest.mark.requirement("RCN-024", "RCN-026")
@pytest.mark.parametrize(
    ("provoke", "expected", "tried_again"),
    [
        (store_unavailable, StoreUnavailable, True),
        (invalid_job_requirements, InvalidRequirements, False),
        (resource_accounting_corrupt, AccountingCorrupt, False),
        (policy_error, InvalidPolicy, False),
        (internal, IllegalTransition, False),
    ],
)
def test_each_sort_of_error_is_one_of_ours_and_says_whether_to_try_again(
    desk: Desk, provoke: Callable[[Desk], None], expected: type[ForgeyardError], tried_again: bool
) -> None:
    with pytest.raises(expected) as caught:
        provoke(desk)
    assert type(caught.value) is expected
    assert caught.value.retryable is tried_again
    told = application_error(caught.value)
    assert (told.type, told.non_retryable) == (expected.code, not tried_again)


@pytest.mark.requirement("RCN-024", "RCN-026")
def test_a_placement_conflict_is_no_error_and_the_next_candidate_gets_it_at_once(
    desk: Desk,
) -> None:
    gone, next_best = desk.register("runner-1"), desk.register("runner-2")
    desk.submit()
    (job,) = desk.rows(tables.jobs)
    candidates = ((gone.runner_id, 900), (next_best.runner_id, 800))
    decision = Decision(job_id=job["job_id"], candidates=candidates)
    cycle = desk.plan(Plan(decisions=(decision,), diagnoses=(), eligible=1, runners=2))
    desk.overwrite(tables.runners, gone.runner_id, suspect=1)
    assert desk.commit(cycle).verdicts == ((job["job_id"], Verdict.GRANTED),)
    (lease,) = desk.leases()
    assert lease.runner_id == next_best.runner_id


@pytest.mark.requirement("RCN-026")
def test_requirements_that_nobody_meets_are_not_tried_until_something_has_changed(
    desk: Desk,
) -> None:
    desk.register()
    desk.submit(a_job_spec(requires=Requirements(platform=Platform.MACOS)))
    assert desk.cycle().granted == 0
    assert len(looked_at(desk)) == 0, "its class is parked"
    desk.register("another")
    assert len(looked_at(desk)) == 1, "the fleet is another one"


def looked_at(desk: Desk) -> list[str]:
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, PARTITION, desk.policy)
    return [job.job_id for job in seen.jobs]


@pytest.mark.requirement("RCN-017", "RCN-024")
def test_what_corrupt_books_refused_goes_through_once_they_are_repaired(desk: Desk) -> None:
    with pytest.raises(AccountingCorrupt):
        resource_accounting_corrupt(desk)
    (lease,) = desk.leases()
    assert desk.states(lease) == ("active", "preparing", "preparing"), "nothing of it happened"
    passes.reconcile(desk.engine, POLICY)
    desk.complete(lease)
    assert desk.states(lease)[0] == "released"
    assert desk.reserved(lease.runner_id)["cpu_milli"] == 0
