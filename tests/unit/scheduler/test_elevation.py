import pytest

from forgeyard.errors import Forbidden
from forgeyard.model.job import Priority
from forgeyard.model.policy import PriorityPolicy
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.elevation import check_elevation, is_elevated

BUILT_IN = PriorityPolicy()


def allowed(
    priority: Priority,
    policy: PriorityPolicy = BUILT_IN,
    *,
    named: SchedulingClass | None = None,
    reason: str | None = None,
) -> bool:
    try:
        check_elevation(priority, named, policy, reason=reason, field="priority")
    except Forbidden as error:
        return not (error.field == "priority" and error.allowed)
    return True


@pytest.mark.requirement("FAR-007", "ACC-019")
def test_an_emergency_needs_a_reason_and_nothing_else_does_by_default() -> None:
    assert [priority for priority in Priority if not allowed(priority)] == [Priority.EMERGENCY]
    assert allowed(Priority.EMERGENCY, reason="the site is down")


@pytest.mark.requirement("FAR-007", "ACC-019")
def test_the_policy_draws_both_lines() -> None:
    strict = PriorityPolicy(free=100, elevated=300)
    assert [p for p in Priority if allowed(p, strict)] == [Priority.LOW, Priority.NORMAL]
    with_reason = [p for p in Priority if allowed(p, strict, reason="because")]
    assert with_reason == [p for p in Priority if p is not Priority.EMERGENCY]


@pytest.mark.requirement("FAR-017")
def test_a_class_as_high_as_a_priority_needs_the_same_permission() -> None:
    assert not allowed(Priority.LOW, named=SchedulingClass.EMERGENCY)
    assert allowed(Priority.LOW, named=SchedulingClass.RELEASE)
    assert is_elevated(Priority.LOW, SchedulingClass.EMERGENCY, BUILT_IN)
