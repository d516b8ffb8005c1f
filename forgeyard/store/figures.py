"""What is so now, as numbers for whoever watches from outside: the same whichever process reads it.

Each number is one aggregate that an index bounds to what is open, or to the last few minutes;
nothing here grows with the history, and nothing is named after a tenant, a run, a job or a runner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import LIVE_LEASE_STATES, JobState, LeaseState
from forgeyard.model.units import Resources
from forgeyard.scheduler.diagnose import DiagnosticCode
from forgeyard.scheduler.doctor import Contention
from forgeyard.store import (
    beats,
    device_views,
    fleet_figures,
    outbox,
    overview,
    parked_classes,
    tables,
)
from forgeyard.store.amounts import DIMENSIONS, amount_of
from forgeyard.store.contention import contention
from forgeyard.store.device_views import InUse
from forgeyard.store.engine import database_now
from forgeyard.store.fleet_figures import FleetFigures
from forgeyard.store.reconcile import books
from forgeyard.store.reconcile.look import Look

RECENT_MS = 15 * 60_000
"""How far back the shares of lost and rejected leases look."""
DIAGNOSES_READ = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One reading; times are milliseconds, and None where there is nothing to tell."""

    status: overview.SchedulerStatus
    unschedulable: Mapping[str, int]
    """Waiting jobs by their latest diagnosis, among the first 20,000."""
    oldest_wait_ms: Mapping[Priority, int]
    fairness_delay_ms: int
    """By how much the longest wait of one tenant exceeds that of another that waits as well."""
    allocatable: Resources
    """Of the runners that take work."""
    reserved: Resources
    in_use: InUse
    """What leases hold of GPUs and devices, in thousandths."""
    live_leases: Mapping[LeaseState, int]
    overdue_leases: int
    """Live leases past their time and grace that no sweep has ended."""
    ended_leases: Mapping[str, int]
    """How those of the last 15 minutes ended."""
    undelivered: int
    wrong_runners: int
    """Runners whose reserved amounts are not what their live leases hold."""
    contention: Contention
    """Of the cycles of the last 15 minutes."""
    last_cycle_ms: int | None
    swept_ms: int | None
    """Since a sweep of the partition last came to its end."""
    reconciled_ms: int | None
    fleets: tuple[FleetFigures, ...] = ()


def read_figures(connection: sa.Connection, partition: str) -> Figures:
    """Read every figure of a partition, and of the runners and leases that partitions share."""
    now = database_now(connection)
    look = Look(policy=SchedulingPolicy(), now=now)
    waits = _oldest_waits(connection, partition, now=now)
    by_tenant: dict[str, int] = {}
    for (tenant, _), wait in waits.items():
        by_tenant[tenant] = max(wait, by_tenant.get(tenant, 0))
    status = overview.scheduler_status(connection, partition)
    allocatable, reserved = amounts(connection)
    cycle = status.last_cycle
    return Figures(
        status=status,
        unschedulable=_unschedulable(connection, partition),
        oldest_wait_ms=_by_priority(waits),
        fairness_delay_ms=max(by_tenant.values()) - min(by_tenant.values()) if by_tenant else 0,
        allocatable=allocatable,
        reserved=reserved,
        in_use=device_views.in_use(connection),
        live_leases=live_leases(connection),
        overdue_leases=overdue_leases(connection, now=now),
        ended_leases=_ended(connection, since=now - RECENT_MS),
        undelivered=outbox.undelivered(connection),
        wrong_runners=len({one.within for one in books.find(connection, look)}),
        swept_ms=beats.age_ms(connection, beats.sweep_of(partition), now=now),
        reconciled_ms=beats.age_ms(connection, beats.reconciliation_of(partition), now=now),
        fleets=fleet_figures.read_figures(connection),
        contention=contention(connection, partition, since=now - RECENT_MS),
        last_cycle_ms=None if cycle is None else max(0, now - cycle.created_at),
    )


def _oldest_waits(
    connection: sa.Connection, partition: str, *, now: int
) -> dict[tuple[str, str], int]:
    """Tell the longest wait of each tenant at each priority."""
    jobs = tables.jobs
    query = (
        sa.select(jobs.c.tenant_id, jobs.c.priority, sa.func.min(jobs.c.eligible_at))
        .where(jobs.c.partition == partition, jobs.c.state == JobState.ELIGIBLE.value)
        .group_by(jobs.c.tenant_id, jobs.c.priority)
    )
    return {
        (tenant, priority): max(0, now - since)
        for tenant, priority, since in connection.execute(query)
    }


