"""How many machines the demand of each fleet needed, five minutes by five minutes, for a forecast.

Nothing is decided by it: without a history a fleet goes by its demand alone (FCT-009).
"""

import sqlalchemy as sa

from forgeyard.fleet.forecast import HORIZON_MS, LOOKS_BACK_MS, Outlook, Past, Window, forecast
from forgeyard.model.fleet import CapacityReservation
from forgeyard.store import changes
from forgeyard.store.codec import decode
from forgeyard.store.engine import database_now, read
from forgeyard.store.fleet_tables import fleet_history, fleet_reservations

BUCKET_MS = 5 * 60 * 1000
KEPT_MS = LOOKS_BACK_MS
"""What is older is deleted with all else that is kept only for a while."""
_history = fleet_history
_noted = sa.literal_column("excluded.needed", sa.BigInteger)
_most = sa.case((_history.c.needed < _noted, _noted), else_=_history.c.needed)


def note(connection: sa.Connection, fleet_id: str, *, needed: int, now: int) -> None:
    """Write down what demand alone needs now, unless more was needed in these minutes already.

    Neither warm machines nor reserved ones belong to it: what policy adds, demand did not ask for.
    """
    row = {"fleet_id": fleet_id, "at": now - now % BUCKET_MS, "needed": needed}
    changes.upsert(connection, _history, row, changes={"needed": _most})


def series(connection: sa.Connection, fleet_id: str, since: int) -> tuple[tuple[int, int], ...]:
    """Read instants and counts since an instant, oldest first; what nobody noted is not there."""
    query = (
        sa.select(_history.c.at, _history.c.needed)
        .where(_history.c.fleet_id == fleet_id, _history.c.at >= since)
        .order_by(_history.c.at)
    )
    return tuple((at, needed) for at, needed in connection.execute(query))


def past(connection: sa.Connection, fleet_id: str, *, now: int) -> Past:
    """Read all that a forecast may know of a fleet."""
    since = now - LOOKS_BACK_MS
    return Past(
        points=series(connection, fleet_id, since), windows=_windows(connection, fleet_id, since)
    )


def _windows(connection: sa.Connection, fleet_id: str, since: int) -> tuple[Window, ...]:
    """Read what was or is reserved; one that was cancelled ended then, or never began."""
    table = fleet_reservations
    ended = sa.func.coalesce(table.c.cancelled_at, table.c.ends_at)
    query = sa.select(table.c.reservation, table.c.cancelled_at).where(
        table.c.fleet_id == fleet_id, table.c.ends_at >= since, ended >= since
    )
    found = [(decode(CapacityReservation, text), end) for text, end in connection.execute(query)]
    return tuple(
        Window(
            starts_at=one.starts_at,
            ends_at=one.ends_at if cancelled_at is None else min(one.ends_at, cancelled_at),
            quantity=one.quantity,
        )
        for one, cancelled_at in found
    )


def outlook(engine: sa.Engine, fleet_id: str, *, horizon: int = HORIZON_MS) -> Outlook:
    """Foresee the need of a fleet, with all that people need to judge it.

    Costs a tenth of a second of CPU; what comes out changes with each whole step only, or with a
    reservation.
    """
    with read(engine) as connection:
        now = database_now(connection)
        known = past(connection, fleet_id, now=now)
    return forecast(known, now=now, horizon=horizon)
