"""The latest word on jobs that wait, written rarely (DIA-017, DIA-018).

What cycles say of a job wavers with every runner that is full for a moment. A row is written when
the lasting part of the diagnosis has changed, and at most once in a while. The jobs of a class that
is parked share one row of their own.
"""

import json
from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

from forgeyard.model.transitions import JobState
from forgeyard.scheduler.diagnose import Diagnosis
from forgeyard.scheduler.place import Plan
from forgeyard.store import bulk, codec, parked_classes, tables

DEBOUNCE: Final = 10_000
"""So long a job keeps what was said of it last."""
_jobs = tables.jobs


def save(connection: sa.Connection, partition: str, plan: Plan, *, now: int) -> bool:
    """Park the classes that a plan found impossible, and keep what it says of other jobs.

    Tells whether a class was parked.
    """
    hopeless = {
        plan.hopeless[one.job_id]: one for one in plan.diagnoses if one.job_id in plan.hopeless
    }
    parked = bool(hopeless) and parked_classes.park(
        connection, partition, hopeless, generation=plan.generation, now=now
    )
    if plan.possible:
        parked_classes.release(
            connection, partition, plan.possible, generation=plan.generation, now=now
        )
    _keep(
        connection,
        {one.job_id: one for one in plan.diagnoses if one.job_id not in plan.hopeless},
        now=now,
    )
    return parked


def _keep(connection: sa.Connection, latest: Mapping[str, Diagnosis], *, now: int) -> None:
    """Write what has changed about jobs that still wait, unless it was written just now."""
    query = (
        sa.select(_jobs.c.job_id, _jobs.c.diagnosis)
        .where(
            bulk.among(connection, _jobs.c.job_id, list(latest)),
            _jobs.c.state == JobState.ELIGIBLE.value,
        )
        .order_by(_jobs.c.job_id)
        .with_for_update(skip_locked=True)
    )
    known = connection.execute(query).all() if latest else ()
    changed = [
        {"job_id": job_id, "diagnosis": _written(latest[job_id], now)}
        for job_id, before in known
        if _is_news(before, latest[job_id], now)
    ]
    bulk.update(connection, _jobs, changed, keys=("job_id",))


def _is_news(before: str | None, found: Diagnosis, now: int) -> bool:
    if before is None:
        return True
    try:
        known = json.loads(before)
        return bool(known["lasting"] != found.lasting and now - known["at"] >= DEBOUNCE)
    except (ValueError, LookupError, TypeError):
        return True


def _written(found: Diagnosis, now: int) -> str:
    """Write a diagnosis with its lasting part and the instant."""
    shape = {**json.loads(codec.encode(found)), "lasting": found.lasting, "at": now}
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))
