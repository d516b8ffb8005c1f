"""Sessions of agents: how they begin, supersede each other, and what their end takes away."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound, StaleRejected
from forgeyard.model.equipment import Device, Equipment, Provenance
from forgeyard.model.protocol import CompletionVerdict, Registered, RenewalVerdict
from forgeyard.model.runner import ResourcePressure
from forgeyard.scheduler.reliability import DISCONNECT
from forgeyard.store import overview, runners, silence, tables
from forgeyard.store.engine import read
from forgeyard.store.leases import Refused
from tests.builders import RNG, a_job_spec, a_registration, some_capabilities, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration
VERIFIED_BY_ITSELF = some_capabilities(
    equipment=Equipment(devices=(Device(kind="phone", provenance=Provenance.VERIFIED),))
)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def state_of(desk: Desk, runner_id: str) -> str:
    return str(desk.row(tables.runners, runner_id)["state"])


def close(desk: Desk, session_id: str) -> None:
    desk.change(runners.close, session_id, policy=desk.policy.lease)


def drain(desk: Desk, name: str = "runner-1") -> None:
    desk.change(runners.drain, name, reason="new disk", actor="tester", channel="test")


def undrain(desk: Desk, name: str = "runner-1") -> None:
    desk.change(runners.undrain, name, reason="done", actor="tester", channel="test")


# Registering


def test_a_new_runner_is_online_and_told_its_rhythm(desk: Desk) -> None:
    registered = desk.register()
    policy = desk.policy.lease
    assert registered.renew_every == policy.renew_every
    assert registered.heartbeat_every == 10_000
    row = desk.row(tables.runners, registered.runner_id)
    assert (row["state"], row["session_id"]) == ("online", registered.session_id)
    assert (row["total_cpu_milli"], row["reserved_cpu_milli"]) == (4_000, 0)
    assert row["trust"] == "trusted_internal"
    history = desk.rows(tables.history, kind="runner", entity_id=registered.runner_id)
    assert [(line["before"], line["after"]) for line in history] == [("offline", "online")]


def test_registering_again_keeps_the_runner_and_supersedes_its_session(desk: Desk) -> None:
    first = desk.register()
    second = desk.register(total=some_resources(cpu=8_000, slots=8))
    assert second.runner_id == first.runner_id
    assert second.session_id != first.session_id
    assert desk.row(tables.sessions, first.session_id)["state"] == "superseded"
    assert desk.row(tables.runners, first.runner_id)["total_cpu_milli"] == 8_000
    with pytest.raises(StaleRejected):
        desk.heartbeat(first.session_id)
    desk.heartbeat(second.session_id)


def test_a_new_session_fences_an_offer_of_the_one_before(desk: Desk) -> None:
    lease = desk.offered()
    wakes = desk.wakes()
    desk.register()
    assert desk.states(lease) == ("revoked", "lost", "eligible")
    assert desk.row(tables.jobs, lease.job_id)["attempts_charged"] == 0
    assert desk.row(tables.attempts, lease.attempt_id)["settled_at"] is not None
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.wakes() == wakes + 1
    assert isinstance(desk.accept(lease), Refused)


@pytest.mark.requirement("LSE-011")
def test_a_new_session_fences_what_the_one_before_was_running(desk: Desk) -> None:
    lease = desk.active()
    desk.register()
    assert desk.states(lease) == ("revoked", "lost", "lost")
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.deadlines(lease.attempt_id) == {"settle"}
    assert desk.events(lease.attempt_id) == ["lease.granted", "attempt.finished"]
    assert desk.renew(lease) is RenewalVerdict.STALE
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    assert desk.states(lease) == ("revoked", "lost", "lost")
    assert desk.settle(lease).job_state == "eligible"


@pytest.mark.requirement("LSE-011")
def test_a_new_session_fences_several_leases_of_one_run(desk: Desk) -> None:
    desk.register()
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(3)))
    assert desk.cycle().granted == 3
    first, second, third = desk.leases(state="offered")
    desk.accept(first)
    desk.accept(second)
    desk.register()
    assert {desk.states(lease)[2] for lease in (first, second)} == {"lost"}
    assert desk.states(third) == ("revoked", "lost", "eligible")
    assert desk.reserved(first.runner_id)["slots"] == 0


def test_a_session_that_fell_silent_is_fenced_by_the_next_one_too(desk: Desk) -> None:
    lease = desk.active()
    desk.later(desk.policy.lease.session_silence + 1)
    desk.sweep()
    assert desk.row(tables.sessions, lease.session_id)["state"] == "open"
    assert state_of(desk, lease.runner_id) == "offline"
    assert desk.states(lease)[0] == "active"
    desk.register()
    assert desk.states(lease) == ("revoked", "lost", "lost")
    assert desk.row(tables.sessions, lease.session_id)["state"] == "superseded"


def test_a_registration_that_is_heard_twice_opens_one_session(desk: Desk) -> None:
    first = register_with(desk, "key-1")
    desk.submit()
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    desk.accept(lease)
    again = register_with(desk, "key-1")
    assert replace(again, store_mark=first.store_mark) == first
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.heartbeat(first.session_id).drain is False


def test_a_registration_that_is_heard_too_late_fences_nobody(desk: Desk) -> None:
    register_with(desk, "key-1")
    second = register_with(desk, "key-2")
    with pytest.raises(StaleRejected):
        register_with(desk, "key-1")
    assert desk.row(tables.runners, second.runner_id)["session_id"] == second.session_id
    assert register_with(desk, "key-2") == second


def register_with(desk: Desk, key: str) -> Registered:
    """Register the runner as an agent that draws a key for every session."""
    message = replace(a_registration(), key=key)
    return desk.change(runners.register, message, policy=desk.policy.lease, rng=RNG)


def test_registering_recounts_what_is_reserved(desk: Desk) -> None:
    registered = desk.register()
    desk.overwrite(tables.runners, registered.runner_id, reserved_slots=3, reserved_cpu_milli=7)
    desk.register()
    assert desk.reserved(registered.runner_id) == {
        "cpu_milli": 0,
        "memory_bytes": 0,
        "disk_bytes": 0,
        "slots": 0,
    }


@pytest.mark.requirement("RUN-010", "RUN-011")
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"runner_name": "no spaces"}, "runner_name"),
        ({"runner_name": ""}, "runner_name"),
        ({"runner_name": "zero\x00"}, "runner_name"),
        ({"protocol_version": 2}, "protocol_version"),
        ({"headroom": some_resources(cpu=-1)}, "headroom.cpu"),
        ({"total": some_resources(memory=2**63)}, "total.memory"),
        ({"total": some_resources(slots=-1)}, "total.slots"),
        ({"capabilities": VERIFIED_BY_ITSELF}, "capabilities.provenance"),
    ],
)
def test_a_registration_that_cannot_be_is_refused_and_leaves_nothing(
    desk: Desk, changed: dict[str, object], field: str
) -> None:
    message = replace(a_registration(), **changed)
    with pytest.raises(InvalidRequest) as caught:
        desk.change(runners.register, message, policy=desk.policy.lease, rng=RNG)
    assert caught.value.field == field
    assert desk.rows(tables.runners) == []


@pytest.mark.requirement("ELG-027")
def test_a_runner_shows_its_report_with_digest_version_and_age(desk: Desk) -> None:
    has = Equipment(devices=(Device(kind="phone", provenance=Provenance.CONFIGURED),))
    first = desk.register(capabilities=some_capabilities(equipment=has, schema_version=2))
    with read(desk.engine) as connection:
        (before,) = overview.runners(connection)
    assert before.capabilities.equipment == has
    assert before.capabilities.schema_version == 2
    (phone,) = before.capabilities.equipment.devices or ()
    assert phone.provenance is Provenance.CONFIGURED
    assert before.reported_at == desk.row(tables.sessions, first.session_id)["opened_at"]
    desk.overwrite(tables.runners, first.runner_id, reported_at=1)
    with read(desk.engine) as connection:
        (aged,) = overview.runners(connection)
    assert aged.reported_at == 1
    desk.register(capabilities=some_capabilities())
    with read(desk.engine) as connection:
        (after,) = overview.runners(connection)
    assert after.reported_at > 1
    assert after.capabilities.equipment == Equipment()
    assert after.capability_digest != before.capability_digest


# Heartbeats


@pytest.mark.requirement("RES-024", "RES-025", "RUN-014")
@pytest.mark.parametrize(
    ("pressure", "state"),
    [
        (ResourcePressure.NORMAL, "online"),
        (ResourcePressure.CPU, "online"),
        (ResourcePressure.MEMORY, "saturated"),
        (ResourcePressure.DISK, "saturated"),
        (ResourcePressure.THERMAL, "saturated"),
        (ResourcePressure.CRITICAL, "unhealthy"),
    ],
)
def test_pressure_decides_whether_a_runner_takes_work(
    desk: Desk, pressure: ResourcePressure, state: str
) -> None:
    registered = desk.register()
    desk.heartbeat(registered.session_id, pressure=pressure)
    assert state_of(desk, registered.runner_id) == state
    desk.submit()
    assert desk.cycle().granted == (1 if state == "online" else 0)
    wakes = desk.wakes()
    desk.heartbeat(registered.session_id)
    assert state_of(desk, registered.runner_id) == "online"
    assert desk.wakes() == wakes + (0 if state == "online" else 1)


@pytest.mark.requirement("RUN-001")
def test_a_heartbeat_clears_suspicion_and_wakes(desk: Desk) -> None:
    registered = desk.register()
    desk.overwrite(tables.runners, registered.runner_id, suspect=1)
    desk.submit()
    assert desk.cycle().granted == 0
    wakes = desk.wakes()
    desk.heartbeat(registered.session_id)
    assert desk.wakes() == wakes + 1
    assert desk.cycle().granted == 1


def test_a_heartbeat_names_the_leases_to_let_go(desk: Desk) -> None:
    lease = desk.active()
    assert desk.heartbeat(lease.session_id, held=(lease.lease_id,)).abandon == ()
    answer = desk.heartbeat(lease.session_id, held=(lease.lease_id, "lse_unknown"))
    assert answer.abandon == ("lse_unknown",)
    other = desk.register("runner-2")
    assert desk.heartbeat(other.session_id, held=(lease.lease_id,)).abandon == (lease.lease_id,)
    desk.complete(lease)
    answer = desk.heartbeat(lease.session_id, held=(lease.lease_id,))
    assert answer.abandon == (lease.lease_id,)


def test_an_unknown_session_must_register(desk: Desk) -> None:
    with pytest.raises(StaleRejected):
        desk.heartbeat("ses_unknown")


# Draining


@pytest.mark.requirement("RUN-002", "ACC-012", "INV-032", "PRI-021", "GAT-004")
def test_a_drained_runner_keeps_its_work_and_gets_none(desk: Desk) -> None:
    lease = desk.active()
    drain(desk)
    assert state_of(desk, lease.runner_id) == "draining"
    assert desk.heartbeat(lease.session_id).drain is True
    desk.submit()
    assert desk.cycle().granted == 0
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    (line,) = desk.audited("runner.drain")
    assert (line["actor"], line["detail"]) == ("tester", "new disk")


def test_the_wish_to_drain_outlives_the_session(desk: Desk) -> None:
    registered = desk.register()
    drain(desk, registered.runner_id)
    desk.register()
    assert state_of(desk, registered.runner_id) == "draining"
    wakes = desk.wakes()
    desk.submit()
    undrain(desk)
    assert state_of(desk, registered.runner_id) == "online"
    assert desk.wakes() == wakes + 2
    assert desk.cycle().granted == 1
    assert len(desk.audited("runner.undrain")) == 1


def test_a_runner_that_is_away_can_be_drained_for_when_it_returns(desk: Desk) -> None:
    registered = desk.register()
    close(desk, registered.session_id)
    drain(desk)
    assert state_of(desk, registered.runner_id) == "offline"
    desk.register()
    assert state_of(desk, registered.runner_id) == "draining"


def test_an_agent_that_drains_itself_gets_nothing_more(desk: Desk) -> None:
    registered = desk.register()
    answer = desk.heartbeat(registered.session_id, draining=True)
    assert answer.drain is False
    assert state_of(desk, registered.runner_id) == "draining"


def test_draining_a_runner_nobody_knows_is_not_found(desk: Desk) -> None:
    with pytest.raises(NotFound):
        drain(desk, "nobody")


# Closing and losing


def test_closing_a_session_takes_its_leases_away(desk: Desk) -> None:
    lease = desk.active()
    close(desk, lease.session_id)
    assert desk.states(lease) == ("revoked", "lost", "lost")
    assert state_of(desk, lease.runner_id) == "offline"
    assert desk.row(tables.sessions, lease.session_id)["state"] == "closed"
    close(desk, lease.session_id)
    with pytest.raises(StaleRejected):
        desk.heartbeat(lease.session_id)
    with pytest.raises(NotFound):
        close(desk, "ses_unknown")


def test_closing_a_superseded_session_leaves_its_successor_alone(desk: Desk) -> None:
    first, second = desk.register(), desk.register()
    close(desk, first.session_id)
    assert state_of(desk, first.runner_id) == "online"
    desk.heartbeat(second.session_id)


@pytest.mark.requirement("RCN-023", "RUN-001")
def test_a_silent_runner_gets_no_work_but_its_lease_lives_by_its_own_clock(desk: Desk) -> None:
    lease = desk.active()
    desk.later(desk.policy.lease.session_silence + 1)
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    assert lose_silent(desk) == 0
    assert desk.row(tables.sessions, lease.session_id)["state"] == "open"
    assert state_of(desk, lease.runner_id) == "offline"
    desk.submit()
    assert desk.cycle().granted == 0
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert lose_silent(desk) == 1
    assert desk.row(tables.sessions, lease.session_id)["state"] == "lost"
    assert desk.row(tables.runners, lease.runner_id)["session_id"] is None
    assert lose_silent(desk) == 0


def lose_silent(desk: Desk) -> int:
    return desk.change(silence.lose_silent_sessions, policy=desk.policy)


def test_an_agent_that_comes_back_before_its_lease_lapses_goes_on_with_it(desk: Desk) -> None:
    """Silent for longer than a session may be, but not for longer than its job may run on."""
    lease = desk.active()
    policy = desk.policy.lease
    desk.later(policy.execution_ttl + policy.connectivity_grace - 5_000)
    for _ in range(3):
        desk.sweep()
    penalty = desk.row(tables.runners, lease.runner_id)["penalty"]
    assert 0 < penalty <= DISCONNECT, "it counts once"
    desk.heartbeat(lease.session_id, held=(lease.lease_id,))
    assert state_of(desk, lease.runner_id) == "online"
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED


def test_silent_runners_that_wait_for_their_agents_hold_up_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep looks at so many sessions; those that have long been silent are not among them."""
    monkeypatch.setattr(silence, "LOSSES_PER_CALL", 1)
    waiting = desk.active()
    desk.later(desk.policy.lease.session_silence + 1)
    desk.renew(waiting)
    lose_silent(desk)
    other = desk.register("runner-2")
    desk.later(desk.policy.lease.session_silence + 1)
    desk.renew(waiting)
    assert lose_silent(desk) == 1
    assert desk.row(tables.sessions, other.session_id)["state"] == "lost"


def test_a_session_that_was_heard_of_is_not_lost(desk: Desk) -> None:
    registered = desk.register()
    desk.later(desk.policy.lease.session_silence - 5_000)
    assert desk.change(silence.lose_silent_sessions, policy=desk.policy) == 0
    desk.heartbeat(registered.session_id)
