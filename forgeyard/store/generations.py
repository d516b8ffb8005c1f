"""The generation of the fleet: it grows with whatever can turn a never into a yes.

A class that no runner can ever serve is not looked at again before that. Who changes what runners
can do, who may use them, or the rules, bumps it in the same transaction.
"""

from typing import Final

import sqlalchemy as sa

from forgeyard.store import changes, tables

FLEET: Final = "fleet"
_generations = tables.generations
_READ = sa.select(_generations.c.value).where(_generations.c.name == FLEET)
CURRENT: Final = sa.func.coalesce(_READ.scalar_subquery(), 0)
"""The generation as part of another query."""


def current(connection: sa.Connection) -> int:
    """Read the generation; read it before whatever is judged under it."""
    return connection.execute(_READ).scalar_one_or_none() or 0


def bump(connection: sa.Connection) -> None:
    """Have every parked class looked at again; call it late, for the row is hot."""
    changes.upsert(
        connection,
        _generations,
        {"name": FLEET, "value": 1},
        changes={"value": _generations.c.value + 1},
    )
