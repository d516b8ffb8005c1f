"""What an agent may do with a lease, and what it may not any more."""

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.errors import Forbidden, NotFound, StaleRejected
from forgeyard.model.ids import SessionId
from forgeyard.model.injection import BUILT_IN_INJECTION
from forgeyard.model.job import FailureClass, OutputSpec, Timeouts
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import (
    Accepted,
    CompletionVerdict,
    Holder,
    Outcome,
    Phase,
    RenewalVerdict,
    StepResult,
    Usage,
)
from forgeyard.model.units import LARGEST, Millis
from forgeyard.model.wishes import Wishes
from forgeyard.store import leases, runs, tables
from forgeyard.store.engine import read
from forgeyard.store.leases import Done, Refused
from tests.builders import a_job_spec, job_states
from tests.leasing import HOUR, Desk, Lease

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("recorded")]
TIMEOUTS = Timeouts(
    queue=Millis(HOUR), preparation=Millis(60_000), execution=Millis(600_000), upload=Millis(30_000)
)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def stranger(desk: Desk, lease: Lease) -> Holder:
    """Register another runner, and let it claim the lease with the right epoch."""
    session_id = desk.register("runner-2").session_id
    return Holder(session_id=session_id, epoch=lease.epoch)


def due_in(desk: Desk, lease: Lease, kind: str) -> int:
    """Tell how long after the instant of its phase a deadline is due."""
    names = {"preparation": "accepted_at", "execution": "started_at", "upload": "uploading_at"}
    (row,) = desk.rows(tables.deadlines, entity_id=lease.attempt_id, kind=kind)
    return int(row["due_at"] - desk.row(tables.attempts, lease.attempt_id)[names[kind]])


# How long a job runs on without the server


def offered_offline(desk: Desk, asked: int | None) -> Lease:
    """Offer a job that was submitted when policy would have granted whatever it asked for."""
    generous = replace(BUILT_IN_INJECTION, longest_offline=Millis(LARGEST))
    desk.register()
    patient = Timeouts(preparation=Millis(24 * HOUR))
    desk.submit(a_job_spec(wishes=Wishes(offline=asked), timeouts=patient), injection=generous)
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    return lease


@pytest.mark.parametrize(
    ("asked", "granted"), [(None, 60_000), (0, 0), (HOUR, HOUR), (3 * HOUR, 2 * HOUR)]
)
def test_a_lease_is_given_away_no_earlier_than_the_job_may_run_on_alone(
    engine: sa.Engine, asked: int | None, granted: int
) -> None:
    """No more than policy grants when the lease is, whatever it did when the run was submitted."""
    lease_policy = LeasePolicy(offline_at_most=Millis(2 * HOUR))
    desk = Desk(engine, SchedulingPolicy(lease=lease_policy))
    lease = offered_offline(desk, asked)
    assert desk.accept(lease) == Accepted(ttl=lease_policy.execution_ttl, grace=Millis(granted))
    desk.later(lease_policy.execution_ttl + granted - 5_000)
    desk.sweep()
    assert desk.states(lease)[0] == "active"
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    desk.later(lease_policy.execution_ttl + granted + 1)
    desk.sweep()
    assert desk.states(lease)[0] == "expired"


# Accepting


@pytest.mark.requirement("LSE-014", "LSE-016", "DSP-006", "LSE-013")
def test_accepting_an_offer_starts_the_attempt_and_the_run(desk: Desk) -> None:
    lease = desk.offered(a_job_spec(timeouts=TIMEOUTS))
    policy = desk.policy.lease
    answer = desk.accept(lease)
    assert answer == Accepted(ttl=policy.execution_ttl, grace=policy.connectivity_grace)
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.run_state(lease.run_id) == "running"
    row = desk.row(tables.leases, lease.lease_id)
    assert row["expires_at"] == row["accepted_at"] + policy.execution_ttl
    assert due_in(desk, lease, "preparation") == 60_000 + policy.deadline_slack


def test_accepting_again_is_accepted_again_and_restarts_the_time(desk: Desk) -> None:
    lease = desk.active()
    desk.later(20_000)
    before = desk.row(tables.leases, lease.lease_id)
    assert isinstance(desk.accept(lease), Accepted)
    after = desk.row(tables.leases, lease.lease_id)
    assert after["expires_at"] >= before["expires_at"] + 20_000
    assert after["version"] == before["version"]
    assert desk.states(lease) == ("active", "preparing", "preparing")


