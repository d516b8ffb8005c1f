"""A provider as bad as any, and repeatably so: nothing is seen when it happens.

What is observed of a machine is what was true some while ago, drawn for each machine from a seed.
Knobs make it worse. Time is the caller's.
"""

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forgeyard.errors import (
    Ambiguous,
    Denied,
    ForgeyardError,
    InvalidSpec,
    NotFound,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
    Unavailable,
)
from forgeyard.fleet.ports import (
    TAG_INSTALLATION,
    TAG_INSTANCE,
    TAG_OPERATION,
    Check,
    CheckLevel,
    Interruption,
    Listing,
    Machine,
    ProvisionRequest,
    Sought,
)
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import Offering

NEVER = 2**62
REMEMBERED_MS = 3_600_000
REFUSALS: Mapping[str, Callable[[], ForgeyardError]] = {
    "ice": lambda: OutOfCapacity("InsufficientInstanceCapacity"),
    "quota": lambda: ProviderQuotaExceeded("VcpuLimitExceeded"),
    "throttled": lambda: Throttled("RequestLimitExceeded", retry_after_s=5),
    "denied": lambda: Denied("UnauthorizedOperation"),
    "invalid": lambda: InvalidSpec("InvalidParameterValue"),
    "unknown": lambda: Unavailable("SomethingNobodyHasHeardOf"),
    "down": lambda: Unavailable("InternalError"),
}
"""What a call, or a create of an offering, may be refused with."""


@dataclass(kw_only=True)
class Knobs:
    """How bad it is; whoever wants it good has to say so."""

    lag_ms: tuple[int, int] = (0, 30_000)
    """How late what happened to a machine is seen."""
    start_ms: int = 10_000
    stop_ms: int = 5_000
    """`NEVER`: a terminate that is accepted and does nothing."""
    dedupes: bool = True
    """Whether a key that was used gives the same machine again; without, there is only looking."""
    creates: deque[str] = field(default_factory=deque)
    """What becomes of the next creates: `ok`, `lost` (it happens, and its answer does not come),
    `raises` (an error although it happens), or a refusal. Then they are as usual."""
    offerings: dict[str, str] = field(default_factory=dict)
    """Refusals by name of the offering, until they are taken back."""
    calls: str = ""
    """A refusal for every call, until it is taken back."""
    page_size: int = 30
    lost_pages: int = 0
    """How many listings miss their last page, and say so."""
    shuffles: bool = False
    """Whether the order changes between pages: one machine is told twice, and another never."""
    is_empty: bool = False
    """Whether listings are empty, and well."""
    clock_offset_ms: int = 0


@dataclass(kw_only=True)
class Thing:
    """A machine as it is."""

    ref: str
    tags: dict[str, str]
    wish: tuple[object, ...]
    offering: Offering
    image: str
    created_at: int
    lag: int
    start_ms: int
    stopping_at: int = NEVER
    gone_at: int = NEVER

    def state(self, then: int) -> MachineState | None:
        """Tell how it was at some time; nothing before it was, and long after."""
        if then < self.created_at or then >= self.gone_at + REMEMBERED_MS:
            return None
        if then >= self.gone_at:
            return MachineState.GONE
        if then >= self.stopping_at:
            return MachineState.STOPPING
        return (
            MachineState.RUNNING
            if then >= self.created_at + self.start_ms
            else MachineState.PENDING
        )


@dataclass(kw_only=True)
class Notice:
    """A word that is on its way."""

    interruption: Interruption
    comes_at: int


