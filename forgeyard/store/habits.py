"""Where jobs of a name last succeeded, and which dependency caches they asked for.

A hint for the next one of that name in runs of that name (SCO-030); it moves scores, never more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.store import bulk, changes, tables

HOME = "home"
CACHE = "cache/"
Name = tuple[str, str, str]
"""Project, run and job, by name."""
_habits = tables.habits


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What jobs of one name did last."""

    home: str | None
    closures: tuple[str, ...]


NONE = Habit(home=None, closures=())


def note(connection: sa.Connection, job_id: str, what: str, value: str, *, now: int) -> None:
    """Write down what a job did, over what its predecessor did.

    The last that its transaction locks, so that nobody waits for another in a circle.
    """
    jobs, runs = tables.jobs, tables.runs
    query = (
        sa.select(jobs.c.project_id, runs.c.name.label("run_name"), jobs.c.name.label("job_name"))
        .join(runs, runs.c.run_id == jobs.c.run_id)
        .where(jobs.c.job_id == job_id)
    )
    named = connection.execute(query).mappings().one()
    values = {"value": value, "noted_at": now}
    changes.upsert(connection, _habits, {**named, "what": what, **values}, changes=values)


def of_jobs(connection: sa.Connection, names: Collection[Name]) -> Mapping[Name, Habit]:
    """Read the habits of jobs by name."""
    jobs = {job for _, _, job in names}
    query = sa.select(_habits).where(bulk.among(connection, _habits.c.job_name, jobs))
    homes: dict[Name, str] = {}
    closures: dict[Name, list[str]] = {}
    for row in connection.execute(query.order_by(_habits.c.what)).mappings():
        name = (row["project_id"], row["run_name"], row["job_name"])
        if row["what"] == HOME:
            homes[name] = row["value"]
        else:
            closures.setdefault(name, []).append(row["value"])
    return {
        name: Habit(home=homes.get(name), closures=tuple(closures.get(name, ()))) for name in names
    }
