"""How long the machines of a fleet took to come up, by those that did."""

from statistics import median_low
from typing import Final

import sqlalchemy as sa

from forgeyard.store.fleet_tables import capacity_instances

REMEMBERED: Final = 20
"""Of the machines that came up, so many of the last ones say how long the next one takes."""


def boot_time(connection: sa.Connection, fleet_id: str) -> int | None:
    """Tell how long a machine usually takes from the wish to being well, in milliseconds."""
    table = capacity_instances
    query = (
        sa.select(table.c.healthy_at - table.c.requested_at)
        .where(table.c.fleet_id == fleet_id, table.c.healthy_at.is_not(None))
        .order_by(table.c.healthy_at.desc())
        .limit(REMEMBERED)
    )
    found = [int(took) for took in connection.execute(query).scalars()]
    return median_low(found) if found else None
