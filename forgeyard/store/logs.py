"""What jobs print, in chunks numbered by their agent.

A chunk is stored once whatever is repeated. An attempt's log has a limit; where it is reached one
marker says so, and the rest is dropped. Following a run needs a cursor per attempt, for the clock
cannot order what several agents append at once: the cursor here is opaque and holds just that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound, TooLarge
from forgeyard.model.protocol import MAX_LOG_CHUNK
from forgeyard.model.transitions import FINAL_JOB_STATES, FINAL_RUN_STATES, JobState, RunState
from forgeyard.store import cursors, tables
from forgeyard.store.changes import Row
from forgeyard.store.cursors import Seen
from forgeyard.store.engine import database_now

_MAX_STEP = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of what one attempt printed."""

    job: str
    attempt: int
    attempt_id: str
    sequence: int
    step: str
    at: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Some chunks of a run; `ended` means that there will never be more after them."""

    chunks: tuple[LogChunk, ...]
    next: str
    ended: bool


def append(
    connection: sa.Connection,
    attempt_id: str,
    sequence: int,
    step: str,
    data: bytes,
    *,
    limit: int,
) -> None:
    """Store one chunk; a sequence number that was stored before changes nothing.

    An agent sends the chunks of an attempt one after the other: a follower may miss one that
    comes after a later one.

    Raises:
        NotFound: there is no such attempt.
        TooLarge: the chunk is longer than the protocol allows.
    """
    _check_chunk(sequence, data)
    attempts, chunks = tables.attempts, tables.log_chunks
    # The lock makes the chunks of one attempt take turns; inserts that refer to it may pass.
    stored = connection.execute(
        sa.select(attempts.c.log_bytes)
        .where(attempts.c.attempt_id == attempt_id)
        .with_for_update(key_share=True)
    ).scalar_one_or_none()
    if stored is None:
        raise NotFound(f"no attempt {attempt_id}", field="attempt_id", value=attempt_id)
    before = _last(connection, attempt_id)
    if not data or stored > limit or _is_stored(connection, attempt_id, sequence, before):
        return
    kept = data if stored + len(data) <= limit else _cut(data, limit - stored, limit)
    connection.execute(
        sa.insert(chunks).values(
            attempt_id=attempt_id,
            sequence=sequence,
            step=step[:_MAX_STEP].replace("\0", " "),
            # A clock set back must not put a chunk before the one it follows.
            at=max(database_now(connection), before[1] if before else 0),
            data=kept,
        )
    )
    connection.execute(
        sa.update(attempts)
        .where(attempts.c.attempt_id == attempt_id)
        .values(log_bytes=stored + len(kept))
    )


def _check_chunk(sequence: int, data: bytes) -> None:
    if not 0 <= sequence < 2**62:
        raise InvalidRequest("sequence: out of range", field="sequence", value=sequence)
    if len(data) > MAX_LOG_CHUNK:
        raise TooLarge(
            "the log chunk is too long", field="body", allowed=f"{MAX_LOG_CHUNK:,} bytes"
        )


def _last(connection: sa.Connection, attempt_id: str) -> tuple[int, int] | None:
    chunks = tables.log_chunks
    query = (
        sa.select(chunks.c.sequence, chunks.c.at)
        .where(chunks.c.attempt_id == attempt_id)
        .order_by(chunks.c.sequence.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.sequence, row.at)


def _is_stored(
    connection: sa.Connection,
    attempt_id: str,
    sequence: int,
    last: tuple[int, int] | None,
) -> bool:
    if last is None or last[0] < sequence:
        return False
    chunks = tables.log_chunks
    query = sa.select(chunks.c.sequence).where(
        chunks.c.attempt_id == attempt_id, chunks.c.sequence == sequence
    )
    return connection.execute(query).first() is not None


def _cut(data: bytes, room: int, limit: int) -> bytes:
    """Keep what fits, then say so; the marker takes the log over its limit, which closes it."""
    return data[:room] + f"\n[log truncated after {limit:,} bytes]\n".encode()


def read(
    connection: sa.Connection, attempt_id: str, after_sequence: int = -1, limit: int = 1_000
) -> list[LogChunk]:
    """Read an attempt's chunks in sequence, after the given one."""
    chunks = tables.log_chunks
    query = (
        _select_chunks()
        .where(chunks.c.attempt_id == attempt_id, chunks.c.sequence > after_sequence)
        .order_by(chunks.c.sequence)
        .limit(limit)
    )
    return [_chunk(dict(row)) for row in connection.execute(query).mappings()]


