"""What a commit sees under its locks, each time in one batch: the plan, then what it is about.

The scopes are locked between the two. Jobs that another scheduler holds are skipped; a runner that
is somebody's first choice is waited for, any other one is asked only if nobody holds it. So
whoever waits does so for runners in the order of their ids.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.scheduler.scopes import Usage
from forgeyard.store import batch, holds, lineage, policies, scopes, tables, wishes
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms

_jobs, _runners = tables.jobs, tables.runners
_RUNNER = (
    *("runner_id", "name", "state", "session_id", "suspect", "pool_id", "trust"),
    "capability_digest",
    *(f"{kind}_{name}" for kind in ("total", "headroom", "reserved") for name in DIMENSIONS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What stands while the locks are held."""

    now: int
    used: Mapping[str, Usage]
    """What the jobs of every scope hold; nothing unless somebody has a limit."""
    jobs: Mapping[str, Row]
    runners: Mapping[str, Row]
    keys: Mapping[str, str]
    """The holders of exclusivity keys that the plan wants."""
    rooms: Sequence[Row]
    """All room that is held, also what does not count any more."""
    policy: Row | None
    """The newest policy; under the locks of the scopes nobody sets another one."""


def plan(connection: sa.Connection, cycle_id: int) -> tuple[Row, Sequence[Row]]:
    """Lock a cycle; read its placements in order, with what never changes about their jobs.

    Raises:
        NotFound: there is no such cycle.
    """
    found = batch.ask(connection, _plan(connection.dialect), {"cycle": cycle_id})
    if not found["cycle"]:
        raise NotFound(f"no cycle {cycle_id}", field="cycle_id", value=cycle_id)
    placements = [
        {**row, "candidates": json.loads(row["candidates"]), "wishes": wishes.read(row["wishes"])}
        for row in found["placements"]
    ]
    return found["cycle"][0], placements


def look(connection: sa.Connection, planned: Sequence[Row], *, limited: int) -> Seen:
    """Lock the jobs and the first choices, and then read everything that decides about them.

    Whoever freed a runner while we waited for it may have kept its room for somebody: one statement
    sees what was so when it began. What scopes use is added up only where `limited` is not zero.
    """
    wanted = {
        "job_ids": [row["job_id"] for row in planned],
        "runner_ids": sorted({row["candidates"][0][0] for row in planned if row["candidates"]}),
        "key_names": [key for row in planned for key in row["wishes"].keys],
    }
    texts = {name: batch.rows_text(each) for name, each in wanted.items()}
    locks = batch.ask(connection, _lock(connection.dialect), texts)
    found = batch.ask(connection, _look(connection.dialect), {**texts, "limited": limited})
    return Seen(
        now=int(found["clock"][0]["now"]),
        used=scopes.added_up(found["usage"]),
        jobs={row["job_id"]: row for row in locks["jobs"]},
        runners={row["runner_id"]: row for row in locks["runners"]},
        keys={row["key_name"]: row["name"] for row in found["keys"]},
        rooms=found["rooms"],
        policy=next(iter(found["policy"]), None),
    )


def more_runners(connection: sa.Connection, runner_ids: Collection[str]) -> dict[str, Row]:
    """Lock further candidates, but wait for none."""
    wanted = {"runner_ids": batch.rows_text(sorted(runner_ids))}
    found = batch.ask(connection, _more(connection.dialect), wanted)
    return {row["runner_id"]: row for row in found["runners"]}


@lru_cache(maxsize=32)
def _plan(dialect: sa.Dialect) -> batch.Batch:
    cycles, placements = tables.cycles, tables.placements
    whose = (
        *(_jobs.c.name, _jobs.c.wishes, _jobs.c.lasts_ms),
        *(_jobs.c[name] for name in (*scopes.PATH, *DIMENSIONS)),
    )
    named = sa.bindparam("cycle", type_=sa.BigInteger())
    planned = (
        sa.select(placements, *whose)
        .join(_jobs, _jobs.c.job_id == placements.c.job_id)
        .where(placements.c.cycle_id == named)
        .order_by(placements.c.position)
    )
    cycle = (
        sa.select(cycles, *lineage.STANDING)
        .where(cycles.c.cycle_id == named)
        .with_for_update(of=cycles)
    )
    return batch.questions_of(dialect, {"cycle": cycle, "placements": planned})


@lru_cache(maxsize=32)
def _lock(dialect: sa.Dialect) -> batch.Batch:
    runners = _runner_query(dialect).with_for_update(of=_runners)
    return batch.questions_of(dialect, {"jobs": _job_query(dialect), "runners": runners})


@lru_cache(maxsize=32)
def _look(dialect: sa.Dialect) -> batch.Batch:
    holds_of, limited = tables.key_holds, sa.bindparam("limited", type_=sa.BigInteger())
    keys = (
        sa.select(holds_of.c.key_name, _jobs.c.name)
        .join(_jobs, _jobs.c.job_id == holds_of.c.job_id)
        .where(batch.among(dialect, holds_of.c.key_name, "key_names"))
    )
    queries: dict[str, batch.Query] = {
        "usage": scopes.usage_query().where(limited == 1),
        "keys": keys,
        "rooms": holds.query(),
        "policy": policies.IN_FORCE,
        "clock": sa.select(now_ms().label("now")),
    }
    return batch.questions_of(dialect, queries)


@lru_cache(maxsize=32)
def _more(dialect: sa.Dialect) -> batch.Batch:
    query = _runner_query(dialect).with_for_update(of=_runners, skip_locked=True)
    return batch.questions_of(dialect, {"runners": query})


def _job_query(dialect: sa.Dialect) -> batch.Query:
    names = ("job_id", "run_id", "state", "cancel_reason", "priority", "eligible_at")
    runs = tables.runs
    return (
        sa.select(
            *(_jobs.c[name] for name in names), _jobs.c.attempts_made, runs.c.name.label("run_name")
        )
        .join(runs, runs.c.run_id == _jobs.c.run_id)
        .where(batch.among(dialect, _jobs.c.job_id, "job_ids"))
        .order_by(_jobs.c.job_id)
        .with_for_update(of=_jobs, skip_locked=True)
    )


def _runner_query(dialect: sa.Dialect) -> batch.Query:
    """Ask for runners with the version of their pool, whose scope is locked."""
    pools = tables.pools
    return (
        sa.select(*(_runners.c[name] for name in _RUNNER), pools.c.version.label("pool_version"))
        .outerjoin_from(_runners, pools, pools.c.pool_id == _runners.c.pool_id)
        .where(batch.among(dialect, _runners.c.runner_id, "runner_ids"))
        .order_by(_runners.c.runner_id)
    )
