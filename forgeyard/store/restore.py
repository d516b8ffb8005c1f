"""What an operator sees and decides about a store that is held: what would be lost, and going on.

Once confirmed, nothing that a lost future gave out is taken for something of this store: epochs,
cycles and wakes go on beyond all of its own, and attempts' workflows have names of the new era.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import Conflict
from forgeyard.model.ids import SessionId
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Holder
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import changes, generations, leases, lineage, liveness, tables
from forgeyard.store.changes import DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent

NAMED = 20
"""How many jobs and leases are named; all are counted."""
WAITING = (DeadlineKind.QUEUE, DeadlineKind.RETRY, DeadlineKind.RUN, DeadlineKind.SETTLE)
"""Deadlines that wait while the store is held; those of attempts are bridged like any outage."""
_lineage, _claims = tables.lineage, tables.store_claims
_leases, _jobs, _runs = tables.leases, tables.jobs, tables.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedJob:
    """A job with a live lease in this store."""

    lease_id: str
    run_id: str
    run: str
    job: str
    runner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """How the store stands; while it is held, what confirming it would bring about.

    Counts of leases grow until every agent was heard, which takes as long as a heartbeat.
    """

    store_id: str
    era: int
    """When a restore was last confirmed; 0: never."""
    mark: int
    """The value of its newest mark; 0 before the first."""
    held: bool
    held_at: int | None
    reason: str
    held_by: str
    unknown: int
    """Leases that agents work for and this store does not know: their work would be abandoned."""
    unknown_leases: tuple[str, ...]
    going_on: int
    """Leases of this store that agents work for: they would go on."""
    silent: int
    """Leases of this store of which no agent has spoken: their jobs would run again."""
    silent_jobs: tuple[LeasedJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A hold that is over: the new era, and what becomes of the leases."""

    era: int
    abandoned: int
    going_on: int
    silent: int


def view(connection: sa.Connection) -> StoreView:
    """Show how the store stands."""
    here = lineage.current(connection)
    hold = here.hold
    unknown = _unknown(connection)
    silent = [] if hold is None else _live(connection, claimed=False)
    return StoreView(
        store_id=here.store_id,
        era=here.era,
        mark=0 if here.newest is None else here.newest.value,
        held=hold is not None,
        held_at=None if hold is None else hold.at,
        reason="" if hold is None else hold.reason,
        held_by="" if hold is None else hold.by,
        unknown=len(unknown),
        unknown_leases=tuple(unknown[:NAMED]),
        going_on=len(_live(connection, claimed=True)),
        silent=len(silent),
        silent_jobs=tuple(
            LeasedJob(**{name: row[name] for name in LeasedJob.__slots__}) for row in silent[:NAMED]
        ),
    )


def _unknown(connection: sa.Connection) -> list[str]:
    """List the leases that agents claim and of which there is no trace."""
    query = (
        sa.select(_claims.c.lease_id)
        .outerjoin(_leases, _leases.c.lease_id == _claims.c.lease_id)
        .where(_leases.c.lease_id.is_(None))
        .order_by(_claims.c.lease_id)
    )
    return list(connection.execute(query).scalars())


