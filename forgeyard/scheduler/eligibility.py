"""Phase one of placement: can this runner execute this job correctly? (ELG-001)

What a runner could not tell about itself never satisfies a requirement (ELG-018). A score never
enters here (SCO-004).
"""

from collections.abc import Iterator
from dataclasses import replace

from forgeyard.model.capability import (
    GENERAL_TRUST,
    Capabilities,
    Requirements,
    Toolchain,
    ToolchainRequirement,
    TrustClass,
    in_range,
)
from forgeyard.model.equipment import Equipment, EquipmentRequirement
from forgeyard.model.gaps import Aspect, gaps, has_gaps
from forgeyard.model.location import ReliabilityClass
from forgeyard.model.origin import WRITTEN, Origin, OriginKind
from forgeyard.model.runner import RunnerState
from forgeyard.model.units import Resources, Rounding
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.devices import ALL_FREE, Held, allocate, shortages
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.rejection import (
    BY_BOUND,
    BY_STATE,
    DEVICE_ASPECTS,
    Rejection,
    RejectionCode,
)
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import NOBODY, Hindrance, lasting, passing, stands_against
from forgeyard.scheduler.words import amount_of, amount_text, attributed, tool_text, wanted_tool

_OS_VERSION = (RejectionCode.OS_VERSION_MISMATCH, RejectionCode.OS_VERSION_UNKNOWN)
_AGENT_VERSION = (RejectionCode.AGENT_VERSION_MISMATCH, RejectionCode.AGENT_VERSION_UNKNOWN)


def rejections(
    job: SchedulingJob,
    runner: SchedulingRunner,
    *,
    free: Resources | None = None,
    held: Held | None = None,
) -> tuple[Rejection, ...]:
    """List every hard reason against this pairing; an empty tuple means eligible.

    `free` is what the runner has left and `held` what is held of its devices, where a cycle has
    given some of it away already.
    """
    return (
        *absences(job, runner),
        *(_attributed(it, job.requirements) for it in _unmet(job, runner)),
        *_resource_reasons(job.resources, runner, runner.free if free is None else free),
        *busy_devices(
            job.requirements.equipment,
            runner.capabilities.equipment,
            runner.held_devices if held is None else held,
        ),
    )


def _unmet(job: SchedulingJob, runner: SchedulingRunner) -> Iterator[Rejection]:
    """List the requirements that are not met, whatever the load."""
    wanted, offered = job.requirements, runner.capabilities
    yield from _capability_reasons(wanted, offered)
    yield from _trust_reasons(wanted.trust, runner.trust)
    yield from _spot_reasons(job, runner)
    yield from map(_of_standing, lasting(job, runner))
    yield from _label_reasons(wanted, offered)
    yield from _toolchain_reasons(wanted, offered)
    yield from _equipment_reasons(wanted, offered)


def _attributed(rejection: Rejection, wanted: Requirements) -> Rejection:
    """Say who wants what is not met, where that is not the author of the job (ELG-036)."""
    if not rejection.path:
        return rejection
    origin = wanted.origin(rejection.path)
    if origin == WRITTEN:
        return replace(rejection, origin=rejection.origin or origin)
    return replace(rejection, origin=origin, wanted=attributed(rejection.wanted, origin))


def is_eligible(
    job: SchedulingJob,
    runner: SchedulingRunner,
    *,
    free: Resources | None = None,
    held: Held | None = None,
    lent: frozenset[str] = NOBODY,
) -> bool:
    """Tell whether `rejections` would be empty, and stop at the first reason against it.

    `lent` are pools that are kept for owners who have no use for them.
    """
    return (
        takes_work(runner)
        and runner.runner_id not in job.refused_by
        and not is_spared(runner, job)
        and all(bound.is_kept(runner) for bound in job.bounds)
        and next(passing(job, runner, lent=lent), None) is None
        and job.resources.fits_in(runner.free if free is None else free)
        and can_ever_run(job, runner)
        and has_devices(job, runner, runner.held_devices if held is None else held)
    )


def has_devices(job: SchedulingJob, runner: SchedulingRunner, held: Held) -> bool:
    """Tell whether the devices that a job wants are free on a runner that has them."""
    return _have_room_together(job.requirements.equipment, runner.capabilities.equipment, held)


