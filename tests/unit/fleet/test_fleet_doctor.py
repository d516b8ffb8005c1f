"""The doctor of fleets: each check finds its one illness, and a healthy fleet has none."""

from dataclasses import replace

import pytest

from forgeyard.fleet import doctor
from forgeyard.fleet.doctor import Door, FleetSymptoms, SickMachine
from forgeyard.fleet.view import Unserved
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import (
    FleetHealth,
    FleetState,
    Guardrail,
    IsolationClass,
    Scaling,
)
from forgeyard.scheduler.doctor import CheckVerdict, worst
from tests.builders import a_fleet_spec

FINE = a_fleet_spec(
    capacity=replace(a_fleet_spec().capacity, isolation=IsolationClass.VM),
    guardrail=Guardrail(hourly=1_000_000, daily=5_000_000),
)
HEALTHY = FleetSymptoms(spec=FINE, wanted=2, healthy=2)
SICK = SickMachine(runner_name="builders-1", state=CapacityInstanceState.FAILED, why="no disk")


def test_a_healthy_fleet_passes_every_check() -> None:
    checks = doctor.examine((HEALTHY,))
    assert {check.verdict for check in checks} == {CheckVerdict.OK}
    assert len(checks) == 12


@pytest.mark.requirement("FRC-027", "FRC-028", "FRC-030", "FRC-031", "FRC-035", "FRC-036")
@pytest.mark.parametrize(
    ("changed", "name", "verdict", "said"),
    [
        ({"spec": replace(FINE, scaling=Scaling(min=5, max=2))}, "document", "fail", "min"),
        ({"spec": replace(FINE, scaling=Scaling(min=2))}, "document", "warn", "zero"),
        ({"tended_ms": None}, "reconciler", "fail", "yet"),
        ({"tended_ms": 90_000}, "reconciler", "fail", "1m 30s"),
        ({"provider_frozen": True}, "provider", "warn", "froze"),
        (
            {"health": FleetHealth.PROVIDER_DEGRADED, "health_reason": "it is throttled"},
            *("provider", "fail", "throttled"),
        ),
        ({"shut": ("spot-a (no capacity)",)}, "provider", "warn", "spot-a"),
        ({"failed": (SICK,)}, "bootstrap", "warn", "no disk"),
        ({"failed": (SICK,) * 3}, "bootstrap", "fail", "3 failed"),
        ({"silent": (SICK,)}, "egress", "fail", "lets them out"),
        ({"silent": (SICK,), "enrolled": 2}, "egress", "warn", "2 others did"),
        ({"tokens": (SICK,)}, "enrolment", "warn", "builders-1: no disk"),
        ({"overdue": (SICK,)}, "deadlines", "warn", "builders-1 (failed)"),
        ({"unadmitted": (SICK,)}, "admission", "fail", "no disk"),
        ({"state": FleetState.FROZEN}, "capacity", "warn", "frozen"),
        ({"healthy": 1}, "capacity", "warn", "1 healthy, 2 wanted"),
        (
            {"healthy": 1, "health": FleetHealth.CAPACITY_CONSTRAINED},
            *("capacity", "fail", "offerings"),
        ),
        ({"hourly": 1_000_000}, "budget", "warn", "an hour"),
        ({"spent_today": 5_000_000}, "budget", "warn", "a day"),
    ],
)
@pytest.mark.requirement("PRI-071")
def test_each_check_finds_its_illness_and_no_other(
    changed: dict[str, object], name: str, verdict: str, said: str
) -> None:
    checks = doctor.examine((replace(HEALTHY, **changed),))
    (found,) = (check for check in checks if check.verdict is not CheckVerdict.OK)
    assert (found.name, found.verdict) == (f"builders: {name}", verdict)
    assert said in f"{found.sentence} {found.advice}"


@pytest.mark.requirement("FRC-035", "FRC-036", "FRC-037")
@pytest.mark.parametrize(
    ("door", "name", "said"),
    [
        (Door(url="http://127.0.0.1:8701", is_local=True), "egress", "finds itself"),
        (Door(takes_certificates=False), "enrolment", "the token of the data directory"),
        (Door(trouble="no authority here"), "enrolment", "no authority here"),
        (Door(agent_versions=">=0.3"), "versions", "builders-2 has 0.2.9"),
    ],
)
def test_a_door_that_machines_elsewhere_do_not_find_open_is_told(
    door: Door, name: str, said: str
) -> None:
    agents = {"builders-1": "0.3.1", "builders-2": "0.2.9"}
    elsewhere = replace(HEALTHY, spec=replace(FINE, provider="cloud"), agents=agents)
    checks = doctor.examine((elsewhere,), door=door)
    (found,) = (check for check in checks if check.verdict is not CheckVerdict.OK)
    assert (found.name, found.verdict) == (f"builders: {name}", "fail")
    assert said in found.sentence


def test_machines_of_this_host_come_by_its_own_token_and_address() -> None:
    door = Door(
        url="http://127.0.0.1:8701",
        is_local=True,
        takes_certificates=False,
        at_home=frozenset({FINE.provider}),
    )
    assert worst(doctor.examine((HEALTHY,), door=door)) is CheckVerdict.OK


@pytest.mark.requirement("FRC-037")
def test_an_agent_of_an_unknown_version_fits_no_range() -> None:
    unknown = replace(HEALTHY, agents={"builders-1": ""})
    assert worst(doctor.examine((unknown,))) is CheckVerdict.OK
    checks = doctor.examine((unknown,), door=Door(agent_versions=">=0.1"))
    (found,) = (check for check in checks if check.verdict is not CheckVerdict.OK)
    assert "builders-1 has an unknown one" in found.sentence


@pytest.mark.requirement("DEM-016")
@pytest.mark.requirement("TST-012")
def test_jobs_that_no_fleet_serves_are_counted_with_the_reasons() -> None:
    left = Unserved(requirement_class="dem_1", count=4, reasons={"builders": "no such tool"})
    *_, found = doctor.examine((HEALTHY,), (left,))
    assert found.verdict is CheckVerdict.WARN
    assert "4 waiting jobs" in found.sentence
    assert "builders: no such tool" in found.sentence
    assert worst(doctor.examine((HEALTHY,))) is CheckVerdict.OK
