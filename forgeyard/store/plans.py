"""What a cycle decided, stored before it is committed: placements, and why other jobs wait.

The ids of attempts and leases are drawn here, so committing a plan twice cannot make two of them.
"""

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from forgeyard.model.ids import new_id
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import bulk, codec, diagnoses, holds, lineage, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSaved:
    """A stored plan: its id, and how much it saw and decided."""

    cycle_id: int
    eligible: int
    runners: int
    planned: int
    parked: bool
    """Whether a class was parked by it."""


def save_plan(
    connection: sa.Connection,
    partition: str,
    plan: Plan,
    snapshot_digest: str,
    policy_digest: str,
    *,
    rng: random.Random,
) -> PlanSaved:
    """Store a plan under a fresh cycle id; nothing is granted by it."""
    now = database_now(connection)
    cycle = {
        "partition": partition,
        "policy_digest": policy_digest,
        "snapshot_digest": snapshot_digest,
        "eligible": plan.eligible,
        "runners": plan.runners,
        "planned": len(plan.decisions),
        "created_at": now,
        "pressure": ",".join(plan.pressure.signals),
        "backfill": None if plan.backfill is None else codec.encode(plan.backfill),
    }
    cycles = tables.cycles
    cycle_id: int = connection.execute(
        sa.insert(cycles).values(cycle).returning(cycles.c.cycle_id)
    ).scalar_one()
    placements = _placements(plan, cycle_id, now=now, rng=rng)
    bulk.insert(connection, tables.placements, placements)
    if not placements:
        # Else the commit does it, after the leases: whoever is placed now was before it in turn.
        holds.keep(connection, partition, plan.backfill, now=now)
    parked = diagnoses.save(connection, partition, plan, now=now)
    if placements:
        # What this plan brings about cannot be lost without the loop knowing a mark that is, too.
        lineage.leave_mark(connection, rng=rng)
    return PlanSaved(
        cycle_id=cycle_id,
        eligible=plan.eligible,
        runners=plan.runners,
        planned=len(placements),
        parked=parked,
    )


def _placements(plan: Plan, cycle_id: int, *, now: int, rng: random.Random) -> list[Row]:
    moment = datetime.fromtimestamp(now / 1000, UTC)
    return [
        {
            "cycle_id": cycle_id,
            "position": position,
            "job_id": decision.job_id,
            "attempt_id": new_id("att", now=moment, rng=rng),
            "lease_id": new_id("lse", now=moment, rng=rng),
            "candidates": _candidates(decision, plan),
            "devices": _devices(decision),
        }
        for position, decision in enumerate(plan.decisions)
    ]


def _candidates(decision: Decision, plan: Plan) -> str:
    """Write runners, scores, and what each runner could do when it was judged."""
    judged = [
        (runner_id, score, plan.capabilities.get(runner_id))
        for runner_id, score in decision.candidates
    ]
    return json.dumps(judged, separators=(",", ":"))


def _devices(decision: Decision) -> str | None:
    wanted = decision.equipment.device_part
    return codec.encode(wanted) if wanted.wants_devices else None