def takes_work(runner: SchedulingRunner) -> bool:
    """Tell whether a runner is there and willing, whatever the job."""
    return (
        runner.state is RunnerState.ONLINE and runner.session_id is not None and not runner.suspect
    )


def is_spared(runner: SchedulingRunner, job: SchedulingJob) -> bool:
    """Tell whether a runner that is not well gets no job of this weight (RUN-013)."""
    return runner.degraded and BASE[job.priority] > runner.takes_up_to


def can_ever_run(job: SchedulingJob, runner: SchedulingRunner) -> bool:
    """Tell whether only passing reasons can stand against this pairing."""
    return is_able(job, runner) and job.resources.fits_in(runner.allocatable)


def is_able(job: SchedulingJob, runner: SchedulingRunner) -> bool:
    """Tell whether a runner meets every requirement where it stands, whatever the amounts."""
    return (
        satisfies(job.requirements, runner.capabilities, runner.trust)
        and suits_spot(job.spot, runner.capabilities)
        and not stands_against(job, runner)
    )


def suits_spot(wish: SpotWish, offered: Capabilities) -> bool:
    """Tell whether a machine may be of its class (SPT-002)."""
    return wish is not SpotWish.FORBIDDEN or offered.reliability is not ReliabilityClass.PREEMPTIBLE


def satisfies(wanted: Requirements, offered: Capabilities, trust: TrustClass) -> bool:
    """Tell whether capabilities and trust meet every requirement, whatever the load."""
    return (
        wanted.platform in (None, offered.platform)
        and wanted.architecture in (None, offered.architecture)
        and is_trusted(wanted.trust, trust)
        and (wanted.os_version is None or in_range(offered.os_version, wanted.os_version) is True)
        and all(offered.labels.get(name) == value for name, value in wanted.labels.items())
        and all(_has_tool(offered, tool) for tool in wanted.toolchains)
        and (
            wanted.agent_version is None
            or in_range(offered.agent_version, wanted.agent_version) is True
        )
        and not has_gaps(wanted.equipment, offered.equipment)
        and _have_room_together(wanted.equipment, offered.equipment, ALL_FREE)
    )


def _have_room_together(wanted: EquipmentRequirement, offered: Equipment, held: Held) -> bool:
    return not wanted.wants_devices or allocate(wanted, offered, held) is not None


def is_trusted(wanted: TrustClass | None, offered: TrustClass) -> bool:
    """Tell whether a runner of one trust class may serve a job; restricted ones must be named."""
    return offered in GENERAL_TRUST if wanted is None else offered is wanted


def absences(job: SchedulingJob, runner: SchedulingRunner) -> Iterator[Rejection]:
    """List why a runner takes no work at present, or not this job."""
    yield from own_absences(runner)
    yield from own_reasons(job, runner)
    yield from map(_of_standing, passing(job, runner))
    for bound in job.bounds:
        if not bound.is_kept(runner):
            yield Rejection(
                code=BY_BOUND[bound.kind], wanted=bound.wanted, offered=bound.offered(runner)
            )


def own_reasons(job: SchedulingJob, runner: SchedulingRunner) -> Iterator[Rejection]:
    """List why a runner would not have this very job at present."""
    if runner.runner_id in job.refused_by:
        yield Rejection(
            code=RejectionCode.RECENTLY_REFUSED,
            wanted="a runner that has not refused it lately",
            offered=job.refused_by[runner.runner_id],
        )
    if is_spared(runner, job):
        yield Rejection(
            code=RejectionCode.DEGRADED,
            wanted="a runner that is well",
            offered=f"degraded, and takes no job of priority {job.priority} meanwhile",
        )


def _of_standing(hindrance: Hindrance) -> Rejection:
    return Rejection(
        code=RejectionCode(hindrance.code.value),
        wanted=hindrance.wanted,
        offered=hindrance.offered,
        path=hindrance.path,
    )


