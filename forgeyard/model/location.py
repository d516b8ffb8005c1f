"""Where a runner is, how long its machine may be counted on, and what an hour of it costs.

All of it is said by whoever runs the machine. It moves scores and keeps retries apart; it never
makes a runner able to do what it cannot.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le

from forgeyard.model.equipment import Word
from forgeyard.model.units import LARGEST

Micros = Annotated[int, Ge(0), Le(LARGEST)]
"""Money in millionths of the operator's one currency: costs are compared, never added up here."""


class ReliabilityClass(StrEnum):
    """How long a runner's machine may be counted on (SPT-003)."""

    STABLE = "stable"
    STANDARD = "standard"
    PREEMPTIBLE = "preemptible"
    """Its provider may take it away at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Which failures a runner shares with others, from near to far; `None` is unknown.

    Two unknown places are not the same place.
    """

    host: Word | None = None
    """The machine; agents on one machine share it."""
    site: Word | None = None
    """The rack, room or zone."""
    region: Word | None = None


SOMEWHERE = Location()
"""Where a runner is that says nothing of it."""
