"""What a cloud says about a machine of its: the port through which such evidence is checked."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

MOST_EVIDENCE: Final = 8 * 1024
"""In characters; what AWS sends has less than 2,000."""


class Doubt(StrEnum):
    """Why a machine has not proved that it is the one that was meant."""

    MISSING = "missing"
    """It brought no evidence."""
    UNREADABLE = "unreadable"
    UNKNOWN_REGION = "unknown_region"
    """Nobody configured by which certificate this region is known."""
    FORGED = "forged"
    """The cloud did not sign this."""
    OTHER_ACCOUNT = "other_account"
    OTHER_REGION = "other_region"
    OTHER_INSTANCE = "other_instance"
    STALE = "stale"
    """The machine was launched too long ago, or in the future."""
    USED = "used"
    """The same machine has enrolled before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproved:
    """The evidence is not good enough; the detail is for those who look after runners."""

    doubt: Doubt
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a cloud has signed about a machine of its."""

    account: str
    region: str
    instance: str
    launched_at: int
    """In epoch milliseconds."""


class Verifier(Protocol):
    """Checks evidence of one cloud; whether the machine is the one that was meant is not asked."""

    def verify(self, evidence: str) -> Facts | Unproved:
        """Tell what is signed, or why nothing is; whatever is given, it never raises."""
        ...

    def knows(self, region: str) -> bool:
        """Tell whether evidence of this region could be checked; empty means of any."""
        ...
