"""What one cycle may know: eligible jobs and registered runners, as they were at one instant.

Everything here is a value; where the values come from is the store's business.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from types import MappingProxyType

from forgeyard.model.capability import Capabilities, Requirements, TrustClass
from forgeyard.model.equipment import DeviceShare
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.job import Priority
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.runner import ResourcePressure, RunnerState
from forgeyard.model.units import Resources
from forgeyard.model.wishes import Preemptibility, SchedulingClass, SpotWish, Wishes
from forgeyard.scheduler.bounds import Bound
from forgeyard.scheduler.devices import Held
from forgeyard.scheduler.holds import HeldRoom
from forgeyard.scheduler.readings import Readings
from forgeyard.scheduler.room import PLAIN, allocatable
from forgeyard.scheduler.scopes import SchedulingScope
from forgeyard.scheduler.standing import Freshness, SchedulingPool, fingerprint

CLASS_OF = MappingProxyType(
    {
        Priority.LOW: SchedulingClass.BATCH,
        Priority.NORMAL: SchedulingClass.NORMAL,
        Priority.HIGH: SchedulingClass.INTERACTIVE,
        Priority.RELEASE_CRITICAL: SchedulingClass.RELEASE,
        Priority.EMERGENCY: SchedulingClass.EMERGENCY,
    }
)
"""The class of a job that names none."""

DEFAULT_POOL = SchedulingPool()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingJob:
    """A job that waits for a runner."""

    job_id: str
    run_id: str
    name: str
    tenant_id: str = "tnt_default"
    organization_id: str = "org_default"
    project_id: str = "prj_default"
    queue_id: str = "que_default"
    requirements: Requirements = field(default_factory=Requirements)
    resources: Resources = field(default_factory=Resources)
    priority: Priority = Priority.NORMAL
    requirement_class: str = ""
    """Digest of requirements and resources; jobs that share it fit the same runners."""
    eligible_at: int = 0
    created_at: int = 0
    refused_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """Runners that are not to be asked for now, and why."""
    attempts_made: int = 0
    adjustment: int = 0
    """What an operator or the policy adds to its priority; never past the limit of aging."""
    lasts: int = 0
    """How long an attempt may take at most, in milliseconds."""
    has_inputs: bool = False
    """Whether its runner must fetch anything before the first step."""
    wishes: Wishes = field(default_factory=Wishes)
    spot: SpotWish = SpotWish.ALLOWED
    """What it thinks of machines that may be taken away, all things considered."""
    inputs: tuple[tuple[str, int], ...] = ()
    """What it unpacks, by digest, and how many bytes each has (SCO-027)."""
    closures: tuple[str, ...] = ()
    """Keys of the dependency caches that a job of its name used last (SCO-030)."""
    home: str | None = None
    """The runner where a job of its name last succeeded."""
    losses: tuple[str, ...] = ()
    """The runners that failed its attempts through their own fault (RTY-001)."""
    bounds: tuple[Bound, ...] = ()
    """Where it must be in view of other jobs; a cycle finds out when its turn comes."""

    @property
    def scopes(self) -> tuple[str, str, str, str]:
        """List the scopes that it belongs to, outermost first."""
        return (self.tenant_id, self.organization_id, self.project_id, self.queue_id)

    @property
    def keys(self) -> tuple[str, ...]:
        """List the exclusivity keys that it must hold to run."""
        return self.wishes.keys

    @property
    def scheduling_class(self) -> SchedulingClass:
        """Tell what sort of hurry it is in (FAR-017)."""
        return self.wishes.scheduling_class or CLASS_OF[self.priority]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds a lease, as preemption looks at it."""

    lease_id: str
    job_id: str
    runner_id: str
    resources: Resources
    priority: Priority = Priority.NORMAL
    preemption: Preemptibility = Preemptibility.NEVER
    since: int = 0
    attempts_made: int = 1
    is_uploading: bool = False
    is_stopping: bool = False
    """It is being cancelled, or cleared for another job already."""
    preempted_at: int | None = None
    """When it was last stopped for another job."""
    devices: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRunner:
    """A registered runner, whether or not it takes work at present."""

    runner_id: str
    name: str
    session_id: str | None = None
    state: RunnerState = RunnerState.ONLINE
    suspect: bool = False
    """It lost a lease and has not been heard of since."""
    pool: SchedulingPool = DEFAULT_POOL
    trust: TrustClass = TrustClass.TRUSTED_INTERNAL
    """From the registration record, never from the capability report (ELG-042)."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    capability_digest: str = ""
    total: Resources = field(default_factory=Resources)
    headroom: Resources = field(default_factory=Resources)
    reserved: Resources = field(default_factory=Resources)
    pressure: ResourcePressure = ResourcePressure.NORMAL
    held_devices: Held = field(default_factory=dict[str, int])
    """What leases hold of its devices."""
    cpu_percent: int = PLAIN
    """How much of its CPU the policy lets jobs hold (RES-017)."""
    degraded: bool = False
    """It works, but says itself that something is wrong with it (RUN-013)."""
    takes_up_to: int = 400
    """While it is degraded: the base priority up to which policy lets it take jobs."""
    location: Location = SOMEWHERE
    holdings: Holdings = NOTHING_HELD
    """What it need not fetch, as far as it said (SCO-009)."""
    holdings_digest: str = ""
    penalty: int = 0
    """For losses and failures of its own, as of `penalty_at`; it decays (SCO-014)."""
    penalty_at: int = 0
    reported_at: int = 0
    """When its capability report came (ELG-029)."""
    freshness: Freshness = Freshness.FRESH
    """What policy makes of the age of that report."""

    @property
    def pool_id(self) -> str:
        """Name its pool."""
        return self.pool.pool_id

    @property
    def fingerprint(self) -> str:
        """Name what it is judged by."""
        return fingerprint(self.capability_digest, self.pool.pool_id, self.pool.version)

    @property
    def allocatable(self) -> Resources:
        """Tell what jobs may ever hold here: everything but the headroom (RES-002, RES-006)."""
        return allocatable(self.total, self.headroom, cpu_percent=self.cpu_percent)

    @property
    def free(self) -> Resources:
        """Tell what no lease holds right now; negative where there is less than there was."""
        return self.allocatable.minus(self.reserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """Since when a job's class is not looked at, and until which generation of the fleet."""

    since_at: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One instant of a partition, and the only input of a plan beside the policy."""

    partition: str
    taken_at: int
    """Epoch milliseconds by the database's clock: the `now` of every rule."""
    jobs: tuple[SchedulingJob, ...]
    runners: tuple[SchedulingRunner, ...]
    waiting: int
    """Every eligible job, also those beyond the ones loaded."""
    scopes: Mapping[str, SchedulingScope] = field(default_factory=dict[str, SchedulingScope])
    """By id, with what they have used; one that is missing has no limits and a weight of one."""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Exclusivity keys that are held, each with the name of the job that holds it."""
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    """The runner of every job that a waiting one is bound to, by `kin.name_of`."""
    shards: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """By `kin.group_of`, how many shards each runner has that run or succeeded."""
    storage: Location = SOMEWHERE
    """Where the inputs come from that no runner has."""
    generation: int = 0
    """Of the fleet: what was impossible for good when it was lower may be possible now."""
    parked: int = 0
    """How many of the waiting jobs were left out, for their class is parked at this generation."""
    passing: Mapping[str, int] = field(default_factory=dict[str, int])
    """Jobs for which a reason ends by itself, each with the instant of the next such end."""
    held_room: tuple[HeldRoom, ...] = ()
    """Room that is kept for single jobs."""
    running: tuple[RunningJob, ...] = ()
    """Jobs that could be stopped for others; empty while policy forbids that."""
    readings: Readings = field(default_factory=Readings)
    damaged: Mapping[str, str] = field(default_factory=dict[str, str])
    """Waiting jobs whose rows cannot be read, each with the reason; they are never placed."""

    def digest(self, lines: "RunnerLines | None" = None) -> str:
        """Name this very snapshot, whatever order its parts come in (MOD-005).

        Who names one snapshot after the other passes what it remembers of the runners.
        """
        content = [
            self.partition,
            self.taken_at,
            self.waiting,
            [self.generation, self.parked, sorted(self.passing.items())],
            sorted(_job_line(job) for job in self.jobs),
            sorted(_scope_line(scope) for scope in self.scopes.values()),
            sorted(self.keys.items()),
            sorted(self.named.items()),
            sorted((group, sorted(counts.items())) for group, counts in self.shards.items()),
            _location_line(self.storage),
            sorted(_hold_line(hold) for hold in self.held_room),
            sorted(_running_line(one) for one in self.running),
            list(astuple(self.readings)),
        ]
        runners = (RunnerLines() if lines is None else lines).of(self.runners)
        canonical = "\n".join((_canonical(content), *sorted(runners)))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


class RunnerLines:
    """What decides about each runner, as a line of text, kept for those that stay as they were.

    Safe to share among threads: at worst a line is written twice.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[SchedulingRunner, str]] = {}

    def of(self, runners: Iterable[SchedulingRunner]) -> list[str]:
        """Write the lines of some runners, and forget all others."""
        before, known = self._known, dict[str, tuple[SchedulingRunner, str]]()
        for runner in runners:
            line = before.get(runner.runner_id)
            if line is None or line[0] is not runner:
                line = (runner, _canonical(_runner_line(runner)))
            known[runner.runner_id] = line
        self._known = known
        return [line for _, line in known.values()]


