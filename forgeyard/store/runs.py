"""What people do with runs: submit them, start them again after a failure, stop them.

How a run is written and how it is stopped is told in `births` and `stopping`.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.errors import Conflict, IdempotencyMismatch, InvalidRequirements, NotFound
from forgeyard.model.injection import BUILT_IN_INJECTION, Injection
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import LeasePolicy, PriorityPolicy
from forgeyard.model.run import Concurrency, GitSource, RunSpec, check_graph
from forgeyard.model.transitions import (
    FINAL_JOB_STATES,
    FINAL_RUN_STATES,
    JobState,
    RunState,
)
from forgeyard.scheduler.elevation import check_elevation, is_elevated
from forgeyard.scheduler.snapshot import CLASS_OF
from forgeyard.store import blobs, changes, codec, groups, jobs, scopes, shares, specs, tables
from forgeyard.store.births import Birth, draw_id, give_birth
from forgeyard.store.changes import RUN, DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.stopping import lock_jobs, stop_job, stop_run

BUILT_IN = PriorityPolicy()
NAMED = 20
"""How many elevated jobs of a run the audit trail names; it counts all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A run to start, and what makes asking twice harmless."""

    spec: RunSpec
    document: str
    """The run file as submitted, JSON."""
    source_digest: str | None
    submitted_by: str
    partition: str
    idempotency_key: str | None
    body_digest: str
    git: GitSource | None = None
    """The commit that the source's files are, as the submitter says."""
    proposal: bool = False
    """Whether it comes from outside, so that no job of it may see a trusted runner (DEV-012)."""
    injection: Injection = BUILT_IN_INJECTION
    """What policy adds to the requirements of its jobs."""
    queue: str | None = None
    """The path of a queue; else the run file's, else the default one."""
    elevation: str | None = None
    """Why it may have a priority that not everybody may ask for; audited."""
    tenant_id: str | None = None
    """Whose queues and sources alone it may use, and whose keys its key is among; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The run, and whether this very call made it."""

    run_id: str
    created: bool


def submit(
    connection: sa.Connection,
    submission: Submission,
    *,
    policy: LeasePolicy,
    priorities: PriorityPolicy = BUILT_IN,
    rng: random.Random,
) -> Submitted:
    """Store a run and let its first jobs wait for runners; the same key gives the same run.

    In a concurrency group it may have to wait itself, and it supersedes the one that waited.

    Raises:
        IdempotencyMismatch: the key came before with another body.
        NotFound: the source was not uploaded, or there is no such queue.
        InvalidRequirements: the jobs do not form a graph, or ask for what policy forbids.
        Forbidden: a priority may not be asked for, or not without a reason.
    """
    _check(submission.spec)
    elevated = _elevated(submission.spec.jobs, priorities, reason=submission.elevation)
    now = database_now(connection)
    run_id = draw_id("run", now=now, rng=rng)
    if submission.idempotency_key is not None:
        earlier = _claim_key(connection, submission, run_id, now=now)
        if earlier is not None:
            return Submitted(run_id=earlier, created=False)
    if submission.source_digest is not None:
        _check_theirs(connection, submission.source_digest, submission.tenant_id)
    _use_source(connection, submission.source_digest, now=now)
    path = submission.queue or submission.spec.queue
    queue = shares.queue_for(connection, path, tenant_id=submission.tenant_id)
    birth = Birth(
        run_id=run_id,
        spec=injected(
            submission.spec,
            submission.injection,
            queue=shares.path_of(connection, queue),
            proposal=submission.proposal,
        ),
        document=submission.document,
        source_digest=submission.source_digest,
        git=submission.git,
        submitted_by=submission.submitted_by,
        partition=submission.partition,
        scopes=queue,
    )
    _begin(connection, birth, now=now, policy=policy, rng=rng)
    _audit_elevation(connection, birth, elevated, reason=submission.elevation, now=now)
    return Submitted(run_id=run_id, created=True)


