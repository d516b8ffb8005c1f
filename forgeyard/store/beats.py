"""Signs of life of what runs in the background: without one, finding nothing proves nothing."""

import sqlalchemy as sa

from forgeyard.store import changes, tables
from forgeyard.store.engine import database_now

_liveness = tables.liveness


def sweep_of(partition: str) -> str:
    """Name the sweep of a partition."""
    return f"sweep/{partition}"


def reconciliation_of(partition: str) -> str:
    """Name the reconciliation of a partition."""
    return f"reconcile/{partition}"


def beat(connection: sa.Connection, service: str) -> None:
    """Say that a service has just done its work to the end."""
    now = database_now(connection)
    row = {"service": service, "beat_at": now, "gaps": 0}
    changes.upsert(connection, _liveness, row, changes={"beat_at": now})


def age_ms(connection: sa.Connection, service: str, *, now: int) -> int | None:
    """Tell how long ago a service last said so; None if it never did."""
    beat_at = connection.execute(_BEAT_AT, {"own": service}).scalar_one_or_none()
    return None if beat_at is None else max(0, now - beat_at)


_BEAT_AT = sa.select(_liveness.c.beat_at).where(_liveness.c.service == sa.bindparam("own"))
