"""Why somebody changes something that others rely on, and who that is; both are audited."""

from typing import Annotated

from pydantic import Field

from forgeyard.api.runs import CHANNEL, Body, Who
from forgeyard.store.shares import Intent

Why = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")]


class Because(Body):
    """Why somebody wants something, which is a must here, and who that is."""

    reason: Why
    actor: Who = "api"

    @property
    def intent(self) -> Intent:
        """Say it as the store keeps it."""
        return Intent(actor=self.actor, channel=CHANNEL, reason=self.reason)