def injected(spec: RunSpec, injection: Injection, *, queue: str, proposal: bool) -> RunSpec:
    """Add to the jobs of a run in the queue of this path what policy demands.

    Raises:
        InvalidRequirements: a job asks for what policy forbids.
    """
    marked = (replace(job, proposal=job.proposal or proposal) for job in spec.jobs)
    return replace(spec, jobs=tuple(_demanding(job, injection, queue=queue) for job in marked))


def _demanding(job: JobSpec, injection: Injection, *, queue: str) -> JobSpec:
    hurry = job.wishes.scheduling_class or CLASS_OF[job.priority]
    return injection.into(job, queue=queue, scheduling_class=hurry)


def _elevated(
    wanted: Iterable[JobSpec], policy: PriorityPolicy, *, reason: str | None
) -> list[JobSpec]:
    """Check every job's priority; list those that not everybody may ask for."""
    elevated: list[JobSpec] = []
    for job in wanted:
        asked = (job.priority, job.wishes.scheduling_class)
        field = f"jobs.{job.matrix.of if job.matrix else job.name}.priority"
        check_elevation(*asked, policy, reason=reason, field=field)
        if is_elevated(*asked, policy):
            elevated.append(job)
    return elevated


def _audit_elevation(
    connection: sa.Connection,
    birth: Birth,
    elevated: Sequence[JobSpec],
    *,
    reason: str | None,
    now: int,
) -> None:
    """Write down who asked for more than everybody may, for which jobs, and why (FAR-021)."""
    if elevated:
        named = ", ".join(f"{job.name} {job.priority}" for job in elevated[:NAMED])
        _audit(
            connection,
            "run.elevate",
            birth.run_id,
            reason=f"{len(elevated)} jobs ({named}): {reason}",
            actor=birth.submitted_by,
            channel="api",
            now=now,
        )


def _begin(
    connection: sa.Connection, birth: Birth, *, now: int, policy: LeasePolicy, rng: random.Random
) -> None:
    """Make a run, and room for it in its concurrency group before; no run is locked yet."""
    if birth.spec.concurrency is not None:
        held = groups.enter(
            connection,
            birth.spec.concurrency,
            tenant_id=birth.scopes[0],
            run_id=birth.run_id,
            actor=birth.submitted_by,
            policy=policy,
        )
        birth, now = replace(birth, held=held), database_now(connection)
    give_birth(connection, birth, now=now, rng=rng)


def rerun_failed(
    connection: sa.Connection,
    run_id: str,
    *,
    actor: str,
    policy: LeasePolicy,
    priorities: PriorityPolicy = BUILT_IN,
    elevation: str | None = None,
    rng: random.Random,
    injection: Injection = BUILT_IN_INJECTION,
) -> Submitted:
    """Start a new run of the same document, which takes over the successes of the first.

    Raises:
        NotFound: there is no such run, or its source is gone.
        Conflict: it has not ended, or nothing in it failed.
        InvalidRequirements: policy forbids by now what a job asks for.
        Forbidden: a priority may not be asked for, or not without a reason.
    """
    run = changes.find(connection, RUN, run_id)
    if RunState(run["state"]) not in FINAL_RUN_STATES:
        raise Conflict(f"run {run['name']} has not ended yet", field="run_id", value=run_id)
    rows = _jobs_of(connection, run_id)
    if not any(JobState(row["state"]) in jobs.BAD_ENDS for row in rows):
        raise Conflict(f"no job of run {run['name']} failed", field="run_id", value=run_id)
    now = database_now(connection)
    _use_source(connection, run["source_digest"], now=now)
    reused, path = _reusable(connection, rows), scopes.path_of(rows[0])
    queue = shares.path_of(connection, path)
    wanted = tuple(
        spec if spec.name in reused else _demanding(spec, injection, queue=queue)
        for spec in (codec.decode(JobSpec, row["spec"]) for row in rows)
    )
    elevated = _elevated(wanted, priorities, reason=elevation)
    birth = Birth(
        run_id=draw_id("run", now=now, rng=rng),
        spec=RunSpec(
            name=run["name"],
            jobs=wanted,
            timeout=run["timeout_ms"],
            concurrency=_concurrency(run),
        ),
        document=run["document"],
        source_digest=run["source_digest"],
        git=specs.git(run),
        submitted_by=actor,
        partition=run["partition"],
        rerun_of=run_id,
        reused=reused,
        scopes=path,
    )
    _begin(connection, birth, now=now, policy=policy, rng=rng)
    _audit_elevation(connection, birth, elevated, reason=elevation, now=now)
    return Submitted(run_id=birth.run_id, created=True)