def _canonical(content: Sequence[object]) -> str:
    return json.dumps(content, separators=(",", ":"))


def _job_line(job: SchedulingJob) -> list[object]:
    """List what decides about a job; its class stands for its requirements."""
    return [
        job.job_id,
        job.requirement_class,
        _amounts(job.resources),
        job.priority,
        job.eligible_at,
        job.attempts_made,
        sorted(job.refused_by.items()),
        job.scopes,
        job.adjustment,
        [job.lasts, job.has_inputs],
        _wishes_line(job.wishes),
        [job.spot, sorted(job.inputs), sorted(job.closures), job.home or "", sorted(job.losses)],
    ]


def _wishes_line(wishes: Wishes) -> list[object]:
    spread = wishes.spread
    return [
        wishes.scheduling_class or "",
        sorted(wishes.keys),
        wishes.preemption,
        wishes.spot or "",
        [] if spread is None else [spread.group, spread.over, spread.required],
        sorted([distinct.by, *sorted(distinct.jobs)] for distinct in wishes.distinct),
        wishes.beside or "",
        wishes.purpose,
    ]


def _location_line(where: Location) -> list[str]:
    return [where.host or "", where.site or "", where.region or ""]


def _scope_line(scope: SchedulingScope) -> list[object]:
    """List what decides about a scope; its tags are part of what a cycle sees."""
    quota, used = scope.quota, scope.used
    return [
        scope.scope_id,
        scope.parent_id or "",
        [scope.weight, scope.finish_tag, scope.clock, scope.paused],
        [quota.jobs, quota.cpu, quota.memory, quota.burst_percent],
        [used.jobs, used.cpu, used.memory],
    ]


