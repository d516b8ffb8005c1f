"""Offers as an agent receives them, and a clock that a test moves."""

import os
from dataclasses import replace

from forgeyard.agent.lease import HeldLease
from forgeyard.model.ids import AttemptId, JobId, LeaseId, RunId, SessionId
from forgeyard.model.protocol import Offer
from forgeyard.model.units import Millis
from tests.builders import a_job_spec

LEASE_ID = LeaseId(f"lea_{os.getpid()}")
"""Unlike that of a test beside this one: what carries another's mark would be killed with it."""


class Watch:
    """A monotonic clock that stands still until somebody moves it."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        """Read it."""
        return self.at

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds


def an_offer(**changed: object) -> Offer:
    """Describe an offer: a job of one step, 30 s to accept, 5 s of grace."""
    offer = Offer(
        lease_id=LEASE_ID,
        epoch=3,
        attempt_id=AttemptId("att_1"),
        attempt_number=2,
        job_id=JobId("job_1"),
        run_id=RunId("run_1"),
        run_name="demo",
        spec=a_job_spec(),
        inputs=(),
        ttl=Millis(30_000),
        grace=Millis(5_000),
    )
    return replace(offer, **changed)


def a_held_lease(watch: Watch, **changed: object) -> HeldLease:
    """Hold a lease that nobody has acknowledged yet."""
    return HeldLease(an_offer(**changed), session_id=SessionId("ses_1"), clock=watch)