def _by_priority(waits: Mapping[tuple[str, str], int]) -> dict[Priority, int]:
    return {
        priority: max((wait for (_, name), wait in waits.items() if name == priority), default=0)
        for priority in Priority
    }


def _unschedulable(connection: sa.Connection, partition: str) -> dict[str, int]:
    """Count waiting jobs by the code of their diagnosis, or of their class if that is parked."""
    jobs = tables.jobs
    said = (
        sa.select(jobs.c.diagnosis)
        .where(
            jobs.c.partition == partition,
            jobs.c.state == JobState.ELIGIBLE.value,
            jobs.c.diagnosis.is_not(None),
            ~parked_classes.is_parked(partition),
        )
        .limit(DIAGNOSES_READ)
        .subquery()
    )
    # Both databases read text alike, but not JSON.
    whens = ((said.c.diagnosis.contains(f'"code":"{code}"'), code.value) for code in DiagnosticCode)
    judged = sa.select(sa.case(*whens, else_="").label("code")).subquery()
    query = sa.select(judged.c.code, sa.func.count()).group_by(judged.c.code)
    found = {code: int(total) for code, total in connection.execute(query)}
    parked = parked_classes.waiting_by_code(connection, partition)
    return {
        code.value: found.get(code.value, 0) + parked.get(code.value, 0) for code in DiagnosticCode
    }


def amounts(connection: sa.Connection) -> tuple[Resources, Resources]:
    """Sum up what the runners that take work may give away, and what leases hold there."""
    runners = tables.runners
    sums = [
        *(runners.c[f"total_{name}"] - runners.c[f"headroom_{name}"] for name in DIMENSIONS),
        *(runners.c[f"reserved_{name}"] for name in DIMENSIONS),
    ]
    query = sa.select(*(sa.func.coalesce(sa.func.sum(amount), 0) for amount in sums)).where(
        runners.c.state == RunnerState.ONLINE.value
    )
    found = [int(total) for total in connection.execute(query).one()]
    return amount_of(*found[:4]), amount_of(*found[4:])


def live_leases(connection: sa.Connection) -> dict[LeaseState, int]:
    """Count the live leases by state."""
    leases = tables.leases
    states = [state.value for state in LIVE_LEASE_STATES]
    query = (
        sa.select(leases.c.state, sa.func.count())
        .where(leases.c.state.in_(states))
        .group_by(leases.c.state)
    )
    found = {LeaseState(state): int(total) for state, total in connection.execute(query)}
    return {state: found.get(state, 0) for state in LIVE_LEASE_STATES}


def overdue_leases(connection: sa.Connection, *, now: int) -> int:
    """Count live leases past their time and grace: the sweep's work that is not done."""
    leases = tables.leases
    ends_at = sa.case(
        (leases.c.state == LeaseState.ACTIVE.value, leases.c.expires_at + leases.c.grace_ms),
        else_=leases.c.expires_at,
    )
    query = sa.select(sa.func.count()).where(
        leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
        leases.c.expires_at < now,
        ends_at < now,
    )
    return int(connection.execute(query).scalar_one())


def _ended(connection: sa.Connection, *, since: int) -> dict[str, int]:
    """Count how the leases of the last minutes ended; those never accepted are told apart."""
    leases = tables.leases
    offered = leases.c.accepted_at.is_(None)
    how = sa.case(
        (leases.c.state == LeaseState.RELEASED.value, "released"),
        (leases.c.state == LeaseState.REJECTED.value, "rejected"),
        (offered & (leases.c.state == LeaseState.EXPIRED.value), "offer_expired"),
        (leases.c.state == LeaseState.EXPIRED.value, "lost"),
        else_="revoked",
    )
    ended = [state.value for state in LeaseState if state not in LIVE_LEASE_STATES]
    query = (
        sa.select(how, sa.func.count())
        # The index serves the first two; a lease ends at most a little before its time is up.
        .where(leases.c.state.in_(ended), leases.c.expires_at >= since, leases.c.ended_at >= since)
        .group_by(how)
    )
    found = {name: int(total) for name, total in connection.execute(query)}
    names = ("released", "rejected", "offer_expired", "lost", "revoked")
    return {name: found.get(name, 0) for name in names}
