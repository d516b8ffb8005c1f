"""What people want beside a fleet's document: capacity for a while, machines kept, providers left.

All of it ends by itself, but for the freeze of a provider, which an operator lifts.
"""

import random
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.fleet import sanity
from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason
from forgeyard.model.fleet import DAY_MS, MOST_INSTANCES, CapacityReservation
from forgeyard.model.units import brief_duration
from forgeyard.store import changes, codec, fleet_tables, fleets, machine_life, machines
from forgeyard.store.births import draw_id
from forgeyard.store.changes import INSTANCE, Row
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent

LONGEST_PIN_MS: Final = 7 * DAY_MS
LONGEST_RESERVATION_MS: Final = 92 * DAY_MS
LONGEST_LEAD_MS: Final = DAY_MS
LEAD_MS: Final = 10 * 60 * 1000
MOST_RESERVATIONS: Final = 100
"""Of one fleet, that have not ended."""
_reservations = fleet_tables.fleet_reservations
_breakers = fleet_tables.provider_breakers


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much capacity is wanted from when to when; instants are epoch milliseconds."""

    quantity: int
    starts_at: int
    ends_at: int
    lead: int = LEAD_MS
    """How long before its start machines are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRecord:
    """A reservation as people see it."""

    reservation: CapacityReservation
    fleet: str
    reason: str
    cancelled_at: int | None


def reserve(
    connection: sa.Connection,
    fleet: str,
    window: Window,
    intent: Intent,
    *,
    rng: random.Random,
) -> ReservationRecord:
    """Want capacity in a window of time, whoever's jobs come; those that overlap add up (RSV-010).

    Raises:
        NotFound: there is no such fleet.
        InvalidRequest: the window is over, endless or empty, or there are too many.
    """
    row, now = fleets.lock(connection, fleet), database_now(connection)
    _demand_window(window, now=now)
    _demand_few(connection, row, now=now)
    wanted = CapacityReservation(
        reservation_id=draw_id("rsv", now=now, rng=rng),
        quantity=window.quantity,
        starts_at=window.starts_at,
        ends_at=window.ends_at,
        lead=window.lead,
    )
    own = {"reservation_id": wanted.reservation_id, "fleet_id": row["fleet_id"]}
    when = {"starts_at": window.starts_at, "ends_at": window.ends_at, "reason": intent.reason}
    written = {**own, **when, "reservation": codec.encode(wanted)}
    connection.execute(sa.insert(_reservations).values(written))
    said = f"{wanted.reservation_id}: {window.quantity} machines"
    fleets.tell(connection, "fleet.reserve", row, intent, said, now=now)
    return ReservationRecord(
        reservation=wanted, fleet=row["name"], reason=intent.reason, cancelled_at=None
    )


def cancel_reservation(connection: sa.Connection, reservation_id: str, intent: Intent) -> None:
    """Want that capacity no more; what is there for it is let go as if it had ended (RSV-009).

    Raises:
        NotFound: there is no such reservation, or its fleet is gone.
    """
    own = _reservations.c.reservation_id == reservation_id
    found = connection.execute(sa.select(_reservations).where(own)).mappings().one_or_none()
    if found is None:
        raise NotFound(
            f"no reservation {reservation_id}", field="reservation", value=reservation_id
        )
    row, now = fleets.lock(connection, found["fleet_id"]), database_now(connection)
    open_one = sa.and_(own, _reservations.c.cancelled_at.is_(None))
    done = connection.execute(sa.update(_reservations).where(open_one).values(cancelled_at=now))
    if done.rowcount:
        fleets.tell(connection, "fleet.unreserve", row, intent, reservation_id, now=now)


def reservations(connection: sa.Connection, fleet: str) -> tuple[ReservationRecord, ...]:
    """List the reservations of a fleet that have not ended, the next one first.

    Raises:
        NotFound: there is no such fleet.
    """
    row = fleets.find(connection, fleet)
    query = _open_of(row, now=database_now(connection))
    return tuple(
        ReservationRecord(
            reservation=codec.decode(CapacityReservation, one["reservation"]),
            fleet=row["name"],
            reason=one["reason"],
            cancelled_at=None,
        )
        for one in connection.execute(query).mappings()
    )


def pin(connection: sa.Connection, instance_id: str, intent: Intent, *, for_ms: int) -> None:
    """Keep a machine from being let go for a while, as somebody looks at it (DRN-009, DRN-010).

    Raises:
        NotFound: there is no such machine.
        Conflict: it is being taken away already.
        InvalidRequest: it would be kept for too long.
    """
    sanity.demand_span("for_ms", for_ms, most=LONGEST_PIN_MS)
    row = changes.find(connection, INSTANCE, instance_id, lock=True)
    now = database_now(connection)
    if row["state"] in _ENDING:
        raise _not_in(row, CapacityInstanceState.HEALTHY)
    machines.change(connection, row, pinned_until=now + for_ms, pin_reason=intent.reason)
    _told_of(connection, "instance.pin", row, intent, f"for {brief_duration(for_ms)}", now=now)


def unpin(connection: sa.Connection, instance_id: str, intent: Intent) -> None:
    """Let a machine go again when it is not needed.

    Raises:
        NotFound: there is no such machine.
    """
    row = changes.find(connection, INSTANCE, instance_id, lock=True)
    now = database_now(connection)
    if row["pinned_until"] is not None:
        machines.change(connection, row, pinned_until=None, pin_reason=None)
        _told_of(connection, "instance.unpin", row, intent, now=now)


