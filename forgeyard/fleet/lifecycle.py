"""What happens next to one machine of a fleet, judged from what is known of it.

Nothing here asks a provider. A machine is made only after looking for it wherever a call may have
worked, and is given up only when its provider said that it is gone, or kept silent about it twice
with enough time in between (FRC-006, FRC-017 to FRC-019, INV-060).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forgeyard.model.capacity import CapacityInstanceState, MachineState, OperationState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetState, PhaseDeadlines
from forgeyard.model.image import ImageStanding
from forgeyard.model.runner import RunnerState

S, M, Op = CapacityInstanceState, MachineState, OperationState
ENDED_MACHINE: Final = frozenset({M.STOPPING, M.STOPPED, M.GONE})
SIGHTINGS: Final = 2
"""How often a machine must be looked for in vain before nobody expects it any more."""
KEPT_MS: Final = 24 * 3600 * 1000
"""How long a sick machine is kept for a look."""
WANT_NONE: Final = frozenset({FleetState.DRAINING, FleetState.DELETING})
NOT_WANTED: Final = "its fleet wants no more machines"
BAD_IMAGE: Final = "its image must not run any more"
RARELY_MS: Final = 60 * 1000
"""How often to see whether what is frozen still is."""
SELDOM_MS: Final = 30 * 60 * 1000
"""How often a machine is looked after of which its fleet hears whatever happens to it."""


class Act(StrEnum):
    """What is to be asked of the provider."""

    PROVISION = "provision"
    LOOK = "look"
    TERMINATE = "terminate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a kind of infrastructure is dealt with, in milliseconds."""

    look: int = 10_000
    """Between two looks at a machine that is coming or going."""
    visibility: int = 60_000
    """How long a machine that exists may be missing from what its provider says."""
    ask_again: int = 60_000
    """After so long the end of a machine is asked for again (FLT-013)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """What the store knows of the runner on a machine."""

    state: RunnerState
    admission: Admission
    admission_reason: str = ""
    leases: int = 0
    last_seen_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A machine as its row has it."""

    state: CapacityInstanceState
    fleet_state: FleetState = FleetState.ACTIVE
    provider_frozen: bool = False
    deadlines: PhaseDeadlines = field(default_factory=PhaseDeadlines)
    operation: OperationState = Op.PENDING
    calls: int = 0
    machine: MachineState | None = None
    """What its provider said last."""
    detail: str = ""
    has_ref: bool = False
    asked_at: int = 0
    """When its making or its end was asked for last."""
    ending_at: int = 0
    """When it began to end, however often that is asked for."""
    looked_at: int = 0
    missing_since: int | None = None
    sightings: int = 0
    next_at: int = 0
    due_at: int | None = None
    redeemed: bool = False
    """Whether its token was used."""
    runner: RunnerFacts | None = None
    may_keep_sick: bool = True
    """Whether its fleet has room for one more machine that is kept for a look."""
    is_released: bool = False
    """Whether an operator lets a quarantined machine go."""
    image: ImageStanding = ImageStanding.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state that it is in from now on, or what to ask, or how long to wait."""

    to: CapacityInstanceState | None = None
    reason: str = ""
    due_in: int | None = None
    """How long the new state may last."""
    act: Act | None = None
    wait: int = 0
    """Milliseconds until it is worth looking again."""


def judge(facts: Facts, pace: Pace, *, now: int) -> Verdict:
    """Tell what is next; asked again with what follows, it comes to an act or to a wait."""
    return _JUDGES[facts.state](facts, pace, now)


def _requested(facts: Facts, pace: Pace, now: int) -> Verdict:
    if facts.fleet_state in WANT_NONE:
        return Verdict(to=S.TERMINATED, reason=NOT_WANTED)
    if facts.image is not ImageStanding.FINE:
        return Verdict(to=S.TERMINATED, reason=BAD_IMAGE)
    if _is_frozen(facts):
        return Verdict(wait=RARELY_MS)
    return Verdict(to=S.PROVISIONING, reason="asked for", due_in=facts.deadlines.provision)


def _is_frozen(facts: Facts) -> bool:
    return facts.provider_frozen or facts.fleet_state is FleetState.FROZEN


def _provisioning(facts: Facts, pace: Pace, now: int) -> Verdict:
    if facts.image is ImageStanding.FINE and _is_up(facts):
        return Verdict(to=S.BOOTSTRAPPING, reason="seen running", due_in=facts.deadlines.bootstrap)
    trouble = _trouble(facts, pace, now, "it was not running in time")
    if trouble is not None:
        return trouble
    if facts.operation is Op.FAILED:
        return Verdict(to=S.FAILED, reason=facts.detail or "its provider refused it")
    if now < facts.next_at:
        return Verdict(wait=facts.next_at - now)
    if facts.operation is Op.PENDING and facts.machine is None:
        return Verdict(wait=RARELY_MS) if _is_frozen(facts) else Verdict(act=Act.PROVISION)
    if facts.operation is Op.UNKNOWN and _is_absent(facts, pace, now):
        # Nothing came of the call: the same wish once more, word for word.
        return Verdict(wait=RARELY_MS) if _is_frozen(facts) else Verdict(act=Act.PROVISION)
    return _watch(facts, pace, now)


def _is_up(facts: Facts) -> bool:
    """Tell whether a machine runs, by its provider's word or because its agent has come."""
    has_come = facts.redeemed or facts.runner is not None
    return facts.machine is M.RUNNING or (facts.machine is M.PENDING and has_come)


