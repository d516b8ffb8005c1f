"""The step up: which draining machines are taken back, which are made, and why no more.

Machines for jobs come first, then those that bounds ask for, the firmest bound first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forgeyard.fleet.bounds import Aim
from forgeyard.fleet.choosing import Chooser
from forgeyard.fleet.drift import blocked_but, newest, with_images
from forgeyard.fleet.muster import Muster
from forgeyard.fleet.need import Need
from forgeyard.fleet.trail import Trail
from forgeyard.fleet.view import Clamp, ClampKind, FleetView, InstanceView, Launch
from forgeyard.model.capacity import ScaleReason
from forgeyard.model.fleet import FleetState, Market
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.demand import Demand

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUp:
    """What is taken back and made, and what stood against more; its clamps count launches."""

    keep: tuple[str, ...]
    launch: tuple[Launch, ...]
    clamps: tuple[Clamp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One machine that is wanted, before it is known which."""

    reason: ScaleReason
    made_for: str = ""
    among: frozenset[str] | None = None


def step_up(
    view: FleetView, wanted: Need, aimed: Aim, *, there: Muster, demand: Demand, now: int
) -> StepUp:
    """Close the gap to what is aimed at, as far as every bound on launches allows."""
    for_jobs = min(wanted.total, aimed.wanted) - wanted.there
    gap = max(aimed.wanted - len(there.usable), for_jobs, 0)
    kept = _taken_back(wanted.returning, there.returning, gap)
    trail = Trail(gap - len(kept))
    _image_blocked(trail, view)
    _frozen(trail, view)
    _provider_frozen(trail, view)
    _room(trail, aimed.most - there.existing, there.existing)
    _rate(trail, view, now)
    missing = _missing(wanted, aimed, there, gap - len(kept))[: trail.number]
    chooser = Chooser(view, (*there.usable, *kept), now)
    launch = _chosen(missing, chooser, demand)
    _refused(trail, chooser, view)
    return StepUp(
        keep=tuple(it.instance_id for it in kept),
        launch=with_images(view, launch),
        clamps=(*trail.clamps, *_turned(view, launch, chooser.turned)),
    )


def permits(view: FleetView, now: int) -> int:
    """Count how many machines may be asked for now: a bucket of `burst`, filled by the minute."""
    rule = view.spec.scaling.up
    full = rule.burst * MINUTE_MS
    level, at = full, min(view.launches, default=now)
    for launched_at in sorted(view.launches):
        level = min(full, level + (launched_at - at) * rule.per_minute) - MINUTE_MS
        at = launched_at
    level = min(full, level + max(0, now - at) * rule.per_minute)
    return max(0, level // MINUTE_MS)


def _taken_back(
    returning: Mapping[str, int], draining: Sequence[InstanceView], gap: int
) -> tuple[InstanceView, ...]:
    """Choose the draining machines that are taken back: those first that jobs are reckoned on."""
    left = dict(returning)
    first: list[InstanceView] = []
    others: list[InstanceView] = []
    for instance in draining:
        if left.get(instance.offering, 0) > 0 and not instance.leases:
            left[instance.offering] -= 1
            first.append(instance)
        else:
            others.append(instance)
    return tuple([*first, *others][: max(0, gap)])


def _image_blocked(trail: Trail, view: FleetView) -> None:
    most = blocked_but(view)
    if most is not None:
        blocked = [
            it for it in (view.spec.capacity.image, newest(view)) if it in view.blocked_images
        ]
        trail.at_most(ClampKind.IMAGE_BLOCKED, most, f"its image {blocked[0]} is blocked")


def _frozen(trail: Trail, view: FleetView) -> None:
    if view.state is FleetState.FROZEN:
        trail.at_most(ClampKind.FROZEN, 0, "it is frozen: nothing is made")


def _provider_frozen(trail: Trail, view: FleetView) -> None:
    if view.provider_frozen:
        text = f"provider {view.spec.provider} is frozen: nothing is made"
        trail.at_most(ClampKind.PROVIDER_FROZEN, 0, text)


def _room(trail: Trail, room: int, existing: int) -> None:
    text = f"{existing} machines may exist already, whatever their state"
    trail.at_most(ClampKind.MAXIMUM, room, text)


def _rate(trail: Trail, view: FleetView, now: int) -> None:
    rule = view.spec.scaling.up
    text = f"{rule.per_minute} a minute may be asked for, and {rule.burst} at once after a pause"
    trail.at_most(ClampKind.RATE, permits(view, now), text)


def _missing(wanted: Need, aimed: Aim, there: Muster, gap: int) -> list[_Wanted]:
    """List the machines of the gap with why each is wanted, the most pressing first."""
    jobs = [
        _Wanted(reason=ScaleReason.QUEUED_DEMAND, made_for=it.made_for, among=it.offerings)
        for it in wanted.more
    ][:gap]
    # What is there satisfies the firmest bounds, so what is missing belongs to the others.
    firmest_first = [reason for reason, count in reversed(aimed.raised) for _ in range(count)]
    rest = gap - len(jobs)
    reasons = firmest_first[len(firmest_first) - rest :] if rest else []
    reasons = [*[ScaleReason.MINIMUM] * (rest - len(reasons)), *reasons]
    broken = min(rest, len(there.unwell) + len(there.interrupted) + len(there.lapsed))
    reasons[:broken] = [ScaleReason.REPLACEMENT] * broken
    return [*jobs, *(_Wanted(reason=reason) for reason in reasons)]


def _chosen(missing: Iterable[_Wanted], chooser: Chooser, demand: Demand) -> tuple[Launch, ...]:
    wishes = {it.requirement_class: it.example.spot for it in demand.classes}
    launch: list[Launch] = []
    for one in missing:
        wish = wishes.get(one.made_for, SpotWish.ALLOWED)
        offering = chooser.choose(one.among, wish)
        if offering is not None:
            launch.append(Launch(offering=offering.name, reason=one.reason, made_for=one.made_for))
    return tuple(launch)


def _refused(trail: Trail, chooser: Chooser, view: FleetView) -> None:
    rule, percent = view.spec.guardrail, view.spec.placement.spot_percent
    texts = {
        ClampKind.NO_OFFERING: chooser.shut_text,
        ClampKind.SPOT_SHARE: f"{percent} % of its machines may be preemptible, and others "
        "cannot be had",
        ClampKind.HOURLY_COST: f"an hour of it may cost {rule.hourly} millionths "
        f"{rule.currency} by estimate",
        ClampKind.DAILY_COST: f"a day of it may cost {rule.daily} millionths {rule.currency} "
        "by estimate, what runs until midnight counted in",
    }
    for kind, text in texts.items():
        trail.at_most(kind, trail.number - chooser.refused[kind], text)


def _turned(view: FleetView, launch: Iterable[Launch], turned: int) -> list[Clamp]:
    """Name the share of preemptible machines where it made some of them stable."""
    if not turned:
        return []
    offerings = (view.spec.offering(it.offering) for it in launch)
    spot = sum(it is not None and it.market is Market.PREEMPTIBLE for it in offerings)
    text = f"{view.spec.placement.spot_percent} % of its machines may be preemptible"
    return [Clamp(kind=ClampKind.SPOT_SHARE, before=spot + turned, after=spot, text=text)]