def _hold_line(hold: HeldRoom) -> list[object]:
    where = [hold.job_id, hold.kind, hold.partition, hold.runner_id]
    return [*where, _amounts(hold.room), hold.since, hold.deadline]


def _running_line(one: RunningJob) -> list[object]:
    urgency = [one.priority, one.preemption, one.since, one.attempts_made]
    stopped = [one.is_uploading, one.is_stopping, one.preempted_at or 0]
    devices = sorted([share.device_id, share.share] for share in one.devices)
    return [
        one.lease_id,
        one.job_id,
        one.runner_id,
        _amounts(one.resources),
        *urgency,
        *stopped,
        *devices,
    ]


def _runner_line(runner: SchedulingRunner) -> list[object]:
    """List what decides about a runner; its digest stands for its capabilities."""
    return [
        runner.runner_id,
        runner.session_id or "",
        runner.state,
        runner.suspect,
        _pool_line(runner.pool),
        runner.trust,
        runner.capability_digest,
        _amounts(runner.allocatable),
        _amounts(runner.reserved),
        runner.pressure,
        sorted(runner.held_devices.items()),
        [runner.degraded, runner.takes_up_to],
        [runner.location.host, runner.location.site, runner.location.region],
        runner.holdings_digest,
        [runner.penalty, runner.penalty_at],
        runner.reported_at,
        runner.freshness,
    ]


def _pool_line(pool: SchedulingPool) -> list[object]:
    """List what decides about a pool; its version stands for what an operator set."""
    return [
        pool.pool_id,
        pool.version,
        pool.draining,
        -1 if pool.closes_in is None else pool.closes_in,
    ]


def _amounts(resources: Resources) -> list[int]:
    return [resources.cpu, resources.memory, resources.disk, resources.slots]
