"""What is kept only for a while: logs, artifacts, caches, blobs that nothing refers to, traces.

Certificates that are over go as well, and old invitations. Runs, jobs, attempts, history and audit
stay. Each deletion is a transaction of its own, so that an interrupted sweep loses nothing and a
long one holds nobody up. A blob that came in or was asked for within the last hour is spared: its
run is about to be submitted, or its output recorded.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.config import RetentionConfig
from forgeyard.model.enrolment import LONGEST_LAUNCH_MS
from forgeyard.store import fleet_history, fleet_tables, lineage, parked_classes, tables
from forgeyard.store.blobs import BlobStore
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.enrolments import ENROLLED_ANEW

GRACE_S = 3_600
_BATCH = 200
_HOUR = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How many attempts lost their log, and how many artifacts, caches and blobs were deleted.

    `traces` counts delivered events, old cycles, idempotency keys, refusals, habits, findings,
    certificates, enrolments, machines and what fleets once needed.
    """

    logs: int
    artifacts: int
    blobs: int
    caches: int = 0
    traces: int = 0


def forget(engine: sa.Engine, blob_store: BlobStore, config: RetentionConfig) -> Forgotten:
    """Delete what the configuration keeps no longer; running it again is harmless.

    Nothing while the store is held: an older one does not know what a newer one refers to.
    """
    with read(engine) as connection:
        if lineage.is_held(connection):
            return Forgotten(logs=0, artifacts=0, blobs=0)
        now = database_now(connection)
        logs_before = now - config.logs_h * _HOUR
        artifacts_before = now - config.artifacts_h * _HOUR
        logs = connection.execute(_old_logs(logs_before)).scalars().all()
        artifacts = connection.execute(_old_artifacts(artifacts_before)).scalars().all()
    for attempt_id in logs:
        _forget_log(engine, attempt_id)
    deleted = sum(_forget_artifacts(engine, job_id, artifacts_before) for job_id in artifacts)
    caches = _forget_caches(engine, config)
    with read(engine) as connection:
        unused = connection.execute(_unused_blobs(now, artifacts_before)).scalars().all()
    blobs = _forget_blobs(engine, blob_store, unused, artifacts_before)
    strays = _forget_strays(engine, blob_store)
    with write(engine) as connection:
        parked_classes.forget(connection)
    blob_store.tidy()
    return Forgotten(
        logs=len(logs),
        artifacts=deleted,
        blobs=blobs + strays,
        caches=caches,
        traces=sum(
            _forget_rows(engine, key, old)
            for key, old in (
                *_traces(now, logs_before),
                *_identities(now, now - config.identities_h * _HOUR),
            )
        ),
    )


def _old_logs(before: int) -> sa.Select[str]:
    attempts, runs = tables.attempts, tables.runs
    return (
        sa.select(attempts.c.attempt_id)
        .join(runs, runs.c.run_id == attempts.c.run_id)
        .where(runs.c.created_at < before, runs.c.finished_at < before, attempts.c.log_bytes > 0)
    )


def _forget_log(engine: sa.Engine, attempt_id: str) -> None:
    attempts, chunks = tables.attempts, tables.log_chunks
    with write(engine) as connection:
        connection.execute(sa.delete(chunks).where(chunks.c.attempt_id == attempt_id))
        connection.execute(
            sa.update(attempts).where(attempts.c.attempt_id == attempt_id).values(log_bytes=0)
        )


def _old_artifacts(before: int) -> sa.Select[str]:
    """Find jobs of old runs with artifacts that no newer run has taken over."""
    artifacts, runs = tables.artifacts, tables.runs
    return (
        sa.select(artifacts.c.job_id)
        .distinct()
        .join(runs, runs.c.run_id == artifacts.c.run_id)
        .where(runs.c.finished_at < before, ~_taken_over(before))
    )


def _taken_over(before: int) -> sa.Exists:
    jobs, newer, artifacts = tables.jobs, tables.runs.alias("newer"), tables.artifacts
    return sa.exists().where(
        jobs.c.reused_from == artifacts.c.job_id,
        newer.c.run_id == jobs.c.run_id,
        sa.or_(newer.c.finished_at.is_(None), newer.c.finished_at >= before),
    )


def _forget_artifacts(engine: sa.Engine, job_id: str, before: int) -> int:
    artifacts = tables.artifacts
    with write(engine) as connection:
        return connection.execute(
            sa.delete(artifacts).where(artifacts.c.job_id == job_id, ~_taken_over(before))
        ).rowcount


def _forget_caches(engine: sa.Engine, config: RetentionConfig) -> int:
    """Delete the caches that nobody used for long, or that are beyond what all may have."""
    caches, deleted = tables.caches, 0
    with read(engine) as connection:
        before = database_now(connection) - config.caches_h * _HOUR
        surplus = connection.execute(_surplus_caches(before, config.cache_bytes)).all()
    for trust, key, used_at in surplus:
        with write(engine) as connection:
            deleted += connection.execute(
                sa.delete(caches).where(
                    caches.c.trust == trust,
                    caches.c.cache_key == key,
                    caches.c.used_at == used_at,  # or somebody has just found it
                )
            ).rowcount
    return deleted