def test_a_stale_epoch_may_not_accept(desk: Desk) -> None:
    lease = desk.offered()
    answer = desk.accept(lease, replace(lease.holder, epoch=lease.epoch - 1))
    assert isinstance(answer, Refused)
    assert "epoch" in answer.reason
    assert desk.states(lease) == ("offered", "leased", "leased")
    (line,) = desk.audited("lease.stale_accept")
    assert (line["actor"], line["target"]) == (lease.session_id, lease.lease_id)


def test_another_runner_may_not_accept(desk: Desk) -> None:
    lease = desk.offered()
    with pytest.raises(Forbidden, match="not your lease"):
        desk.accept(lease, stranger(desk, lease))
    assert desk.states(lease) == ("offered", "leased", "leased")


@pytest.mark.requirement("LSE-010", "LSE-015")
def test_an_offer_that_lapsed_may_not_be_accepted_although_no_sweep_came(desk: Desk) -> None:
    lease = desk.offered()
    desk.later(desk.policy.lease.offer_ttl + 1)
    assert desk.accept(lease) == Refused(reason="the lease has lapsed")
    assert desk.states(lease) == ("offered", "leased", "leased")
    assert len(desk.audited("lease.stale_accept")) == 1


def test_a_session_that_was_lost_starts_nothing_new(desk: Desk) -> None:
    lease = desk.offered()
    desk.overwrite(tables.sessions, lease.session_id, state="lost")
    assert desk.accept(lease) == Refused(reason="the session is lost")


def test_an_unknown_lease_is_not_found(desk: Desk) -> None:
    lease = desk.offered()
    with pytest.raises(NotFound):
        desk.accept(replace(lease, lease_id="lse_unknown"))


# Rejecting


@pytest.mark.requirement("LSE-012", "DSP-006", "PRI-038")
def test_rejecting_gives_everything_back_without_charge(desk: Desk) -> None:
    lease = desk.offered()
    assert desk.reserved(lease.runner_id)["slots"] == 1
    wakes = desk.wakes()
    assert desk.reject(lease) == Done()
    assert desk.states(lease) == ("rejected", "rejected", "eligible")
    assert desk.reserved(lease.runner_id)["slots"] == 0
    job = desk.row(tables.jobs, lease.job_id)
    assert (job["attempts_made"], job["attempts_charged"]) == (1, 0)
    assert desk.row(tables.attempts, lease.attempt_id)["settled_at"] is not None
    assert desk.events(lease.attempt_id) == ["lease.granted", "attempt.finished"]
    assert desk.deadlines(lease.job_id) == {"queue"}
    assert desk.wakes() == wakes + 1


def test_a_rejected_job_goes_to_another_runner_first(desk: Desk) -> None:
    lease = desk.offered()
    desk.reject(lease)
    (refusal,) = desk.rows(tables.refusals)
    assert (refusal["job_id"], refusal["runner_id"]) == (lease.job_id, lease.runner_id)
    assert "disk_insufficient" in refusal["reason"]
    assert desk.cycle().granted == 0
    other = desk.register("runner-2")
    assert desk.cycle().granted == 1
    assert [found.runner_id for found in desk.leases(state="offered")] == [other.runner_id]


def test_a_job_that_is_turned_down_again_and_again_reaches_its_queue_timeout(desk: Desk) -> None:
    first = desk.offered(a_job_spec(timeouts=TIMEOUTS))
    since = desk.row(tables.jobs, first.job_id)["eligible_at"]
    for _ in range(2):
        (lease,) = desk.leases(state="offered")
        desk.reject(lease)
        (deadline,) = desk.rows(tables.deadlines, entity_id=first.job_id)
        assert deadline["due_at"] == since + HOUR
        assert desk.row(tables.jobs, first.job_id)["eligible_at"] == since
        clear = sa.delete(tables.refusals)
        desk.change(lambda connection, clear=clear: connection.execute(clear))
        assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    desk.overwrite(tables.jobs, first.job_id, eligible_at=since - HOUR)
    desk.reject(lease)
    assert desk.sweep().due == 1
    assert desk.states(lease)[2] == "timed_out"


def test_rejecting_again_is_harmless(desk: Desk) -> None:
    lease = desk.offered()
    desk.reject(lease)
    assert desk.reject(lease) == Done()
    assert desk.row(tables.jobs, lease.job_id)["version"] == 3
    assert len(desk.events(lease.attempt_id)) == 2