def read_run(
    connection: sa.Connection,
    run_id: str,
    after: str | None = None,
    limit: int = 1_000,
    *,
    job: str | None = None,
    attempt: int | None = None,
) -> LogPage:
    """Read what a run's attempts printed after a cursor, merged by time; each in its sequence.

    With `job` only that job's, and it has ended when the job has.

    Raises:
        NotFound: there is no such run or job.
        InvalidRequest: the cursor is none of ours.
    """
    seen = cursors.read(after)
    is_over = _is_over(connection, run_id, job)
    attempts = _attempts(connection, run_id, job, attempt)
    marks = {
        row["attempt_id"]: seen.get(cursors.key(row["attempt_id"]), Seen()) for row in attempts
    }
    behind = {
        row["attempt_id"]: marks[row["attempt_id"]]
        for row in attempts
        if row["log_bytes"] > marks[row["attempt_id"]].size
    }
    chunks = _after(connection, behind, limit)
    return LogPage(
        chunks=tuple(chunks),
        next=cursors.write(_advanced(seen, chunks)),
        ended=is_over and len(chunks) < limit,
    )


def _is_over(connection: sa.Connection, run_id: str, job: str | None) -> bool:
    runs, jobs = tables.runs, tables.jobs
    query = sa.select(runs.c.state).where(runs.c.run_id == run_id)
    state = connection.execute(query).scalar_one_or_none()
    if state is None:
        raise NotFound(f"no run {run_id}", field="run_id", value=run_id)
    if job is None or RunState(state) in FINAL_RUN_STATES:
        return RunState(state) in FINAL_RUN_STATES
    found = sa.select(jobs.c.state).where(jobs.c.run_id == run_id, jobs.c.name == job)
    job_state = connection.execute(found).scalar_one_or_none()
    if job_state is None:
        raise NotFound(f"run {run_id} has no job {job}", field="job", value=job)
    return JobState(job_state) in FINAL_JOB_STATES


def _attempts(
    connection: sa.Connection, run_id: str, job: str | None, attempt: int | None
) -> Sequence[Row]:
    attempts, jobs = tables.attempts, tables.jobs
    query = (
        sa.select(attempts.c.attempt_id, attempts.c.log_bytes)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(attempts.c.run_id == run_id)
    )
    if job is not None:
        query = query.where(jobs.c.name == job)
    if attempt is not None:
        query = query.where(attempts.c.number == attempt)
    return [dict(row) for row in connection.execute(query).mappings()]


def _after(connection: sa.Connection, behind: Mapping[str, Seen], limit: int) -> list[LogChunk]:
    if not behind:
        return []
    chunks = tables.log_chunks
    start = (
        sa.values(sa.column("attempt_id", sa.Text), sa.column("sequence", sa.BigInteger))
        .data([(attempt_id, seen.sequence) for attempt_id, seen in behind.items()])
        .cte("start")
    )
    query = (
        _select_chunks()
        .join(start, start.c.attempt_id == chunks.c.attempt_id)
        .where(chunks.c.sequence > start.c.sequence)
        .order_by(chunks.c.at, chunks.c.attempt_id, chunks.c.sequence)
        .limit(limit)
    )
    return [_chunk(dict(row)) for row in connection.execute(query).mappings()]


def _select_chunks() -> sa.Select[tuple[object, ...]]:
    chunks, attempts, jobs = tables.log_chunks, tables.attempts, tables.jobs
    return (
        sa.select(chunks, attempts.c.number, jobs.c.name)
        .join(attempts, attempts.c.attempt_id == chunks.c.attempt_id)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
    )


def _chunk(row: Row) -> LogChunk:
    return LogChunk(
        job=row["name"],
        attempt=row["number"],
        attempt_id=row["attempt_id"],
        sequence=row["sequence"],
        step=row["step"],
        at=row["at"],
        data=bytes(row["data"]),
    )


def _advanced(seen: Mapping[bytes, Seen], chunks: Sequence[LogChunk]) -> dict[bytes, Seen]:
    marks = dict(seen)
    for chunk in chunks:
        key = cursors.key(chunk.attempt_id)
        size = marks.get(key, Seen()).size + len(chunk.data)
        marks[key] = Seen(sequence=chunk.sequence, size=size)
    return marks