def drain_machine(connection: sa.Connection, instance_id: str, intent: Intent) -> None:
    """Let a machine finish what it has, then let it go, whatever its fleet wants.

    Raises:
        NotFound: there is no such machine.
        Conflict: it is not there yet, or is on its way out already.
    """
    known, now = machines.lock(connection, instance_id), database_now(connection)
    done = machine_life.drain(
        connection,
        instance_id,
        reason=ScaleDownReason.OPERATOR.value,
        why=intent.reason,
        within=known.spec.scaling.down.drain_within,
    )
    if not done:
        raise _not_in(known.row, CapacityInstanceState.HEALTHY)
    _told_of(connection, "instance.drain", known.row, intent, now=now)


def release(connection: sa.Connection, instance_id: str, intent: Intent) -> None:
    """Let a quarantined machine go, for everybody has seen enough of it.

    Of one that is being taken away it says that it is gone, where no provider can be asked.

    Raises:
        NotFound: there is no such machine.
        Conflict: it is in no such state.
    """
    row = changes.find(connection, INSTANCE, instance_id, lock=True)
    now = database_now(connection)
    if row["state"] not in _RELEASABLE:
        raise _not_in(row, CapacityInstanceState.QUARANTINED)
    if row["released_at"] is None:
        machines.change(connection, row, released_at=now, tended_until=0)
        _told_of(connection, "instance.release", row, intent, now=now)


def _not_in(row: Row, state: CapacityInstanceState) -> Conflict:
    return Conflict(
        f"machine {row['runner_name']} is {row['state']}",
        field="state",
        value=row["state"],
        allowed=state.value,
    )


def freeze_provider(connection: sa.Connection, provider: str, intent: Intent) -> None:
    """Ask nothing of a provider but to look, whatever its fleets want (FOP-005)."""
    _set_frozen(connection, provider, intent, frozen=1)


def thaw_provider(connection: sa.Connection, provider: str, intent: Intent) -> None:
    """Let the fleets of a provider make and take away machines again."""
    _set_frozen(connection, provider, intent, frozen=0)


def _set_frozen(connection: sa.Connection, provider: str, intent: Intent, *, frozen: int) -> None:
    own = {"provider": provider, "fleet_id": "", "offering": ""}
    changes.upsert(connection, _breakers, {**own, "frozen": frozen}, changes={"frozen": frozen})
    action = "provider.freeze" if frozen else "provider.thaw"
    _audit(connection, action, provider, intent, intent.reason, now=database_now(connection))


def _demand_window(window: Window, *, now: int) -> None:
    if not 0 < window.quantity <= MOST_INSTANCES:
        raise InvalidRequest(
            "a reservation is for at least one machine",
            field="quantity",
            value=window.quantity,
            allowed=f"1 to {MOST_INSTANCES}",
        )
    if not (window.starts_at < window.ends_at and now < window.ends_at):
        raise InvalidRequest(
            "a reservation ends after it starts, and not in the past",
            field="ends_at",
            value=window.ends_at,
            allowed=f"more than {max(window.starts_at, now)}",
        )
    sanity.demand_span("ends_at", window.ends_at - window.starts_at, most=LONGEST_RESERVATION_MS)
    if not 0 <= window.lead <= LONGEST_LEAD_MS:
        raise InvalidRequest(
            "its machines would be made far too early",
            field="lead",
            value=window.lead,
            allowed=f"0 to {LONGEST_LEAD_MS} milliseconds",
        )


def _demand_few(connection: sa.Connection, row: Row, *, now: int) -> None:
    open_ones = _open_of(row, now=now).subquery()
    count = connection.execute(sa.select(sa.func.count()).select_from(open_ones)).scalar_one()
    if count >= MOST_RESERVATIONS:
        raise InvalidRequest(
            "this fleet has too many reservations",
            field="fleet",
            value=row["name"],
            allowed=f"{MOST_RESERVATIONS} that have not ended",
        )


def _open_of(row: Row, *, now: int) -> sa.Select[*tuple[object, ...]]:
    return (
        sa.select(_reservations)
        .where(
            _reservations.c.fleet_id == row["fleet_id"],
            _reservations.c.cancelled_at.is_(None),
            _reservations.c.ends_at > now,
        )
        .order_by(_reservations.c.starts_at, _reservations.c.reservation_id)
    )


_RELEASABLE: Final = frozenset(
    state.value
    for state in (
        CapacityInstanceState.QUARANTINED,
        CapacityInstanceState.TERMINATING,
        CapacityInstanceState.FAILED,
    )
)
_ENDING: Final = frozenset(
    state.value
    for state in (
        CapacityInstanceState.TERMINATING,
        CapacityInstanceState.TERMINATED,
        CapacityInstanceState.FAILED,
    )
)


def _told_of(
    connection: sa.Connection,
    action: str,
    row: Row,
    intent: Intent,
    said: str = "",
    *,
    now: int,
) -> None:
    detail = ": ".join(part for part in (row["runner_name"], said, intent.reason) if part)
    _audit(connection, action, row["instance_id"], intent, detail, now=now)


def _audit(
    connection: sa.Connection, action: str, target: str, intent: Intent, detail: str, *, now: int
) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=target,
        detail=detail,
        now=now,
    )
