"""The policy in force as an API process knows it: looked up once a second, not per request."""

import threading
from typing import Final

import sqlalchemy as sa

from forgeyard import clock
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import policies
from forgeyard.store.policies import PolicyInForce

FRESH_S: Final = 1.0


class PolicyCache:
    """Read the policy in force inside the caller's transaction, or remember it."""

    def __init__(self, built_in: SchedulingPolicy, *, fresh_s: float = FRESH_S) -> None:
        self.built_in = built_in
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._known: tuple[float, PolicyInForce] | None = None

    def read(self, connection: sa.Connection) -> SchedulingPolicy:
        """Give the policy that was in force a moment ago, and while it is fresh without asking."""
        return self.in_force(connection).policy

    def in_force(self, connection: sa.Connection) -> PolicyInForce:
        """Give it with its version."""
        with self._lock:
            known = self._known
        if known is not None and clock.monotonic() - known[0] < self._fresh_s:
            return known[1]
        asked_at = clock.monotonic()
        found = policies.current(connection, self.built_in)
        with self._lock:
            self._known = (asked_at, found)
        return found

    def forget(self) -> None:
        """Look again at the next request, for this process has just set another one."""
        with self._lock:
            self._known = None
