"""The log of a run, all jobs merged, at once or followed while it grows."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from forgeyard import clock
from forgeyard.api.callers import RunReader
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.runs import Limit, RunPath
from forgeyard.errors import NotFound
from forgeyard.model.caller import Caller
from forgeyard.store import logs, tables
from forgeyard.store.engine import read
from forgeyard.store.naming import run_id_of

router = APIRouter(prefix="/v1/runs/{run_id}/logs", tags=["runs"])
FOLLOW_S: Final = 0.2
"""How often a follower looks; half of it is what a line is late on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of what one attempt printed; `at` is when it arrived, in epoch milliseconds."""

    job: str
    attempt: int
    step: str
    at: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Some of the log; ask again with `next` until `ended`."""

    chunks: tuple[Chunk, ...]
    next: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Which part of whose log."""

    run_id: str
    after: str | None
    limit: int
    job: str | None
    attempt: int | None


@router.get("")
async def run_logs(
    run_id: RunPath,
    deps: Deps,
    who: RunReader,
    job: Annotated[str | None, Query(max_length=64)] = None,
    attempt: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    after: Annotated[str | None, Query(max_length=65_536)] = None,
    limit: Limit = 200,
    wait_ms: Annotated[int, Query(ge=0, le=600_000)] = 0,
) -> Chunks:
    """Read on from a cursor; with `wait_ms`, wait that long for something to come."""
    whole = await run_in_threadpool(_find, deps, who, run_id, job)
    question = _Question(run_id=whole, after=after, limit=limit, job=job, attempt=attempt)
    until = clock.monotonic() + min(wait_ms / 1000, deps.config.api.long_poll_s)
    while True:
        page = await run_in_threadpool(_read, deps, question)
        left = until - clock.monotonic()
        if page.chunks or page.ended or left <= 0 or deps.ending.is_set():
            return page
        await asyncio.sleep(min(FOLLOW_S, left))


def _find(deps: ApiDependencies, who: Caller, run_id: str, job: str | None) -> str:
    with read(deps.engine) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        if job is not None:
            _check_job(connection, whole, job)
    return whole


def _check_job(connection: sa.Connection, run_id: str, job: str) -> None:
    """Tell a job that has printed nothing yet from one that does not exist."""
    jobs = tables.jobs
    query = sa.select(jobs.c.name).where(jobs.c.run_id == run_id).order_by(jobs.c.position)
    names = list(connection.execute(query).scalars())
    if job not in names:
        raise NotFound("the run has no such job", field="job", value=job, allowed=", ".join(names))


def _read(deps: ApiDependencies, question: _Question) -> Chunks:
    with read(deps.engine) as connection:
        page = logs.read_run(
            connection,
            question.run_id,
            question.after,
            question.limit,
            job=question.job,
            attempt=question.attempt,
        )
        chunks = _shown(connection, page.chunks)
    return Chunks(chunks=chunks, next=page.next, ended=page.ended)


def _shown(connection: sa.Connection, page: Sequence[logs.LogChunk]) -> tuple[Chunk, ...]:
    """Decode chunks; a character that was cut in two goes to the later one."""
    shown: list[Chunk] = []
    cut: dict[str, bytes] = {}
    for chunk in page:
        before = cut.get(chunk.attempt_id)
        if before is None:
            before = _cut_before(connection, chunk)
        data = before + chunk.data
        cut[chunk.attempt_id] = data[len(data) - unfinished(data) :]
        text = data[: len(data) - unfinished(data)].decode("utf-8", errors="replace")
        shown.append(
            Chunk(job=chunk.job, attempt=chunk.attempt, step=chunk.step, at=chunk.at, text=text)
        )
    return tuple(shown)


def _cut_before(connection: sa.Connection, chunk: logs.LogChunk) -> bytes:
    """Fetch the beginning of the character that this chunk goes on with, if it does."""
    if not chunk.data or chunk.data[0] & 0xC0 != 0x80:
        return b""
    for older in logs.read(connection, chunk.attempt_id, chunk.sequence - 2, 1):
        if older.sequence < chunk.sequence:
            return older.data[len(older.data) - unfinished(older.data) :]
    return b""


def unfinished(data: bytes) -> int:
    """Count the bytes at the end that begin a character of UTF-8 and do not end it."""
    for back, byte in enumerate(reversed(data[-3:]), start=1):
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if length > back else 0
    return 0
