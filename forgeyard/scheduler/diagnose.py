"""Why a job that could not be placed waits, in one sentence a person can act on.

Kept with the job and written only when it changes, so it names what is lasting: which runners
could do it and what the others lack, never how full they are this second (DIA-018).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from forgeyard.model.gaps import Aspect
from forgeyard.model.units import Resources
from forgeyard.scheduler.devices import ALL_FREE, Held
from forgeyard.scheduler.eligibility import (
    absences,
    can_ever_run,
    codes_of,
    has_devices,
    rejections,
)
from forgeyard.scheduler.gates import Gate
from forgeyard.scheduler.rejection import BOUND, Rejection, RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

NEAR_MISSES = 3


class DiagnosticCode(StrEnum):
    """The one thing that keeps a job waiting."""

    NO_RUNNERS = "NO_RUNNERS"
    NO_MATCHING_PLATFORM = "NO_MATCHING_PLATFORM"
    NO_MATCHING_ARCHITECTURE = "NO_MATCHING_ARCHITECTURE"
    NO_MATCHING_OS_VERSION = "NO_MATCHING_OS_VERSION"
    TRUST_MISMATCH = "TRUST_MISMATCH"
    SPOT_FORBIDDEN = "SPOT_FORBIDDEN"
    MISSING_LABEL = "MISSING_LABEL"
    MISSING_TOOLCHAIN = "MISSING_TOOLCHAIN"
    NO_MATCHING_POOL = "NO_MATCHING_POOL"
    NO_MATCHING_REGION = "NO_MATCHING_REGION"
    NO_MATCHING_AGENT_VERSION = "NO_MATCHING_AGENT_VERSION"
    MISSING_CPU_FEATURE = "MISSING_CPU_FEATURE"
    MISSING_RUNTIME = "MISSING_RUNTIME"
    NO_MATCHING_SANDBOX = "NO_MATCHING_SANDBOX"
    NO_MATCHING_NETWORK = "NO_MATCHING_NETWORK"
    NO_MATCHING_ISOLATION = "NO_MATCHING_ISOLATION"
    NO_DEVICE = "NO_DEVICE"
    NO_MATCHING_GPU = "NO_MATCHING_GPU"
    INSUFFICIENT_CPU = "INSUFFICIENT_CPU"
    INSUFFICIENT_MEMORY = "INSUFFICIENT_MEMORY"
    INSUFFICIENT_DISK = "INSUFFICIENT_DISK"
    INSUFFICIENT_SLOTS = "INSUFFICIENT_SLOTS"
    NO_CAPACITY_NOW = "NO_CAPACITY_NOW"
    RUNNERS_UNAVAILABLE = "RUNNERS_UNAVAILABLE"
    RECENTLY_REFUSED = "RECENTLY_REFUSED"
    BOUND_TO_OTHERS = "BOUND_TO_OTHERS"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    QUOTA_BLOCKED = "QUOTA_BLOCKED"
    KEY_HELD = "KEY_HELD"
    BACKPRESSURE = "BACKPRESSURE"


_EQUIPMENT = {
    Aspect.CPU_FEATURE: DiagnosticCode.MISSING_CPU_FEATURE,
    Aspect.RUNTIME: DiagnosticCode.MISSING_RUNTIME,
    Aspect.RUNTIME_VERSION: DiagnosticCode.MISSING_RUNTIME,
    Aspect.SANDBOX: DiagnosticCode.NO_MATCHING_SANDBOX,
    Aspect.NETWORK: DiagnosticCode.NO_MATCHING_NETWORK,
    Aspect.ISOLATION: DiagnosticCode.NO_MATCHING_ISOLATION,
    Aspect.DEVICE: DiagnosticCode.NO_DEVICE,
    Aspect.DEVICE_ATTRIBUTE: DiagnosticCode.NO_DEVICE,
    Aspect.GPU: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_ID: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_VENDOR: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_MODEL: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_MEMORY: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_COMPUTE_CAPABILITY: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_SHARING: DiagnosticCode.NO_MATCHING_GPU,
    Aspect.GPU_SAME_MODEL: DiagnosticCode.NO_MATCHING_GPU,
}
_CODES = {
    **{code: found for aspect, found in _EQUIPMENT.items() for code in codes_of(aspect)},
    RejectionCode.PLATFORM_MISMATCH: DiagnosticCode.NO_MATCHING_PLATFORM,
    RejectionCode.PLATFORM_UNKNOWN: DiagnosticCode.NO_MATCHING_PLATFORM,
    RejectionCode.ARCHITECTURE_MISMATCH: DiagnosticCode.NO_MATCHING_ARCHITECTURE,
    RejectionCode.ARCHITECTURE_UNKNOWN: DiagnosticCode.NO_MATCHING_ARCHITECTURE,
    RejectionCode.OS_VERSION_MISMATCH: DiagnosticCode.NO_MATCHING_OS_VERSION,
    RejectionCode.OS_VERSION_UNKNOWN: DiagnosticCode.NO_MATCHING_OS_VERSION,
    RejectionCode.TRUST_MISMATCH: DiagnosticCode.TRUST_MISMATCH,
    RejectionCode.SPOT_FORBIDDEN: DiagnosticCode.SPOT_FORBIDDEN,
    RejectionCode.POOL_TRUST: DiagnosticCode.TRUST_MISMATCH,
    RejectionCode.POOL_RESERVED: DiagnosticCode.NO_MATCHING_POOL,
    RejectionCode.POOL_NOT_ALLOWED: DiagnosticCode.NO_MATCHING_POOL,
    RejectionCode.REGION_MISMATCH: DiagnosticCode.NO_MATCHING_REGION,
    RejectionCode.REGION_UNKNOWN: DiagnosticCode.NO_MATCHING_REGION,
    RejectionCode.MISSING_LABEL: DiagnosticCode.MISSING_LABEL,
    RejectionCode.MISSING_TOOLCHAIN: DiagnosticCode.MISSING_TOOLCHAIN,
    RejectionCode.TOOLCHAIN_VERSION: DiagnosticCode.MISSING_TOOLCHAIN,
    RejectionCode.TOOLCHAIN_VERSION_UNKNOWN: DiagnosticCode.MISSING_TOOLCHAIN,
    RejectionCode.TOOLCHAIN_DIGEST: DiagnosticCode.MISSING_TOOLCHAIN,
    RejectionCode.TOOLCHAIN_DIGEST_UNKNOWN: DiagnosticCode.MISSING_TOOLCHAIN,
    RejectionCode.AGENT_VERSION_MISMATCH: DiagnosticCode.NO_MATCHING_AGENT_VERSION,
    RejectionCode.AGENT_VERSION_UNKNOWN: DiagnosticCode.NO_MATCHING_AGENT_VERSION,
    RejectionCode.INSUFFICIENT_CPU: DiagnosticCode.INSUFFICIENT_CPU,
    RejectionCode.INSUFFICIENT_MEMORY: DiagnosticCode.INSUFFICIENT_MEMORY,
    RejectionCode.INSUFFICIENT_DISK: DiagnosticCode.INSUFFICIENT_DISK,
    RejectionCode.INSUFFICIENT_SLOTS: DiagnosticCode.INSUFFICIENT_SLOTS,
}
FULL = RejectionCode.BUSY_SLOTS
"""Stands for being full in whatever way."""
DEVICES_HELD = RejectionCode.BUSY_DEVICE
"""Stands for having devices that are not free, of whatever sort."""
_DOING = {
    FULL: ("is full", "are full"),
    DEVICES_HELD: ("has its devices in use", "have their devices in use"),
    RejectionCode.OFFLINE: ("is offline", "are offline"),
    RejectionCode.DRAINING: ("is draining", "are draining"),
    RejectionCode.SATURATED: ("is under pressure", "are under pressure"),
    RejectionCode.UNHEALTHY: ("is unhealthy", "are unhealthy"),
    RejectionCode.UNADMITTED: ("is not admitted", "are not admitted"),
    RejectionCode.SUSPECT: ("has fallen silent", "have fallen silent"),
    RejectionCode.RECENTLY_REFUSED: ("has just refused it", "have just refused it"),
    RejectionCode.DEGRADED: ("is not well", "are not well"),
    RejectionCode.POOL_DRAINING: ("is in a pool that drains", "are in pools that drain"),
    RejectionCode.POOL_MAINTENANCE: (
        "is in a pool under maintenance",
        "are in pools under maintenance",
    ),
    RejectionCode.POOL_KEPT: (
        "is kept for the owner of its pool",
        "are kept for the owners of their pools",
    ),
    RejectionCode.CAPABILITIES_STALE: ("has to report anew", "have to report anew"),
    RejectionCode.NOT_APART: (
        "is not known to be apart from a job that it must be apart from",
        "are not known to be apart from a job that it must be apart from",
    ),
    RejectionCode.NOT_SPREAD: (
        "is not known to be free of other shards",
        "are not known to be free of other shards",
    ),
    RejectionCode.NOT_BESIDE: (
        "is not where the job is that it must be beside",
        "are not where the job is that it must be beside",
    ),
}
_AWAITED = {
    DiagnosticCode.NO_CAPACITY_NOW: "room",
    DiagnosticCode.NO_DEVICE: "a device",
    DiagnosticCode.RECENTLY_REFUSED: "a runner to ask again",
    DiagnosticCode.BOUND_TO_OTHERS: "a place that suits its other jobs",
    DiagnosticCode.RUNNERS_UNAVAILABLE: "a runner",
}
STAGES = {code: stage for stage, code in enumerate(RejectionCode)}
"""How far a runner comes before a reason stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many runners were turned down for one reason."""

    code: RejectionCode
    runners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A runner that lacks little, such as `needs 16 GiB of memory, has 12 GiB`."""

    runner: str
    codes: tuple[RejectionCode, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a job waits: the latest word (DIA-009, DIA-017)."""

    job_id: str
    code: DiagnosticCode
    sentence: str
    permanent: bool
    """No registered runner can ever run it as it is; waiting will not help (DIA-006)."""
    rejections: tuple[Tally, ...] = ()
    """How many runners each reason rules out; only where it is permanent."""
    near_misses: tuple[NearMiss, ...] = ()

    @property
    def lasting(self) -> str:
        """Keep what does not waver from cycle to cycle: the sentence, if no runner's load is in it.

        A job that only waits for room is told so once, however full which runners are.
        """
        wavers = self.code in _AWAITED
        return str(self.code) if wavers else f"{self.code} {self.sentence}"

    def about(self, job_id: str) -> "Diagnosis":
        """Say the same of another job that wants the same."""
        return Diagnosis(
            job_id=job_id,
            code=self.code,
            sentence=self.sentence,
            permanent=self.permanent,
            rejections=self.rejections,
            near_misses=self.near_misses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A runner, and every hard reason against it."""

    runner: SchedulingRunner
    rejections: tuple[Rejection, ...]

    @property
    def lasting(self) -> tuple[Rejection, ...]:
        """Keep the reasons that waiting does not cure."""
        return tuple(rejection for rejection in self.rejections if rejection.permanent)


def pairings(
    job: SchedulingJob,
    runners: Sequence[SchedulingRunner],
    free: Mapping[str, Resources],
    *,
    held: Mapping[str, Held],
) -> tuple[Pairing, ...]:
    """Judge a job against every runner, by name; `free` and `held` are what each has left."""
    return tuple(
        Pairing(
            runner=runner,
            rejections=rejections(
                job,
                runner,
                free=free.get(runner.runner_id),
                held=held.get(runner.runner_id, ALL_FREE),
            ),
        )
        for runner in sorted(runners, key=lambda runner: (runner.name, runner.runner_id))
    )


def diagnose(
    job: SchedulingJob,
    runners: Sequence[SchedulingRunner],
    free: Mapping[str, Resources],
    *,
    held: Mapping[str, Held] = MappingProxyType({}),
) -> Diagnosis:
    """Find the nearest way to a runner and say what stands in it."""
    able = [runner for runner in runners if can_ever_run(job, runner)]
    if able:
        obstacles = Counter(
            _obstacle(job, runner, held.get(runner.runner_id, ALL_FREE)) for runner in able
        )
        return not_now(job, obstacles, first=able[0], registered=len(runners))
    pairs = pairings(job, runners, free, held=held)
    nearest = sorted(pairs, key=lambda pair: _distance(job, pair))
    return never(job, nearest, tallies=tallies(pairs), registered=len(runners))


def gated(job: SchedulingJob, gate: Gate) -> Diagnosis:
    """Say which gate is shut to a job, whatever runners there are."""
    return Diagnosis(
        job_id=job.job_id,
        code=DiagnosticCode[gate.code.name],
        sentence=f"Waiting: {gate.text}.",
        permanent=False,
    )


def never(
    job: SchedulingJob, nearest: Sequence[Pairing], *, tallies: tuple[Tally, ...], registered: int
) -> Diagnosis:
    """Say what the nearest runner lacks; nobody lacks less."""
    if not nearest:
        return _nobody(job)
    best = nearest[0]
    needs = " and ".join(rejection.wanted for rejection in best.lasting)
    has = " and ".join(rejection.offered for rejection in best.lasting)
    if registered == 1:
        beginning, who = "The only registered runner can never run this job", best.runner.name
    else:
        beginning = f"None of the {registered} registered runners can ever run this job"
        who = f"the best match ({best.runner.name})"
    return Diagnosis(
        job_id=job.job_id,
        code=_CODES[best.lasting[0].code],
        sentence=f"{beginning}: it needs {needs}, but {who} has {has}.",
        permanent=True,
        rejections=tallies,
        near_misses=_near_misses(nearest),
    )


def _nobody(job: SchedulingJob) -> Diagnosis:
    return Diagnosis(
        job_id=job.job_id,
        code=DiagnosticCode.NO_RUNNERS,
        sentence="No runner is registered; start one with `forgeyard agent`.",
        permanent=True,
    )


def _distance(job: SchedulingJob, pair: Pairing) -> tuple[int, int, int, str, str]:
    """Measure how far a runner is from fitting: how many reasons, how basic, how much is short."""
    amounts = STAGES[RejectionCode.INSUFFICIENT_CPU]
    stages = [min(STAGES[rejection.code], amounts) for rejection in pair.lasting]
    return (
        len(stages),
        -min(stages),
        _missing_share(job.resources, pair.runner.allocatable),
        pair.runner.name,
        pair.runner.runner_id,
    )


def _missing_share(wanted: Resources, offered: Resources) -> int:
    """Add up what is short in every dimension, in thousandths of what is wanted."""
    amounts = (
        (wanted.cpu, offered.cpu),
        (wanted.memory, offered.memory),
        (wanted.disk, offered.disk),
        (wanted.slots, offered.slots),
    )
    return sum((want - have) * 1000 // want for want, have in amounts if want > max(have, 0))


def _near_misses(nearest: Sequence[Pairing]) -> tuple[NearMiss, ...]:
    """Keep the nearest runner of each way to miss."""
    ways: dict[tuple[RejectionCode, ...], NearMiss] = {}
    for pair in nearest:
        codes = tuple(rejection.code for rejection in pair.lasting)
        text = "; ".join(rejection.text for rejection in pair.lasting)
        ways.setdefault(codes, NearMiss(runner=pair.runner.name, codes=codes, text=text))
    return tuple(ways.values())[:NEAR_MISSES]


def tallies(pairs: Sequence[Pairing]) -> tuple[Tally, ...]:
    """Count the runners that each reason rules out, the most frequent reason first."""
    return counted(
        Counter(
            code for pair in pairs for code in {rejection.code for rejection in pair.rejections}
        )
    )


def counted(counts: Mapping[RejectionCode, int]) -> tuple[Tally, ...]:
    """Put counts in order, the most frequent reason first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], STAGES[item[0]]))
    return tuple(Tally(code=code, runners=runners) for code, runners in ordered if runners)


def not_now(
    job: SchedulingJob,
    groups: Mapping[RejectionCode, int],
    *,
    first: SchedulingRunner,
    registered: int,
) -> Diagnosis:
    """Say what the runners that could do it are doing instead: how many stand back for what."""
    told = [
        f"{groups[obstacle]} {many if groups[obstacle] > 1 else one}"
        for obstacle, (one, many) in _DOING.items()
        if obstacle in groups
    ]
    able = sum(groups.values())
    if able == 1:
        who = f"only {first.name} can run this job"
        does = f"it {_DOING[next(iter(groups))][0]}"
    else:
        who = f"{able} of {registered} registered runners can run this job"
        does = " and ".join((", ".join(told[:-1]), told[-1])) if len(told) > 1 else told[0]
    if FULL in groups:
        code = DiagnosticCode.NO_CAPACITY_NOW
    elif DEVICES_HELD in groups:
        code = DiagnosticCode.NO_DEVICE
    elif RejectionCode.RECENTLY_REFUSED in groups:
        code = DiagnosticCode.RECENTLY_REFUSED
    elif BOUND & groups.keys():
        code = DiagnosticCode.BOUND_TO_OTHERS
    else:
        code = DiagnosticCode.RUNNERS_UNAVAILABLE
    return Diagnosis(
        job_id=job.job_id,
        code=code,
        sentence=f"Waiting for {_AWAITED[code]}: {who}, but {does}.",
        permanent=False,
    )


def _obstacle(job: SchedulingJob, runner: SchedulingRunner, held: Held) -> RejectionCode:
    """Name what keeps an able runner from taking the job; being absent outweighs being full."""
    absence = next(absences(job, runner), None)
    if absence is not None:
        return absence.code
    return FULL if has_devices(job, runner, held) else DEVICES_HELD
