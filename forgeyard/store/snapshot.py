"""Read what one scheduling cycle may know, in a handful of queries whatever the size.

Nothing is locked: the commit looks again. Of every queue the first jobs by effective priority are
loaded, in the very order that `forgeyard.scheduler.order` defines, so that a long queue starves
nobody, neither in it nor beside it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities, Requirements, TrustClass
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.job import JobSpec, Priority
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.policy import SchedulingPolicy, digest_of
from forgeyard.model.runner import ResourcePressure, RunnerHealth, RunnerState
from forgeyard.model.transitions import JobState
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.devices import Held
from forgeyard.scheduler.order import BASE, class_adjustment
from forgeyard.scheduler.preempt import URGENT
from forgeyard.scheduler.snapshot import CLASS_OF, SchedulingJob, SchedulingRunner, Snapshot
from forgeyard.scheduler.spot import spot_wish
from forgeyard.scheduler.standing import SchedulingPool, freshness
from forgeyard.store import (
    devices,
    facts,
    generations,
    habits,
    holds,
    keys,
    parked_classes,
    phases,
    pools,
    preemption,
    readings,
    scopes,
    tables,
    wishes,
)
from forgeyard.store.amounts import resources_of
from forgeyard.store.changes import JOB, Row, find
from forgeyard.store.codec import decode
from forgeyard.store.engine import database_now
from forgeyard.store.facts import Facts
from forgeyard.store.parked_classes import Standing

RunnerReader = Callable[[sa.Connection, SchedulingPolicy], tuple[SchedulingRunner, ...]]
NOTHING: Held = {}
_REFUSALS = sa.select(tables.refusals).where(tables.refusals.c.until_at > sa.bindparam("now"))
LOADED = 2_000
"""Jobs that one cycle looks at; the rest only count."""
logger = logging.getLogger(__name__)


def load(
    connection: sa.Connection,
    partition: str,
    policy: SchedulingPolicy,
    *,
    limit: int = LOADED,
    storage: Location = SOMEWHERE,
    read_runners: RunnerReader | None = None,
    standing: Standing | None = None,
) -> Snapshot:
    """Read the eligible jobs that come first, and every registered runner.

    Who loads again and again passes a reader that remembers runners; who wants to see jobs of
    parked classes too says that nothing is parked.
    """
    # First of all: who changes the fleet after this makes a verdict on what we read void.
    generation = generations.current(connection)
    now = database_now(connection)
    standing = standing or parked_classes.standing(connection, partition, generation)
    rows = _eligible(connection, partition, policy, standing=standing, now=now, limit=limit)
    refusals, passing = _refusals(connection, now=now)
    jobs, damaged = _jobs(connection, rows, refusals, now=now, policy=policy)
    wished = {job.job_id: job.wishes for job in jobs}
    readable = [row for row in rows if row["job_id"] in wished]
    runners = stand(connection, (read_runners or _runners)(connection, policy), policy, now=now)
    waiting = standing.parked + (int(rows[0]["waiting"]) if rows else 0)
    preempts = policy.preemption.enabled and any(one.priority in URGENT for one in jobs)
    return Snapshot(
        partition=partition,
        taken_at=now,
        jobs=jobs,
        damaged=damaged,
        runners=runners,
        waiting=waiting,
        generation=generation,
        parked=standing.parked,
        passing=passing,
        scopes=scopes.load(connection),
        keys=keys.load(connection),
        named=facts.named(connection, readable, wished),
        shards=facts.shards(connection, readable, wished),
        storage=storage,
        held_room=holds.load(connection, now=now),
        running=preemption.running(connection) if preempts else (),
        readings=readings.read(connection, runners, waiting=waiting, began=now),
    )


def load_with(
    connection: sa.Connection,
    job_id: str,
    policy: SchedulingPolicy,
    *,
    limit: int = LOADED,
    storage: Location = SOMEWHERE,
) -> tuple[SchedulingJob, Snapshot]:
    """Read one job and the snapshot of its partition, to explain it.

    A job that does not wait for a runner is shown as if it began to wait now.

    Raises:
        NotFound: there is no such job.
        Corrupt: its stored specification cannot be read.
    """
    row = find(connection, JOB, job_id)
    snapshot = load(connection, row["partition"], policy, limit=limit, storage=storage)
    found = next((job for job in snapshot.jobs if job.job_id == job_id), None)
    if found is None:
        now = snapshot.taken_at
        since = row["eligible_at"] if row["state"] == JobState.ELIGIBLE.value else now
        refusals = _refusals_of(connection, job_id, now=now)
        found = _job(
            {**row, "eligible_at": since},
            decode(JobSpec, row["spec"]).requires,
            refusals,
            facts=facts.of_jobs(connection, [row], policy),
            now=now,
            policy=policy,
        )
        wished = {job_id: found.wishes}
        snapshot = replace(
            snapshot,
            named={**snapshot.named, **facts.named(connection, [row], wished)},
            shards={**snapshot.shards, **facts.shards(connection, [row], wished)},
        )
    return found, snapshot


def _eligible(
    connection: sa.Connection,
    partition: str,
    policy: SchedulingPolicy,
    *,
    standing: Standing,
    now: int,
    limit: int,
) -> Sequence[Row]:
    """Read the first of every queue before the second of any, emergencies before all."""
    order = _order_under(policy)
    if standing.open is None:
        query = _eligible_of_all(order)
    else:
        query = _eligible_query(order, standing.among(connection))
    given = {"partition": partition, "now": now, "batch": policy.batch, "limit": limit}
    return [dict(row) for row in connection.execute(query, given).mappings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What a policy says of the order of jobs; its statement is built once for as long."""

    aging_step: int
    aging_limit: int
    points: tuple[tuple[SchedulingClass, int], ...]
    """What each class adds."""


