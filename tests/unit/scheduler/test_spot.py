"""What settles a job's wish about machines that may be taken away."""

import pytest

from forgeyard.model.capability import TrustClass
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.wishes import SchedulingClass, SpotWish
from forgeyard.scheduler.spot import spot_wish

GUARDED, OPEN = SchedulingPolicy(), SchedulingPolicy(spot_guard=0)


def settled(
    wish: SpotWish | None = None,
    hurry: SchedulingClass = SchedulingClass.NORMAL,
    trust: TrustClass | None = None,
    policy: SchedulingPolicy = GUARDED,
) -> SpotWish:
    """Settle a wish."""
    return spot_wish(wish, hurry=hurry, trust=trust, policy=policy)


@pytest.mark.requirement("SPT-001", "SPT-005", "SPT-006")
def test_a_class_has_its_own_mind_until_the_job_says_something() -> None:
    assert settled(hurry=SchedulingClass.BATCH) is SpotWish.PREFERRED
    assert settled() is SpotWish.ALLOWED
    assert settled(hurry=SchedulingClass.INTERACTIVE) is SpotWish.AVOIDED
    assert settled(SpotWish.FORBIDDEN, SchedulingClass.BATCH) is SpotWish.FORBIDDEN


@pytest.mark.requirement("SPT-002")
def test_the_guard_outweighs_what_release_and_signing_jobs_say() -> None:
    for hurry, trust in (
        (SchedulingClass.RELEASE, None),
        (SchedulingClass.NORMAL, TrustClass.SIGNING_RESTRICTED),
    ):
        assert settled(SpotWish.PREFERRED, hurry, trust) is SpotWish.FORBIDDEN
        assert settled(SpotWish.PREFERRED, hurry, trust, OPEN) is SpotWish.PREFERRED
