"""One reading of the store for the doctor of fleets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import sqlalchemy as sa

from forgeyard.fleet.doctor import FleetSymptoms, SickMachine
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import PhaseDeadlines
from forgeyard.store import codec, fleet_views, provider_checks, tables
from forgeyard.store.changes import Row
from forgeyard.store.fleet_tables import capacity_instances
from forgeyard.store.fleet_views import FleetStanding, MachineRecord

HOUR_MS: Final = 3600 * 1000
S = CapacityInstanceState
_When: TypeAlias = Callable[[MachineRecord], bool]
_Why: TypeAlias = Callable[[MachineRecord], str | None]
_KEPT: Final = (S.FAILED, S.QUARANTINED)


def read_symptoms(connection: sa.Connection, name_or_id: str | None) -> tuple[FleetSymptoms, ...]:
    """Read one fleet, or all of them.

    Raises:
        NotFound: there is no such fleet.
    """
    if name_or_id is not None:
        return (_symptoms(connection, fleet_views.standing(connection, name_or_id)),)
    return tuple(_symptoms(connection, one) for one in fleet_views.standings(connection))


def _symptoms(connection: sa.Connection, seen: FleetStanding) -> FleetSymptoms:
    fleet, now = seen.fleet, seen.now
    came = _came(connection, fleet.fleet_id, now=now)
    machines = fleet_views.machines(connection, fleet.fleet_id)

    def sick(when: _When, why: _Why) -> tuple[SickMachine, ...]:
        return tuple(
            SickMachine(runner_name=one.runner_name, state=one.state, why=why(one) or one.detail)
            for one in machines
            if when(one)
        )

    return FleetSymptoms(
        spec=fleet.spec,
        state=fleet.state,
        health=fleet.health,
        health_reason=fleet.health_reason,
        tended_ms=now - fleet.tended_at if fleet.tended_at else None,
        wanted=seen.last.decision.wanted if seen.last else None,
        healthy=seen.machines.get(S.HEALTHY, 0),
        shut=tuple(f"{one.offering or 'everything'} ({one.reason})" for one in seen.shut),
        provider_frozen=seen.provider_frozen,
        complaints=provider_checks.complaints(connection, fleet.spec.provider),
        overdue=sick(lambda one: _is_late(one, now=now), lambda one: one.detail),
        failed=sick(lambda one: _has_failed(one, now=now), lambda one: one.failure),
        unadmitted=sick(_is_unadmitted, lambda one: one.admission_reason),
        enrolled=sum((row["enrolled_at"] or 0) > now - HOUR_MS for row in came),
        silent=_rows(came, lambda row: _is_silent(row, fleet.spec.deadlines, now=now), _NEVER_CAME),
        tokens=(
            *_rows(came, lambda row: row["alarmed"], "its token came with two keys"),
            *_rows(came, lambda row: row["refusals"], "who came was not the machine meant"),
        ),
        agents=_agents(came),
        hourly=seen.hourly,
        spent_today=seen.spent_today,
    )


_NEVER_CAME: Final = "it did not enrol in time"


def _came(connection: sa.Connection, fleet_id: str, *, now: int) -> tuple[Row, ...]:
    """Read how far the machines have come that there are, and those of the last hour."""
    given = {"own": fleet_id, "since": now - HOUR_MS}
    return tuple(dict(row) for row in connection.execute(_COMING, given).mappings())


def _rows(rows: Iterable[Row], when: Callable[[Row], object], why: str) -> tuple[SickMachine, ...]:
    return tuple(
        SickMachine(
            runner_name=row["runner_name"], state=CapacityInstanceState(row["state"]), why=why
        )
        for row in rows
        if when(row)
    )


def _is_silent(row: Row, deadlines: PhaseDeadlines, *, now: int) -> bool:
    """Tell whether a machine was up for as long as it may take to enrol, and did not."""
    if row["running_at"] is None or row["enrolled_at"] is not None:
        return False
    until: int = row["ending_at"] or row["ended_at"] or now
    return until - int(row["running_at"]) >= deadlines.bootstrap


def _agents(rows: Iterable[Row]) -> Mapping[str, str]:
    return {
        row["runner_name"]: codec.decode_part(str, row["capabilities"], "agent_version")
        for row in rows
        if row["capabilities"] is not None and row["ended_at"] is None
    }


_own = capacity_instances
_tokens = (
    sa.select(
        tables.enrolments.c.runner_name,
        sa.func.count(tables.enrolments.c.alarmed_at).label("alarmed"),
        sa.func.sum(tables.enrolments.c.refusals).label("refusals"),
    )
    .group_by(tables.enrolments.c.runner_name)
    .subquery()
)
_COMING: Final = (
    sa.select(
        _own.c.runner_name,
        _own.c.state,
        _own.c.running_at,
        _own.c.enrolled_at,
        _own.c.ending_at,
        _own.c.ended_at,
        tables.runners.c.capabilities,
        _tokens.c.alarmed,
        _tokens.c.refusals,
    )
    .join(tables.runners, tables.runners.c.runner_id == _own.c.runner_id, isouter=True)
    .join(_tokens, _tokens.c.runner_name == _own.c.runner_name, isouter=True)
    .where(
        _own.c.fleet_id == sa.bindparam("own"),
        _own.c.ended_at.is_(None) | (_own.c.ended_at > sa.bindparam("since")),
    )
    .order_by(_own.c.number)
)


def _is_late(one: MachineRecord, *, now: int) -> bool:
    return one.state is not S.TERMINATED and one.due_at is not None and one.due_at < now


def _has_failed(one: MachineRecord, *, now: int) -> bool:
    is_lately = one.since > now - HOUR_MS or one.requested_at > now - HOUR_MS
    return is_lately and (one.failure is not None or one.state in _KEPT)


def _is_unadmitted(one: MachineRecord) -> bool:
    turned_away = (Admission.REJECTED.value, Admission.QUARANTINED.value)
    return one.state is not S.TERMINATED and one.admission in turned_away