def _order_under(policy: SchedulingPolicy) -> _Order:
    return _Order(
        aging_step=policy.aging_step,
        aging_limit=policy.aging_limit,
        points=tuple((one, class_adjustment(one, policy)) for one in SchedulingClass),
    )


def _eligible_query(order: _Order, among: sa.ColumnElement[bool]) -> sa.Select[*tuple[Any, ...]]:
    """Select jobs by turn; of one class in one queue, no more than a cycle can place."""
    jobs = tables.jobs
    by = (_effective(order).desc(), jobs.c.eligible_at, jobs.c.job_id)
    alike = (jobs.c.queue_id, jobs.c.requirement_class)
    place = sa.func.row_number()
    counted = (
        sa.select(
            *jobs.c,
            sa.func.count().over().label("waiting"),
            place.over(partition_by=alike, order_by=by).label("of_class"),
            place.over(partition_by=jobs.c.queue_id, order_by=by).label("turn"),
        )
        .where(
            jobs.c.partition == sa.bindparam("partition"),
            jobs.c.state == JobState.ELIGIBLE.value,
            jobs.c.cancel_reason.is_(None),
            among,
        )
        .subquery()
    )
    urgent = counted.c.priority != Priority.EMERGENCY.value
    return (
        sa.select(counted)
        .where(counted.c.of_class <= sa.bindparam("batch"))
        .order_by(urgent, counted.c.turn, counted.c.job_id)
        .limit(sa.bindparam("limit", type_=sa.Integer()))
    )


@lru_cache(maxsize=16)
def _eligible_of_all(order: _Order) -> sa.Select[*tuple[Any, ...]]:
    """Give the statement while nothing is parked: building it took longer than running it."""
    return _eligible_query(order, sa.true())


def _effective(order: _Order) -> sa.ColumnElement[int]:
    """Say `order.effective_priority` in SQL; a test holds the two together."""
    jobs, now = tables.jobs, sa.bindparam("now", type_=sa.BigInteger())
    base = sa.case(
        {priority.value: points for priority, points in BASE.items()}, value=jobs.c.priority
    )
    waited = sa.case((jobs.c.eligible_at > now, 0), else_=now - jobs.c.eligible_at)
    adjusted = base + jobs.c.adjustment + _class_adjustment(order)
    adjusted = sa.case((adjusted < 0, 0), else_=adjusted)
    aged = adjusted + sa.cast(waited, sa.BigInteger).op("/")(order.aging_step)
    return sa.case(
        (base >= order.aging_limit, base),
        (aged > order.aging_limit, order.aging_limit),
        else_=aged,
    )


