"""What waits and what is there, grouped: by tenant, priority, platform or pool."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.job import JobSpec
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import LIVE_LEASE_STATES, JobState
from forgeyard.model.units import Resources
from forgeyard.store import overview, tables
from forgeyard.store.codec import decode
from forgeyard.store.engine import database_now
from forgeyard.store.overview import RUNNING, RunnerView

_jobs, _leases, _runners = tables.jobs, tables.leases, tables.runners
ANY = "any"
UNPLACED = "not placed yet"


class Grouping(StrEnum):
    """By what jobs are counted."""

    PRIORITY = "priority"
    TENANT = "tenant"
    PLATFORM = "platform"
    """That they require."""
    POOL = "pool"
    """Of the runner that they are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs of one sort that could start, and that are on a runner."""

    name: str
    eligible: int
    running: int
    oldest_eligible_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityGroup:
    """The runners of one pool and platform that take work; GPUs and devices are counted singly."""

    pool: str
    platform: str
    runners: int
    allocatable: Resources
    reserved: Resources
    free: Resources
    gpus: int
    devices: int
    devices_held: int
    """GPUs and devices of which leases hold at least a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    name: str
    state: str
    total: int
    since: int | None


def job_groups(connection: sa.Connection, by: Grouping) -> tuple[JobGroup, ...]:
    """Count the jobs that could start or are on a runner, by one thing."""
    now = database_now(connection)
    counted = {
        Grouping.PRIORITY: lambda: _by_column(connection, _jobs.c.priority),
        Grouping.TENANT: lambda: _by_column(connection, _jobs.c.tenant_id),
        Grouping.PLATFORM: lambda: _by_platform(connection),
        Grouping.POOL: lambda: _by_pool(connection),
    }[by]()
    names = sorted({one.name for one in counted})
    return tuple(_group(name, [one for one in counted if one.name == name], now) for name in names)


def _group(name: str, counted: Sequence[_Counted], now: int) -> JobGroup:
    eligible = [one for one in counted if one.state == JobState.ELIGIBLE]
    since = [one.since for one in eligible if one.since is not None]
    return JobGroup(
        name=name,
        eligible=sum(one.total for one in eligible),
        running=sum(one.total for one in counted if one.state != JobState.ELIGIBLE),
        oldest_eligible_ms=max(0, now - min(since)) if since else None,
    )


def _by_column(connection: sa.Connection, column: sa.ColumnElement[str]) -> list[_Counted]:
    states = [state.value for state in (JobState.ELIGIBLE, *RUNNING)]
    query = (
        sa.select(column, _jobs.c.state, sa.func.count(), sa.func.min(_jobs.c.eligible_at))
        .where(_jobs.c.state.in_(states))
        .group_by(column, _jobs.c.state)
    )
    return [
        _Counted(name=name, state=state, total=int(total), since=since)
        for name, state, total, since in connection.execute(query)
    ]


def _by_platform(connection: sa.Connection) -> list[_Counted]:
    """Read what one job of each requirement class asks for; the others ask for the same."""
    counted = _by_column(connection, _jobs.c.requirement_class)
    states = [state.value for state in (JobState.ELIGIBLE, *RUNNING)]
    examples = (
        sa.select(sa.func.min(_jobs.c.job_id))
        .where(_jobs.c.state.in_(states))
        .group_by(_jobs.c.requirement_class)
    )
    query = sa.select(_jobs.c.requirement_class, _jobs.c.spec).where(_jobs.c.job_id.in_(examples))
    platforms = {kind: _platform(spec) for kind, spec in connection.execute(query)}
    return [
        _Counted(
            name=platforms.get(one.name, ANY), state=one.state, total=one.total, since=one.since
        )
        for one in counted
    ]


def _platform(spec: str) -> str:
    try:
        wanted = decode(JobSpec, spec).requires
    except Corrupt:
        return "unreadable"
    return "/".join(part for part in (wanted.platform, wanted.architecture) if part) or ANY


def _by_pool(connection: sa.Connection) -> list[_Counted]:
    query = (
        sa.select(_runners.c.pool_id.label("pool"), sa.func.count().label("total"))
        .join(_leases, _leases.c.runner_id == _runners.c.runner_id)
        .where(_leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]))
        .group_by(_runners.c.pool_id)
    )
    names = _pool_names(connection)
    placed = [
        _Counted(
            name=_pool_name(names, row["pool"]),
            state=JobState.LEASED,
            total=int(row["total"]),
            since=None,
        )
        for row in connection.execute(query).mappings()
    ]
    waiting = _by_column(connection, _jobs.c.state)
    eligible = (one for one in waiting if one.state == JobState.ELIGIBLE)
    return [*placed, *(replace(one, name=UNPLACED) for one in eligible)]


def _pool_names(connection: sa.Connection) -> dict[str, str]:
    pools = tables.pools
    query = sa.select(pools.c.pool_id, pools.c.name)
    return {pool_id: name for pool_id, name in connection.execute(query)}


def _pool_name(names: Mapping[str, str], pool_id: str) -> str:
    """Find a pool's name; one that is not there is called by its id."""
    return names.get(pool_id) or pool_id


def capacity_groups(connection: sa.Connection) -> tuple[CapacityGroup, ...]:
    """Sum up the runners that take work by pool and platform."""
    names, held = _pool_names(connection), _held(connection)
    groups: dict[tuple[str, str], list[RunnerView]] = {}
    for runner in overview.runners(connection):
        if runner.state == RunnerState.ONLINE:
            offered = runner.capabilities
            platform = f"{offered.platform or 'unknown'}/{offered.architecture or 'unknown'}"
            groups.setdefault((_pool_name(names, runner.pool), platform), []).append(runner)
    return tuple(
        CapacityGroup(
            pool=pool,
            platform=platform,
            runners=len(members),
            allocatable=_sum(runner.allocatable for runner in members),
            reserved=_sum(runner.reserved for runner in members),
            free=_sum(runner.free for runner in members),
            gpus=sum(len(one.capabilities.equipment.gpus or ()) for one in members),
            devices=sum(
                device.count
                for one in members
                for device in one.capabilities.equipment.devices or ()
            ),
            devices_held=sum(held.get(runner.runner_id, 0) for runner in members),
        )
        for (pool, platform), members in sorted(groups.items())
    )


def _held(connection: sa.Connection) -> dict[str, int]:
    holds = tables.device_holds
    query = sa.select(holds.c.runner_id, sa.func.count(sa.distinct(holds.c.device_id))).group_by(
        holds.c.runner_id
    )
    return {runner_id: int(total) for runner_id, total in connection.execute(query)}


def _sum(amounts: Iterable[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total = total.plus(amount)
    return total
