"""What a long poll brings, and what it keeps from others."""

import pytest
import sqlalchemy as sa

from forgeyard.model.protocol import Assignments, Outcome
from forgeyard.store import runners, runs, tables
from tests.builders import RNG, a_job_spec, some_resources
from tests.leasing import Desk, Lease

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def give_blob(desk: Desk, digest: str, size: int) -> None:
    row = {"digest": digest, "size_bytes": size, "created_at": 1, "used_at": 1}
    desk.change(lambda connection: connection.execute(sa.insert(tables.blobs), [row]))


def give_artifact(desk: Desk, lease: Lease, name: str, digest: str) -> None:
    row = {
        "attempt_id": lease.attempt_id,
        "name": name,
        "job_id": lease.job_id,
        "run_id": lease.run_id,
        "path": name,
        "digest": digest,
        "size_bytes": 7,
        "created_at": 1,
    }
    desk.change(lambda connection: connection.execute(sa.insert(tables.artifacts), [row]))


def offers(desk: Desk, session_id: str) -> dict[str, list[tuple[str, str, int]]]:
    """Read the inputs of every offer of a session, by job."""
    (found,) = desk.assignments(session_id).values()
    return {
        offer.spec.name: [(one.origin, one.digest, one.size) for one in offer.inputs]
        for offer in found.offers
    }


@pytest.mark.requirement("DSP-001", "DSP-002", "DSP-005")
def test_an_offer_is_repeated_until_it_is_answered(desk: Desk) -> None:
    lease = desk.offered(a_job_spec(env={"A": "1"}))
    first = desk.assignments(lease.session_id)
    (offer,) = first[lease.session_id].offers
    assert (offer.lease_id, offer.epoch) == (lease.lease_id, lease.epoch)
    assert (offer.attempt_id, offer.attempt_number) == (lease.attempt_id, 1)
    assert (offer.job_id, offer.run_id, offer.run_name) == (lease.job_id, lease.run_id, "demo")
    assert offer.spec.env == {"A": "1"}
    assert 0 < offer.ttl <= desk.policy.lease.offer_ttl
    assert offer.grace == desk.policy.lease.connectivity_grace
    (again,) = desk.assignments(lease.session_id)[lease.session_id].offers
    assert again.lease_id == offer.lease_id
    desk.accept(lease)
    assert desk.assignments(lease.session_id) == {lease.session_id: Assignments()}


def test_an_offer_that_lapsed_is_not_sent(desk: Desk) -> None:
    lease = desk.offered()
    desk.later(desk.policy.lease.offer_ttl + 1)
    assert desk.assignments(lease.session_id)[lease.session_id].offers == ()


def test_every_session_gets_its_own_and_ended_ones_nothing(desk: Desk) -> None:
    one_job = {"total": some_resources(cpu=500, memory=2**40, disk=2**40, slots=1)}
    sessions = [desk.register(f"runner-{n}", **one_job).session_id for n in range(3)]
    desk.submit(a_job_spec("first"), a_job_spec("second"), a_job_spec("third"))
    assert desk.cycle().granted == 3
    desk.change(runners.close, sessions[2], policy=desk.policy.lease)
    found = desk.assignments(*sessions, "ses_unknown")
    assert found.keys() == set(sessions[:2])
    for session_id in sessions[:2]:
        (offer,) = found[session_id].offers
        (lease,) = desk.leases(session_id=session_id, state="offered")
        assert offer.lease_id == lease.lease_id


def test_nobody_waiting_costs_no_answer(desk: Desk) -> None:
    assert desk.assignments() == {}


def test_a_cancellation_and_a_drain_ride_in_the_same_answer(desk: Desk) -> None:
    lease = desk.active()
    desk.change(
        runs.cancel_run,
        lease.run_id,
        reason="enough",
        actor="tester",
        channel="test",
        policy=desk.policy.lease,
    )
    desk.change(runners.drain, "runner-1", reason="disk", actor="tester", channel="test")
    answer = desk.assignments(lease.session_id)[lease.session_id]
    assert answer == Assignments(cancel=(lease.lease_id,), drain=True)
    desk.complete(lease, Outcome.CANCELLED)
    answer = desk.assignments(lease.session_id)[lease.session_id]
    assert answer == Assignments(drain=True)


def test_inputs_are_the_source_then_the_outputs_of_the_needs_in_their_order(desk: Desk) -> None:
    give_blob(desk, "sha256:source", 42)
    session_id = desk.register().session_id
    desk.submit(
        a_job_spec("one"),
        a_job_spec("two"),
        a_job_spec("last", needs=("two", "one")),
        source_digest="sha256:source",
    )
    assert desk.cycle().granted == 2
    source = ("source", "sha256:source", 42)
    assert offers(desk, session_id) == {"one": [source], "two": [source]}
    for lease in desk.leases():
        name = desk.row(tables.jobs, lease.job_id)["name"]
        desk.accept(lease)
        give_artifact(desk, lease, "b", f"sha256:{name}-b")
        give_artifact(desk, lease, "a", f"sha256:{name}-a")
        desk.complete(lease)
    assert desk.cycle().granted == 1
    assert offers(desk, session_id) == {
        "last": [
            source,
            ("two/a", "sha256:two-a", 7),
            ("two/b", "sha256:two-b", 7),
            ("one/a", "sha256:one-a", 7),
            ("one/b", "sha256:one-b", 7),
        ]
    }


def test_only_the_last_attempt_of_a_need_hands_on_its_outputs(desk: Desk) -> None:
    first = desk.active(a_job_spec("make"), a_job_spec("use", needs=("make",)))
    give_artifact(desk, first, "part", "sha256:old")
    desk.later(10_000_000)
    desk.heartbeat(first.session_id)
    desk.sweep()
    desk.settle(first)
    desk.heartbeat(first.session_id)
    assert desk.cycle().granted == 1
    (second,) = desk.leases(state="offered")
    desk.accept(second)
    give_artifact(desk, second, "part", "sha256:new")
    desk.complete(second)
    assert desk.cycle().granted == 1
    assert offers(desk, second.session_id) == {"use": [("make/part", "sha256:new", 7)]}


def test_a_reused_need_hands_on_what_the_earlier_run_made(desk: Desk) -> None:
    lease = desk.active(
        a_job_spec("make"),
        a_job_spec("use", needs=("make",)),
    )
    give_artifact(desk, lease, "part", "sha256:part")
    desk.complete(lease)
    desk.cycle()
    (use,) = desk.leases(state="offered")
    desk.accept(use)
    desk.complete(use, Outcome.FAILED)
    desk.settle(use)
    assert desk.run_state(lease.run_id) == "failed"
    desk.change(runs.rerun_failed, lease.run_id, actor="tester", policy=desk.policy.lease, rng=RNG)
    assert desk.cycle().granted == 1
    assert offers(desk, lease.session_id) == {"use": [("make/part", "sha256:part", 7)]}
