"""Exclusivity keys: who holds which, taken with a lease and given back with it (QUO, SP-090)."""

import sqlalchemy as sa

from forgeyard.store import tables

_holds, _jobs = tables.key_holds, tables.jobs
_HELD = sa.select(_holds.c.key_name, _jobs.c.name).join(_jobs, _jobs.c.job_id == _holds.c.job_id)


def load(connection: sa.Connection) -> dict[str, str]:
    """Tell which keys are held, each with the name of its holder."""
    return {key: holder for key, holder in connection.execute(_HELD)}


def give_back(connection: sa.Connection, lease_id: str) -> None:
    """Free the keys of a lease that ended."""
    connection.execute(_GIVE_BACK, {"lease": lease_id})


_GIVE_BACK = sa.delete(_holds).where(_holds.c.lease_id == sa.bindparam("lease"))