def own_absences(runner: SchedulingRunner) -> Iterator[Rejection]:
    """List why a runner takes no work at present, whatever the job."""
    state = RunnerState.OFFLINE if runner.session_id is None else runner.state
    if state in BY_STATE:
        offered = f"{state}: {runner.pressure} pressure" if _is_pressed(runner, state) else state
        yield Rejection(code=BY_STATE[state], wanted="an online runner", offered=offered)
    if runner.suspect:
        yield Rejection(
            code=RejectionCode.SUSPECT,
            wanted="a runner heard of since its last loss",
            offered="suspect: it lost a lease and has been silent since, or commits refused it",
        )


def _is_pressed(runner: SchedulingRunner, state: RunnerState) -> bool:
    return state in (RunnerState.SATURATED, RunnerState.UNHEALTHY) and runner.pressure != "normal"


def _capability_reasons(wanted: Requirements, offered: Capabilities) -> Iterator[Rejection]:
    """Compare platform, architecture and the versions of the operating system and the agent."""
    if wanted.platform not in (None, offered.platform):
        yield _differs(
            "platform",
            wanted.platform,
            offered.platform,
            RejectionCode.PLATFORM_MISMATCH,
            RejectionCode.PLATFORM_UNKNOWN,
            path="platform",
        )
    if wanted.architecture not in (None, offered.architecture):
        yield _differs(
            "architecture",
            wanted.architecture,
            offered.architecture,
            RejectionCode.ARCHITECTURE_MISMATCH,
            RejectionCode.ARCHITECTURE_UNKNOWN,
            path="arch",
        )
    versions = (
        ("OS version", wanted.os_version, offered.os_version, _OS_VERSION),
        ("agent version", wanted.agent_version, offered.agent_version or None, _AGENT_VERSION),
    )
    for name, wish, found, (mismatch, unknown) in versions:
        fits = wish is None or in_range(found, wish)
        if fits is not True:
            yield Rejection(
                code=unknown if fits is None else mismatch,
                wanted=f"{name} {wish}",
                offered=_or_unknown(name, found),
                path=name.lower().replace(" ", "-"),
            )


def _differs(
    name: str,
    wanted: str | None,
    offered: str | None,
    mismatch: RejectionCode,
    unknown: RejectionCode,
    *,
    path: str,
) -> Rejection:
    return Rejection(
        code=unknown if offered is None else mismatch,
        wanted=f"{name} {wanted}",
        offered=_or_unknown(name, offered),
        path=path,
    )


def _or_unknown(name: str, offered: str | None) -> str:
    return f"an unknown {name}" if offered is None else f"{name} {offered}"


def _trust_reasons(wanted: TrustClass | None, offered: TrustClass) -> Iterator[Rejection]:
    if not is_trusted(wanted, offered):
        names = " or ".join(sorted(GENERAL_TRUST)) if wanted is None else wanted
        yield Rejection(
            code=RejectionCode.TRUST_MISMATCH,
            wanted=f"trust {names}",
            offered=f"trust {offered}",
            path="trust",
            origin=Origin(kind=OriginKind.SECURITY) if wanted is None else None,
        )


def _spot_reasons(job: SchedulingJob, runner: SchedulingRunner) -> Iterator[Rejection]:
    if not suits_spot(job.spot, runner.capabilities):
        yield Rejection(
            code=RejectionCode.SPOT_FORBIDDEN,
            wanted="a machine that stays",
            offered="one that may be taken away at any time",
        )


def _label_reasons(wanted: Requirements, offered: Capabilities) -> Iterator[Rejection]:
    for name, value in sorted(wanted.labels.items()):
        found = offered.labels.get(name)
        if found != value:
            yield Rejection(
                code=RejectionCode.MISSING_LABEL,
                wanted=f"label {name}={value}",
                offered=f"no label {name}" if found is None else f"label {name}={found}",
                path=f"labels.{name}",
            )


def _toolchain_reasons(wanted: Requirements, offered: Capabilities) -> Iterator[Rejection]:
    for tool in wanted.toolchains:
        if not _has_tool(offered, tool):
            yield _missing_tool(offered, tool)


def _has_tool(offered: Capabilities, wanted: ToolchainRequirement) -> bool:
    return any(
        tool.name == wanted.name and _tool_mismatch(tool, wanted) is None
        for tool in offered.toolchains
    )


