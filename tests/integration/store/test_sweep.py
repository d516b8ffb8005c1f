"""Every deadline that passes is enforced, once, unless the silence was our own."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from forgeyard.model.job import RetryPolicy, Timeouts
from forgeyard.model.policy import SchedulingPolicy, SweepPolicy
from forgeyard.model.protocol import CompletionVerdict, Outcome, Phase, RenewalVerdict
from forgeyard.model.units import Millis
from forgeyard.store import lapse, liveness, tables
from forgeyard.store.engine import now_ms
from tests.builders import a_job_spec, some_resources
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def beat(desk: Desk) -> int:
    return desk.change(liveness.beat_renewal, policy=desk.policy)


# Leases


@pytest.mark.case("SP-062")
@pytest.mark.requirement("LSE-010", "LSE-015", "DSP-001", "DSP-007")
def test_an_offer_nobody_answers_returns_the_job_without_charge(desk: Desk) -> None:
    lease = desk.offered()
    desk.later(desk.policy.lease.offer_ttl - 5_000)
    assert desk.sweep().expired == 0
    desk.later(5_001)
    wakes = desk.wakes()
    assert desk.sweep().expired == 1
    assert desk.states(lease) == ("expired", "lost", "eligible")
    job = desk.row(tables.jobs, lease.job_id)
    assert (job["attempts_made"], job["attempts_charged"]) == (1, 0)
    assert desk.row(tables.attempts, lease.attempt_id)["settled_at"] is not None
    assert desk.events(lease.attempt_id) == ["lease.granted", "attempt.finished"]
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.row(tables.runners, lease.runner_id)["suspect"] == 0
    assert [row["runner_id"] for row in desk.rows(tables.refusals)] == [lease.runner_id]
    assert desk.wakes() == wakes + 1
    assert desk.sweep().expired == 0


def test_a_refused_runner_is_asked_again_once_the_memory_fades(desk: Desk) -> None:
    desk.offered()
    desk.later(desk.policy.lease.offer_ttl + 1)
    desk.sweep()
    assert desk.cycle().granted == 0
    desk.later(desk.policy.lease.refusal_memory + 1)
    assert desk.cycle().granted == 1


@pytest.mark.requirement("RES-013", "LSE-016", "INV-018", "EOS-049", "EOS-054")
def test_a_lease_that_is_not_renewed_is_lost_after_its_grace(desk: Desk) -> None:
    lease = desk.active()
    policy = desk.policy.lease
    desk.later(policy.execution_ttl + policy.connectivity_grace - 5_000)
    desk.heartbeat(lease.session_id)
    assert desk.sweep().expired == 0
    desk.later(5_001)
    assert desk.sweep().expired == 1
    assert desk.states(lease) == ("expired", "lost", "lost")
    assert desk.row(tables.attempts, lease.attempt_id)["failure_class"] == "runner_lost"
    assert desk.row(tables.runners, lease.runner_id)["suspect"] == 1
    assert desk.row(tables.sessions, lease.session_id)["losses"] == 1
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.deadlines(lease.attempt_id) == {"settle"}
    assert desk.sweep().expired == 0


def test_the_retry_of_a_lost_attempt_does_not_go_straight_back(desk: Desk) -> None:
    lease = desk.active()
    desk.later(HOUR)
    desk.heartbeat(lease.session_id)
    desk.sweep()
    assert desk.settle(lease).job_state == "eligible"
    assert desk.row(tables.jobs, lease.job_id)["attempts_charged"] == 1
    assert desk.cycle().granted == 0
    desk.heartbeat(lease.session_id)
    assert desk.cycle().granted == 1


def test_expiries_are_capped_with_an_alert(engine: sa.Engine) -> None:
    policy = SchedulingPolicy(sweep=SweepPolicy(expiries_per_sweep=2))
    desk = Desk(engine, policy)
    desk.register()
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(3)))
    assert desk.cycle().granted == 3
    desk.later(HOUR)
    first = desk.sweep()
    alert = "more than 2 leases lapsed at once; they end in batches"
    assert (first.expired, first.more, first.alert) == (3, False, alert)
    second = desk.sweep()
    assert (second.expired, second.alert) == (0, "")


def test_a_sweep_that_takes_too_long_says_that_the_next_should_not_wait(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forgeyard.store.sweep.EXPIRING_FOR", 0)
    desk = Desk(engine, SchedulingPolicy(sweep=SweepPolicy(expiries_per_sweep=2)))
    desk.register()
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(4)))
    assert desk.cycle().granted == 4
    desk.later(HOUR)
    first = desk.sweep()
    assert (first.expired, first.more) == (2, True)
    second = desk.sweep()
    assert (second.expired, second.more) == (2, False)


def test_leases_that_cannot_be_ended_keep_no_others_alive(engine: sa.Engine) -> None:
    """More of them than a batch holds, and all of them first."""
    desk = Desk(engine, SchedulingPolicy(sweep=SweepPolicy(expiries_per_sweep=2)))
    desk.register()
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(4)))
    assert desk.cycle().granted == 4
    desk.later(HOUR)
    *bad, good = desk.leases()
    for number, lease in enumerate(bad):
        desk.overwrite(tables.leases, lease.lease_id, expires_at=number)
        desk.overwrite(tables.attempts, lease.attempt_id, state="unheard_of")
    assert desk.sweep().expired == 1
    assert desk.states(good)[0] == "expired"


@pytest.mark.case("SP-066")
def test_1440_leases_past_their_time_are_all_returned_without_a_pause(
    postgresql_engine: sa.Engine, record_property: Callable[[str, object], None]
) -> None:
    """The cap of a batch stays an alert; batch follows batch while renewals are served."""
    patient = SweepPolicy(renewal_gap=Millis(10 * 60_000))  # nobody beats while this test goes on
    desk = Desk(postgresql_engine, SchedulingPolicy(batch=240, sweep=patient))
    desk.register(total=some_resources(cpu=10**7, memory=2**50, disk=2**50, slots=2_000))
    tiny = some_resources(cpu=1, memory=1, disk=1)
    desk.submit(*(a_job_spec(f"job-{number}", resources=tiny) for number in range(1_440)))
    while len(desk.leases(state="offered")) < 1_440:
        assert desk.cycle().granted
    beat(desk)
    desk.later(HOUR)
    desk.change(lambda c: c.execute(sa.update(tables.liveness).values(beat_at=now_ms())))
    began, swept = time.monotonic(), []
    while not swept or swept[-1].more:
        swept.append(desk.sweep())
    assert all(result.expired >= 50 for result in swept[:-1]), "every sweep gets on"
    assert sum(result.expired for result in swept) == 1_440
    assert "more than 50 leases lapsed at once" in swept[0].alert
    states = Counter(row["state"] for row in desk.rows(tables.jobs))
    assert states == {"eligible": 1_440}
    assert desk.rows(tables.reservations) == []
    took = time.monotonic() - began
    record_property("expiries", f"1440 in {len(swept)} sweeps, {took:.1f} s")


def test_a_renewal_that_comes_between_look_and_judgement_saves_the_lease(desk: Desk) -> None:
    lease = desk.active()
    desk.later(desk.policy.lease.execution_ttl + 1)
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    assert desk.change(lapse.expire, lease.lease_id, policy=desk.policy) is False
    assert desk.states(lease)[0] == "active"


# Our own outages


def test_nothing_lapses_while_renewals_are_not_served(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=Timeouts(preparation=Millis(1_000))))
    beat(desk)
    desk.later(HOUR)
    result = desk.sweep()
    assert result.expired == 0
    assert "no lease is expired" in result.alert
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.row(tables.sessions, lease.session_id)["state"] == "open"
    assert desk.view(lease).ended is False
    assert desk.change(lapse.expire, lease.lease_id, policy=desk.policy) is False


def test_an_outage_is_bridged_once(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=Timeouts(preparation=Millis(1_000))))
    assert beat(desk) == 0
    before = desk.row(tables.leases, lease.lease_id)["expires_at"]
    due = desk.rows(tables.deadlines, entity_id=lease.attempt_id)[0]["due_at"]
    desk.later(HOUR)
    gap = beat(desk)
    assert HOUR <= gap < HOUR + 60_000
    policy = desk.policy.lease
    after = desk.row(tables.leases, lease.lease_id)["expires_at"]
    beaten = desk.rows(tables.liveness)[0]
    assert after == max(
        before - HOUR + gap, beaten["beat_at"] + policy.execution_ttl + policy.longest_back_off
    )
    (row,) = desk.rows(tables.deadlines, entity_id=lease.attempt_id)
    assert row["due_at"] == due - HOUR + gap
    assert beaten["gaps"] == 1
    assert len(desk.audited("renewal.gap_bridged")) == 1
    assert beat(desk) == 0
    assert desk.row(tables.leases, lease.lease_id)["expires_at"] == after
    assert desk.rows(tables.liveness)[0]["gaps"] == 1
    assert desk.sweep().expired == 0
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED


def test_a_bridged_offer_can_still_be_accepted(desk: Desk) -> None:
    lease = desk.offered()
    beat(desk)
    desk.later(HOUR)
    beat(desk)
    left = desk.row(tables.leases, lease.lease_id)["expires_at"]
    policy = desk.policy.lease
    now = desk.rows(tables.liveness)[0]["beat_at"]
    assert left - now >= policy.offer_ttl + policy.longest_back_off
    desk.accept(lease)
    assert desk.states(lease)[0] == "active"


def test_a_beat_in_time_bridges_nothing(desk: Desk) -> None:
    lease = desk.active()
    beat(desk)
    desk.later(desk.policy.sweep.renewal_gap - 5_000)
    before = desk.row(tables.leases, lease.lease_id)["expires_at"]
    assert beat(desk) == 0
    assert desk.row(tables.leases, lease.lease_id)["expires_at"] == before


# Deadlines


def _prepare(_desk: Desk, _lease: Lease) -> None:
    """An accepted attempt prepares already."""


def _run(desk: Desk, lease: Lease) -> None:
    desk.progress(lease, Phase.RUNNING)


def _upload(desk: Desk, lease: Lease) -> None:
    desk.progress(lease, Phase.UPLOADING_OUTPUTS)


@pytest.mark.parametrize(
    ("phase", "reach", "job_state"),
    [
        ("preparation", _prepare, "preparing"),
        ("execution", _run, "running"),
        ("upload", _upload, "uploading_outputs"),
    ],
)
def test_a_phase_that_takes_too_long_ends_the_attempt(
    desk: Desk, phase: str, reach: Callable[[Desk, Lease], None], job_state: str
) -> None:
    timeouts = Timeouts(preparation=Millis(10_000), execution=Millis(10_000), upload=Millis(10_000))
    lease = desk.active(a_job_spec(timeouts=timeouts))
    reach(desk, lease)
    desk.later(10_000 + desk.policy.lease.deadline_slack - 5_000)
    assert desk.sweep().due == 0
    desk.later(5_001)
    assert desk.sweep().due == 1
    assert desk.states(lease) == ("revoked", "timed_out", job_state)
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert attempt["failure_class"] == "timeout"
    assert phase in attempt["message"]
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    assert desk.settle(lease).job_state == "timed_out"
    assert desk.sweep().due == 0


@pytest.mark.requirement("FAR-016")
def test_a_job_that_waits_too_long_for_a_runner_times_out(desk: Desk) -> None:
    run_id = desk.submit(
        a_job_spec("slow", timeouts=Timeouts(queue=Millis(60_000))),
        a_job_spec("after", needs=("slow",)),
    )
    desk.later(60_001)
    assert desk.sweep().due == 1
    states = {row["name"]: row["state"] for row in desk.rows(tables.jobs, run_id=run_id)}
    assert states == {"slow": "timed_out", "after": "skipped"}
    assert desk.run_state(run_id) == "failed"
    assert desk.sweep().due == 0


def test_a_leased_job_has_no_queue_deadline(desk: Desk) -> None:
    lease = desk.offered(a_job_spec(timeouts=Timeouts(queue=Millis(1_000))))
    assert desk.deadlines(lease.job_id) == set()


@pytest.mark.parametrize("settled_before", [False, True])
def test_an_attempt_nobody_settles_is_settled_by_the_sweep(
    desk: Desk, settled_before: bool
) -> None:
    lease = desk.active()
    desk.complete(lease, Outcome.FAILED)
    if settled_before:
        desk.settle(lease)
    assert desk.sweep().settled == 0
    desk.later(desk.policy.lease.settle_within + 1)
    assert desk.sweep().settled == (0 if settled_before else 1)
    assert desk.row(tables.attempts, lease.attempt_id)["settled_at"] is not None
    assert desk.run_state(lease.run_id) == "failed"


def test_a_job_is_tried_again_after_its_delay(desk: Desk) -> None:
    retry = RetryPolicy(delay=Millis(60_000))
    lease = desk.active(a_job_spec(retry=retry))
    desk.later(HOUR)
    desk.heartbeat(lease.session_id)
    desk.sweep()
    assert desk.settle(lease).job_state == "retry_waiting"
    assert desk.sweep().due == 0
    desk.later(60_001)
    wakes = desk.wakes()
    assert desk.sweep().due == 1
    assert desk.row(tables.jobs, lease.job_id)["state"] == "eligible"
    assert desk.deadlines(lease.job_id) == {"queue"}
    assert desk.wakes() == wakes + 1


def test_a_run_that_takes_too_long_is_stopped(desk: Desk) -> None:
    lease = desk.active(a_job_spec("first"), a_job_spec("second", needs=("first",)))
    desk.later(86_400_001)
    desk.change(
        lambda connection: connection.execute(
            sa.delete(tables.deadlines).where(tables.deadlines.c.kind != "run")
        )
    )
    desk.overwrite(tables.leases, lease.lease_id, expires_at=2**50)
    assert desk.sweep().due == 1
    assert desk.run_state(lease.run_id) == "cancelling"
    assert desk.renew(lease) is RenewalVerdict.CANCEL
    desk.complete(lease, Outcome.CANCELLED)
    desk.settle(lease)
    assert desk.run_state(lease.run_id) == "timed_out"


def test_one_bad_row_does_not_stop_the_others(desk: Desk) -> None:
    lease = desk.offered()
    row = {"kind": "retry", "entity_id": "job_gone", "partition": "default", "due_at": 1}
    desk.change(lambda connection: connection.execute(sa.insert(tables.deadlines), [row]))
    desk.later(HOUR)
    result = desk.sweep()
    assert result.expired == 1
    assert "job_gone" in result.alert
    assert desk.states(lease)[0] == "expired"


def test_another_partition_is_left_alone(desk: Desk) -> None:
    lease = desk.offered(a_job_spec())
    desk.overwrite(tables.attempts, lease.attempt_id, partition="elsewhere")
    desk.later(HOUR)
    assert desk.sweep().expired == 0


# Sessions, reservations, wakes


@pytest.mark.requirement("EOS-050")
def test_a_silent_runner_goes_offline(desk: Desk) -> None:
    registered = desk.register()
    desk.later(desk.policy.lease.session_silence + 1)
    desk.sweep()
    assert desk.row(tables.runners, registered.runner_id)["state"] == "offline"


@pytest.mark.requirement("RCN-013", "RCN-017", "INV-041", "GAT-008")
def test_a_reservation_that_disappeared_is_made_again(desk: Desk) -> None:
    lease = desk.active(a_job_spec(resources=some_resources(cpu=750)))
    desk.change(lambda connection: connection.execute(sa.delete(tables.reservations)))
    desk.overwrite(tables.runners, lease.runner_id, reserved_cpu_milli=0)
    result = desk.sweep()
    assert (result.repaired, "repaired" in result.alert) == (1, True)
    assert desk.reserved(lease.runner_id)["cpu_milli"] == 750
    kinds = [row["kind"] for row in desk.rows(tables.findings)]
    assert kinds == ["reservation_missing", "runner_sum"]
    assert desk.sweep().repaired == 0


@pytest.mark.requirement("RCN-012", "RCN-017", "ACC-030", "INV-041", "GAT-008")
def test_a_reservation_without_a_live_lease_is_removed(desk: Desk) -> None:
    lease = desk.active()
    desk.complete(lease)
    dead = {
        "lease_id": lease.lease_id,
        "runner_id": lease.runner_id,
        "cpu_milli": 500,
        "memory_bytes": 1,
        "disk_bytes": 1,
        "slots": 1,
    }
    desk.change(lambda connection: connection.execute(sa.insert(tables.reservations), [dead]))
    desk.overwrite(tables.runners, lease.runner_id, reserved_cpu_milli=500, reserved_slots=1)
    assert desk.sweep().repaired == 1
    assert desk.reserved(lease.runner_id)["cpu_milli"] == 0
    assert desk.rows(tables.reservations) == []


@pytest.mark.requirement("RCN-015", "FAR-035")
def test_jobs_that_wait_in_silence_wake_the_loop_again(desk: Desk) -> None:
    desk.submit()
    (wake,) = desk.rows(tables.wakes)
    desk.overwrite(tables.wakes, wake["partition"], signalled=wake["generation"], signalled_at=0)
    assert desk.sweep().alert == ""
    assert desk.wakes() == wake["generation"] + 1
    desk.sweep()
    assert desk.wakes() == wake["generation"] + 1


def test_an_idle_store_is_left_as_it_is(desk: Desk) -> None:
    desk.register()
    result = desk.sweep()
    assert result.alert == ""
    assert (result.expired, result.due, result.settled, result.repaired) == (0, 0, 0, 0)
    assert desk.wakes() == 0
