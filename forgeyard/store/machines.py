"""Machines of fleets as rows: wanted, looked at, asked for.

A row is written before its machine is asked for, and counts until an inspection has said that
nothing of it exists. Who changes one holds its lock; its runner and that runner's leases are
locked after it.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.fleet.lifecycle import Facts, RunnerFacts
from forgeyard.fleet.ports import Machine, Ownership, Sought
from forgeyard.fleet.view import USABLE, Launch
from forgeyard.model.capacity import CapacityInstanceState, MachineState, OperationState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetSpec, FleetState, LifetimeKind, Offering
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.redaction import redacted
from forgeyard.store import changes, codec, fleet_tables, image_standing, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import INSTANCE, Row
from forgeyard.store.shares import Intent

AUTOSCALER: Final = Intent(actor="autoscaler", channel="worker", reason="its fleet's decision")
_instances, _fleets = fleet_tables.capacity_instances, fleet_tables.fleets
_breakers, _runners, _leases = fleet_tables.provider_breakers, tables.runners, tables.leases
_LIVE = tuple(state.value for state in LIVE_LEASE_STATES)
_TEXT_KEPT = 500
LATE_MS: Final = 30_000
"""So much later than it said a workflow that looks after a machine is taken for lost."""
MOST_TOLD_OF: Final = 100
"""Machines that one look at a fleet starts to look after."""
S = CapacityInstanceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A machine's row and its fleet's, locked, with what is to be judged about it."""

    row: Row
    fleet: Row
    spec: FleetSpec
    facts: Facts


def binding_of(row: Row) -> str:
    """Name what the enrolment of a machine is for."""
    return f"instance/{row['instance_id']}/{row['generation']}"


def operation_key(row: Row) -> str:
    """Name the wish for a machine; another generation or offering is another wish (FLT-004)."""
    offering = hashlib.sha256(row["offering"].encode()).hexdigest()[:16]
    return f"{row['instance_id'].replace('_', '-')}-{row['generation']}-{offering}"


def offering_name(row: Row) -> str:
    """Name the offering that a machine was wanted with."""
    return codec.decode_part(str, row["offering"], "name")


def intend(
    connection: sa.Connection,
    fleet: Row,
    spec: FleetSpec,
    launches: Sequence[Launch],
    *,
    now: int,
    rng: random.Random,
) -> list[str]:
    """Write down the wish for machines, before anybody is asked for them (FRC-004)."""
    rows = [
        _wanted(fleet, spec, launch, number=fleet["numbered"] + place, now=now, rng=rng)
        for place, launch in enumerate(launches, 1)
    ]
    own = _fleets.c.fleet_id == fleet["fleet_id"]
    connection.execute(sa.update(_fleets).where(own).values(numbered=fleet["numbered"] + len(rows)))
    changes.born(connection, INSTANCE, rows, reason="wanted by its fleet", now=now)
    return [str(row["instance_id"]) for row in rows]


def _wanted(
    fleet: Row, spec: FleetSpec, launch: Launch, *, number: int, now: int, rng: random.Random
) -> Row:
    offering = spec.offering(launch.offering)
    if offering is None:
        raise NotFound("the fleet has no such offering", field="offering", value=launch.offering)
    capacity = replace(spec.capacity, image=launch.image or spec.capacity.image)
    return {
        "instance_id": draw_id("cin", now=now, rng=rng),
        "fleet_id": fleet["fleet_id"],
        "number": number,
        "state": CapacityInstanceState.REQUESTED.value,
        "class_id": capacity.class_id,
        "capacity": codec.encode(capacity),
        "image": capacity.image,
        "offering": codec.encode(offering),
        "provider": spec.provider,
        "reason": launch.reason.value,
        "made_for": launch.made_for,
        "runner_name": f"{spec.name}-{number}",
        "requested_at": now,
    }


