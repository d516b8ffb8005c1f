"""Whether a job whose attempt ended badly is tried again, and when."""

from dataclasses import dataclass

from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.units import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again after `delay`; zero means at once."""

    delay: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Do not try again, for a reason in one readable phrase."""

    reason: str


def decide(
    policy: RetryPolicy, failure: FailureClass, charged: int, *, cancelled: bool
) -> Retry | GiveUp:
    """Decide on another attempt after `charged` attempts, the one that just ended included.

    A job that we stopped ourselves is always tried again. The delay doubles with every charged
    attempt and never exceeds the policy's longest.
    """
    if cancelled:
        return GiveUp(reason="the job was cancelled")
    if failure is FailureClass.PREEMPTED:
        return Retry(delay=Millis(0))
    if failure not in policy.on:
        return GiveUp(reason=f"{failure} is not a reason to try again")
    if charged >= policy.max_attempts:
        return GiveUp(reason=f"{charged} of {policy.max_attempts} attempts are used up")
    return Retry(delay=_back_off(policy, max(charged, 1)))


def _back_off(policy: RetryPolicy, charged: int) -> Millis:
    """Double the delay per attempt; 62 doublings exceed every delay there is."""
    return Millis(min(policy.max_delay, policy.delay << min(charged - 1, 62)))
