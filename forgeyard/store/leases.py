"""What an agent may do with a lease: accept, reject, renew, make progress, complete.

Every call names the session and the epoch of the grant and is judged by the database's clock. A
call that comes too late changes nothing but the audit trail, so it returns `Refused` instead of
raising; the caller commits and answers `StaleRejected`. Repeating a call is harmless.

Success is final in `complete`'s own transaction: dependents are promoted and the run may end there,
so that no workflow has to be alive for a run to go on. Any other end waits for `settle`.
"""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.errors import StaleRejected
from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import (
    Accepted,
    Complete,
    CompletionVerdict,
    Holder,
    Outcome,
    Phase,
    Progress,
    Reject,
    Renew,
    RenewalVerdict,
    RenewAnswer,
    Renewed,
    StepResult,
)
from forgeyard.model.transitions import (
    FINAL_ATTEMPT_STATES,
    AttemptState,
    JobState,
    LeaseState,
    RunState,
)
from forgeyard.model.units import LARGEST, Millis
from forgeyard.store import (
    changes,
    codec,
    fence,
    habits,
    jobs,
    lapse,
    penalties,
    phases,
    specs,
    tables,
)
from forgeyard.store.changes import LEASE, RUN, Row
from forgeyard.store.engine import database_now
from forgeyard.store.release import Held, end_attempt, end_offer