def lock(connection: sa.Connection, instance_id: str) -> Known:
    """Lock a machine and read what is known of it.

    Raises:
        NotFound: there is no such machine.
    """
    row = changes.find(connection, INSTANCE, instance_id, lock=True)
    query = sa.select(_fleets).where(_fleets.c.fleet_id == row["fleet_id"])
    fleet = dict(connection.execute(query).mappings().one())
    spec = codec.decode(FleetSpec, fleet["spec"])
    row = _with_runner(connection, row)
    facts = Facts(
        state=CapacityInstanceState(row["state"]),
        fleet_state=FleetState(fleet["state"]),
        provider_frozen=is_frozen(connection, row["provider"]),
        deadlines=spec.deadlines,
        operation=OperationState(row["operation"]),
        calls=row["calls"],
        machine=None if row["machine"] is None else MachineState(row["machine"]),
        detail=row["detail"],
        has_ref=row["provider_ref"] is not None,
        asked_at=row["asked_at"],
        ending_at=row["ending_at"] or 0,
        looked_at=row["looked_at"],
        missing_since=row["missing_since"],
        sightings=row["sightings"],
        next_at=row["next_at"],
        due_at=row["due_at"],
        redeemed=_is_redeemed(connection, row),
        runner=_runner_facts(connection, row),
        may_keep_sick=_kept(connection, row["fleet_id"]) < spec.scaling.quarantined,
        is_released=row["released_at"] is not None,
        image=image_standing.standing(connection, row["image"]),
    )
    return Known(row=row, fleet=fleet, spec=spec, facts=facts)


def _kept(connection: sa.Connection, fleet_id: str) -> int:
    """Count the machines of a fleet that are kept for a look."""
    query = sa.select(sa.func.count()).where(
        _instances.c.fleet_id == fleet_id,
        _instances.c.state == CapacityInstanceState.QUARANTINED.value,
    )
    return connection.execute(query).scalar_one()


def _with_runner(connection: sa.Connection, row: Row) -> Row:
    """Note which runner has come up on a machine, once one has."""
    if row["runner_id"] is not None:
        return row
    query = sa.select(_runners.c.runner_id).where(_runners.c.name == row["runner_name"])
    found = connection.execute(query).scalar_one_or_none()
    return row if found is None else change(connection, row, runner_id=found)


def provider_and_state(
    connection: sa.Connection, instance_id: str
) -> tuple[str, CapacityInstanceState]:
    """Name the provider of a machine, and where the machine stands.

    Raises:
        NotFound: there is no such machine.
    """
    row = changes.find(connection, INSTANCE, instance_id)
    return str(row["provider"]), CapacityInstanceState(row["state"])


def is_frozen(connection: sa.Connection, provider: str) -> bool:
    """Tell whether an operator has frozen a provider (FOP-005)."""
    frozen = sa.select(_breakers.c.provider).where(
        _breakers.c.provider == provider, _breakers.c.frozen == 1
    )
    return connection.execute(frozen.limit(1)).first() is not None


def has_enrolled(connection: sa.Connection, row: Row) -> bool:
    """Tell whether somebody has come with the token of a machine, or under its runner's name."""
    if row["runner_id"] is not None or _is_redeemed(connection, row):
        return True
    came = sa.select(_runners.c.runner_id).where(_runners.c.name == row["runner_name"])
    return connection.execute(came).first() is not None


def _is_redeemed(connection: sa.Connection, row: Row) -> bool:
    enrolments = tables.enrolments
    used = sa.select(enrolments.c.used_at).where(enrolments.c.binding == binding_of(row))
    return connection.execute(used).scalar_one_or_none() is not None


