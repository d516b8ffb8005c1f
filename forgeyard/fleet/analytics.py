"""What a fleet has done with its machines in a window of time, derived from what rows say of it.

Each figure stands for itself and decides nothing. There is none that weighs them against each
other: what waiting may cost is for people to say (S1 199).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forgeyard.fleet.cost import for_so_long
from forgeyard.model.fleet import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """What came of one machine, and when; instants are epoch milliseconds."""

    market: Market = Market.STABLE
    cost: int = 0
    """For an hour, in millionths."""
    is_for_demand: bool = False
    """Whether it was wanted for jobs that waited."""
    requested_at: int
    ready_at: int | None = None
    """When its runner was admitted."""
    left_at: int | None = None
    """When it was given up, after draining; `None` while it is not."""
    ended_at: int | None = None
    interrupted_at: int | None = None
    has_failed: bool = False
    busy: int = 0
    """So long it had at least one lease while it was ready, within the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How many machines a decision wanted, how many were usable, and how many it made."""

    at: int
    wanted: int
    usable: int
    launched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is known of a fleet in a window."""

    since: int
    until: int
    machines: tuple[MachineTimes, ...] = ()
    """Those of which any part of their life is in the window."""
    decisions: tuple[Decided, ...] = ()
    """In their order."""
    waits: tuple[int, ...] = ()
    """How long jobs had waited that its machines were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long something took, in milliseconds; nothing is said where nothing was seen."""

    count: int
    median: int | None = None
    p95: int | None = None
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytics:
    """What a fleet did between two instants; times are milliseconds, costs millionths."""

    since: int
    until: int
    machines: int
    """Those that were there or wanted at any time."""
    ready_ms: int
    """From an admitted runner until it was given up, all machines added up."""
    busy_ms: int
    """That of it in which a machine had at least one lease."""
    utilisation: float | None
    """The share of the one in the other."""
    queue_wait: Spread
    """How long the jobs waited that its machines took, each by its last lease."""
    scale_latency: Spread
    """From the first decision that wanted more than there was to a machine that is ready."""
    provision_latency: Spread
    """From the wish for a machine to one that is ready."""
    never_ready: int
    """Machines that were wanted in the window and that failed before they were ready."""
    cost: int
    """By estimate, of all that may have existed."""
    idle_cost: int
    """By estimate, of what was ready and had no lease."""
    interruptions: int
    """Machines that their provider said it would take away."""
    preemptible: int
    """Machines that may be taken away at any time."""
    preemptible_ready_ms: int


def analyse(seen: Seen) -> Analytics:
    """Derive every figure of a fleet."""
    machines = seen.machines
    wanted = [one for one in machines if one.requested_at >= seen.since]
    ready = sum(_ready(one, seen) for one in machines)
    busy = sum(one.busy for one in machines)
    spot = [one for one in machines if one.market is Market.PREEMPTIBLE]
    return Analytics(
        since=seen.since,
        until=seen.until,
        machines=len(machines),
        ready_ms=ready,
        busy_ms=busy,
        utilisation=round(busy / ready, 4) if ready else None,
        queue_wait=spread(seen.waits),
        scale_latency=spread(_scale_latencies(wanted, seen.decisions)),
        provision_latency=spread(
            one.ready_at - one.requested_at for one in wanted if one.ready_at is not None
        ),
        never_ready=sum(one.has_failed and one.ready_at is None for one in wanted),
        cost=sum(for_so_long(one.cost, _existed(one, seen)) for one in machines),
        idle_cost=sum(for_so_long(one.cost, _ready(one, seen) - one.busy) for one in machines),
        interruptions=sum((one.interrupted_at or 0) >= seen.since for one in machines),
        preemptible=len(spot),
        preemptible_ready_ms=sum(_ready(one, seen) for one in spot),
    )


def spread(amounts: Iterable[int]) -> Spread:
    """Tell the middle, the 95th of a hundred and the longest; each is one that was seen."""
    ordered = sorted(amounts)
    if not ordered:
        return Spread(count=0)
    return Spread(
        count=len(ordered),
        median=_nearest(ordered, 50),
        p95=_nearest(ordered, 95),
        longest=ordered[-1],
    )


def _nearest(ordered: Sequence[int], percent: int) -> int:
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _ready(one: MachineTimes, seen: Seen) -> int:
    """Tell how much of the window a machine was ready."""
    if one.ready_at is None:
        return 0
    ends = [it for it in (one.left_at, one.ended_at) if it is not None]
    return _within(one.ready_at, min(ends, default=seen.until), seen)


def _existed(one: MachineTimes, seen: Seen) -> int:
    """Tell how much of the window a machine was paid for, as far as anybody knew."""
    return _within(one.requested_at, seen.until if one.ended_at is None else one.ended_at, seen)


def _within(begin: int, end: int, seen: Seen) -> int:
    return max(0, min(end, seen.until) - max(begin, seen.since))


def _scale_latencies(
    machines: Iterable[MachineTimes], decisions: Sequence[Decided]
) -> Iterable[int]:
    """Tell how long jobs had to do without each machine that was made for them.

    A machine is wanted by the decision of the same instant. Where the decisions before left
    something of what they wanted undone, for want of room, money or permission, the wish is as old
    as the first of them.
    """
    began: dict[int, int] = {}
    open_since: int | None = None
    for one in decisions:
        since = one.at if open_since is None else open_since
        began[one.at] = since
        open_since = since if one.wanted > one.usable + one.launched else None
    for machine in machines:
        if machine.is_for_demand and machine.ready_at is not None:
            yield machine.ready_at - began.get(machine.requested_at, machine.requested_at)