def _concurrency(run: Row) -> Concurrency | None:
    group = run["concurrency_group"]
    if group is None:
        return None
    return Concurrency(group=group, cancel_in_progress=bool(run["cancel_in_progress"]))


def cancel_run(
    connection: sa.Connection,
    run_id: str,
    *,
    reason: str,
    actor: str,
    channel: str,
    policy: LeasePolicy,
) -> str:
    """Stop a run; return its state, which is `cancelling` while agents still work on it.

    Raises:
        NotFound: there is no such run.
        Conflict: it has ended.
    """
    run = changes.find(connection, RUN, run_id, lock=True)
    if run["state"] == RunState.CANCELLING:
        return str(run["state"])
    if RunState(run["state"]) in FINAL_RUN_STATES:
        raise Conflict(
            f"run {run['name']} has ended already: {run['state']}", field="run_id", value=run_id
        )
    now = database_now(connection)
    _audit(connection, "run.cancel", run_id, reason=reason, actor=actor, channel=channel, now=now)
    return _stop(connection, run, ending="user", reason=reason, now=now, policy=policy)


def _stop(
    connection: sa.Connection, run: Row, *, ending: str, reason: str, now: int, policy: LeasePolicy
) -> str:
    state = stop_run(connection, run, ending=ending, reason=reason, now=now, policy=policy)
    changes.wake_if_waiting(connection, run["partition"], reason=f"run {run['name']} stopped")
    return state


def cancel_job(
    connection: sa.Connection,
    run_id: str,
    job_name: str,
    *,
    reason: str,
    actor: str,
    channel: str,
    policy: LeasePolicy,
) -> str:
    """Stop one job of a run; return its state. Its dependents are judged as after any end.

    Raises:
        NotFound: there is no such run or job.
        Conflict: the job has ended.
    """
    run = changes.find(connection, RUN, run_id, lock=True)
    job = lock_jobs(connection, run_id).get(job_name)
    if job is None:
        raise NotFound(f"run {run['name']} has no job {job_name}", field="job", value=job_name)
    if JobState(job["state"]) in FINAL_JOB_STATES:
        raise Conflict(f"{job_name} has ended already: {job['state']}", field="job", value=job_name)
    if job["cancel_reason"] is not None:
        return str(job["state"])
    state = cancel_locked(
        connection, run, job, reason=reason, actor=actor, channel=channel, policy=policy
    )
    changes.wake_if_waiting(connection, run["partition"], reason=f"job {job_name} cancelled")
    return state


def cancel_locked(
    connection: sa.Connection,
    run: Row,
    job: Row,
    *,
    reason: str,
    actor: str,
    channel: str,
    policy: LeasePolicy,
) -> str:
    """Stop a job that has not ended and is locked with its run; return its state.

    The caller wakes.
    """
    now, target = database_now(connection), job["job_id"]
    _audit(connection, "job.cancel", target, reason=reason, actor=actor, channel=channel, now=now)
    ending = stop_job(connection, job, reason=reason, now=now, policy=policy)
    if ending is None:
        return str(job["state"])
    jobs.finish_jobs(connection, run, [ending], now=now)
    return str(ending.state)


