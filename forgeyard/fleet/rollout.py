"""Whether the rollout of an image goes on, is over, or is taken back: judged from counts alone."""

from dataclasses import dataclass

from forgeyard.model.fleet import Rollout
from forgeyard.model.image import ImageStanding, RolloutState

LOOK_MS = 5_000
PAUSED_MS = 60_000
S = RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """A rollout as the store has it; machines of the new image that came since its stage began."""

    state: RolloutState
    image: str
    standing: ImageStanding = ImageStanding.FINE
    is_paused: bool = False
    fleet_ends: bool = False
    """Whether its fleet is being deleted."""
    well: int = 0
    """Machines of the new image that are healthy."""
    well_since: int = 0
    """When the last of them became so."""
    gone_wrong: int = 0
    """Machines of it that came up and went wrong."""
    wrong: str = ""
    """How the last of them did."""
    jobs: int = 0
    """Jobs that succeeded on it."""
    others: int = 0
    """Machines of other images that nobody keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutVerdict:
    """The state that it is in from now on, or how long to wait for what."""

    to: RolloutState | None = None
    reason: str = ""
    wait: int = LOOK_MS
    """Milliseconds."""


def judge(facts: RolloutFacts, rules: Rollout, *, now: int) -> RolloutVerdict:
    """Tell what is next for a rollout that is under way."""
    taken_back = _taken_back(facts, rules)
    if taken_back:
        return RolloutVerdict(to=S.ROLLED_BACK, reason=taken_back)
    if facts.is_paused:
        return RolloutVerdict(reason="paused", wait=PAUSED_MS)
    return _canary(facts, rules, now) if facts.state is S.CANARY else _replacing(facts)


def _taken_back(facts: RolloutFacts, rules: Rollout) -> str:
    """Say why it cannot go on, if so."""
    if facts.fleet_ends:
        return "its fleet is being deleted"
    if facts.standing is not ImageStanding.FINE:
        return "its image must not run any more"
    if facts.gone_wrong < rules.failures:
        return ""
    if facts.state is S.REPLACING and facts.gone_wrong <= facts.well:
        return ""
    return f"{facts.gone_wrong} machines of it went wrong, the last one: {facts.wrong}"


def _canary(facts: RolloutFacts, rules: Rollout, now: int) -> RolloutVerdict:
    if facts.well < rules.canaries:
        return RolloutVerdict(reason=f"{facts.well} of {rules.canaries} canaries are well")
    left = facts.well_since + rules.soak - now
    if facts.jobs:
        return RolloutVerdict(to=S.REPLACING, reason="its canaries are well and do jobs")
    if left <= 0:
        return RolloutVerdict(to=S.REPLACING, reason="its canaries were well for long enough")
    reason = "its canaries are well; one job, or time, is to prove them"
    return RolloutVerdict(reason=reason, wait=min(left, LOOK_MS))


def _replacing(facts: RolloutFacts) -> RolloutVerdict:
    if facts.others:
        return RolloutVerdict(reason=f"{facts.others} machines have another image")
    return RolloutVerdict(to=S.DONE, reason="nothing has another image any more")
