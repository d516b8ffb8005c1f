"""What is a job's own and decides about its place: its class, its keys, whether it may be stopped.

What any runner must have for it is `capability.Requirements`; two jobs with the same requirements
fit the same runners whatever their wishes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import MaxLen

from forgeyard.model.equipment import Word
from forgeyard.model.units import Millis

MAX_KEYS = 16
MAX_NAMED = 16
"""Jobs that one job may be kept apart from, in one way."""
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


class SpotWish(StrEnum):
    """What a job thinks of machines that may be taken away at any time (SPT-001, SPT-002)."""

    ALLOWED = "allowed"
    PREFERRED = "preferred"
    AVOIDED = "avoided"
    FORBIDDEN = "forbidden"


class Domain(StrEnum):
    """What two runners may share, so that one failure can strike both (RTY-004)."""

    RUNNER = "runner"
    HOST = "host"
    SITE = "site"
    REGION = "region"
    TRUST = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Shards of one group go to different domains (SCO-018): must, if required, else should."""

    group: Word
    over: Domain = Domain.HOST
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """Jobs of the run that must be somewhere else, for an independent reproduction (RTY-006)."""

    jobs: Annotated[tuple[Word, ...], MaxLen(MAX_NAMED)]
    by: Domain = Domain.HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Everything of this sort that a job says."""

    scheduling_class: SchedulingClass | None = None
    """As written; a job that names none has the one that its priority implies."""
    keys: Keys = ()
    """Exclusivity keys: no two jobs that share one run at once."""
    preemption: Preemptibility = Preemptibility.NEVER
    spot: SpotWish | None = None
    """As written; a job that says nothing has the wish of its class."""
    spread: Spread | None = None
    distinct: Annotated[tuple[Distinct, ...], MaxLen(MAX_NAMED)] = ()
    beside: Word | None = None
    """The job of the run on whose host it must run (FAR-029)."""
    purpose: Purpose = Purpose.BUILD
    offline: Millis | None = None
    """How long it may run on when its runner cannot reach us; None: as long as policy says."""
