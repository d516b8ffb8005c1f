"""Tenants, organizations, projects and queues: what share each has, and how much it may hold.

Service is counted by start-time fair queueing. Every scope has a finish tag: its service so far
divided by its weight. Whoever starts earliest is served next; a scope that had nothing to do starts
no earlier than its rivals are now, so that idleness earns no credit (FAR-003, FAR-004).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forgeyard.model.units import Bytes, MilliCpu, Resources

ROOT = "scp_root"
POOL = "pool"
LEAST_SERVICE = 100
"""What a job counts for that asks for next to nothing: a tenth of a core."""
PER_MILLI = 4 * 2**20
"""Four MiB of memory count as much as a thousandth of a core: four GiB a core."""
PRECISION = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much the jobs of a scope hold at once."""

    jobs: int = 0
    cpu: MilliCpu = MilliCpu(0)
    memory: Bytes = Bytes(0)

    def plus(self, wanted: Resources) -> "Usage":
        """Add one job."""
        cpu, memory = self.cpu + wanted.cpu, self.memory + wanted.memory
        return Usage(jobs=self.jobs + 1, cpu=MilliCpu(cpu), memory=Bytes(memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The most that the jobs of a scope may hold at once; `None` is without limit (QUO-005)."""

    jobs: int | None = None
    cpu: MilliCpu | None = None
    memory: Bytes | None = None
    burst_percent: int = 0
    """How far above it they may go with what nobody else wants (QUO-008)."""

    def excess(self, used: Usage, wanted: Resources, *, burst: int = 0) -> str | None:
        """Name the first dimension in which one more job breaks a limit raised by `burst` percent.

        Written out: every commit asks it of every job and scope.
        """
        percent = 100 + burst
        if self.jobs is not None and (used.jobs + 1) * 100 > self.jobs * percent:
            return "jobs"
        if self.cpu is not None and (used.cpu + wanted.cpu) * 100 > self.cpu * percent:
            return "cpu"
        if self.memory is not None and (used.memory + wanted.memory) * 100 > self.memory * percent:
            return "memory"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingScope:
    """A scope as one cycle sees it."""

    scope_id: str
    name: str
    kind: str = "queue"
    parent_id: str | None = None
    weight: int = 1
    finish_tag: int = 0
    clock: int = 0
    paused: bool = False
    note: str = ""
    quota: Quota = field(default_factory=Quota)
    used: Usage = field(default_factory=Usage)

    @property
    def is_limiting(self) -> bool:
        """Tell whether it may ever be shut to a job."""
        quota = self.quota
        return self.paused or (quota.jobs, quota.cpu, quota.memory) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one job was charged in one scope, so that it can be taken back exactly."""

    price: int
    start: int
    """When its service began, which is where the clock of the scope above then stood."""
    before: int
    """Where that clock stood before."""


def service(wanted: Resources) -> int:
    """Say what a job counts for: the larger of its shares of CPU and memory, in thousandths."""
    return max(wanted.cpu, wanted.memory // PER_MILLI, LEAST_SERVICE)


class Tags:
    """The finish tags and clocks of scopes, kept current while jobs are served."""

    def __init__(self, scopes: Mapping[str, SchedulingScope]) -> None:
        self._weight = {name: scope.weight for name, scope in scopes.items()}
        self.finish = {name: scope.finish_tag for name, scope in scopes.items()}
        self.clock = {name: scope.clock for name, scope in scopes.items()}

    def start(self, scope_id: str, parent_id: str) -> int:
        """Tell when the next job of a scope would start, by its parent's clock."""
        return max(self.finish.get(scope_id, 0), self.clock.get(parent_id, 0))

    def charge(self, path: Sequence[str], amount: int) -> tuple[Charge, ...]:
        """Count service to every scope of a path, outermost first (FAR-019)."""
        charges: list[Charge] = []
        finish, clock, weight = self.finish, self.clock, self._weight
        for parent, scope_id in _steps(path):
            before = clock.get(parent, 0)
            start = self.start(scope_id, parent)
            price = amount * PRECISION // max(1, weight.get(scope_id, 1))
            finish[scope_id] = start + price
            clock[parent] = start
            charges.append(Charge(price=price, start=start, before=before))
        return tuple(charges)

    def refund(self, path: Sequence[str], charges: Sequence[Charge]) -> None:
        """Take back what a path was charged, whatever weights it has got meanwhile.

        Whoever gets something back waits again, so no clock stays ahead of its start: else many
        refusals would push a clock on, and that takes from everybody what they had yet to get.
        """
        for (parent, scope_id), charge in zip(_steps(path), charges, strict=True):
            finish = max(0, self.finish.get(scope_id, 0) - charge.price)
            clock = self.clock.get(parent, 0)
            self.finish[scope_id] = finish
            self.clock[parent] = min(charge.before if clock == charge.start else clock, finish)


def _steps(path: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip((ROOT, *path), path, strict=False)
