"""Whether a fleet may serve a class of jobs: the scheduler's own eligibility, asked of a promise.

A machine that is yet to be made is judged as the runner that it will be. There is no second rule
for that (DEM-012): what the scheduler would refuse, nothing is made for. Beside it stands only
whom a fleet is for, and that people alone decide about protected ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forgeyard.fleet.view import FleetView
from forgeyard.model.capability import Capabilities
from forgeyard.model.equipment import Equipment, IsolationClass
from forgeyard.model.fleet import CapacityClass, FleetState, Market, Offering
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.scheduler.demand import DemandClass
from forgeyard.scheduler.eligibility import is_eligible, rejections
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import SchedulingPool

_RELIABILITY = {
    Market.STABLE: ReliabilityClass.STABLE,
    Market.PREEMPTIBLE: ReliabilityClass.PREEMPTIBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which offerings of a fleet could serve a class of jobs, and why the others cannot."""

    offerings: frozenset[str] = frozenset()
    against: Mapping[str, str] = field(default_factory=dict[str, str])
    """By offering, or by the empty name where the whole fleet is out of the question."""

    @property
    def text(self) -> str:
        """Say why not, each reason once."""
        return "; ".join(dict.fromkeys(self.against.values()))


def match(view: FleetView, wanted: DemandClass) -> Match:
    """Find the offerings whose machines could run the jobs of a class, and all reasons else."""
    shut = shut_to(view, wanted)
    if shut:
        return Match(against={"": shut})
    promises = Promises(view)
    able, against = promises.serving(wanted), promises.against(wanted)
    if not able and not against:
        against = {"": "none of its offerings is where its machines may be"}
    return Match(offerings=able, against=against)


def why_not(view: FleetView, wanted: DemandClass) -> str:
    """Say why a fleet makes nothing for a class, or nothing if it would."""
    if wanted.requirement_class in view.futile:
        return "its machines came up for such jobs in vain"
    found = match(view, wanted)
    return "" if found.offerings else found.text


class Promises:
    """The runners that the machines of a fleet will be, one for all offerings that are alike."""

    def __init__(self, view: FleetView) -> None:
        self._view = view
        alike: dict[tuple[str, Market], list[Offering]] = {}
        for offering in in_place(view):
            alike.setdefault((offering.region, offering.market), []).append(offering)
        self._runners = [
            (frozenset(it.name for it in some), promised(view, some[0])) for some in alike.values()
        ]

    def serving(self, wanted: DemandClass) -> frozenset[str]:
        """List the offerings whose machines could run the jobs of a class."""
        able: frozenset[str] = frozenset()
        if not shut_to(self._view, wanted):
            for names, runner in self._runners:
                able = able | names if is_eligible(wanted.example, runner) else able
        return able

    def against(self, wanted: DemandClass) -> dict[str, str]:
        """Say of every other offering why not."""
        job = wanted.example
        return {
            name: _reason(job, runner)
            for names, runner in self._runners
            if not is_eligible(job, runner)
            for name in sorted(names)
        }


def shut_to(view: FleetView, wanted: DemandClass) -> str:
    """Say why a fleet makes nothing for a class whatever its machines are, or nothing."""
    spec, job = view.spec, wanted.example
    if spec.protected:
        return "it is protected: people alone decide how many machines it has"
    if view.state in (FleetState.DRAINING, FleetState.DELETING):
        return f"it is {view.state}"
    if spec.scope.tenant_id not in (None, job.tenant_id):
        return f"it serves tenant {spec.scope.tenant_id} alone"
    if spec.scope.project_id not in (None, job.project_id):
        return f"it serves project {spec.scope.project_id} alone"
    return ""


def in_place(view: FleetView) -> tuple[Offering, ...]:
    """List the offerings that are where the fleet's machines may be (PLN-007)."""
    where = view.spec.placement
    return tuple(
        it
        for it in view.priced.offerings
        if (not where.regions or it.region in where.regions)
        and (not where.zones or it.zone in where.zones)
    )


def promised(view: FleetView, offering: Offering) -> SchedulingRunner:
    """Describe the runner that a machine of this offering will be."""
    capacity = view.spec.capacity
    return SchedulingRunner(
        runner_id="promised",
        name=f"a machine of fleet {view.spec.name}",
        session_id="promised",
        pool=_pool_of(view),
        trust=capacity.trust,
        capabilities=_capabilities(capacity, offering),
        total=capacity.resources,
        location=Location(region=offering.region or None, site=offering.zone or None),
    )


def _pool_of(view: FleetView) -> SchedulingPool:
    """Take the pool as it is; a view that knows only its name says at least that."""
    name = view.spec.pool
    return replace(view.pool, name=name) if name and view.pool == SchedulingPool() else view.pool


def _capabilities(capacity: CapacityClass, offering: Offering) -> Capabilities:
    return Capabilities(
        platform=capacity.platform,
        os_version=capacity.os_version,
        architecture=capacity.architecture,
        toolchains=capacity.toolchains,
        labels=capacity.labels,
        trust=capacity.trust,
        equipment=_equipment(capacity),
        reliability=_RELIABILITY[offering.market],
        cost_micros_per_hour=offering.cost,
    )


def _equipment(capacity: CapacityClass) -> Equipment:
    """Promise the isolation of the class, unless its equipment spells it out."""
    equipment = capacity.equipment
    if equipment.isolation is not None:
        return equipment
    return replace(equipment, isolation=(IsolationClass(capacity.isolation.value),))


def _reason(job: SchedulingJob, runner: SchedulingRunner) -> str:
    return " and ".join(it.text for it in rejections(job, runner)) or "the scheduler refuses it"