def _surplus_caches(before: int, most: int) -> sa.Select[str, str, int]:
    caches = tables.caches
    newest_first = (caches.c.used_at.desc(), caches.c.trust, caches.c.cache_key)
    together = sa.func.sum(caches.c.size_bytes).over(order_by=newest_first, rows=(None, 0))
    each = sa.select(caches, together.label("together")).subquery()
    return sa.select(each.c.trust, each.c.cache_key, each.c.used_at).where(
        sa.or_(each.c.used_at < before, each.c.together > most)
    )


def _is_unused(now: int | sa.ColumnElement[int], before: int) -> sa.ColumnElement[bool]:
    blobs, runs, artifacts = tables.blobs, tables.runs, tables.artifacts
    as_source = sa.exists().where(
        runs.c.source_digest == blobs.c.digest,
        sa.or_(runs.c.finished_at.is_(None), runs.c.finished_at >= before),
    )
    as_artifact = sa.exists().where(artifacts.c.digest == blobs.c.digest)
    as_cache = sa.exists().where(tables.caches.c.digest == blobs.c.digest)
    is_idle = blobs.c.used_at < now - GRACE_S * 1_000
    return sa.and_(is_idle, ~as_source, ~as_artifact, ~as_cache)


def _unused_blobs(now: int, before: int) -> sa.Select[str]:
    return sa.select(tables.blobs.c.digest).where(_is_unused(now, before))


def _forget_blobs(
    engine: sa.Engine, blob_store: BlobStore, digests: Iterable[str], before: int
) -> int:
    """Delete each row, asking again under its lock whether it is unused, and then its bytes."""
    blobs, deleted = tables.blobs, 0
    for digest in digests:
        with write(engine) as connection:
            now = database_now(connection)
            gone = connection.execute(
                sa.delete(blobs).where(blobs.c.digest == digest, _is_unused(now, before))
            )
        if gone.rowcount:
            blob_store.delete(digest, spare_s=GRACE_S)
            deleted += 1
    return deleted


def _forget_strays(engine: sa.Engine, blob_store: BlobStore) -> int:
    """Delete bytes without a row: what a crash left between the two writes."""
    deleted = 0
    for digests in _batches(blob_store.idle(GRACE_S)):
        with read(engine) as connection:
            query = sa.select(tables.blobs.c.digest).where(tables.blobs.c.digest.in_(digests))
            recorded = set(connection.execute(query).scalars())
        for digest in digests:
            if digest not in recorded:
                blob_store.delete(digest, spare_s=GRACE_S)
                deleted += 1
    return deleted


def _batches(digests: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(digests)
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch


def _traces(
    now: int, before: int
) -> tuple[tuple[sa.Column[str] | sa.Column[int], sa.ColumnElement[bool]], ...]:
    """Name what only served its moment: a table's key, and which of its rows are old."""
    outbox, attempts, cycles = tables.outbox, tables.attempts, tables.cycles
    keys, refusals, habits = tables.idempotency, tables.refusals, tables.habits
    findings, needs = tables.findings, fleet_tables.fleet_history
    # A stream that is not settled may go on, and numbers its events after those that are there.
    settled = sa.exists().where(
        attempts.c.attempt_id == outbox.c.stream, attempts.c.settled_at < before
    )
    return (
        (outbox.c.event_id, sa.and_(outbox.c.delivered_at < before, settled)),
        (cycles.c.cycle_id, cycles.c.created_at < before),
        (keys.c.key, keys.c.created_at < before),
        (refusals.c.job_id, refusals.c.until_at < now),
        (habits.c.job_name, habits.c.noted_at < before),
        (findings.c.finding_id, findings.c.seen_at < before),
        (needs.c.at, needs.c.at < now - fleet_history.KEPT_MS),
    )


def _identities(
    now: int, before: int
) -> tuple[tuple[sa.Column[str] | sa.Column[int], sa.ColumnElement[bool]], ...]:
    """Name who was let in, and is no more; in this order, for one hangs on the other.

    What was shut out stays, so that its key never comes again. An enrolment stays as long as one of
    its certificates, whose renewal and whose second answer need it. A machine of a cloud stays
    until no enrolment would take its evidence any more.
    """
    enrolments, certificates = tables.enrolments, tables.certificates
    happened = ("created_at", "opens_at", "approved_at", "used_at", "cancelled_at", "alarmed_at")
    was_in_use = sa.or_(
        certificates.c.revoked_at.is_(None), certificates.c.revoked_reason == ENROLLED_ANEW
    )
    is_at_rest = (sa.func.coalesce(enrolments.c[name], 0) < before for name in happened)
    has_certificates = sa.exists().where(certificates.c.enrolment_id == enrolments.c.enrolment_id)
    launched_at = tables.enrolled_machines.c.launched_at
    return (
        (certificates.c.serial, sa.and_(certificates.c.ends_at < before, was_in_use)),
        (enrolments.c.enrolment_id, sa.and_(*is_at_rest, ~has_certificates)),
        (
            tables.enrolled_machines.c.machine,
            launched_at < min(before, now - LONGEST_LAUNCH_MS),
        ),
    )


def _forget_rows(
    engine: sa.Engine, key: sa.Column[str] | sa.Column[int], old: sa.ColumnElement[bool]
) -> int:
    """Delete old rows a batch at a time; what else hangs on a key's other rows stays."""
    deleted = 0
    while True:
        with write(engine) as connection:
            some = sa.select(key).where(old).limit(_BATCH).scalar_subquery()
            batch = connection.execute(sa.delete(key.table).where(key.in_(some), old)).rowcount
        deleted += batch
        if batch == 0:
            return deleted