def _tool_mismatch(tool: Toolchain, wanted: ToolchainRequirement) -> RejectionCode | None:
    """Find the first reason against one installed tool of the right name."""
    if wanted.digest is not None and tool.digest != wanted.digest:
        unknown = tool.digest is None
        return RejectionCode.TOOLCHAIN_DIGEST_UNKNOWN if unknown else RejectionCode.TOOLCHAIN_DIGEST
    if wanted.version is not None:
        fits = in_range(tool.version, wanted.version)
        if fits is None:
            return RejectionCode.TOOLCHAIN_VERSION_UNKNOWN
        return None if fits else RejectionCode.TOOLCHAIN_VERSION
    return None


def _missing_tool(offered: Capabilities, wanted: ToolchainRequirement) -> Rejection:
    named = [tool for tool in offered.toolchains if tool.name == wanted.name]
    reasons = (_tool_mismatch(tool, wanted) for tool in named)
    # Every tool has a digest, of which a reader hears only where one was asked for.
    found = " and ".join(
        tool_text(tool.version or "unknown", tool.digest if wanted.digest else None)
        for tool in named
    )
    return Rejection(
        code=next(reasons, None) or RejectionCode.MISSING_TOOLCHAIN,
        wanted=wanted_tool(wanted),
        offered=f"{wanted.name} {found}" if named else f"no {wanted.name}",
        path=f"toolchains.{wanted.name}",
    )


def _equipment_reasons(wanted: Requirements, offered: Capabilities) -> Iterator[Rejection]:
    lacking = list(gaps(wanted.equipment, offered.equipment))
    if not any(gap.aspect in DEVICE_ASPECTS for gap in lacking):
        yield from _short_together(wanted, offered)
    for gap in lacking:
        mismatch, unknown = codes_of(gap.aspect)
        yield Rejection(
            code=mismatch if gap.is_known else unknown,
            wanted=gap.wanted,
            offered=gap.offered,
            path=gap.path,
        )


def _short_together(wanted: Requirements, offered: Capabilities) -> list[Rejection]:
    """Find requests for devices that could each be met alone, but never at once."""
    if not wanted.equipment.wants_devices:
        return []
    return [
        Rejection(
            code=RejectionCode(f"{short.sort}_mismatch"),
            wanted=f"{short.wanted} at once",
            offered=short.free,
        )
        for short in shortages(wanted.equipment, offered.equipment, ALL_FREE)
    ]


def busy_devices(
    wanted: EquipmentRequirement, offered: Equipment, held: Held
) -> Iterator[Rejection]:
    """List the devices that are there, but not free now; each counts by itself.

    Their sum proves nothing: two halves of a GPU are not one (SP-026).
    """
    if not wanted.wants_devices or not held:
        return
    lasting = {short.sort for short in shortages(wanted, offered, ALL_FREE)}
    for short in shortages(wanted, offered, held):
        if short.sort not in lasting:
            code = RejectionCode(f"busy_{short.sort}")
            yield Rejection(code=code, wanted=short.wanted, offered=short.free)


def codes_of(aspect: Aspect) -> tuple[RejectionCode, RejectionCode]:
    """Name the rejections of equipment that is missing, and of equipment that is unknown."""
    return RejectionCode(f"{aspect}_mismatch"), RejectionCode(f"{aspect}_unknown")


def _resource_reasons(
    wanted: Resources, runner: SchedulingRunner, free: Resources
) -> Iterator[Rejection]:
    """Compare with what jobs may ever hold, then with what is left of it (RES-001)."""
    never = wanted.shortfalls(runner.allocatable)
    for name in never:
        yield Rejection(
            code=RejectionCode(f"insufficient_{name}"),
            wanted=amount_of(name, wanted, rounding=Rounding.REQUEST),
            offered=amount_text(name, runner.allocatable, rounding=Rounding.CAPACITY),
        )
    for name in wanted.shortfalls(free):
        if name not in never:
            yield Rejection(
                code=RejectionCode(f"busy_{name}"),
                wanted=amount_of(name, wanted, rounding=Rounding.REQUEST),
                offered=amount_text(name, free, rounding=Rounding.CAPACITY),
            )
