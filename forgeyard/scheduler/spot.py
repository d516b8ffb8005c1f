"""What a job thinks of machines that may be taken away at any time (SPT-001, SPT-002)."""

from forgeyard.model.capability import TrustClass
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.wishes import SchedulingClass, SpotWish

_BY_CLASS = {
    SchedulingClass.BATCH: SpotWish.PREFERRED,
    SchedulingClass.NORMAL: SpotWish.ALLOWED,
    SchedulingClass.INTERACTIVE: SpotWish.AVOIDED,
    SchedulingClass.RELEASE: SpotWish.AVOIDED,
    SchedulingClass.EMERGENCY: SpotWish.AVOIDED,
}


def spot_wish(
    wish: SpotWish | None,
    *,
    hurry: SchedulingClass,
    trust: TrustClass | None,
    policy: SchedulingPolicy,
) -> SpotWish:
    """Settle a job's wish: the policy's guard first, then its own word, then its class."""
    guarded = hurry is SchedulingClass.RELEASE or trust is TrustClass.SIGNING_RESTRICTED
    if guarded and policy.spot_guard:
        return SpotWish.FORBIDDEN
    return _BY_CLASS[hurry] if wish is None else wish
