"""Requirement classes that no registered runner can ever serve, each in one row.

Their jobs wait on, but no cycle looks at them while the fleet's generation is the one that the
verdict was given under. So any number of impossible jobs costs a cycle one row (DIA-018, SP-017).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from forgeyard.model.transitions import JobState
from forgeyard.scheduler.diagnose import Diagnosis
from forgeyard.scheduler.snapshot import Parking
from forgeyard.store import bulk, codec, generations, tables, waiting
from forgeyard.store.changes import Row

_parked, _jobs = tables.parked_classes, tables.jobs
_NAMES = sa.select(_parked.c.requirement_class).where(
    _parked.c.partition == sa.bindparam("partition"),
    _parked.c.generation == sa.bindparam("generation"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Which of the waiting jobs of a partition a cycle looks at."""

    parked: int
    """How many it does not look at."""
    open: tuple[str, ...] | None
    """The classes of the others; `None` while nothing is parked, to spare the search."""

    def among(self, connection: sa.Connection) -> sa.ColumnElement[bool]:
        """Restrict a query to the jobs that are looked at."""
        if self.open is None:
            return sa.true()
        return bulk.among(connection, _jobs.c.requirement_class, self.open)


ALL_OPEN = Standing(parked=0, open=None)


def standing(connection: sa.Connection, partition: str, generation: int) -> Standing:
    """Tell what is parked at this generation; an index alone answers, class by class."""
    at = {"partition": partition, "generation": generation}
    parked = set(connection.execute(_NAMES, at).scalars())
    if not parked:
        return ALL_OPEN
    kinds = connection.execute(_kinds(partition)).scalars().all()
    hopeless = [kind for kind in kinds if kind in parked]
    count = sa.select(sa.func.count()).where(
        *_eligible(_jobs, partition), bulk.among(connection, _jobs.c.requirement_class, hopeless)
    )
    return Standing(
        parked=connection.execute(count).scalar_one() if hopeless else 0,
        open=tuple(kind for kind in kinds if kind not in parked),
    )


def _kinds(partition: str) -> sa.Select[str]:
    """Select the classes of which jobs wait, from each to the next, however many jobs there are."""
    jobs = _jobs.alias("kin")
    lowest = sa.func.min(jobs.c.requirement_class)
    kinds = (
        sa.select(lowest.label("kind"))
        .where(*_eligible(jobs, partition))
        .cte("kinds", recursive=True)
    )
    following = (
        sa.select(lowest)
        .where(*_eligible(jobs, partition), jobs.c.requirement_class > kinds.c.kind)
        .correlate(kinds)
        .scalar_subquery()
    )
    kinds = kinds.union_all(sa.select(following).where(kinds.c.kind.is_not(None)))
    return sa.select(kinds.c.kind).where(kinds.c.kind.is_not(None))


def _eligible(jobs: sa.FromClause, partition: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (jobs.c.partition == partition, jobs.c.state == JobState.ELIGIBLE.value)


def park(
    connection: sa.Connection,
    partition: str,
    verdicts: Mapping[str, Diagnosis],
    *,
    generation: int,
    now: int,
) -> bool:
    """Park classes at the generation that a plan saw; do nothing if the fleet has changed since.

    A class that is parked again keeps the instant since when it is.
    """
    if generations.current(connection) != generation:
        return False
    rows = [
        {
            "partition": partition,
            "requirement_class": kind,
            "generation": generation,
            "diagnosis": codec.encode(diagnosis),
            "since_at": now,
            "until_at": None,
        }
        for kind, diagnosis in sorted(verdicts.items())
    ]
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(_parked)
    given = statement.excluded
    since = sa.case((_parked.c.until_at.is_(None), _parked.c.since_at), else_=given.since_at)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[column.name for column in _parked.primary_key],
            set_={
                "generation": given.generation,
                "diagnosis": given.diagnosis,
                "since_at": since,
                "until_at": None,
            },
        ),
        rows,
    )
    return True


def release(
    connection: sa.Connection, partition: str, seen: Collection[str], *, generation: int, now: int
) -> None:
    """Note that a plan found these classes to be possible after all.

    The row stays for a while: it tells for how long their jobs had nothing to wait for.
    """
    given = {"own": partition, "seen_at": generation, "kinds": list(seen), "now": now}
    connection.execute(_release(connection.dialect.name), given)


@lru_cache(maxsize=2)
def _release(dialect: str) -> sa.Update:
    return (
        sa.update(_parked)
        .where(
            _parked.c.partition == sa.bindparam("own"),
            _parked.c.generation != sa.bindparam("seen_at"),
            _parked.c.until_at.is_(None),
            bulk.among_given(dialect, _parked.c.requirement_class, "kinds"),
        )
        .values(until_at=sa.bindparam("now"))
    )


def waiting_by_code(connection: sa.Connection, partition: str) -> dict[str, int]:
    """Count the waiting jobs of parked classes by the code of their diagnosis."""
    codes = {
        row.requirement_class: str(json.loads(row.diagnosis)["code"])
        for row in connection.execute(
            sa.select(_parked.c.requirement_class, _parked.c.diagnosis).where(
                _parked.c.partition == partition, _parked.c.generation == generations.OF_FLEET
            )
        )
    }
    query = (
        sa.select(_jobs.c.requirement_class, sa.func.count())
        .where(
            *_eligible(_jobs, partition),
            bulk.among(connection, _jobs.c.requirement_class, list(codes)),
        )
        .group_by(_jobs.c.requirement_class)
    )
    found: dict[str, int] = {}
    for kind, total in connection.execute(query) if codes else ():
        found[codes[kind]] = found.get(codes[kind], 0) + int(total)
    return found


def is_parked(partition: str) -> sa.ColumnElement[bool]:
    """Restrict a query of jobs to those whose class is parked at present."""
    return _jobs.c.requirement_class.in_(
        sa.select(_parked.c.requirement_class).where(
            _parked.c.partition == partition, _parked.c.generation == generations.OF_FLEET
        )
    )


def forget(connection: sa.Connection) -> int:
    """Delete the rows of classes of which no job waits any more; return how many."""
    waiting = sa.select(_jobs.c.job_id).where(
        _jobs.c.state == JobState.ELIGIBLE.value,
        _jobs.c.partition == _parked.c.partition,
        _jobs.c.requirement_class == _parked.c.requirement_class,
    )
    return connection.execute(sa.delete(_parked).where(~waiting.exists())).rowcount


def find(connection: sa.Connection, job: Row) -> Row | None:
    """Read the row of a job's class, whether or not it still holds."""
    query = sa.select(_parked).where(
        _parked.c.partition == job["partition"],
        _parked.c.requirement_class == job["requirement_class"],
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def parking_of(connection: sa.Connection, job: Row) -> Parking | None:
    """Tell since when a job's class is parked, if it is at present."""
    row = find(connection, job)
    if row is None or row["generation"] != generations.current(connection):
        return None
    return Parking(since_at=row["since_at"], generation=row["generation"])


def sentences(connection: sa.Connection, partition: str, named: Collection[str]) -> dict[str, str]:
    """Say why the jobs of those of the named classes wait that are parked at present."""
    query = sa.select(_parked).where(
        _parked.c.partition == partition,
        _parked.c.generation == generations.OF_FLEET,
        bulk.among(connection, _parked.c.requirement_class, named),
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return {row["requirement_class"]: waiting.diagnosis_of(row) or "" for row in rows}