_CLASSES = {
    Outcome.FAILED: FailureClass.INTERNAL,
    Outcome.TIMED_OUT: FailureClass.TIMEOUT,
    Outcome.CANCELLED: FailureClass.CANCELLED,
}
_REASONS = {
    Outcome.SUCCEEDED: "every step succeeded",
    Outcome.FAILED: "the runner reported a failure",
    Outcome.TIMED_OUT: "the runner reported a timeout",
    Outcome.CANCELLED: "the runner stopped it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The call took effect, now or when it was made the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The lease is not the caller's any more; that it asked is in the audit trail."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """How an attempt stands; in `backstop_ms` the last deadline it can have will have passed."""

    state: AttemptState
    ended: bool
    settled: bool
    backstop_ms: int


def accept(
    connection: sa.Connection, lease_id: str, holder: Holder, *, policy: LeasePolicy
) -> Accepted | Refused:
    """Turn an offer into an active lease; the attempt prepares from now on.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it was offered to another session.
    """
    held, now = fence.claim(connection, lease_id, holder)
    live = (LeaseState.OFFERED, LeaseState.ACTIVE)
    problem = fence.staleness(held.lease, holder, now, *live)
    problem = problem or fence.closure(connection, holder)
    if problem:
        return _refuse(connection, held, holder, "lease.stale_accept", problem, now=now)
    if held.lease["state"] == LeaseState.ACTIVE:
        # The agent counts from the moment it sent this repetition, so the lease must as well.
        _extend(connection, [lease_id], until=now + policy.execution_ttl)
        phases.repeat(connection, held, AttemptState.PREPARING, now=now, policy=policy)
    else:
        _activate(connection, held, now=now, policy=policy)
    return Accepted(ttl=policy.execution_ttl, grace=Millis(held.lease["grace_ms"]))


def _activate(connection: sa.Connection, held: Held, *, now: int, policy: LeasePolicy) -> None:
    if held.run["state"] == RunState.QUEUED:
        first = "its first job was accepted"
        running = RunState.RUNNING
        changes.move(connection, RUN, held.run, running, reason=first, now=now, started_at=now)
    reason = "the runner accepted"
    lease = changes.move(
        connection,
        LEASE,
        held.lease,
        LeaseState.ACTIVE,
        reason=reason,
        now=now,
        accepted_at=now,
        expires_at=now + policy.execution_ttl,
    )
    held, preparing = replace(held, lease=lease), AttemptState.PREPARING
    phases.advance(connection, held, preparing, reason=reason, now=now, policy=policy)


def reject(
    connection: sa.Connection, lease_id: str, message: Reject, *, policy: LeasePolicy
) -> Done | Refused:
    """Give an offer back: the job waits again, uncharged, and this runner is not asked for a while.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it was offered to another session.
    """
    held, now = fence.claim(connection, lease_id, message)
    if held.lease["state"] == LeaseState.REJECTED and held.lease["epoch"] == message.epoch:
        return Done()
    problem = fence.staleness(held.lease, message, now, LeaseState.OFFERED)
    if problem:
        return _refuse(connection, held, message, "lease.stale_reject", problem, now=now)
    detail = f": {_storable(message.detail)}" if message.detail else ""
    reason = f"the runner turned it down ({message.reason.value}){detail}"
    rejected, lease = AttemptState.REJECTED, LeaseState.REJECTED
    end_offer(connection, held, rejected, lease=lease, reason=reason, now=now)
    lapse.refuse(connection, held.lease, reason=reason, until=now + policy.refusal_memory)
    jobs.give_back(connection, held.run, held.job, reason=reason, now=now)
    changes.wake(connection, held.job["partition"], reason="an offer was turned down")
    return Done()


def run_of(connection: sa.Connection, lease_id: str) -> str:
    """Tell to which run a lease belongs; nothing if there is none."""
    table, jobs = tables.leases, tables.jobs
    query = (
        sa.select(jobs.c.run_id)
        .join(table, table.c.job_id == jobs.c.job_id)
        .where(table.c.lease_id == lease_id)
    )
    return str(connection.execute(query).scalar_one_or_none() or "")


def renew(connection: sa.Connection, message: Renew, *, policy: LeasePolicy) -> RenewAnswer:
    """Extend a session's active leases in one statement; each gets its own verdict.

    It takes only the leases' own locks and bumps no version: the sweep locks a lease before it
    judges it, so one of the two sees what the other did.
    """
    alive = _renewable(connection, message)
    now = database_now(connection)
    alive = {key: row for key, row in alive.items() if not fence.has_lapsed(row, now)}
    asked = [(renewal.lease_id, renewal.epoch) for renewal in message.leases]
    renewed = sorted(lease_id for lease_id, _ in alive.keys() & set(asked))
    _extend(connection, renewed, until=now + policy.execution_ttl)
    return RenewAnswer(
        leases=tuple(
            Renewed(
                lease_id=renewal.lease_id,
                verdict=_verdict(alive.get(key)),
                ttl=policy.execution_ttl if key in alive else Millis(0),
            )
            for renewal, key in zip(message.leases, asked, strict=True)
        )
    )


def _renewable(connection: sa.Connection, message: Renew) -> dict[tuple[str, int], Row]:
    """Lock the active leases of this session among those named, in the order of runs and jobs.

    Whoever stops a run or takes over a runner locks them in that order too.
    """
    leases, jobs_ = tables.leases, tables.jobs
    query = (
        sa.select(leases)
        .join(jobs_, jobs_.c.job_id == leases.c.job_id)
        .where(
            leases.c.lease_id.in_({renewal.lease_id for renewal in message.leases}),
            leases.c.session_id == message.session_id,
            leases.c.state == LeaseState.ACTIVE.value,
        )
        .order_by(jobs_.c.run_id, jobs_.c.job_id)
        .with_for_update(of=leases)
    )
    rows = connection.execute(query).mappings()
    return {(row["lease_id"], row["epoch"]): dict(row) for row in rows}


def _extend(connection: sa.Connection, lease_ids: list[str], *, until: int) -> None:
    leases = tables.leases
    if lease_ids:
        connection.execute(
            sa.update(leases).where(leases.c.lease_id.in_(lease_ids)).values(expires_at=until)
        )


def _verdict(row: Row | None) -> RenewalVerdict:
    if row is None:
        return RenewalVerdict.STALE
    return RenewalVerdict.CANCEL if row["cancel_requested"] else RenewalVerdict.RENEWED


def progress(
    connection: sa.Connection, lease_id: str, message: Progress, *, policy: LeasePolicy
) -> Done | Refused:
    """Note that an accepted attempt entered a phase, and start that phase's deadline, now again.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it belongs to another session.
    """
    held, now = fence.claim(connection, lease_id, message)
    problem = fence.staleness(held.lease, message, now, LeaseState.ACTIVE)
    if problem:
        return _refuse(connection, held, message, "lease.stale_progress", problem, now=now)
    running = message.phase is Phase.RUNNING
    phase = AttemptState.RUNNING if running else AttemptState.UPLOADING_OUTPUTS
    reason = "its steps run" if running else "its outputs are being uploaded"
    phases.repeat(connection, held, phase, now=now, policy=policy)
    phases.advance(connection, held, phase, reason=reason, now=now, policy=policy)
    return Done()


def complete(
    connection: sa.Connection, lease_id: str, message: Complete, *, policy: LeasePolicy
) -> CompletionVerdict:
    """End an attempt the way its agent reports, once; whatever comes too late changes nothing.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it belongs to another session.
    """
    held, now = fence.claim(connection, lease_id, message)
    if _is_repeated(held, message):
        return CompletionVerdict.DUPLICATE_ACCEPTED
    problem = fence.staleness(held.lease, message, now, LeaseState.ACTIVE)
    if problem:
        late = f"{message.outcome.value}: {problem}"
        _refuse(connection, held, message, "attempt.late_result_rejected", late, now=now)
        return CompletionVerdict.STALE_REJECTED
    if message.outcome is not Outcome.SUCCEEDED:
        _end(connection, held, message, now=now, policy=policy)
    elif not _has_outputs(connection, held):
        return CompletionVerdict.INVALID_REJECTED
    else:
        _succeed(connection, held, message, now=now, policy=policy)
    changes.wake_if_waiting(connection, held.job["partition"], reason="an attempt ended")
    return CompletionVerdict.ACCEPTED


def _is_repeated(held: Held, message: Complete) -> bool:
    """Recognise a completion that took effect, although its answer was lost."""
    kept = (held.lease["state"], held.lease["epoch"], held.attempt["state"])
    return kept == (LeaseState.RELEASED, message.epoch, message.outcome.value)


def _has_outputs(connection: sa.Connection, held: Held) -> bool:
    """Tell whether every required output was stored; what cannot be checked was not."""
    spec = specs.find(held.job)
    if spec is None:
        return False
    required = {output.name for output in spec.outputs if output.required}
    artifacts = tables.artifacts
    attempt_id = held.attempt["attempt_id"]
    query = sa.select(artifacts.c.name).where(artifacts.c.attempt_id == attempt_id)
    return required <= set(connection.execute(query).scalars())


def _succeed(
    connection: sa.Connection, held: Held, message: Complete, *, now: int, policy: LeasePolicy
) -> None:
    reason, last = _REASONS[message.outcome], AttemptState.UPLOADING_OUTPUTS
    held = phases.advance(connection, held, last, reason=reason, now=now, policy=policy)
    held = _end(connection, held, message, now=now, policy=policy)
    jobs.finish_job(connection, held.run, held.job, JobState.SUCCEEDED, reason=reason, now=now)
    runner_id = held.lease["runner_id"]
    habits.note(connection, held.job["job_id"], habits.HOME, runner_id, now=now)


def _end(
    connection: sa.Connection, held: Held, message: Complete, *, now: int, policy: LeasePolicy
) -> Held:
    blame = message.failure_class or _CLASSES.get(message.outcome)
    if message.outcome is Outcome.SUCCEEDED:
        blame = None
    penalties.blame(connection, held.lease["runner_id"], blame, now=now, policy=policy)
    return end_attempt(
        connection,
        held,
        AttemptState(message.outcome.value),
        lease=LeaseState.RELEASED,
        reason=_REASONS[message.outcome],
        now=now,
        policy=policy,
        message=_storable(message.message) or None,
        failure_class=None if blame is None else blame.value,
        **_measured(message),
    )


def _measured(message: Complete) -> dict[str, object]:
    usage = message.usage
    return {
        "exit_code": None if message.exit_code is None else _bounded(message.exit_code),
        "steps": codec.encode(message.steps, tuple[StepResult, ...]),
        "tests": None if message.tests is None else codec.encode(message.tests),
        "wall_ms": _bounded(usage.wall),
        "cpu_ms": _bounded(usage.cpu),
        "peak_memory_bytes": _bounded(usage.peak_memory),
        "bytes_fetched": _bounded(usage.bytes_fetched),
        "bytes_uploaded": _bounded(usage.bytes_uploaded),
    }


def holder_of(connection: sa.Connection, lease_id: str, holder: Holder) -> Row:
    """Return an active lease to its holder, for the routes that move logs, inputs and outputs.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it belongs to another session.
        StaleRejected: the lease ended, lapsed, or was never accepted.
    """
    lease = changes.find(connection, LEASE, lease_id)
    fence.check_session(lease, holder)
    problem = fence.staleness(lease, holder, database_now(connection), LeaseState.ACTIVE)
    if problem:
        raise StaleRejected(problem, field="lease_id", value=lease_id)
    return lease


def attempt_view(
    connection: sa.Connection, attempt_id: str, policy: SchedulingPolicy
) -> AttemptView:
    """Tell how an attempt stands, after applying whichever of its deadlines has passed.

    Raises:
        NotFound: there is no such attempt.
    """
    held = lapse.overtake(connection, attempt_id, policy=policy)
    state = AttemptState(held.attempt["state"])
    now = database_now(connection)
    return AttemptView(
        state=state,
        ended=state in FINAL_ATTEMPT_STATES,
        settled=held.attempt["settled_at"] is not None,
        backstop_ms=phases.time_left(connection, held, now=now, policy=policy),
    )


def _refuse(
    connection: sa.Connection, held: Held, holder: Holder, action: str, reason: str, *, now: int
) -> Refused:
    fence.record_refusal(connection, held, holder, action, reason, now=now)
    return Refused(reason=reason)


def _storable(text: str) -> str:
    """Replace the one character that a text column of PostgreSQL cannot hold."""
    return text.replace("\x00", "�")


def _bounded(number: int) -> int:
    """Keep what an agent measured within what a column can hold."""
    return max(-LARGEST, min(number, LARGEST))