def _class_adjustment(order: _Order) -> sa.ColumnElement[int]:
    jobs = tables.jobs
    implied = sa.case({p.value: c.value for p, c in CLASS_OF.items()}, value=jobs.c.priority)
    named = sa.func.coalesce(jobs.c.scheduling_class, implied)
    return sa.case({one.value: points for one, points in order.points}, value=named)


def _refusals(
    connection: sa.Connection, *, now: int
) -> tuple[dict[str, dict[str, str]], dict[str, int]]:
    """Read who refused which job, and when the first may be asked again."""
    found: dict[str, dict[str, str]] = {}
    ends: dict[str, int] = {}
    for row in connection.execute(_REFUSALS, {"now": now}).mappings():
        job_id, until = row["job_id"], row["until_at"]
        found.setdefault(job_id, {})[row["runner_id"]] = row["reason"]
        ends[job_id] = min(until, ends.get(job_id, until))
    return found, ends


def _refusals_of(connection: sa.Connection, job_id: str, *, now: int) -> dict[str, str]:
    refusals = tables.refusals
    query = sa.select(refusals).where(refusals.c.job_id == job_id, refusals.c.until_at > now)
    return {row["runner_id"]: row["reason"] for row in connection.execute(query).mappings()}


def _jobs(
    connection: sa.Connection,
    rows: Sequence[Row],
    refusals: Mapping[str, Mapping[str, str]],
    *,
    now: int,
    policy: SchedulingPolicy,
) -> tuple[tuple[SchedulingJob, ...], dict[str, str]]:
    """Decode rows; jobs of one requirement class share what is decoded once.

    A row that cannot be read is set apart with the reason, for the others must go on.
    """
    learnt = facts.of_jobs(connection, rows, policy)
    known: dict[str, Requirements] = {}
    jobs: list[SchedulingJob] = []
    damaged: dict[str, str] = {}
    for row in rows:
        kind, job_id = row["requirement_class"], row["job_id"]
        try:
            if kind not in known:
                known[kind] = decode(JobSpec, row["spec"]).requires
            refused = refusals.get(job_id, {})
            jobs.append(_job(row, known[kind], refused, facts=learnt, now=now, policy=policy))
        except (Corrupt, ValueError) as error:
            damaged[job_id] = str(error)
    return tuple(jobs), damaged


def _job(
    row: Row,
    requirements: Requirements,
    refused_by: Mapping[str, str],
    *,
    facts: Facts,
    now: int,
    policy: SchedulingPolicy,
) -> SchedulingJob:
    job_id, wish = row["job_id"], wishes.read(row["wishes"])
    priority = Priority(row["priority"])
    habit = facts.habits.get(job_id, habits.NONE)
    hurry = wish.scheduling_class or CLASS_OF[priority]
    return SchedulingJob(
        job_id=row["job_id"],
        run_id=row["run_id"],
        name=row["name"],
        tenant_id=row["tenant_id"],
        organization_id=row["organization_id"],
        project_id=row["project_id"],
        queue_id=row["queue_id"],
        requirements=requirements,
        resources=resources_of(row),
        priority=priority,
        requirement_class=row["requirement_class"],
        eligible_at=now if row["eligible_at"] is None else row["eligible_at"],
        created_at=row["created_at"],
        refused_by=refused_by,
        attempts_made=row["attempts_made"],
        adjustment=row["adjustment"],
        lasts=phases.at_most(row, policy.lease),
        has_inputs=bool(row["has_inputs"]),
        wishes=wish,
        spot=spot_wish(wish.spot, hurry=hurry, trust=requirements.trust, policy=policy),
        inputs=facts.inputs.get(job_id, ()),
        closures=habit.closures,
        home=habit.home,
        losses=facts.losses.get(job_id, ()),
    )


