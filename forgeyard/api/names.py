"""Turns what a person typed into the id it stands for."""

from typing import Final

import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound
from forgeyard.store import tables

PREFIX: Final = "run_"
CANDIDATES: Final = 5


class AmbiguousName(InvalidRequest):
    """A beginning of an id fits more than one."""

    code = "name.ambiguous"


def run_id_of(connection: sa.Connection, typed: str) -> str:
    """Complete a run's id, written whole or as a beginning, with `run_` or without.

    Raises:
        NotFound: no run's id begins so.
        AmbiguousName: several do; `allowed` names the newest of them.
    """
    body = typed.removeprefix(PREFIX).upper()
    if not body.isascii() or not body.isalnum():
        raise _unknown(typed)
    begins = PREFIX + body
    runs = tables.runs
    query = (
        sa.select(runs.c.run_id, runs.c.name)
        .where(runs.c.run_id.startswith(begins, autoescape=True))
        .order_by(runs.c.run_id.desc())
        .limit(CANDIDATES + 1)
    )
    found = {run_id: name for run_id, name in connection.execute(query)}
    if begins in found or len(found) == 1:
        return begins if begins in found else str(next(iter(found)))
    if not found:
        raise _unknown(typed)
    shown = [f"{run_id} ({name})" for run_id, name in found.items()][:CANDIDATES]
    raise AmbiguousName(
        f"the ids of several runs begin with {typed}",
        field="run_id",
        value=typed,
        allowed=", ".join([*shown, "…"] if len(found) > CANDIDATES else shown),
    )


def _unknown(typed: str) -> NotFound:
    return NotFound("no run has this id", field="run_id", value=ascii(typed))