def test_an_accepted_lease_cannot_be_rejected(desk: Desk) -> None:
    lease = desk.active()
    assert desk.reject(lease) == Refused(reason="the lease is active")
    assert desk.states(lease) == ("active", "preparing", "preparing")


def test_a_stale_epoch_may_not_reject(desk: Desk) -> None:
    lease = desk.offered()
    assert isinstance(desk.reject(lease, epoch=lease.epoch + 1), Refused)
    assert desk.states(lease) == ("offered", "leased", "leased")


# Renewing


@pytest.mark.requirement("EOS-017")
def test_a_lease_names_its_job_and_its_runner_and_from_when_to_when_it_lives(desk: Desk) -> None:
    lease = desk.offered()
    row = desk.row(tables.leases, lease.lease_id)
    assert (row["job_id"], row["runner_id"]) == (lease.job_id, lease.runner_id)
    assert row["expires_at"] - row["offered_at"] == desk.policy.lease.offer_ttl
    desk.accept(lease)
    row = desk.row(tables.leases, lease.lease_id)
    assert row["offered_at"] < row["accepted_at"]
    assert row["expires_at"] - row["accepted_at"] == desk.policy.lease.execution_ttl


@pytest.mark.requirement("EOS-059")
def test_a_silent_runner_is_given_nothing_new_before_its_lease_lapses(desk: Desk) -> None:
    lease = desk.active()
    desk.later(desk.policy.lease.session_silence + 1)
    swept = desk.sweep()
    assert (swept.expired, desk.states(lease)[0]) == (0, "active")
    assert desk.row(tables.runners, lease.runner_id)["state"] == "offline"
    desk.submit(a_job_spec("next"))
    assert desk.cycle().granted == 0


@pytest.mark.requirement("LSE-016", "LSE-017", "EOS-053")
def test_renewing_moves_the_expiry_and_writes_no_version(desk: Desk) -> None:
    lease = desk.active()
    desk.later(30_000)
    before = desk.row(tables.leases, lease.lease_id)
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    after = desk.row(tables.leases, lease.lease_id)
    assert after["expires_at"] >= before["expires_at"] + 30_000
    assert after["version"] == before["version"]


@pytest.mark.requirement("LSE-016")
def test_a_renewal_within_the_grace_is_in_time(desk: Desk) -> None:
    lease = desk.active()
    desk.later(desk.policy.lease.execution_ttl + 1_000)
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    assert desk.sweep().expired == 0


def test_a_renewal_after_expiry_comes_too_late(desk: Desk) -> None:
    lease = desk.active()
    policy = desk.policy.lease
    desk.later(policy.execution_ttl + policy.connectivity_grace + 1)
    before = desk.row(tables.leases, lease.lease_id)["expires_at"]
    assert desk.renew(lease) is RenewalVerdict.STALE
    assert desk.row(tables.leases, lease.lease_id)["expires_at"] == before
    assert desk.sweep().expired == 1
    assert desk.renew(lease) is RenewalVerdict.STALE


def test_neither_a_stale_epoch_nor_another_runner_can_renew(desk: Desk) -> None:
    lease = desk.active()
    desk.later(30_000)
    before = desk.row(tables.leases, lease.lease_id)["expires_at"]
    other = stranger(desk, lease).session_id
    assert desk.renew(lease, epoch=lease.epoch - 1) is RenewalVerdict.STALE
    assert desk.renew(lease, session_id=other) is RenewalVerdict.STALE
    assert desk.row(tables.leases, lease.lease_id)["expires_at"] == before


def test_an_offer_cannot_be_renewed(desk: Desk) -> None:
    assert desk.renew(desk.offered()) is RenewalVerdict.STALE


def test_a_cancelled_job_is_renewed_with_the_word_to_cancel(desk: Desk) -> None:
    lease = desk.active()
    desk.change(
        runs.cancel_run,
        lease.run_id,
        reason="enough",
        actor="tester",
        channel="test",
        policy=desk.policy.lease,
    )
    assert desk.renew(lease) is RenewalVerdict.CANCEL


# Progress