class FakeProvider:
    """Implements the port over a dictionary; thread-safe."""

    kind = "fake"

    def __init__(
        self, now: Callable[[], int], *, seed: int = 1, knobs: Knobs | None = None
    ) -> None:
        self.knobs = knobs or Knobs()
        self.calls: Counter[str] = Counter()
        self._now = now
        self._rng = random.Random(seed)
        self._lock = threading.RLock()
        self._things: dict[str, Thing] = {}
        self._notices: list[Notice] = []

    # The port

    def inspect(self, sought: Sought) -> Machine | None:
        """Find a machine by name, else by operation and tags, as it was a while ago."""
        with self._lock:
            self._called("inspect")
            thing = self._find(sought)
            return None if thing is None else self._seen(thing)

    def list_machines(self, installation: str) -> Listing:
        """List by tag, page by page."""
        with self._lock:
            self._called("list_machines")
            if self.knobs.is_empty:
                return Listing(machines=(), complete=True)
            machines: list[Machine] = []
            complete = True
            things = [t for t in self._things.values() if self._seen(t) is not None]
            things = [t for t in things if t.tags.get(TAG_INSTALLATION) == installation]
            pages = range(0, len(things), self.knobs.page_size)
            for start in pages:
                if self.knobs.shuffles:
                    self._rng.shuffle(things)
                self.calls["page"] += 1
                if start == pages[-1] and self.knobs.lost_pages:
                    self.knobs.lost_pages -= 1
                    complete = False
                    break
                page = things[start : start + self.knobs.page_size]
                machines += [seen for t in page if (seen := self._seen(t)) is not None]
            return Listing(machines=tuple(machines), complete=complete)

    def provision(self, request: ProvisionRequest) -> Machine:
        """Make a machine; what becomes of the call is the knobs' business."""
        with self._lock:
            self._called("provision")
            plan = self.knobs.creates.popleft() if self.knobs.creates else "ok"
            refusal = self.knobs.offerings.get(request.offering.name) or plan
            if refusal in REFUSALS:
                raise REFUSALS[refusal]()
            thing = self._used(request) or self._made(request)
            if plan == "lost":
                raise Ambiguous("the connection was closed after the request was sent")
            if plan == "raises":
                raise Unavailable("InternalError")
            return self._machine(thing, thing.state(self._now()) or MachineState.PENDING)

    def terminate(self, sought: Sought) -> None:
        """Begin to end a machine, if it is seen already."""
        with self._lock:
            self._called("terminate")
            thing = self._find(sought)
            if thing is not None and self._seen(thing) is not None:
                self._stop(thing)

    def interruptions(self) -> tuple[Interruption, ...]:
        """Fetch the notices that have come; each comes until it is acknowledged."""
        with self._lock:
            self._called("interruptions")
            now = self._now()
            return tuple(n.interruption for n in self._notices if n.comes_at <= now)

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Forget notices."""
        with self._lock:
            self._called("acknowledge")
            self._notices = [n for n in self._notices if n.interruption.receipt not in receipts]

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Say which offerings would be refused."""
        return tuple(
            Check(name=one.name, level=CheckLevel.FAILED, text=self.knobs.offerings[one.name])
            for one in offerings
            if one.name in self.knobs.offerings
        )

    # What only a test can do

    def existing(self) -> list[str]:
        """Name all machines that cost money now, whosever they are."""
        with self._lock:
            gone = (None, MachineState.GONE)
            return [t.ref for t in self._things.values() if t.state(self._now()) not in gone]

    def plant(self, ref: str, tags: dict[str, str]) -> None:
        """Put a machine there that nobody here asked for."""
        with self._lock:
            self._put(ref, tags, (), Offering(name="planted"), image="")

    def retag(self, ref: str, tags: dict[str, str]) -> None:
        """Change tags behind our back, as anybody may who has the account's console."""
        with self._lock:
            self._things[ref].tags = tags

    def kill(self, ref: str) -> None:
        """End a machine at once, without a word."""
        with self._lock:
            self._things[ref].stopping_at = self._things[ref].gone_at = self._now()

    def announce(
        self, ref: str, *, within_ms: int = 120_000, late_ms: int = 0, copies: int = 1
    ) -> None:
        """Take a machine away soon, and say so: late, several times, or (0 copies) not at all."""
        with self._lock:
            at = self._now() + within_ms
            for copy in range(copies):
                receipt = f"{ref}/{at}/{copy}/{len(self._notices)}"
                word = Interruption(ref=ref, at=at + self.knobs.clock_offset_ms, receipt=receipt)
                self._notices.append(Notice(interruption=word, comes_at=self._now() + late_ms))
            thing = self._things[ref]
            thing.stopping_at = thing.gone_at = min(thing.gone_at, at)

    # Within

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.knobs.calls:
            raise REFUSALS[self.knobs.calls]()

    def _find(self, sought: Sought) -> Thing | None:
        if sought.ref:
            return self._things.get(sought.ref)
        owner = sought.owner
        tags = {
            TAG_INSTALLATION: owner.installation,
            TAG_INSTANCE: owner.instance_id,
            TAG_OPERATION: sought.operation_key,
        }
        fitting = [t for t in self._things.values() if tags.items() <= t.tags.items()]
        return next((t for t in fitting if self._seen(t) is not None), None)

    def _used(self, request: ProvisionRequest) -> Thing | None:
        used = None
        if self.knobs.dedupes:
            key = request.operation_key
            used = next((t for t in self._things.values() if t.wish[:1] == (key,)), None)
        if used is None:
            return None
        if used.wish != _wish(request):
            raise InvalidSpec("IdempotentParameterMismatch", field="operation_key")
        if used.stopping_at <= self._now():
            raise NotFound("IdempotentInstanceTerminated", field="operation_key")
        return used

    def _made(self, request: ProvisionRequest) -> Thing:
        tags = request.owner.tags(operation_key=request.operation_key, image=request.capacity.image)
        ref = f"m-{len(self._things):06}-{self._rng.getrandbits(24):06x}"
        return self._put(ref, tags, _wish(request), request.offering, image=request.capacity.image)

    def _put(
        self,
        ref: str,
        tags: dict[str, str],
        wish: tuple[object, ...],
        offering: Offering,
        *,
        image: str,
    ) -> Thing:
        self._things[ref] = Thing(
            ref=ref,
            tags=tags,
            wish=wish,
            offering=offering,
            image=image,
            created_at=self._now(),
            lag=self._rng.randint(*self.knobs.lag_ms),
            start_ms=self.knobs.start_ms,
        )
        return self._things[ref]

    def _stop(self, thing: Thing) -> None:
        if self.knobs.stop_ms < NEVER:
            thing.stopping_at = min(thing.stopping_at, self._now())
            thing.gone_at = min(thing.gone_at, thing.stopping_at + self.knobs.stop_ms)

    def _seen(self, thing: Thing) -> Machine | None:
        state = thing.state(self._now() - thing.lag)
        return None if state is None else self._machine(thing, state)

    def _machine(self, thing: Thing, state: MachineState) -> Machine:
        return Machine(
            ref=thing.ref,
            state=state,
            tags=dict(thing.tags),
            image=thing.image,
            machine=thing.offering.machine,
            region=thing.offering.region,
            zone=thing.offering.zone,
            launched_at=thing.created_at + self.knobs.clock_offset_ms,
        )


def _wish(request: ProvisionRequest) -> tuple[object, ...]:
    return (
        request.operation_key,
        request.owner,
        request.runner_name,
        request.capacity.class_id,
        request.offering,
        request.bootstrap,
    )
