"""Read models of the scheduler and its runners: what waits, what is there, what is held.

Sums over reservations and counts of states, each in one query; nothing here changes a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities
from forgeyard.model.holdings import Holdings
from forgeyard.model.location import Location
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import FINAL_JOB_STATES, LIVE_LEASE_STATES, JobState
from forgeyard.model.units import Resources
from forgeyard.scheduler import room
from forgeyard.store import codec, device_views, holds, lineage, outbox, shares, tables
from forgeyard.store.amounts import DIMENSIONS, amount_of, resources_of
from forgeyard.store.changes import Row
from forgeyard.store.device_views import DeviceView
from forgeyard.store.engine import database_now

Part = TypeVar("Part")
NOTHING = Resources()
RUNNING = (JobState.LEASED, JobState.PREPARING, JobState.RUNNING, JobState.UPLOADING_OUTPUTS)
_LEVEL_OF_QUEUES = "queue"
# Named one by one: an index finds them among all the jobs that have ended.
_OPEN_JOBS = [state for state in JobState if state not in FINAL_JOB_STATES]


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleView:
    """A scheduling cycle; `granted` is None until it is committed."""

    cycle_id: int
    eligible: int
    runners: int
    planned: int
    granted: int | None
    created_at: int
    committed_at: int | None
    pressure: str
    """The signals of pressure that were up, comma-separated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldView:
    """Room on a runner that is kept for one job, and until when."""

    job_id: str
    job: str
    runner: str
    kind: str
    due_ms: int
    """In how long it is due, or lapses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """How a partition's scheduling stands; `jobs` and `runners` count by state."""

    partition: str
    jobs: Mapping[str, int]
    runners: Mapping[str, int]
    oldest_eligible_ms: int | None
    wake_generation: int
    wake_signalled: int
    wake_reason: str
    outbox_lag_ms: int
    renewal_beat_ms: int | None
    """How long ago the renewal service last gave a sign of life."""
    renewal_gaps: int
    last_cycle: CycleView | None
    held: tuple[HeldView, ...]
    """Room that is kept for single jobs."""
    store_hold: str = ""
    """Why nothing is decided at all: the store may be an older one that was put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue: jobs that could start, by priority, and jobs that are on a runner."""

    queue_id: str
    name: str
    path: str
    paused: bool
    """Whether the queue or a scope around it is paused."""
    note: str
    pending: int
    eligible: Mapping[str, int]
    running: int
    oldest_eligible_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A live lease, as seen from its runner."""

    lease_id: str
    run_id: str
    run: str
    job: str
    attempt: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsView:
    """How much a runner need not fetch, as it last said; `has_more` than it lists one by one."""

    objects: int
    bytes: int
    closures: tuple[str, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """A runner; `free` is what is left of `allocatable`, which is total less headroom.

    Jobs may hold `cpu_percent` of the CPU that the headroom leaves.
    """

    runner_id: str
    name: str
    state: str
    suspect: bool
    pressure: str
    drain_requested: bool
    drain_reason: str | None
    declared_reason: str | None
    """Why an operator takes it for unhealthy, if one does."""
    admission: str
    """How far it has come: pending, verified, rejected or quarantined."""
    admission_reason: str | None
    pool: str
    pool_wish: str
    """The pool that its agent asks for; an operator assigns it."""
    capabilities: Capabilities
    capability_digest: str
    reported_at: int
    """When its agent last said what it can do."""
    diagnostics: tuple[str, ...]
    """What is odd about its report: what of it no job can ever have, although it is there."""
    location: Location
    health: str
    health_reason: str | None
    holdings: HoldingsView
    penalty: int
    """For losses and failures of its own, as of `penalty_at`."""
    penalty_at: int
    total: Resources
    headroom: Resources
    cpu_percent: int
    allocatable: Resources
    reserved: Resources
    free: Resources
    devices: tuple[DeviceView, ...]
    placed: tuple[PlacedJob, ...]
    registered_at: int
    last_seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """The sums over runners that take work; `absent` counts the others."""

    runners: int
    absent: int
    cpu_percent: int
    """How much of their CPU jobs may hold."""
    total: Resources
    allocatable: Resources
    reserved: Resources
    free: Resources
    wanted: Resources
    """What the eligible jobs ask for, all together."""


def scheduler_status(connection: sa.Connection, partition: str) -> SchedulerStatus:
    """Show how scheduling stands in a partition."""
    now = database_now(connection)
    jobs, runners, liveness = tables.jobs, tables.runners, tables.liveness
    of_partition = sa.select(jobs.c.state, sa.func.count().label("total")).where(
        jobs.c.partition == partition, jobs.c.state.not_in([s.value for s in FINAL_JOB_STATES])
    )
    of_runners = sa.select(runners.c.state, sa.func.count().label("total")).where(
        runners.c.retired_at.is_(None)
    )
    beat = _first(connection, sa.select(liveness).where(liveness.c.service == "renewal"))
    wake = _first(connection, sa.select(tables.wakes).where(tables.wakes.c.partition == partition))
    return SchedulerStatus(
        partition=partition,
        jobs=_totals(connection, of_partition.group_by(jobs.c.state)),
        runners=_totals(connection, of_runners.group_by(runners.c.state)),
        oldest_eligible_ms=_oldest(connection, now).get(partition),
        wake_generation=wake["generation"] if wake else 0,
        wake_signalled=wake["signalled"] if wake else 0,
        wake_reason=wake["reason"] if wake else "",
        outbox_lag_ms=outbox.lag_ms(connection),
        renewal_beat_ms=max(0, now - beat["beat_at"]) if beat else None,
        renewal_gaps=beat["gaps"] if beat else 0,
        last_cycle=_last_cycle(connection, partition),
        held=_held(connection, now),
        store_hold=lineage.why_held(connection),
    )


def _first(connection: sa.Connection, query: sa.Select[*tuple[object, ...]]) -> Row | None:
    row = connection.execute(query.limit(1)).mappings().first()
    return None if row is None else dict(row)


def _totals(connection: sa.Connection, query: sa.Select[str, int]) -> dict[str, int]:
    return {state: int(total) for state, total in connection.execute(query)}


def _oldest(connection: sa.Connection, now: int) -> dict[str, int]:
    """Tell for how long the longest-waiting eligible job of each partition has waited."""
    jobs = tables.jobs
    query = (
        sa.select(jobs.c.partition, sa.func.min(jobs.c.eligible_at))
        .where(jobs.c.state == JobState.ELIGIBLE.value)
        .group_by(jobs.c.partition)
    )
    return {partition: max(0, now - since) for partition, since in connection.execute(query)}


def _last_cycle(connection: sa.Connection, partition: str) -> CycleView | None:
    cycles = tables.cycles
    query = (
        sa.select(cycles)
        .where(cycles.c.partition == partition)
        .order_by(cycles.c.created_at.desc(), cycles.c.cycle_id.desc())
    )
    row = _first(connection, query)
    return None if row is None else CycleView(**{n: row[n] for n in CycleView.__slots__})


def _held(connection: sa.Connection, now: int) -> tuple[HeldView, ...]:
    jobs, runners = tables.jobs, tables.runners
    rooms = holds.load(connection, now=now)
    named = sa.select(jobs.c.job_id, jobs.c.name).where(
        jobs.c.job_id.in_([room.job_id for room in rooms])
    )
    names = {job_id: name for job_id, name in connection.execute(named)}
    hosts = sa.select(runners.c.runner_id, runners.c.name).where(
        runners.c.runner_id.in_([room.runner_id for room in rooms])
    )
    hosted = {runner_id: name for runner_id, name in connection.execute(hosts)}
    return tuple(
        HeldView(
            job_id=room.job_id,
            job=names[room.job_id],
            runner=hosted.get(room.runner_id, room.runner_id),
            kind=room.kind,
            due_ms=max(0, room.deadline - now),
        )
        for room in rooms
    )


def queues(connection: sa.Connection) -> tuple[QueueView, ...]:
    """Show every queue with what waits in it and what runs."""
    now = database_now(connection)
    jobs = tables.jobs
    query = (
        sa.select(
            jobs.c.queue_id,
            jobs.c.state,
            jobs.c.priority,
            sa.func.count().label("total"),
            sa.func.min(jobs.c.eligible_at).label("since"),
        )
        .where(jobs.c.state.in_([state.value for state in _OPEN_JOBS]))
        .group_by(jobs.c.queue_id, jobs.c.state, jobs.c.priority)
    )
    groups: dict[str, list[Row]] = {}
    for row in connection.execute(query).mappings():
        groups.setdefault(row["queue_id"], []).append(dict(row))
    known = shares.by_path(connection)
    by_id = {row["scope_id"]: row for row in known.values()}
    return tuple(
        _queue_view(path, _around(row, by_id), groups.get(row["scope_id"], []), now=now)
        for path, row in sorted(known.items())
        if row["kind"] == _LEVEL_OF_QUEUES
    )


def _around(scope: Row, by_id: Mapping[str, Row]) -> list[Row]:
    """List a scope and those that it lies in, outermost first."""
    outer = by_id.get(scope["parent_id"] or "")
    return [*(_around(outer, by_id) if outer else ()), scope]


def _queue_view(path: str, around: Sequence[Row], groups: Sequence[Row], *, now: int) -> QueueView:
    eligible = [group for group in groups if group["state"] == JobState.ELIGIBLE]
    paused = [scope for scope in around if scope["paused"]]
    return QueueView(
        queue_id=around[-1]["scope_id"],
        name=around[-1]["name"],
        path=path,
        paused=bool(paused),
        note=paused[0]["note"] or "" if paused else "",
        pending=sum(g["total"] for g in groups if g["state"] == JobState.PENDING),
        eligible={group["priority"]: group["total"] for group in eligible},
        running=sum(g["total"] for g in groups if JobState(g["state"]) in RUNNING),
        oldest_eligible_ms=max(0, now - min(g["since"] for g in eligible)) if eligible else None,
    )


def runners(connection: sa.Connection, *, cpu_percent: int = room.PLAIN) -> tuple[RunnerView, ...]:
    """Show every runner by name, with what it holds; not those whose machine is no more."""
    table, pools = tables.runners, tables.pools
    placed, held = _placed(connection), device_views.holders(connection)
    query = (
        sa.select(table, pools.c.name.label("pool"))
        .outerjoin(pools, pools.c.pool_id == table.c.pool_id)
        .where(table.c.retired_at.is_(None))
        .order_by(table.c.name)
    )
    return tuple(
        _runner_view(
            dict(row),
            placed.get(row["runner_id"], []),
            held.get(row["runner_id"], {}),
            cpu_percent=cpu_percent,
        )
        for row in connection.execute(query).mappings()
    )


def _placed(connection: sa.Connection) -> dict[str, list[PlacedJob]]:
    leases, attempts, jobs, runs = tables.leases, tables.attempts, tables.jobs, tables.runs
    query = (
        sa.select(
            leases.c.runner_id,
            leases.c.lease_id,
            runs.c.run_id,
            runs.c.name.label("run"),
            jobs.c.name.label("job"),
            attempts.c.number.label("attempt"),
            attempts.c.state,
        )
        .join(attempts, attempts.c.attempt_id == leases.c.attempt_id)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .join(runs, runs.c.run_id == jobs.c.run_id)
        .where(leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]))
        .order_by(leases.c.lease_id)
    )
    placed: dict[str, list[PlacedJob]] = {}
    for row in connection.execute(query).mappings():
        job = PlacedJob(**{name: row[name] for name in PlacedJob.__slots__})
        placed.setdefault(row["runner_id"], []).append(job)
    return placed


def _runner_view(
    row: Row, placed: Sequence[PlacedJob], held: device_views.Holders, *, cpu_percent: int
) -> RunnerView:
    total, headroom = resources_of(row, "total_"), resources_of(row, "headroom_")
    allocatable = room.allocatable(total, headroom, cpu_percent=cpu_percent)
    reserved = resources_of(row, "reserved_")
    free = allocatable.minus(reserved)
    capabilities = _readable(Capabilities, row["capabilities"])
    return RunnerView(
        runner_id=row["runner_id"],
        name=row["name"],
        state=row["state"],
        suspect=bool(row["suspect"]),
        pressure=row["pressure"],
        drain_requested=bool(row["drain_requested"]),
        drain_reason=row["drain_reason"],
        declared_reason=row["declared_reason"],
        admission=row["admission"],
        admission_reason=row["admission_reason"],
        pool=row["pool"] or row["pool_id"],
        pool_wish=row["pool_wish"],
        capabilities=capabilities,
        capability_digest=row["capability_digest"],
        reported_at=row["reported_at"],
        diagnostics=(*_diagnostics(total, allocatable), *room.overdrawn(free)),
        location=_readable(Location, row["location"]),
        health=row["health"],
        health_reason=row["health_reason"],
        holdings=_holdings_view(_readable(Holdings, row["holdings"] or "{}")),
        penalty=row["penalty"],
        penalty_at=row["penalty_at"],
        total=total,
        headroom=headroom,
        cpu_percent=cpu_percent,
        allocatable=allocatable,
        reserved=reserved,
        devices=device_views.views(capabilities.equipment, held),
        # More may be held than there is, after a host has shrunk (SP-056).
        free=free.minus(free.within(NOTHING)),
        placed=tuple(placed),
        registered_at=row["registered_at"],
        last_seen_at=row["last_seen_at"],
    )


def _readable(kind: type[Part], text: str) -> Part:
    """Read a part of what a runner said; one that cannot be read is still shown, empty."""
    try:
        return codec.decode(kind, text)
    except Corrupt:
        return kind()


def _diagnostics(total: Resources, allocatable: Resources) -> tuple[str, ...]:
    return tuple(
        f"no {name} is left for jobs: the headroom takes all of it"
        for name in ("cpu", "memory", "disk", "slots")
        if getattr(total, name) > 0 >= getattr(allocatable, name)
    )


def _holdings_view(held: Holdings) -> HoldingsView:
    return HoldingsView(
        objects=len(held.objects),
        bytes=sum(held.objects.values()),
        closures=held.closures,
        has_more=held.others is not None,
    )


def capacity(connection: sa.Connection, *, cpu_percent: int = room.PLAIN) -> CapacityView:
    """Sum up what the runners that take work offer and hold, and what the waiting jobs want."""
    everybody = runners(connection, cpu_percent=cpu_percent)
    present = [runner for runner in everybody if runner.state == RunnerState.ONLINE]
    return CapacityView(
        runners=len(present),
        absent=len(everybody) - len(present),
        cpu_percent=cpu_percent,
        total=_sum([runner.total for runner in present]),
        allocatable=_sum([runner.allocatable for runner in present]),
        reserved=_sum([runner.reserved for runner in present]),
        free=_sum([runner.free for runner in present]),
        wanted=_wanted(connection),
    )


def _sum(amounts: Sequence[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total = total.plus(amount)
    return total


def _wanted(connection: sa.Connection) -> Resources:
    jobs = tables.jobs
    sums = (sa.func.coalesce(sa.func.sum(jobs.c[name]), 0) for name in DIMENSIONS)
    query = sa.select(*sums).where(jobs.c.state == JobState.ELIGIBLE.value)
    return amount_of(*(int(total) for total in connection.execute(query).one()))