def _trouble(facts: Facts, pace: Pace, now: int, late: str) -> Verdict | None:
    """Tell whether a coming machine has ended, is late, or must not come any more."""
    if facts.image is not ImageStanding.FINE:
        return Verdict(to=S.FAILED, reason=BAD_IMAGE)
    if facts.fleet_state in WANT_NONE:
        return _ending(facts, NOT_WANTED)
    if facts.machine in ENDED_MACHINE:
        return Verdict(to=S.FAILED, reason=facts.detail or f"its machine is {facts.machine}")
    if facts.has_ref and _is_absent(facts, pace, now):
        return Verdict(to=S.FAILED, reason="its provider knows nothing of it any more")
    if facts.due_at is not None and now >= facts.due_at:
        return Verdict(to=S.FAILED, reason=late)
    return None


def _watch(facts: Facts, pace: Pace, now: int) -> Verdict:
    """Look, each time after twice as long: meanwhile a listing tells of what becomes of it."""
    if facts.missing_since is not None:
        return _look(facts, pace, now)
    began = facts.ending_at or facts.asked_at
    at = facts.looked_at + max(pace.look, facts.looked_at - began)
    at = max(at, facts.next_at)
    if facts.due_at is not None and now < facts.due_at:
        at = min(at, facts.due_at)
    return _look_at(at, now)


def _look(facts: Facts, pace: Pace, now: int) -> Verdict:
    """Look, unless that was done a moment ago, or its provider could not be asked then."""
    return _look_at(max(facts.looked_at + pace.look, facts.next_at), now)


def _look_at(at: int, now: int) -> Verdict:
    return Verdict(act=Act.LOOK) if at <= now else Verdict(wait=at - now)


def _is_absent(facts: Facts, pace: Pace, now: int) -> bool:
    """Tell whether silence about a machine has lasted long enough to believe it."""
    if facts.machine is M.GONE:
        return True
    since = facts.missing_since
    if since is None or facts.sightings < SIGHTINGS:
        return False
    return facts.looked_at - since >= pace.visibility


def _bootstrapping(facts: Facts, pace: Pace, now: int) -> Verdict:
    if facts.image is ImageStanding.FINE and (facts.redeemed or facts.runner is not None):
        return Verdict(to=S.ENROLLING, reason="it has enrolled", due_in=facts.deadlines.enrol)
    trouble = _trouble(facts, pace, now, "it did not enrol in time")
    return trouble or _watch(facts, pace, now)


def _enrolling(facts: Facts, pace: Pace, now: int) -> Verdict:
    runner = facts.runner
    if runner is not None and facts.image is ImageStanding.FINE:
        if runner.admission in (Admission.QUARANTINED, Admission.REJECTED):
            return _sick(runner, facts)
        if runner.admission is Admission.VERIFIED and runner.state is not RunnerState.OFFLINE:
            return Verdict(to=S.HEALTHY, reason="its runner is admitted")
    trouble = _trouble(facts, pace, now, "its runner was not admitted in time")
    return trouble or _watch(facts, pace, now)


def _sick(runner: RunnerFacts, facts: Facts) -> Verdict:
    why = runner.admission_reason or "no reason was given"
    return _kept(facts, f"its runner is {runner.admission}: {why}")


def _kept(facts: Facts, reason: str) -> Verdict:
    """Keep a machine for a look, as long as few are kept: many must not block a fleet."""
    if not facts.may_keep_sick:
        return Verdict(to=S.FAILED, reason=reason)
    return Verdict(to=S.QUARANTINED, reason=reason, due_in=KEPT_MS)