def test_each_phase_has_its_own_deadline(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=TIMEOUTS))
    slack = desk.policy.lease.deadline_slack
    assert desk.progress(lease, Phase.RUNNING) == Done()
    assert desk.states(lease) == ("active", "running", "running")
    assert desk.deadlines(lease.attempt_id) == {"execution"}
    assert due_in(desk, lease, "execution") == 600_000 + slack
    assert desk.progress(lease, Phase.UPLOADING_OUTPUTS) == Done()
    assert desk.states(lease) == ("active", "uploading_outputs", "uploading_outputs")
    assert desk.deadlines(lease.attempt_id) == {"upload"}
    assert due_in(desk, lease, "upload") == 30_000 + slack


def test_an_agent_told_to_stop_gains_no_time_by_going_on(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=replace(TIMEOUTS, execution=Millis(24 * HOUR))))
    desk.change(
        runs.cancel_run,
        lease.run_id,
        reason="enough",
        actor="tester",
        channel="test",
        policy=desk.policy.lease,
    )
    (before,) = desk.rows(tables.deadlines, entity_id=lease.attempt_id)
    desk.progress(lease, Phase.RUNNING)
    (after,) = desk.rows(tables.deadlines, entity_id=lease.attempt_id)
    assert (before["kind"], after["kind"]) == ("preparation", "execution")
    assert after["due_at"] == before["due_at"]


def test_progress_repeated_or_overtaken_changes_nothing(desk: Desk) -> None:
    lease = desk.active()
    desk.progress(lease, Phase.UPLOADING_OUTPUTS)
    version = desk.row(tables.attempts, lease.attempt_id)["version"]
    assert desk.progress(lease, Phase.UPLOADING_OUTPUTS) == Done()
    assert desk.progress(lease, Phase.RUNNING) == Done()
    assert desk.row(tables.attempts, lease.attempt_id)["version"] == version
    assert desk.states(lease) == ("active", "uploading_outputs", "uploading_outputs")


def test_an_agent_that_asks_again_is_given_the_whole_phase_from_then(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=TIMEOUTS))
    slack = desk.policy.lease.deadline_slack
    desk.later(20_000)
    desk.accept(lease)
    assert due_in(desk, lease, "preparation") >= TIMEOUTS.preparation + slack
    desk.progress(lease, Phase.RUNNING)
    desk.later(20_000)
    desk.accept(lease)
    assert due_in(desk, lease, "execution") == TIMEOUTS.execution + slack - 20_000
    desk.progress(lease, Phase.RUNNING)
    assert due_in(desk, lease, "execution") >= TIMEOUTS.execution + slack


def test_progress_of_a_stale_epoch_or_a_lapsed_lease_is_refused(desk: Desk) -> None:
    lease = desk.active()
    assert isinstance(desk.progress(lease, Phase.RUNNING, epoch=99), Refused)
    desk.later(HOUR)
    assert isinstance(desk.progress(lease, Phase.RUNNING), Refused)
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert len(desk.audited("lease.stale_progress")) == 2


# Completing


def test_success_promotes_the_dependents_at_once(desk: Desk) -> None:
    lease = desk.active(a_job_spec("first"), a_job_spec("second", needs=("first",)))
    desk.progress(lease, Phase.RUNNING)
    desk.progress(lease, Phase.UPLOADING_OUTPUTS)
    wakes = desk.wakes()
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert desk.states(lease) == ("released", "succeeded", "succeeded")
    with read(desk.engine) as connection:
        assert job_states(connection, lease.run_id)["second"] == "eligible"
    assert desk.wakes() == wakes + 1
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.deadlines(lease.attempt_id) == {"settle"}
    assert desk.events(lease.attempt_id) == ["lease.granted", "attempt.finished"]


def test_the_last_success_ends_the_run_whatever_phase_was_reported(desk: Desk) -> None:
    lease = desk.active()
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert desk.run_state(lease.run_id) == "succeeded"
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert attempt["started_at"] is not None
    history = desk.rows(tables.history, kind="attempt", entity_id=lease.attempt_id)
    assert [line["after"] for line in sorted(history, key=lambda line: line["version"])] == [
        "leased",
        "preparing",
        "running",
        "uploading_outputs",
        "succeeded",
    ]


