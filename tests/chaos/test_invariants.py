"""The checker of the fault tests catches every kind of damage that it looks for."""

from collections.abc import Callable
from typing import Final

import pytest
import sqlalchemy as sa

from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.protocol import Outcome
from forgeyard.store import tables
from tests.builders import a_job_spec
from tests.chaos.invariants import ALWAYS, AT_REST, violations
from tests.leasing import Desk, Lease

pytestmark = pytest.mark.integration
Damage = Callable[[Desk, Lease, Lease], sa.Executable]
AGAIN: Final = RetryPolicy(max_attempts=2, on=(FailureClass.INFRASTRUCTURE,))
leases, jobs, attempts = tables.leases, tables.jobs, tables.attempts


def a_story(desk: Desk) -> tuple[Lease, Lease]:
    """Let the first attempt of a job fail and the second one run."""
    first = desk.active(a_job_spec(retry=AGAIN))
    desk.complete(first, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
    desk.settle(first)
    assert desk.cycle().granted == 1
    (second,) = desk.leases(state="offered")
    desk.accept(second)
    return first, second


def lease_is(which: int, **values: object) -> Damage:
    """Change the first or the second lease."""
    return lambda _desk, *both: (
        sa.update(leases).where(leases.c.lease_id == both[which].lease_id).values(values)
    )


def all_rows(table: sa.Table, **values: object) -> Damage:
    """Change every row of a table."""
    return lambda *_: sa.update(table).values(values)


def success_in_history(_desk: Desk, lease: Lease, _second: Lease) -> sa.Executable:
    """Tell twice that a job succeeded."""
    row = {"kind": "job", "entity_id": lease.job_id, "after": "succeeded", "version": 9}
    return sa.insert(tables.history).values([{**row, "reason": "", "at": at} for at in (1, 2)])


DAMAGES: Final[dict[str, Damage]] = {
    "a job has several live leases": lease_is(0, state="active"),
    "a job has several accepted successes": all_rows(attempts, state="succeeded"),
    "a job became succeeded twice": success_in_history,
    "a live lease holds no reservation": lambda *_: sa.delete(tables.reservations),
    "a reservation belongs to no live lease": lease_is(1, state="expired"),
    "a runner's reserved amounts are not the sum of its reservations": all_rows(
        tables.runners, reserved_slots=3
    ),
    "a runner holds more than it has": all_rows(tables.runners, total_cpu_milli=1),
    "the epochs of a job do not grow": lease_is(0, epoch=7),
    "a lease has an epoch that its job never gave": all_rows(jobs, epoch=1),
    "a job has ended and is leased": all_rows(jobs, state="succeeded"),
    "a run has ended and its job has not": all_rows(tables.runs, state="failed"),
}


def test_every_rule_that_always_holds_has_a_damage_that_breaks_it() -> None:
    assert DAMAGES.keys() == ALWAYS.keys()


@pytest.mark.parametrize("rule", DAMAGES)
def test_the_checker_finds_nothing_in_an_ordinary_story_and_the_damage_in_a_damaged_one(
    engine: sa.Engine, rule: str
) -> None:
    desk = Desk(engine)
    first, second = a_story(desk)
    assert violations(engine) == []
    desk.change(sa.Connection.execute, DAMAGES[rule](desk, first, second))
    assert [found for found in violations(engine) if found.startswith(f"{rule}: ")]


def test_what_has_not_come_to_rest_is_told(engine: sa.Engine) -> None:
    desk = Desk(engine)
    _first, second = a_story(desk)
    assert violations(engine, of=AT_REST) == [
        f"a run has not ended: {second.run_id}",
        f"an attempt is not settled: {second.attempt_id}",
    ]
    desk.complete(second)
    desk.settle(second)
    assert violations(engine, of=AT_REST) == []
