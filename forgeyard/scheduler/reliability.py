"""What a runner's own losses and failures count for, and how that fades (SCO-014, SCO-015).

Only what is the runner's own doing counts: a job that fails by itself says nothing of its host.
Nothing lasts: after a half-life of quiet, half of a penalty is forgotten.
"""

from forgeyard.model.job import FailureClass

FAULT = 1_000
"""Points for an attempt that was lost or failed through its runner."""
DISCONNECT = 500
"""Points for a session that fell silent."""
MOST = 16 * FAULT
"""Beyond this nothing is added, so that even the worst runner is as good as new in bounded time."""
FAULTS = frozenset(
    {
        FailureClass.RUNNER_LOST,
        FailureClass.INFRASTRUCTURE,
        FailureClass.SANDBOX_SETUP,
        FailureClass.TOOLCHAIN_UNAVAILABLE,
        FailureClass.INPUT_FETCH,
        FailureClass.INTERNAL,
    }
)
"""Failures that speak against the runner; all others are the job's, a user's or the server's."""


def decayed(penalty: int, *, since: int, now: int, half_life: int) -> int:
    """Tell what is left of a penalty: half after each half-life, on a straight line in between."""
    halves, rest = divmod(max(0, now - since), half_life)
    left = max(0, penalty) >> min(halves, 63)
    return left - left * rest // (2 * half_life)


def raised(penalty: int, *, by: int, since: int, now: int, half_life: int) -> int:
    """Add to what is left of a penalty, up to the most there can be."""
    return min(MOST, decayed(penalty, since=since, now=now, half_life=half_life) + by)
