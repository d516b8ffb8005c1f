"""How well this host does its work, judged by how its latest attempts ended (RUN-012).

One failure of its own is nothing; several in a row with no success between them are a pattern. They
are forgotten after a while, for a host that gets no work could never show that it is well again.
"""

from collections import deque

from forgeyard.agent.lease import Clock
from forgeyard.model.job import FailureClass
from forgeyard.model.runner import RunnerHealth

DEGRADED_FROM = 2
UNHEALTHY_FROM = 5
FORGOTTEN_AFTER_S = 600.0
MOST_REASON = 300
OWN_FAILURES = frozenset(
    {
        FailureClass.SANDBOX_SETUP,
        FailureClass.INFRASTRUCTURE,
        FailureClass.INTERNAL,
        FailureClass.TOOLCHAIN_UNAVAILABLE,
    }
)
"""Ends of attempts that this host is to blame for; a server that does not answer is not it."""


class Health:
    """The latest failures of this host's own since it last did anything right."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: deque[tuple[float, FailureClass]] = deque(maxlen=UNHEALTHY_FROM)
        self.quarantined = ""
        """Why nothing may run here until the agent was started anew; empty if all may."""

    def quarantine(self, reason: str) -> None:
        """Take no job any more: what one left behind, the next would meet (FOP-013)."""
        self.quarantined = self.quarantined or f"quarantined: {reason}"[:MOST_REASON]

    def ended(self, failure: FailureClass | None) -> None:
        """Take in how an attempt ended; `None` is a success, a job's own failure says nothing."""
        if failure is None:
            self._failures.clear()
        elif failure in OWN_FAILURES:
            self._failures.append((self._clock(), failure))

    def now(self) -> tuple[RunnerHealth, str]:
        """Tell how well this host is, and why it is not."""
        if self.quarantined:
            return RunnerHealth.UNHEALTHY, self.quarantined
        since = self._clock() - FORGOTTEN_AFTER_S
        while self._failures and self._failures[0][0] < since:
            self._failures.popleft()
        count = len(self._failures)
        if count < DEGRADED_FROM:
            return RunnerHealth.HEALTHY, ""
        worst = count >= UNHEALTHY_FROM
        last = self._failures[-1][1].value.replace("_", " ")
        reason = f"{count} attempts in a row failed here, the last one by {last}"
        return RunnerHealth.UNHEALTHY if worst else RunnerHealth.DEGRADED, reason
