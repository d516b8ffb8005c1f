"""One damaged stored row parks its own job and stops neither a cycle, a poll, nor the sweep."""

import random

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard.errors import Corrupt
from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import CompletionVerdict, Outcome
from forgeyard.store import overview, snapshot, tables, views
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration
DAMAGED = [
    {"spec": "{not JSON"},
    {"spec": '{"name": "build"}'},
    {"spec": "[" * 100_000},
    {"priority": "loudest"},
]


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def job_of(desk: Desk, name: str) -> dict[str, object]:
    (row,) = desk.rows(tables.jobs, name=name)
    return row


def damage(desk: Desk, name: str, **values: object) -> None:
    desk.overwrite(tables.jobs, job_of(desk, name)["job_id"], **values or {"spec": "{"})


def plan(desk: Desk) -> contracts.CyclePlan:
    """Plan as the worker does."""
    activities = SchedulingActivities(desk.engine, desk.policy, rng=random.Random(1))
    return activities.plan_cycle(contracts.Partition(partition=PARTITION))


@pytest.mark.parametrize("values", DAMAGED)
def test_a_waiting_job_that_cannot_be_read_is_parked_and_the_others_are_placed(
    desk: Desk, values: dict[str, object]
) -> None:
    desk.register()
    broken = desk.submit(a_job_spec("broken"), a_job_spec("after", needs=("broken",)))
    desk.submit(a_job_spec("sound"))
    damage(desk, "broken", **values)
    assert desk.commit(plan(desk).cycle_id).granted == 1
    assert job_of(desk, "sound")["state"] == "leased"
    parked = job_of(desk, "broken")
    assert (parked["state"], parked["failure_class"]) == ("cancelled", "internal")
    assert "cannot be read" in parked["message"]
    assert job_of(desk, "after")["state"] == "skipped"
    assert desk.run_state(broken) == "failed"
    assert not desk.deadlines(parked["job_id"])
    assert [row["target"] for row in desk.audited("job.parked")] == [parked["job_id"]]
    with read(desk.engine) as connection:
        assert views.run(connection, broken).state == "failed"


def test_a_runner_that_cannot_be_read_gets_nothing_until_it_registers_again(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    desk.submit(a_job_spec())
    desk.overwrite(tables.runners, runner_id, capabilities="{")
    assert plan(desk).planned == 0
    with read(desk.engine) as connection:
        assert [runner.name for runner in overview.runners(connection)] == ["runner-1"]
    desk.register()
    assert plan(desk).planned == 1


def test_explaining_a_job_that_cannot_be_read_says_so(desk: Desk) -> None:
    desk.submit(a_job_spec("broken"))
    damage(desk, "broken")
    with read(desk.engine) as connection, pytest.raises(Corrupt):
        snapshot.load_with(connection, job_of(desk, "broken")["job_id"], desk.policy)


def two_offers(desk: Desk) -> tuple[Lease, Lease]:
    """Offer two jobs to one runner and damage the first."""
    desk.register()
    desk.submit(a_job_spec("broken"), a_job_spec("sound"))
    assert desk.cycle().granted == 2
    damage(desk, "broken")
    found = {desk.row(tables.jobs, lease.job_id)["name"]: lease for lease in desk.leases()}
    return found["broken"], found["sound"]


def test_an_offer_that_cannot_be_read_silences_no_other(desk: Desk) -> None:
    broken, sound = two_offers(desk)
    answer = desk.assignments(broken.session_id)[broken.session_id]
    assert [offer.lease_id for offer in answer.offers] == [sound.lease_id]
    desk.later(desk.policy.lease.offer_ttl + 1)
    assert desk.sweep().alert == ""
    assert desk.states(broken) == ("expired", "lost", "cancelled")
    assert desk.states(sound) == ("expired", "lost", "eligible")
    assert desk.reserved(broken.runner_id)["slots"] == 0


def test_a_runner_with_a_damaged_job_can_register_again(desk: Desk) -> None:
    broken, sound = two_offers(desk)
    desk.register()
    assert desk.states(broken) == ("revoked", "lost", "cancelled")
    assert desk.states(sound) == ("revoked", "lost", "eligible")


def test_the_need_of_a_damaged_job_can_complete(desk: Desk) -> None:
    lease = desk.active(a_job_spec("sound"), a_job_spec("broken", needs=("sound",)))
    damage(desk, "broken")
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert job_of(desk, "broken")["state"] == "cancelled"
    assert desk.run_state(lease.run_id) == "failed"


def test_a_damaged_job_that_runs_ends_with_its_attempt_and_is_not_tried_again(desk: Desk) -> None:
    lease = desk.offered(a_job_spec("broken"))
    damage(desk, "broken")
    desk.accept(lease)
    assert desk.deadlines(lease.attempt_id) == {"preparation"}
    assert desk.complete(lease) is CompletionVerdict.INVALID_REJECTED
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
    assert desk.settle(lease).job_state == "failed"
    assert desk.run_state(lease.run_id) == "failed"


def test_a_damaged_state_or_an_unknown_kind_does_not_stop_the_sweep(desk: Desk) -> None:
    lease = desk.offered(a_job_spec("sound"), a_job_spec("broken", needs=("sound",)))
    broken = job_of(desk, "broken")["job_id"]
    desk.overwrite(tables.jobs, broken, state="confused")
    rows = [
        {"kind": "retry", "entity_id": lease.job_id, "partition": PARTITION, "due_at": 2},
        {"kind": "queue", "entity_id": "job_gone", "partition": PARTITION, "due_at": 1},
        {"kind": "of tomorrow", "entity_id": broken, "partition": PARTITION, "due_at": 0},
        {"kind": "run", "entity_id": lease.run_id, "partition": PARTITION, "due_at": 1},
    ]
    clear = sa.delete(tables.deadlines)
    desk.change(lambda connection: connection.execute(clear))
    desk.change(lambda connection: connection.execute(sa.insert(tables.deadlines), rows))
    desk.later(48 * HOUR)
    result = desk.sweep()
    assert result.expired == 1
    assert "job_gone" in result.alert
    assert f"run of {lease.run_id} failed" in result.alert
    assert not {"retry"} & desk.deadlines(lease.job_id)
    assert desk.sweep().alert == ""  # put off, so that many of them never fill every sweep
    assert desk.deadlines(lease.run_id) == {"run"}
    assert desk.deadlines(broken) == {"of tomorrow"}


@pytest.mark.parametrize("text", ["{", '{"ref": 1}', "[" * 10_000])
def test_a_damaged_commit_hides_neither_the_run_nor_its_offer(desk: Desk, text: str) -> None:
    lease = desk.offered(a_job_spec("sound"))
    desk.overwrite(tables.runs, lease.run_id, git=text)
    (offer,) = desk.assignments(lease.session_id)[lease.session_id].offers
    assert (offer.lease_id, offer.git) == (lease.lease_id, None)
    with read(desk.engine) as connection:
        assert views.run(connection, lease.run_id).git is None
        assert len(views.list_runs(connection, limit=1).runs) == 1
