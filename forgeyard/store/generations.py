"""Numbers that grow when something changes that many things were judged by.

Whoever remembers a judgement keeps the number beside it, and judges again once it has grown.
"""

from typing import Final

import sqlalchemy as sa

from forgeyard.store import changes, tables

FLEET: Final = "fleet"
"""Grows when what could never run might run now: a runner, a pool or the policy is another."""
_generations = tables.generations
_FLEET = sa.select(_generations.c.value).where(_generations.c.name == FLEET)
_NAMED = sa.select(_generations.c.value).where(_generations.c.name == sa.bindparam("name"))
OF_FLEET: Final = sa.func.coalesce(_FLEET.scalar_subquery(), 0)
"""The fleet's, as part of another query."""


def bump(connection: sa.Connection, name: str = FLEET) -> None:
    """Let a generation grow; whoever does so at once waits until this transaction ends."""
    grown = {"value": _NEXT}
    changes.upsert(connection, _generations, {"name": name, "value": 1}, changes=grown)


_NEXT = _generations.c.value + 1


def current(connection: sa.Connection, name: str = FLEET) -> int:
    """Tell how often it has grown."""
    return connection.execute(_NAMED, {"name": name}).scalar() or 0
