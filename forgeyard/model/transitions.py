"""The states of everything that lives, and the only changes of state there are.

Every write to a state column passes `check`. A state without an arrow out is final.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from forgeyard.errors import IllegalTransition
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.image import ImageState, RolloutState

State = TypeVar("State", bound=StrEnum)
Table = Mapping[State, frozenset[State]]


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SUPERSEDED = "superseded"


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    ELIGIBLE = "eligible"
    LEASED = "leased"
    PREPARING = "preparing"
    RUNNING = "running"
    UPLOADING_OUTPUTS = "uploading_outputs"
    RETRY_WAITING = "retry_waiting"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


class AttemptState(StrEnum):
    """Where one try of a job stands."""

    CREATED = "created"
    LEASED = "leased"
    PREPARING = "preparing"
    RUNNING = "running"
    UPLOADING_OUTPUTS = "uploading_outputs"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    REJECTED = "rejected"


class LeaseState(StrEnum):
    """Where the right to an attempt stands."""

    OFFERED = "offered"
    ACTIVE = "active"
    REJECTED = "rejected"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"


class SessionState(StrEnum):
    """Where one process of an agent stands."""

    OPEN = "open"
    SUPERSEDED = "superseded"
    CLOSED = "closed"
    LOST = "lost"


def _table(arrows: dict[State, tuple[State, ...]]) -> Table[State]:
    kind = type(next(iter(arrows)))
    return MappingProxyType({state: frozenset(arrows.get(state, ())) for state in kind})


_R, _J, _A, _L, _S = RunState, JobState, AttemptState, LeaseState, SessionState

RUN_TRANSITIONS: Table[RunState] = _table(
    {
        _R.QUEUED: (_R.RUNNING, _R.CANCELLING, _R.SUPERSEDED),
        _R.RUNNING: (_R.SUCCEEDED, _R.FAILED, _R.CANCELLING, _R.TIMED_OUT, _R.SUPERSEDED),
        _R.CANCELLING: (_R.CANCELLED, _R.TIMED_OUT, _R.SUPERSEDED),
    }
)
_ENDS = (_J.RETRY_WAITING, _J.FAILED, _J.TIMED_OUT, _J.CANCELLED, _J.LOST)
JOB_TRANSITIONS: Table[JobState] = _table(
    {
        _J.PENDING: (_J.ELIGIBLE, _J.SKIPPED, _J.CANCELLED),
        _J.ELIGIBLE: (_J.LEASED, _J.SKIPPED, _J.CANCELLED, _J.TIMED_OUT),
        _J.LEASED: (_J.PREPARING, _J.ELIGIBLE, _J.LOST, _J.CANCELLED, _J.TIMED_OUT),
        _J.PREPARING: (_J.RUNNING, *_ENDS),
        _J.RUNNING: (_J.UPLOADING_OUTPUTS, *_ENDS),
        _J.UPLOADING_OUTPUTS: (_J.SUCCEEDED, *_ENDS),
        _J.LOST: (_J.RETRY_WAITING, _J.FAILED, _J.CANCELLED),
        _J.RETRY_WAITING: (_J.ELIGIBLE, _J.CANCELLED),
    }
)
_STOPS = (_A.FAILED, _A.TIMED_OUT, _A.CANCELLED, _A.LOST)
ATTEMPT_TRANSITIONS: Table[AttemptState] = _table(
    {
        _A.CREATED: (_A.LEASED,),
        _A.LEASED: (_A.PREPARING, _A.REJECTED, _A.LOST, _A.CANCELLED),
        _A.PREPARING: (_A.RUNNING, *_STOPS),
        _A.RUNNING: (_A.UPLOADING_OUTPUTS, *_STOPS),
        _A.UPLOADING_OUTPUTS: (_A.SUCCEEDED, *_STOPS),
    }
)
_C = CapacityInstanceState
_TROUBLES = (_C.FAILED, _C.QUARANTINED, _C.TERMINATING)
CAPACITY_TRANSITIONS: Table[CapacityInstanceState] = _table(
    {
        _C.REQUESTED: (_C.PROVISIONING, _C.FAILED, _C.TERMINATED),
        _C.PROVISIONING: (_C.BOOTSTRAPPING, *_TROUBLES),
        _C.BOOTSTRAPPING: (_C.ENROLLING, *_TROUBLES),
        _C.ENROLLING: (_C.HEALTHY, *_TROUBLES),
        _C.HEALTHY: (_C.DRAINING, _C.FAILED, _C.QUARANTINED),
        _C.DRAINING: (_C.HEALTHY, *_TROUBLES),
        _C.QUARANTINED: (_C.TERMINATING,),
        _C.FAILED: (_C.TERMINATING, _C.TERMINATED),
        _C.TERMINATING: (_C.TERMINATED,),
    }
)
_I, _O = ImageState, RolloutState
IMAGE_TRANSITIONS: Table[ImageState] = _table(
    {
        _I.TRUSTED: (_I.COMPROMISED, _I.RETIRED),
        _I.COMPROMISED: (_I.TRUSTED, _I.RETIRED),
        _I.RETIRED: (_I.TRUSTED, _I.COMPROMISED),
    }
)
ROLLOUT_TRANSITIONS: Table[RolloutState] = _table(
    {
        _O.CANARY: (_O.REPLACING, _O.ROLLED_BACK),
        _O.REPLACING: (_O.DONE, _O.ROLLED_BACK),
    }
)
LEASE_TRANSITIONS: Table[LeaseState] = _table(
    {
        _L.OFFERED: (_L.ACTIVE, _L.REJECTED, _L.EXPIRED, _L.REVOKED),
        _L.ACTIVE: (_L.RELEASED, _L.EXPIRED, _L.REVOKED),
    }
)
SESSION_TRANSITIONS: Table[SessionState] = _table({_S.OPEN: (_S.SUPERSEDED, _S.CLOSED, _S.LOST)})

FINAL_JOB_STATES = frozenset(state for state, out in JOB_TRANSITIONS.items() if not out)
FINAL_RUN_STATES = frozenset(state for state, out in RUN_TRANSITIONS.items() if not out)
FINAL_ATTEMPT_STATES = frozenset(state for state, out in ATTEMPT_TRANSITIONS.items() if not out)
LIVE_LEASE_STATES = frozenset({LeaseState.OFFERED, LeaseState.ACTIVE})


def check(table: Table[State], before: State, after: State) -> None:
    """Refuse a change of state that the table does not list.

    Raises:
        IllegalTransition: always a bug of ours, never of a caller.
    """
    if after not in table[before]:
        allowed = ", ".join(sorted(table[before])) or "nothing: it is final"
        raise IllegalTransition(
            f"{type(before).__name__} may not go from {before} to {after}",
            field=type(before).__name__,
            value=f"{before} → {after}",
            allowed=allowed,
        )
