"""What a commit costs: statements are counted, for times say little on a busy machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import Device, DeviceRequirement, Equipment, EquipmentRequirement
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import commit, tables
from forgeyard.store.engine import write
from forgeyard.store.shares import DEFAULT_QUEUE
from tests.builders import a_job_spec, jobs_of, some_capabilities, some_resources
from tests.leasing import Desk
from tests.sharing import limit

pytestmark = pytest.mark.integration
PHONES = Equipment(devices=(Device(kind="phone", count=64),))
WANTED = Requirements(equipment=EquipmentRequirement(devices=(DeviceRequirement(kind="phone"),)))


@contextmanager
def counted(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect the statements that reach the database meanwhile."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        sent.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def wanting_everything(desk: Desk, count: int) -> None:
    """Let jobs wait in a limited queue, each with a key and a device."""
    specs = (
        a_job_spec(f"job-{n}", requires=WANTED, wishes=Wishes(keys=(f"key-{count}-{n}",)))
        for n in range(count)
    )
    desk.submit(*(replace(one, resources=some_resources(cpu=10)) for one in specs))


@pytest.mark.requirement("LSE-004")
def test_a_commit_sends_as_much_for_thirty_jobs_as_for_one(engine: sa.Engine) -> None:
    desk = Desk(engine)
    large = some_resources(cpu=64_000, memory=2**38, disk=2**40, slots=64)
    desk.register(total=large, capabilities=some_capabilities(equipment=PHONES))
    limit(desk, DEFAULT_QUEUE, max_jobs=1_000)
    sent: dict[int, int] = {}
    for count in (1, 30):
        wanting_everything(desk, count)
        cycle_id = desk.plan()
        with counted(engine) as statements:
            assert desk.commit(cycle_id).granted == count
        sent[count] = len(statements)
    assert sent[1] == sent[30]
    assert len(desk.rows(tables.key_holds)) == len(desk.rows(tables.device_holds)) == 31
    if engine.dialect.name == "postgresql":
        # The plan, scopes, locks, what they are about with the policy, devices, all changes.
        assert sent[30] == 6


def a_plan(job_id: str, *runners: str) -> Plan:
    candidates = tuple((runner, 900 - place) for place, runner in enumerate(runners))
    decision = Decision(job_id=job_id, candidates=candidates)
    return Plan(decisions=(decision,), diagnoses=(), eligible=1, runners=len(runners))


def two_runners_the_first_full(desk: Desk) -> tuple[str, str]:
    full = desk.register("runner-1", total=some_resources(cpu=500)).runner_id
    desk.submit(a_job_spec(resources=some_resources(cpu=500)))
    assert desk.cycle().granted == 1
    return full, desk.register("runner-2").runner_id


def waiting_job(desk: Desk) -> str:
    run_id = desk.submit(a_job_spec(resources=some_resources(cpu=500)))
    with write(desk.engine) as connection:
        return str(jobs_of(connection, run_id)["build"]["job_id"])


@pytest.mark.requirement("LSE-004")
def test_a_full_first_choice_is_replaced_by_the_next_candidate(engine: sa.Engine) -> None:
    desk = Desk(engine)
    full, other = two_runners_the_first_full(desk)
    outcome = desk.commit(desk.plan(a_plan(waiting_job(desk), full, other)))
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.GRANTED]
    assert outcome.placed[0].runner_id == other


def test_a_further_candidate_that_somebody_holds_is_not_waited_for(
    postgresql_engine: sa.Engine,
) -> None:
    desk = Desk(postgresql_engine)
    full, other = two_runners_the_first_full(desk)
    cycle_id = desk.plan(a_plan(waiting_job(desk), full, other))
    runners: Any = tables.runners
    with write(postgresql_engine) as holder:
        query = sa.select(runners.c.runner_id).where(runners.c.runner_id == other)
        holder.execute(query.with_for_update())
        outcome = desk.commit(cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.NO_CAPACITY]


def test_a_commit_that_waited_for_another_one_tells_what_that_granted(engine: sa.Engine) -> None:
    desk = Desk(engine)
    desk.register()
    desk.submit()
    cycle_id = desk.plan()
    first = desk.commit(cycle_id)
    with write(engine) as connection:
        again = commit.commit_cycle(connection, cycle_id, built_in=desk.policy)
    assert (again, again.repeated, first.repeated) == (replace(first, repeated=True), True, False)
