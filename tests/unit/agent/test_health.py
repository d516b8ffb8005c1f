"""A host is as well as its latest attempts: a pattern of its own failures tells, one does not."""

import pytest

from forgeyard.agent.health import DEGRADED_FROM, FORGOTTEN_AFTER_S, UNHEALTHY_FROM, Health
from forgeyard.model.job import FailureClass
from forgeyard.model.runner import RunnerHealth

OWN = FailureClass.SANDBOX_SETUP


class Hours:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.requirement("RUN-012")
def test_a_host_is_degraded_then_unhealthy_as_its_own_failures_add_up() -> None:
    health = Health(Hours())
    found = [health.now()[0]]
    for _ in range(UNHEALTHY_FROM + 2):
        health.ended(OWN)
        found.append(health.now()[0])
    assert found[:DEGRADED_FROM] == [RunnerHealth.HEALTHY] * DEGRADED_FROM
    assert set(found[DEGRADED_FROM:UNHEALTHY_FROM]) == {RunnerHealth.DEGRADED}
    assert set(found[UNHEALTHY_FROM:]) == {RunnerHealth.UNHEALTHY}
    assert health.now()[1] == "5 attempts in a row failed here, the last one by sandbox setup"


def test_what_jobs_and_servers_did_wrong_says_nothing_of_the_host() -> None:
    health = Health(Hours())
    for failure in (FailureClass.USER_COMMAND, FailureClass.TIMEOUT, FailureClass.INPUT_FETCH):
        for _ in range(UNHEALTHY_FROM):
            health.ended(failure)
    assert health.now() == (RunnerHealth.HEALTHY, "")
    for _ in range(DEGRADED_FROM):
        health.ended(FailureClass.USER_COMMAND)
        health.ended(OWN)
    assert health.now()[0] is RunnerHealth.DEGRADED, "nor does it clear the host"


def test_one_success_makes_a_host_well_and_so_does_time() -> None:
    clock = Hours()
    health = Health(clock)
    for _ in range(UNHEALTHY_FROM):
        health.ended(OWN)
    health.ended(None)
    assert health.now() == (RunnerHealth.HEALTHY, "")
    for _ in range(UNHEALTHY_FROM):
        health.ended(OWN)
    clock.now += FORGOTTEN_AFTER_S
    assert health.now()[0] is RunnerHealth.UNHEALTHY
    clock.now += 0.1
    assert health.now() == (RunnerHealth.HEALTHY, "")