def _runner_facts(connection: sa.Connection, row: Row) -> RunnerFacts | None:
    if row["runner_id"] is None:
        return None
    query = sa.select(_runners).where(_runners.c.runner_id == row["runner_id"])
    runner = connection.execute(query).mappings().one_or_none()
    if runner is None:
        return None
    held = sa.select(sa.func.count()).where(
        _leases.c.runner_id == row["runner_id"], _leases.c.state.in_(_LIVE)
    )
    return RunnerFacts(
        state=RunnerState(runner["state"]),
        admission=Admission(runner["admission"]),
        admission_reason=runner["admission_reason"] or "",
        leases=connection.execute(held).scalar_one(),
        last_seen_at=runner["last_seen_at"],
    )


def change(connection: sa.Connection, row: Row, **values: object) -> Row:
    """Write facts about a machine whose state stays."""
    own = _instances.c.instance_id == row["instance_id"]
    connection.execute(sa.update(_instances).where(own).values(**values))
    return {**row, **values}


def asked(connection: sa.Connection, row: Row, *, now: int) -> Row:
    """Note that its provider is about to be asked to make it: from now on it may exist."""
    return change(
        connection,
        row,
        operation=OperationState.UNKNOWN.value,
        calls=row["calls"] + 1,
        asked_at=now,
        missing_since=None,
        sightings=0,
    )


def asked_to_end(connection: sa.Connection, row: Row, *, now: int) -> Row:
    """Note that its provider is about to be asked to end it."""
    return change(connection, row, asked_at=now)


def seen(connection: sa.Connection, row: Row, machine: Machine, *, now: int) -> Row:
    """Note what its provider says of it."""
    done = machine.state is not MachineState.PENDING
    return change(
        connection,
        row,
        operation=(OperationState.SUCCEEDED if done else OperationState.IN_PROGRESS).value,
        provider_ref=row["provider_ref"] or machine.ref,
        machine=machine.state.value,
        detail=redacted(machine.detail)[:_TEXT_KEPT],
        running_at=row["running_at"] or (now if machine.state is MachineState.RUNNING else None),
        looked_at=now,
        missing_since=None,
        sightings=0,
    )


def not_seen(connection: sa.Connection, row: Row, *, now: int) -> Row:
    """Note that its provider said nothing of it, which alone proves nothing."""
    return change(
        connection,
        row,
        looked_at=now,
        # Not since a listing left it out: that may have been long ago, and wrong.
        missing_since=row["missing_since"] if row["sightings"] else now,
        sightings=row["sightings"] + 1,
    )


def refused(connection: sa.Connection, row: Row, text: str) -> Row:
    """Note that its provider refused to make it, for certain."""
    return change(
        connection, row, operation=OperationState.FAILED.value, detail=redacted(text)[:_TEXT_KEPT]
    )


def put_off(connection: sa.Connection, row: Row, text: str, *, until: int) -> Row:
    """Note that its provider could not be asked now."""
    return change(connection, row, detail=redacted(text)[:_TEXT_KEPT], next_at=until)


def used_up(connection: sa.Connection, row: Row) -> Row:
    """Begin a new generation: what the last operation key made is gone for good (FLT-003)."""
    return change(
        connection,
        row,
        generation=row["generation"] + 1,
        operation=OperationState.PENDING.value,
        provider_ref=None,
        machine=None,
        missing_since=None,
        sightings=0,
    )


def claim_untended(
    connection: sa.Connection, fleet_id: str, *, silence: int, now: int
) -> list[tuple[str, str]]:
    """List machines that need a look and have nobody who is about to, each with its runner's name.

    Their workflow is late, or sleeps although something has become of their runner, which for
    `silence` milliseconds is not taken for lost. Who is told of one is expected to see to it: for
    a while it is not listed again.
    """
    query = (
        sa.select(_instances.c.instance_id, _instances.c.runner_name)
        .outerjoin(_runners, _runners.c.name == _instances.c.runner_name)
        .where(
            _instances.c.fleet_id == fleet_id,
            _instances.c.ended_at.is_(None),
            (_instances.c.tended_until < now - LATE_MS)
            | ((_instances.c.tended_until > now) & _has_news(silence, now)),
        )
        .order_by(_instances.c.tended_until, _instances.c.number)
        .limit(MOST_TOLD_OF)
        .with_for_update(of=_instances, skip_locked=True)
    )
    found = [(row.instance_id, row.runner_name) for row in connection.execute(query)]
    if found:
        claimed = _instances.c.instance_id.in_([instance_id for instance_id, _ in found])
        connection.execute(sa.update(_instances).where(claimed).values(tended_until=now))
    return found


