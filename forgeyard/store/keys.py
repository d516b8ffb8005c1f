"""Exclusivity keys: who holds which, taken with a lease and given back with it (QUO, SP-090)."""

import sqlalchemy as sa

from forgeyard.store import tables

_holds = tables.key_holds


def load(connection: sa.Connection) -> dict[str, str]:
    """Tell which keys are held, each with the name of its holder."""
    jobs = tables.jobs
    query = sa.select(_holds.c.key_name, jobs.c.name).join(jobs, jobs.c.job_id == _holds.c.job_id)
    return {key: holder for key, holder in connection.execute(query)}


def give_back(connection: sa.Connection, lease_id: str) -> None:
    """Free the keys of a lease that ended."""
    connection.execute(_GIVE_BACK, {"lease": lease_id})


_GIVE_BACK = sa.delete(_holds).where(_holds.c.lease_id == sa.bindparam("lease"))
