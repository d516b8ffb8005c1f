"""One reading of the store for the doctor of fleets."""

from collections.abc import Callable
from typing import Final, TypeAlias

import sqlalchemy as sa

from forgeyard.fleet.doctor import FleetSymptoms, SickMachine
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.enrolment import Admission
from forgeyard.store import fleet_views, provider_checks
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
        hourly=seen.hourly,
        spent_today=seen.spent_today,
    )


def _is_late(one: MachineRecord, *, now: int) -> bool:
    return one.state is not S.TERMINATED and one.due_at is not None and one.due_at < now


def _has_failed(one: MachineRecord, *, now: int) -> bool:
    is_lately = one.since > now - HOUR_MS or one.requested_at > now - HOUR_MS
    return is_lately and (one.failure is not None or one.state in _KEPT)


def _is_unadmitted(one: MachineRecord) -> bool:
    turned_away = (Admission.REJECTED.value, Admission.QUARANTINED.value)
    return one.state is not S.TERMINATED and one.admission in turned_away
