"""Every number an operator may turn, in one versioned document (MOD-004, MOD-005).

Durations are milliseconds.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field

from forgeyard.model.units import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """Deadlines of the lease protocol (DESIGN: offer 30 s, execution 60 s, renewal 15 s)."""

    offer_ttl: Millis = Millis(30_000)
    execution_ttl: Millis = Millis(60_000)
    renew_every: Millis = Millis(15_000)
    connectivity_grace: Millis = Millis(60_000)
    longest_back_off: Millis = Millis(15_000)
    deadline_slack: Millis = Millis(15_000)
    """How much later than the agent the server enforces the agent's own deadlines."""
    settle_within: Millis = Millis(10_000)
    session_silence: Millis = Millis(60_000)
    """A session that has not been heard of for so long is lost, and its runner offline."""
    refusal_memory: Millis = Millis(30_000)
    """How long a runner that turned a job down, or let its offer lapse, is not asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPolicy:
    """Limits of the sweep that enforces deadlines."""

    period: Millis = Millis(2_000)
    expiries_per_sweep: int = 50
    renewal_gap: Millis = Millis(15_000)
    """Silence of the renewal service from which on it counts as an outage of ours."""
    outbox_age: Millis = Millis(5_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """What the soft scores count for against each other (SCO-003)."""

    headroom: int = 2
    load: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """How a cycle orders, scores and limits itself."""

    version: int = 1
    batch: int = 200
    candidates: int = 3
    """How many next-best runners a decision carries for the commit to fall back on."""
    aging_step: Millis = Millis(60_000)
    """Waiting this long raises the effective priority by one point."""
    aging_limit: int = 399
    """The effective priority up to which waiting lifts a job: one limit for all, so that the oldest
    wins there and nobody starves. Emergencies (400) stay above it."""
    weights: ScoreWeights = field(default_factory=ScoreWeights)
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    sweep: SweepPolicy = field(default_factory=SweepPolicy)

    def digest(self) -> str:
        """Name this very policy; recorded with every placement."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"