def test_a_failure_waits_to_be_settled(desk: Desk) -> None:
    lease = desk.active()
    desk.progress(lease, Phase.RUNNING)
    verdict = desk.complete(
        lease,
        Outcome.FAILED,
        failure_class=FailureClass.USER_COMMAND,
        message="exit 1",
        exit_code=1,
    )
    assert verdict is CompletionVerdict.ACCEPTED
    assert desk.states(lease) == ("released", "failed", "running")
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert (attempt["failure_class"], attempt["exit_code"]) == ("user_command", 1)
    assert attempt["message"] == "exit 1"
    assert attempt["settled_at"] is None
    assert desk.deadlines(lease.attempt_id) == {"settle"}
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.settle(lease).job_state == "failed"
    assert desk.run_state(lease.run_id) == "failed"


@pytest.mark.parametrize(
    ("outcome", "blame"),
    [
        (Outcome.FAILED, "internal"),
        (Outcome.TIMED_OUT, "timeout"),
        (Outcome.CANCELLED, "cancelled"),
    ],
)
def test_an_end_without_a_class_gets_the_one_of_its_outcome(
    desk: Desk, outcome: Outcome, blame: str
) -> None:
    lease = desk.active()
    desk.complete(lease, outcome)
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert (attempt["state"], attempt["failure_class"]) == (outcome.value, blame)


def test_measurements_are_kept_and_absurd_ones_bounded(desk: Desk) -> None:
    lease = desk.active()
    usage = Usage(
        wall=Millis(1_500),
        cpu=Millis(900),
        peak_memory=10**30,
        bytes_fetched=10,
        bytes_uploaded=20,
    )
    steps = (StepResult(name="test", exit_code=0, wall=Millis(1_400)),)
    desk.complete(lease, usage=usage, steps=steps, message="null \x00 byte", exit_code=-(10**30))
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert (attempt["wall_ms"], attempt["cpu_ms"]) == (1_500, 900)
    assert (attempt["bytes_fetched"], attempt["bytes_uploaded"]) == (10, 20)
    assert attempt["peak_memory_bytes"] == 2**62
    assert attempt["exit_code"] == -(2**62)
    assert attempt["message"] == "null � byte"
    assert json.loads(attempt["steps"])[0]["name"] == "test"


def test_the_same_completion_again_is_a_duplicate(desk: Desk) -> None:
    lease = desk.active()
    desk.complete(lease)
    before = desk.rows(tables.history)
    assert desk.complete(lease) is CompletionVerdict.DUPLICATE_ACCEPTED
    assert desk.rows(tables.history) == before
    assert desk.events(lease.attempt_id) == ["lease.granted", "attempt.finished"]
    assert desk.audited("attempt.late_result_rejected") == []


def test_another_outcome_after_the_first_is_stale(desk: Desk) -> None:
    lease = desk.active()
    desk.complete(lease)
    assert desk.complete(lease, Outcome.FAILED) is CompletionVerdict.STALE_REJECTED
    assert desk.states(lease) == ("released", "succeeded", "succeeded")
    assert len(desk.audited("attempt.late_result_rejected")) == 1


def test_a_completion_with_a_stale_epoch_is_rejected_and_audited(desk: Desk) -> None:
    lease = desk.active()
    assert desk.complete(lease, epoch=lease.epoch - 1) is CompletionVerdict.STALE_REJECTED
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert len(desk.audited("attempt.late_result_rejected")) == 1


def test_a_completion_for_another_runners_lease_is_forbidden(desk: Desk) -> None:
    lease = desk.active()
    with pytest.raises(Forbidden, match="not your lease"):
        desk.complete(lease, session_id=stranger(desk, lease).session_id)
    assert desk.states(lease) == ("active", "preparing", "preparing")


def test_a_late_completion_after_expiry_and_another_grant_changes_nothing(desk: Desk) -> None:
    late = desk.active()
    desk.later(HOUR)
    desk.heartbeat(late.session_id)
    assert desk.sweep().expired == 1
    assert desk.settle(late).job_state == "eligible"
    desk.heartbeat(late.session_id)
    assert desk.cycle().granted == 1
    (again,) = desk.leases(state="offered")
    assert (again.session_id, again.epoch) == (late.session_id, late.epoch + 1)
    desk.accept(again)
    assert desk.complete(late) is CompletionVerdict.STALE_REJECTED
    assert desk.complete(late, epoch=again.epoch) is CompletionVerdict.STALE_REJECTED
    assert desk.complete(again, epoch=late.epoch) is CompletionVerdict.STALE_REJECTED
    assert desk.states(late) == ("expired", "lost", "preparing")
    assert len(desk.audited("attempt.late_result_rejected")) == 3
    assert desk.complete(again) is CompletionVerdict.ACCEPTED
    assert desk.run_state(late.run_id) == "succeeded"