def time_out_run(connection: sa.Connection, run_id: str, *, policy: LeasePolicy) -> str:
    """Stop a run whose time is up by the database's clock; return its state either way.

    Raises:
        NotFound: there is no such run.
    """
    run = changes.find(connection, RUN, run_id, lock=True)
    now = database_now(connection)
    if run["state"] not in (RunState.QUEUED, RunState.RUNNING):
        changes.clear_deadlines(connection, run_id, DeadlineKind.RUN)
        return str(run["state"])
    since = run["ready_at"] or run["created_at"]
    if jobs.is_held(run) or now < since + run["timeout_ms"]:
        return str(run["state"])
    reason = f"the run took longer than its timeout of {run['timeout_ms'] // 1000} s"
    return _stop(connection, run, ending="timeout", reason=reason, now=now, policy=policy)


def _audit(
    connection: sa.Connection,
    action: str,
    target: str,
    *,
    reason: str,
    actor: str,
    channel: str,
    now: int,
) -> None:
    changes.audit(
        connection,
        actor=actor,
        channel=channel,
        action=action,
        target=target,
        detail=reason,
        now=now,
    )


def _check(spec: RunSpec) -> None:
    if not spec.jobs:
        raise InvalidRequirements("a run needs at least one job", field="jobs", allowed="1 or more")
    check_graph(spec.jobs)


def _claim_key(
    connection: sa.Connection, submission: Submission, run_id: str, *, now: int
) -> str | None:
    """Write the key unless it is there; return the run that has it already.

    On PostgreSQL the insert waits for a transaction that is just using the same key.
    """
    keys = tables.idempotency
    key = submission.idempotency_key
    if submission.tenant_id is not None:
        key = f"{submission.tenant_id} {key}"  # no key that is sent has a space
    row = {
        "key": key,
        "body_digest": submission.body_digest,
        "run_id": run_id,
        "created_at": now,
    }
    changes.upsert(connection, keys, row, changes={})
    query = sa.select(keys).where(keys.c.key == key)
    kept = connection.execute(query).mappings().one()
    if kept["run_id"] == run_id:
        return None
    if kept["body_digest"] != submission.body_digest:
        raise IdempotencyMismatch(
            "this idempotency key was used for another run",
            field="Idempotency-Key",
            value=submission.idempotency_key,
            allowed="a new key for a new body",
        )
    return str(kept["run_id"])


def _use_source(connection: sa.Connection, digest: str | None, *, now: int) -> None:
    """Insist that the source is stored, and keep retention off it."""
    if digest is None:
        return
    table = tables.blobs
    used = connection.execute(sa.update(table).where(table.c.digest == digest).values(used_at=now))
    if used.rowcount != 1:
        raise _not_uploaded(digest)


def _check_theirs(connection: sa.Connection, digest: str, tenant_id: str | None) -> None:
    """Knowing the digest of somebody's source is not having it."""
    if not blobs.is_owned(connection, digest, tenant_id):
        raise _not_uploaded(digest)


def _not_uploaded(digest: str) -> NotFound:
    return NotFound(
        f"the source {digest} was not uploaded",
        field="source_digest",
        value=digest,
        allowed="the digest of a blob uploaded before",
    )


def _jobs_of(connection: sa.Connection, run_id: str) -> list[Row]:
    table = tables.jobs
    query = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.position)
    return [dict(row) for row in connection.execute(query).mappings()]


def _reusable(connection: sa.Connection, rows: list[Row]) -> dict[str, str]:
    """Map the jobs whose success still counts to the jobs that hold their artifacts."""
    succeeded = {
        row["name"]: row["reused_from"] or row["job_id"]
        for row in rows
        if row["state"] == JobState.SUCCEEDED
    }
    artifacts = tables.artifacts
    query = sa.select(artifacts.c.job_id, artifacts.c.name).where(
        artifacts.c.job_id.in_(succeeded.values())
    )
    kept = {(job_id, name) for job_id, name in connection.execute(query)}
    for row in rows:
        # Retention may have taken what dependents would have to unpack.
        wanted = (o.name for o in codec.decode(JobSpec, row["spec"]).outputs if o.required)
        holder = succeeded.get(row["name"])
        if holder is not None and any((holder, name) not in kept for name in wanted):
            del succeeded[row["name"]]
    return succeeded