def _has_news(silence: int, now: int) -> sa.ColumnElement[bool]:
    """Tell whether a machine's runner gives it a reason to move on, as `lifecycle` judges."""
    state, admission = _instances.c.state, _runners.c.admission
    offline = _runners.c.state == RunnerState.OFFLINE.value
    live = _leases.c.state.in_(_LIVE)
    held = sa.exists().where(_leases.c.runner_id == _runners.c.runner_id, live)
    is_sick = admission.in_((Admission.QUARANTINED.value, Admission.REJECTED.value))
    is_lost = offline & (_runners.c.last_seen_at <= now - silence)
    came = (admission == Admission.VERIFIED.value) & ~offline
    return sa.or_(
        (state == S.PROVISIONING.value)
        & (_instances.c.machine == MachineState.PENDING.value)
        & came,
        state.in_((S.BOOTSTRAPPING.value, S.ENROLLING.value)) & (came | is_sick),
        (state == S.HEALTHY.value) & (is_sick | is_lost),
        (state == S.DRAINING.value) & (~held | is_lost),
    )


def sought(row: Row, installation: str, *, ref: str = "", scope: str = "") -> Sought:
    """Say which machine a provider is to look for."""
    return Sought(
        owner=Ownership(
            installation=installation,
            fleet_id=row["fleet_id"],
            instance_id=row["instance_id"],
            scope=scope,
        ),
        operation_key=operation_key(row),
        offering=codec.decode(Offering, row["offering"]),
        ref=ref or row["provider_ref"] or "",
    )


def bounds_of_runner(connection: sa.Connection, runner_name: str) -> dict[str, object]:
    """Say what a runner that registers may have, where it is on a machine of a fleet.

    A machine that is on its way out gets no work, whenever its agent comes up.
    """
    query = sa.select(_instances.c.state).where(_instances.c.runner_name == runner_name)
    state = connection.execute(query).scalar_one_or_none()
    if state is None or CapacityInstanceState(state) in USABLE:
        return {}
    return {"drain_requested": 1, "drain_reason": f"its machine is {state}"}


def born_with(connection: sa.Connection, runner_name: str) -> dict[str, object]:
    """Say what a new runner has from its fleet: its pool, how many jobs it may have (FOP-008)."""
    query = (
        sa.select(_fleets.c.spec)
        .join(_instances, _fleets.c.fleet_id == _instances.c.fleet_id)
        .where(_instances.c.runner_name == runner_name)
    )
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        return {}
    spec = codec.decode(FleetSpec, found)
    pools = tables.pools
    pool = sa.select(pools.c.pool_id).where(pools.c.name == spec.pool)
    known = connection.execute(pool).scalar_one_or_none() if spec.pool else None
    return {
        "jobs_left": most_jobs(spec) or None,
        **({} if known is None else {"pool_id": known}),
    }


def most_jobs(spec: FleetSpec) -> int:
    """Tell after how many jobs a machine of a fleet has served its time; 0 counts none."""
    kind, jobs = spec.lifetime.kind, int(spec.lifetime.jobs)
    return 1 if kind is LifetimeKind.ONE_JOB else jobs * int(kind is LifetimeKind.MAX_JOBS)


def heard_of(connection: sa.Connection, instance_id: str) -> MachineState | None:
    """Tell what is known of a machine that nobody can be asked about."""
    row = changes.find(connection, INSTANCE, instance_id)
    if row["released_at"] is not None:
        return MachineState.GONE
    return MachineState.RUNNING if has_enrolled(connection, row) else None