def test_a_completion_after_the_lease_lapsed_is_late_although_no_sweep_came(desk: Desk) -> None:
    lease = desk.active()
    desk.later(HOUR)
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    assert desk.states(lease) == ("active", "preparing", "preparing")


def test_an_offer_cannot_be_completed(desk: Desk) -> None:
    lease = desk.offered()
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    assert desk.states(lease) == ("offered", "leased", "leased")


def test_success_without_a_required_output_is_invalid(desk: Desk) -> None:
    outputs = (
        OutputSpec(name="wheel", path="dist/*"),
        OutputSpec(name="notes", path="notes", required=False),
    )
    lease = desk.active(a_job_spec(outputs=outputs))
    assert desk.complete(lease) is CompletionVerdict.INVALID_REJECTED
    assert desk.states(lease) == ("active", "preparing", "preparing")
    give_artifact(desk, lease, "wheel")
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED


def give_artifact(desk: Desk, lease: Lease, name: str) -> None:
    row = {
        "attempt_id": lease.attempt_id,
        "name": name,
        "job_id": lease.job_id,
        "run_id": lease.run_id,
        "path": "dist/*",
        "digest": "sha256:1",
        "size_bytes": 1,
        "created_at": 1,
    }
    desk.change(lambda connection: connection.execute(sa.insert(tables.artifacts), [row]))


# Who asks


def test_only_the_holder_of_an_active_lease_gets_it(desk: Desk) -> None:
    lease = desk.offered()

    def ask(holder: Holder) -> str:
        with read(desk.engine) as connection:
            return str(leases.holder_of(connection, lease.lease_id, holder)["job_id"])

    with pytest.raises(StaleRejected):
        ask(lease.holder)
    desk.accept(lease)
    assert ask(lease.holder) == lease.job_id
    with pytest.raises(StaleRejected, match="epoch"):
        ask(replace(lease.holder, epoch=0))
    with pytest.raises(Forbidden):
        ask(Holder(session_id=SessionId("ses_other"), epoch=lease.epoch))
    desk.later(HOUR)
    with pytest.raises(StaleRejected, match="lapsed"):
        ask(lease.holder)


# The view of the workflow


def test_the_backstop_shrinks_as_the_attempt_advances(desk: Desk) -> None:
    lease = desk.offered(a_job_spec(timeouts=TIMEOUTS))
    policy = desk.policy
    slack, margin = policy.lease.deadline_slack, 2 * policy.sweep.period
    rest = 60_000 + 600_000 + 30_000 + 3 * slack + margin
    view = desk.view(lease)
    assert (view.state, view.ended, view.settled) == ("leased", False, False)
    assert rest < view.backstop_ms <= rest + policy.lease.offer_ttl
    desk.accept(lease)
    assert rest - 5_000 < desk.view(lease).backstop_ms <= rest
    desk.progress(lease, Phase.RUNNING)
    assert desk.view(lease).backstop_ms <= rest - 60_000 - slack
    desk.progress(lease, Phase.UPLOADING_OUTPUTS)
    assert desk.view(lease).backstop_ms <= 30_000 + slack + margin
    desk.complete(lease)
    view = desk.view(lease)
    assert (view.state, view.ended, view.settled) == ("succeeded", True, False)
    assert 0 < view.backstop_ms <= policy.lease.settle_within + margin
    desk.settle(lease)
    view = desk.view(lease)
    assert (view.settled, view.backstop_ms) == (True, 0)


def test_looking_at_an_attempt_applies_an_offer_that_lapsed(desk: Desk) -> None:
    lease = desk.offered()
    desk.later(desk.policy.lease.offer_ttl + 1)
    view = desk.view(lease)
    assert (view.state, view.ended, view.settled) == ("lost", True, True)
    assert desk.states(lease) == ("expired", "lost", "eligible")


def test_looking_at_an_attempt_applies_the_deadline_of_its_phase(desk: Desk) -> None:
    lease = desk.active(a_job_spec(timeouts=TIMEOUTS))
    desk.later(60_000 + desk.policy.lease.deadline_slack + 1)
    view = desk.view(lease)
    assert (view.state, view.ended, view.settled) == ("timed_out", True, False)
    assert desk.states(lease) == ("revoked", "timed_out", "preparing")
