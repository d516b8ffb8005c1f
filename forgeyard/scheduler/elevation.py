"""Who may ask for which priority: the one place that says so (FAR-007, ACC-019).

Up to one level anybody may; above it, up to another, only with a reason, which is audited.
"""

from forgeyard.errors import Forbidden
from forgeyard.model.job import Priority
from forgeyard.model.policy import PriorityPolicy
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.snapshot import CLASS_OF

_LEVEL = {scheduling_class: BASE[priority] for priority, scheduling_class in CLASS_OF.items()}


def is_elevated(
    priority: Priority, scheduling_class: SchedulingClass | None, policy: PriorityPolicy
) -> bool:
    """Tell whether a priority, or a class as high as one, is above what anybody may ask for."""
    return _wanted(priority, scheduling_class) > policy.free


def check_elevation(
    priority: Priority,
    scheduling_class: SchedulingClass | None,
    policy: PriorityPolicy,
    *,
    reason: str | None,
    field: str,
) -> None:
    """Refuse a priority that may not be asked for, or not without saying why.

    Raises:
        Forbidden: naming the field and what is allowed.
    """
    wanted = _wanted(priority, scheduling_class)
    if wanted <= policy.free:
        return
    named = priority if BASE[priority] == wanted else f"class {scheduling_class}"
    if wanted > policy.elevated:
        raise Forbidden(
            f"{field}: the policy allows nobody {named}",
            field=field,
            value=named,
            allowed=_up_to(max(policy.free, policy.elevated)),
        )
    if not reason:
        raise Forbidden(
            f"{field}: {named} must be asked for with a reason",
            field=field,
            value=named,
            allowed=f"{_up_to(policy.free)}, or an elevation with its reason",
        )


def _wanted(priority: Priority, scheduling_class: SchedulingClass | None) -> int:
    named = 0 if scheduling_class is None else _LEVEL[scheduling_class]
    return max(BASE[priority], named)


def _up_to(level: int) -> str:
    return ", ".join(priority for priority in Priority if BASE[priority] <= level)