def _live(connection: sa.Connection, *, claimed: bool) -> list[Row]:
    """Read the live leases that their own sessions claim, or those that they do not."""
    runners = tables.runners
    own = sa.exists().where(
        _claims.c.lease_id == _leases.c.lease_id, _claims.c.session_id == _leases.c.session_id
    )
    query = (
        sa.select(
            _leases,
            _runs.c.run_id,
            _runs.c.name.label("run"),
            _jobs.c.name.label("job"),
            runners.c.name.label("runner"),
        )
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .join(_runs, _runs.c.run_id == _jobs.c.run_id)
        .join(runners, runners.c.runner_id == _leases.c.runner_id)
        .where(
            _leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
            own if claimed else ~own,
        )
        .order_by(_runs.c.run_id, _jobs.c.job_id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def confirm(connection: sa.Connection, *, intent: Intent, policy: SchedulingPolicy) -> Confirmed:
    """Take this store for the one that counts from now on, and end the hold.

    Raises:
        Conflict: it is not held.
    """
    here = lineage.current(connection)
    if here.hold is None:
        raise Conflict("the store is not held", field="store", allowed="nothing to confirm")
    now = database_now(connection)
    era = max(now, here.era + 1)
    unknown, going_on = _unknown(connection), _live(connection, claimed=True)
    silent = _live(connection, claimed=False)
    # Anew: whoever works for a lease has to have its chance to say so.
    liveness.bridge(connection, now - here.hold.at, now=now, policy=policy)
    _postpone(connection, now - here.hold.at)
    _accept(connection, going_on, policy=policy)
    _spare(connection, silent)
    _void_plans(connection, now=now)
    generations.bump(connection)
    confirmed = Confirmed(
        era=era, abandoned=len(unknown), going_on=len(going_on), silent=len(silent)
    )
    _audit(connection, confirmed, intent, now=now)
    _skip_cycles(connection, era, now=now)
    _skip_wakes(connection, era)
    _end_hold(connection, here.hold, era)
    connection.execute(sa.delete(_claims))  # now that nobody adds any
    return confirmed


def _postpone(connection: sa.Connection, gap: int) -> None:
    """Give every deadline of a run or a job the time back for which nothing was done for it."""
    deadlines = tables.deadlines
    connection.execute(
        sa.update(deadlines)
        .where(deadlines.c.kind.in_([kind.value for kind in WAITING]))
        .values(due_at=deadlines.c.due_at + gap)
    )


def _accept(connection: sa.Connection, claimed: list[Row], *, policy: SchedulingPolicy) -> None:
    """Accept the offers for which their own agents work: that they were accepted was lost."""
    for row in claimed:
        if row["state"] == LeaseState.OFFERED:
            holder = Holder(session_id=SessionId(row["session_id"]), epoch=row["epoch"])
            leases.accept(connection, row["lease_id"], holder, policy=policy.lease)


def _spare(connection: sa.Connection, silent: list[Row]) -> None:
    """Let a lease that lapses because of the restore cost its job none of its attempts."""
    accepted = [row["job_id"] for row in silent if row["state"] == LeaseState.ACTIVE]
    charged = _jobs.c.attempts_charged
    if accepted:
        connection.execute(
            sa.update(_jobs).where(_jobs.c.job_id.in_(accepted)).values({charged: charged - 1})
        )


def _void_plans(connection: sa.Connection, *, now: int) -> None:
    """Close the plans that were not committed here: a lost future may have granted them."""
    cycles, planned = tables.cycles, tables.placements
    is_open = sa.select(cycles.c.cycle_id).where(cycles.c.committed_at.is_(None))
    connection.execute(
        sa.update(planned)
        .where(planned.c.cycle_id.in_(is_open))
        .values(verdict=Verdict.STORE_HELD.value)
    )
    connection.execute(
        sa.update(cycles).where(cycles.c.committed_at.is_(None)).values(committed_at=now, granted=0)
    )


def _audit(connection: sa.Connection, confirmed: Confirmed, intent: Intent, *, now: int) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action="store.confirmed",
        target=lineage.NAME,
        detail=f"{intent.reason}: era {confirmed.era}, {confirmed.abandoned} leases abandoned,"
        f" {confirmed.going_on} go on, {confirmed.silent} without an agent",
        now=now,
    )


def _skip_cycles(connection: sa.Connection, era: int, *, now: int) -> None:
    """Let cycles be numbered beyond those of a lost future, whose commits may still come."""
    cycles = tables.cycles
    empty = {"policy_digest": "", "snapshot_digest": "", "eligible": 0, "runners": 0, "planned": 0}
    closed = {"granted": 0, "created_at": now, "committed_at": now}
    # On SQLite the row itself moves the next number, on PostgreSQL the sequence has to be told.
    row = {"cycle_id": era, "partition": lineage.NAME, **empty, **closed}
    connection.execute(sa.insert(cycles).values(row))
    if connection.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(cycles.name, "cycle_id")
        connection.execute(sa.select(sa.func.setval(sequence, era)))


def _skip_wakes(connection: sa.Connection, era: int) -> None:
    """Wake every partition, with a generation that its loop cannot have seen."""
    wakes = tables.wakes
    connection.execute(
        sa.update(wakes).values(
            generation=sa.case((wakes.c.generation < era, era), else_=wakes.c.generation) + 1,
            signalled_at=0,
            reason="the restored store was confirmed",
        )
    )


def _end_hold(connection: sa.Connection, hold: lineage.Hold, era: int) -> None:
    ended = connection.execute(
        sa.update(_lineage)
        .where(_lineage.c.held_at == hold.at)
        .values(era=era, held_at=None, held_reason=None, held_by=None)
    )
    if ended.rowcount != 1:
        raise Conflict("somebody else has confirmed the store just now", field="store")