def _healthy(facts: Facts, pace: Pace, now: int) -> Verdict:
    lost = _lost(facts, pace, now)
    if lost is not None:
        return lost
    if facts.image is ImageStanding.CONDEMNED:
        return _kept(facts, BAD_IMAGE)
    if facts.missing_since is not None:
        # A listing did not name it, which proves nothing: it is looked at itself (FLT-035).
        return _look(facts, pace, now)
    runner = facts.runner
    if runner is not None and runner.admission in (Admission.QUARANTINED, Admission.REJECTED):
        # What it still runs may end: nothing new comes, for it is not admitted any more.
        return _sick(runner, facts) if runner.leases == 0 else Verdict(wait=pace.look)
    return Verdict(wait=SELDOM_MS)


def _lost(facts: Facts, pace: Pace, now: int) -> Verdict | None:
    """Tell whether a machine has gone by itself, or nobody on it answers any more."""
    if facts.machine in ENDED_MACHINE or _is_absent(facts, pace, now):
        said = facts.detail or f"its machine is {facts.machine or 'not seen any more'}"
        return Verdict(to=S.FAILED, reason=f"lost: {said}")
    runner = facts.runner
    if runner is None or runner.state is not RunnerState.OFFLINE:
        return None
    if now - runner.last_seen_at < facts.deadlines.bootstrap:
        return None
    return Verdict(to=S.FAILED, reason="lost: its runner has been silent for too long")


def _draining(facts: Facts, pace: Pace, now: int) -> Verdict:
    lost = _lost(facts, pace, now)
    if lost is not None:
        return Verdict(to=S.FAILED, reason=lost.reason)
    if facts.image is ImageStanding.CONDEMNED:
        return _kept(facts, BAD_IMAGE)
    runner = facts.runner
    leases = runner.leases if runner else 0
    if runner is not None and leases == 0 and runner.admission is Admission.QUARANTINED:
        return _sick(runner, facts)
    if leases == 0:
        return _ending(facts, "nothing runs on it any more")
    if facts.due_at is not None and now >= facts.due_at:
        return _ending(facts, f"{leases} leases did not end in time")
    return _until_due(facts, now)


def _quarantined(facts: Facts, pace: Pace, now: int) -> Verdict:
    if facts.is_released or (facts.due_at is not None and now >= facts.due_at):
        return _ending(facts, "kept long enough")
    return _until_due(facts, now)


def _until_due(facts: Facts, now: int) -> Verdict:
    left = SELDOM_MS if facts.due_at is None else facts.due_at - now
    return Verdict(wait=min(left, SELDOM_MS))


def _failed(facts: Facts, pace: Pace, now: int) -> Verdict:
    return _ending(facts, "what may be left of it goes")


def _ending(facts: Facts, reason: str) -> Verdict:
    """Have a machine end; an operator is told of one that takes too long."""
    return Verdict(to=S.TERMINATING, reason=reason, due_in=facts.deadlines.terminate)


def _terminating(facts: Facts, pace: Pace, now: int) -> Verdict:
    if _is_gone(facts, pace, now):
        return Verdict(to=S.TERMINATED, reason="its provider has nothing of it")
    if now < facts.next_at:
        return Verdict(wait=facts.next_at - now)
    if _is_frozen(facts):
        return _look(facts, pace, now) if facts.has_ref else Verdict(wait=RARELY_MS)
    if facts.machine is not M.GONE and now >= facts.asked_at + pace.ask_again:
        return Verdict(act=Act.TERMINATE)
    if facts.missing_since is not None and facts.sightings:
        # It ends as it should; only once more, after all the time that an answer may be late.
        return _look_at(max(facts.missing_since + pace.visibility, facts.next_at), now)
    return _watch(facts, pace, now)


def _is_gone(facts: Facts, pace: Pace, now: int) -> bool:
    """Tell whether nothing of it can exist: it was never asked for, or its provider has said so."""
    if facts.calls == 0 and not facts.has_ref:
        return True
    refused = facts.operation is Op.FAILED and facts.sightings > 0
    return refused or _is_absent(facts, pace, now)


def _terminated(facts: Facts, pace: Pace, now: int) -> Verdict:
    return Verdict()


_JUDGES: Final[Mapping[CapacityInstanceState, Callable[[Facts, Pace, int], Verdict]]] = {
    S.REQUESTED: _requested,
    S.PROVISIONING: _provisioning,
    S.BOOTSTRAPPING: _bootstrapping,
    S.ENROLLING: _enrolling,
    S.HEALTHY: _healthy,
    S.DRAINING: _draining,
    S.QUARANTINED: _quarantined,
    S.FAILED: _failed,
    S.TERMINATING: _terminating,
    S.TERMINATED: _terminated,
}