def _runners(connection: sa.Connection, policy: SchedulingPolicy) -> tuple[SchedulingRunner, ...]:
    """Read every runner, the absent ones too: a diagnosis tells them from none at all.

    Not those whose machine was taken away: nobody waits for them.

    One whose row is damaged gets no work until it registers again, which writes it anew.
    """
    runners = tables.runners
    here = sa.select(runners).where(runners.c.retired_at.is_(None))
    rows = connection.execute(here.order_by(runners.c.runner_id)).all()
    names = [column.name for column in runners.c]
    known: dict[str, Capabilities] = {}
    # A mapping of SQLAlchemy's own would cost as much as all the rest.
    found = (runner_of(dict(zip(names, row, strict=True)), known, policy) for row in rows)
    return tuple(runner for runner in found if runner is not None)


def runner_of(
    row: Row, known: dict[str, Capabilities], policy: SchedulingPolicy
) -> SchedulingRunner | None:
    """Read a runner; `known` spares decoding a report again.

    Nothing, if its row is damaged, or its machine is no more.

    What is not in its row, such as the state of its pool, is for `stand` to add.
    """
    if row["retired_at"] is not None:
        return None
    try:
        return _runner(row, known, policy)
    except (Corrupt, ValueError) as error:
        logger.warning("runner %s cannot be read: %s", row["name"], error)
        return None


def stand(
    connection: sa.Connection,
    runners: Iterable[SchedulingRunner],
    policy: SchedulingPolicy,
    *,
    now: int,
) -> tuple[SchedulingRunner, ...]:
    """Say of runners what does not stand in their rows: pool, devices in use, age of the report."""
    places = pools.load(connection, policy, now=now)
    held = devices.load(connection)
    found: list[SchedulingRunner] = []
    for runner in runners:
        pool = places.get(runner.pool_id)
        if pool is None:
            logger.warning("runner %s is in no pool that there is", runner.name)
            continue
        age = freshness(runner.reported_at, now, policy.staleness)
        mine = held.get(runner.runner_id, NOTHING)
        plain = runner.pool == pool and runner.freshness is age and not mine
        found.append(
            runner if plain else replace(runner, pool=pool, held_devices=mine, freshness=age)
        )
    return tuple(found)


def _runner(
    row: Row,
    known: dict[str, Capabilities],
    policy: SchedulingPolicy,
) -> SchedulingRunner:
    reported = row["capabilities"]
    if reported not in known:
        known[reported] = decode(Capabilities, reported)
    holdings, holdings_digest = _holdings(row["holdings"])
    return SchedulingRunner(
        runner_id=row["runner_id"],
        name=row["name"],
        session_id=row["session_id"],
        state=RunnerState(row["state"]),
        suspect=bool(row["suspect"]),
        pool=_pool_named(row["pool_id"]),
        trust=TrustClass(row["trust"]),
        capabilities=known[reported],
        capability_digest=row["capability_digest"],
        total=resources_of(row, "total_"),
        headroom=resources_of(row, "headroom_"),
        reserved=resources_of(row, "reserved_"),
        pressure=ResourcePressure(row["pressure"]),
        cpu_percent=policy.overcommit.cpu_percent,
        degraded=row["health"] == RunnerHealth.DEGRADED,
        takes_up_to=policy.degraded_takes,
        location=_location(row["location"]),
        holdings=holdings,
        holdings_digest=holdings_digest,
        penalty=row["penalty"],
        penalty_at=row["penalty_at"],
        reported_at=row["reported_at"],
    )


@lru_cache(maxsize=2**10)
def _pool_named(pool_id: str) -> SchedulingPool:
    """Make one object for all its runners, which the planner counts on; `stand` says the rest."""
    return SchedulingPool(pool_id=pool_id)


@lru_cache(maxsize=2**13)
def _holdings(text: str | None) -> tuple[Holdings, str]:
    """Read and name what a runner holds, once for each report; an unreadable one is no hint."""
    if text is None:
        return NOTHING_HELD, ""
    try:
        return decode(Holdings, text), digest_of(text)
    except Corrupt as error:
        logger.warning("holdings are passed over: %s", error)
        return NOTHING_HELD, ""


@lru_cache(maxsize=2**14)
def _location(text: str) -> Location:
    return decode(Location, text)
