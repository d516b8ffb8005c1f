"""How much goes wrong in one seed, and how often it did: every seed has a climate of its own."""

import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """What can go wrong or interfere; each is counted when it has happened."""

    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    REQUEST_TWICE = "request arrived twice"
    REQUEST_LATE = "request arrived after a younger one"
    CUT_OFF = "host cut off"
    FROZEN = "host frozen"
    CRASHED = "host crashed with everything on it"
    AGENT_CRASHED = "agent crashed, its processes went on"
    DRAINED_ITSELF = "agent drained and left"
    BOOTED = "host booted for the first time"
    UNWELL = "host under pressure or unhealthy"
    BROKEN = "database broke a transaction off"
    UNDONE = "database rolled back at commit"
    UNHEARD = "database committed and nobody heard"
    INTERLEAVED = "others acted between two transactions of one call"
    SERVICE_OUT = "no API served renewals"
    UPKEEP_OUT = "upkeep stood still"
    RIVAL = "a second scheduler planned"
    COMMIT_LATE = "a plan was committed late"
    COMMIT_TWICE = "a plan was committed twice"
    COMMIT_NEVER = "a scheduler died between plan and commit"
    RELAY_DIED = "a relay died with events in its hands"
    SENT_TWICE = "an event was sent, and sent again"
    WAKE_LOST = "a wake was claimed and never told"
    TEMPORAL_OUT = "Temporal did not answer"
    FLOW_ENDED = "an operator terminated a workflow"
    FLOW_LATE = "a workflow settled late"
    RUN_CANCELLED = "run cancelled"
    JOB_CANCELLED = "job cancelled"
    RUNNER_DRAINED = "runner drained by an operator"
    RUNNER_EMPTIED = "runner drained and its jobs cancelled"
    RUNNER_DECLARED = "runner declared unhealthy"
    QUEUE_PAUSED = "queue paused"
    QUOTA_SET = "quota changed"
    POLICY_SET = "policy changed"
    REORDERED = "run reprioritised"
    RERUN = "failed jobs run again"
    ASKED_TWICE = "a submission was repeated under its key"


@dataclass(kw_only=True)
class Weather:
    """The odds of one seed; nothing goes wrong any more once it has cleared up."""

    rng: random.Random
    lost: float = 0.0
    twice: float = 0.0
    database: float = 0.0
    interleaved: float = 0.0
    temporal: float = 0.0
    flows: float = 0.0
    is_calm: bool = False
    happened: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, rng: random.Random) -> "Weather":
        """Draw the climate of a seed: some faults are rare in it and others common."""
        return cls(
            rng=rng,
            lost=rng.choice((0.0, 0.03, 0.15)),
            twice=rng.choice((0.0, 0.05, 0.3)),
            database=rng.choice((0.0, 0.02, 0.06)),
            interleaved=rng.choice((0.05, 0.2, 0.4)),
            temporal=rng.choice((0.05, 0.2)),
            flows=rng.choice((0.1, 0.4)),
        )

    def worsen(self, factor: float) -> None:
        """Let messages be lost and repeated more often by a factor, and by something anyway."""
        if factor > 1:
            self.lost, self.twice = factor * (self.lost + 0.02), factor * (self.twice + 0.05)

    def strikes(self, fault: str, odds: float) -> bool:
        """Decide whether a fault happens now, and count it if so."""
        if self.is_calm or self.rng.random() >= odds:
            return False
        self.happened[fault] += 1
        return True

    def note(self, what: str) -> None:
        """Count something that has happened."""
        self.happened[what] += 1
