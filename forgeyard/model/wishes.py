"""What is a job's own and decides about its place: its class, its keys, whether it may be stopped.

What any runner must have for it is `capability.Requirements`; two jobs with the same requirements
fit the same runners whatever their wishes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import MaxLen

from forgeyard.model.equipment import Word

MAX_KEYS = 16
Keys = Annotated[tuple[Word, ...], MaxLen(MAX_KEYS)]


class SchedulingClass(StrEnum):
    """What sort of hurry a job is in (FAR-017)."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"
    RELEASE = "release"
    EMERGENCY = "emergency"


class Preemptibility(StrEnum):
    """Whether a running job may be stopped to make room (PRE-004)."""

    NEVER = "never"
    RESTARTABLE = "restartable"


class Purpose(StrEnum):
    """What a job is for, which decides what policy asks of its runner (DEV-011)."""

    BUILD = "build"
    TEST = "test"
    DEPLOY = "deploy"
    SIGNING = "signing"


CRITICAL_PURPOSES = frozenset({Purpose.DEPLOY, Purpose.SIGNING})
"""What harms others when it runs in the wrong place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Everything of this sort that a job says."""

    scheduling_class: SchedulingClass | None = None
    """As written; a job that names none has the one that its priority implies."""
    keys: Keys = ()
    """Exclusivity keys: no two jobs that share one run at once."""
    preemption: Preemptibility = Preemptibility.NEVER
    purpose: Purpose = Purpose.BUILD
