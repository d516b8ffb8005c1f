"""Which planned placements may become leases, judged on rows that are locked.

The plan was made from a snapshot; this is the second, binding look. It grants as many placements
as fit, in the order asked, and says for every other one why not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forgeyard.model.equipment import NO_EQUIPMENT, DeviceShare, Equipment, EquipmentRequirement
from forgeyard.model.units import Resources
from forgeyard.scheduler.devices import Held, allocate, plus
from forgeyard.scheduler.gates import GateCode, Gates
from forgeyard.scheduler.holds import Holds


class Verdict(StrEnum):
    """What became of one planned placement."""

    GRANTED = "granted"
    JOB_GONE = "job_gone"
    """No longer eligible, or another scheduler holds it."""
    CANCELLED = "cancelled"
    RUNNER_UNAVAILABLE = "runner_unavailable"
    """Not one of the candidates takes work any more."""
    NO_CAPACITY = "no_capacity"
    """A candidate takes work but has no room left, or not the devices."""
    PAUSED = "paused"
    """One of its scopes was paused meanwhile."""
    QUOTA_BLOCKED = "quota_blocked"
    """One of its scopes has used up its quota."""
    KEY_CONTENDED = "key_contended"
    """Another job holds one of its exclusivity keys."""
    POLICY_CHANGED = "policy_changed"
    """The plan was made under a policy that is no longer in force."""


_BY_GATE = {
    GateCode.QUEUE_PAUSED: Verdict.PAUSED,
    GateCode.QUOTA_BLOCKED: Verdict.QUOTA_BLOCKED,
    GateCode.KEY_HELD: Verdict.KEY_CONTENDED,
    # Never looked for at commit: by then the batch is as small as it should be.
    GateCode.BACKPRESSURE: Verdict.PAUSED,
}


class JobStanding(StrEnum):
    """How a locked job stands; one that could not be locked is simply absent."""

    ELIGIBLE = "eligible"
    CANCELLED = "cancelled"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStanding:
    """How a locked runner stands."""

    schedulable: bool
    free: Resources
    equipment: Equipment = field(default_factory=Equipment)
    held: Held = field(default_factory=dict[str, int])
    """What leases hold of its devices; read only where somebody wants one."""
    pool_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRequest:
    """A planned placement: runners with their scores, best first."""

    job_id: str
    resources: Resources
    candidates: tuple[tuple[str, int], ...]
    name: str = ""
    scopes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    devices: EquipmentRequirement = NO_EQUIPMENT
    lasts: int = 0
    """How long it may last at most, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The verdict on one request; `runner_id` is set exactly when it was granted."""

    job_id: str
    verdict: Verdict
    runner_id: str | None = None
    score: int = 0
    devices: tuple[DeviceShare, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Left:
    """What a runner has left while requests are judged."""

    free: Resources
    equipment: Equipment
    held: Held

    def devices_for(
        self, request: GrantRequest, *, withheld: Resources
    ) -> tuple[DeviceShare, ...] | None:
        """Choose the devices of a request that fits beside what is held; `None` if it does not."""
        if not request.resources.fits_in(self.free.minus(withheld)):
            return None
        return allocate(request.devices, self.equipment, self.held)

    def give(self, request: GrantRequest, devices: tuple[DeviceShare, ...]) -> None:
        """Take away what a request got."""
        self.free = self.free.minus(request.resources)
        self.held = plus(self.held, devices) if devices else self.held


def grant(
    requests: Sequence[GrantRequest],
    jobs: Mapping[str, JobStanding],
    runners: Mapping[str, RunnerStanding],
    *,
    gates: Gates,
    holds: Holds | None = None,
) -> tuple[Granted, ...]:
    """Judge every request in the order asked, never giving away more than is free.

    Quotas may be used up to their burst: the plan has seen to it that nobody else wants that.
    A request whose first runner is full falls back on its next candidates; a job asked for twice
    is granted once.
    """
    left = {
        runner_id: _Left(free=runner.free, equipment=runner.equipment, held=runner.held)
        for runner_id, runner in runners.items()
        if runner.schedulable
    }
    standing = dict(jobs)
    holds = Holds() if holds is None else holds
    answers: list[Granted] = []
    for request in requests:
        judged = standing.get(request.job_id, JobStanding.GONE)
        answer = _judge(request, judged, left, runners=runners, gates=gates, holds=holds)
        if answer.runner_id is not None:
            left[answer.runner_id].give(request, answer.devices)
            standing[request.job_id] = JobStanding.GONE
            gates.admit(request, runners[answer.runner_id].pool_id)
            holds.dissolve(request.job_id)
        answers.append(answer)
    return tuple(answers)


def refuse_all(job_ids: Iterable[str], verdict: Verdict) -> tuple[Granted, ...]:
    """Refuse every job for one reason that lies in none of them."""
    return tuple(Granted(job_id=job_id, verdict=verdict) for job_id in job_ids)


def _judge(
    request: GrantRequest,
    standing: JobStanding,
    left: Mapping[str, _Left],
    *,
    runners: Mapping[str, RunnerStanding],
    gates: Gates,
    holds: Holds,
) -> Granted:
    if standing is JobStanding.CANCELLED:
        return Granted(job_id=request.job_id, verdict=Verdict.CANCELLED)
    if standing is JobStanding.GONE:
        return Granted(job_id=request.job_id, verdict=Verdict.JOB_GONE)
    gate = gates.against_bursting(request)
    if gate is not None:
        return Granted(job_id=request.job_id, verdict=_BY_GATE[gate.code])
    working = [(name, score) for name, score in request.candidates if name in left]
    pools = gates.pools_against_bursting(request)
    refused = Verdict.NO_CAPACITY if working else Verdict.RUNNER_UNAVAILABLE
    for name, score in working:
        devices = left[name].devices_for(request, withheld=holds.withheld(request, name))
        if devices is not None:
            pool = pools.get(runners[name].pool_id)
            if pool is None:
                return Granted(
                    job_id=request.job_id,
                    verdict=Verdict.GRANTED,
                    runner_id=name,
                    score=score,
                    devices=devices,
                )
            refused = _BY_GATE[pool.code]
    return Granted(job_id=request.job_id, verdict=refused)
