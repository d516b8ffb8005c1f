"""The step down: which machines drain, each by name, and why no others.

Draining takes no work from anybody: a machine that drains gets no further lease, and ends when its
last one has. All the same nobody who works is chosen for want of work. What a provider takes away,
or what must not run any more, drains at once; the rest goes slowly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forgeyard.fleet.bounds import Aim
from forgeyard.fleet.drift import missing_canaries, newest, to_replace
from forgeyard.fleet.muster import Muster, is_pinned
from forgeyard.fleet.trail import Trail
from forgeyard.fleet.view import Clamp, ClampKind, FleetView, InstanceView, Release
from forgeyard.model.capacity import ScaleDownReason
from forgeyard.model.fleet import FleetState, LifetimeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """What drains, and what stood against more; its clamps count machines to drain."""

    drain: tuple[Release, ...]
    clamps: tuple[Clamp, ...]


def step_down(view: FleetView, aimed: Aim, *, there: Muster, growing: int, now: int) -> StepDown:
    """Let go of what must go, and of as many idle machines as are too many."""
    must = (
        *_releases(there.interrupted, ScaleDownReason.INTERRUPTED),
        *_releases(there.blocked, ScaleDownReason.IMAGE),
    )
    if view.state in (FleetState.DRAINING, FleetState.DELETING):
        trail, victims = _everything(view, there, now)
    else:
        trail, victims = _in_order(view, aimed, there=there, growing=growing, now=now)
    return StepDown(drain=(*must, *victims), clamps=tuple(trail.clamps))


def _everything(view: FleetView, there: Muster, now: int) -> tuple[Trail, tuple[Release, ...]]:
    """Let go of all machines, without haste: those first that do nothing."""
    order = (*there.unwell, *there.idle, *there.coming, *there.lapsed, *there.busy)
    free = [it for it in order if not is_pinned(it, now)]
    trail = Trail(len(order))
    _pinned(trail, len(free))
    _at_once(trail, view)
    return trail, _releases(free[: trail.number], ScaleDownReason.FLEET_DRAINING)


def _in_order(
    view: FleetView, aimed: Aim, *, there: Muster, growing: int, now: int
) -> tuple[Trail, tuple[Release, ...]]:
    """Let go of what is sick or has served its time, and of idle machines that are too many."""
    over = max(0, len(there.usable) - aimed.most)
    surplus = 0 if growing else len(there.ready) - aimed.wanted
    trail = Trail(max(over, surplus, 0))
    _frozen(trail, view)
    _scale_up_only(trail, view)
    _window(trail, view, over, ready=len(there.ready), now=now)
    _busy(trail, len(there.idle))
    free = [it for it in there.idle if not is_pinned(it, now)]
    _pinned(trail, len(free))
    rested = [it for it in free if _has_rested(it, view, now)]
    _idle_grace(trail, max(len(rested), min(over, len(free))))
    _at_once(trail, view, len(there.lapsed))
    names = {it.instance_id for it in rested}
    tired = [it for it in free if it.instance_id not in names]
    chosen = [*_first_to_go(rested, view), *_first_to_go(tired, view)][: trail.number]
    drain = (
        *_releases(chosen[:over], ScaleDownReason.ABOVE_MAXIMUM),
        *_releases(chosen[over:], ScaleDownReason.IDLE),
    )
    _spared(trail, there)
    left = _without(there.ready, chosen)
    replaced = _replaced(trail, view, aimed, there=there, left=left, now=now)
    return trail, (*_worn(view, there, now), *drain, *replaced)


def _worn(view: FleetView, there: Muster, now: int) -> tuple[Release, ...]:
    """Let go of what is no use any more.

    Of a frozen fleet only of what must get no further job: to drain asks nothing of a provider.
    """
    by_age = view.spec.lifetime.kind is LifetimeKind.MAX_AGE
    if view.state is FleetState.FROZEN or view.provider_frozen:
        return () if by_age else _releases(there.lapsed, ScaleDownReason.JOBS_DONE)
    sick = [it for it in there.unwell if not is_pinned(it, now)]
    reason = ScaleDownReason.MAX_AGE if by_age else ScaleDownReason.JOBS_DONE
    return (*_releases(sick, ScaleDownReason.UNUSABLE), *_releases(there.lapsed, reason))


def _replaced(
    trail: Trail,
    view: FleetView,
    aimed: Aim,
    *,
    there: Muster,
    left: Sequence[InstanceView],
    now: int,
) -> tuple[Release, ...]:
    """Let go of machines of another image, as far as others are there for what is wanted.

    Busy ones are among them: they finish what they have and get nothing more, else a fleet that
    always has work would never be rid of an old image.
    """
    victims = _to_go_for_image(view, aimed, there=there, left=left, now=now)
    stays = view.state in (FleetState.FROZEN, FleetState.SCALE_UP_ONLY)
    if not victims or stays or view.provider_frozen:
        return ()
    spare = len(left) - max(0, aimed.steady - view.spec.rollout.max_unavailable)
    count = min(len(victims), max(0, spare), view.spec.scaling.down.at_once)
    text = f"{len(victims)} have another image; they go as others come in their place"
    if count < len(victims):
        trail.clamps.append(
            Clamp(kind=ClampKind.ROLLOUT, before=len(victims), after=count, text=text)
        )
    idle_first = sorted(victims, key=lambda it: (it.leases, it.requested_at, it.instance_id))
    return _releases(idle_first[:count], ScaleDownReason.IMAGE)


def _to_go_for_image(
    view: FleetView, aimed: Aim, *, there: Muster, left: Sequence[InstanceView], now: int
) -> tuple[InstanceView, ...]:
    """Pick what has drifted; of a full fleet, also as many as canaries find no room beside."""
    drifted = to_replace(view, left, now)
    # What is on its way out will make room without anybody's help.
    staying = len(there.usable) + len(there.unwell) + len(there.lapsed)
    crowded = missing_canaries(view) - max(0, aimed.most - staying)
    if drifted or crowded <= 0:
        return drifted
    others = [it for it in left if it.image != newest(view) and not is_pinned(it, now)]
    return tuple(sorted(others, key=lambda it: (it.leases, it.requested_at))[:crowded])


def _without(some: Sequence[InstanceView], gone: Sequence[InstanceView]) -> list[InstanceView]:
    names = {it.instance_id for it in gone}
    return [it for it in some if it.instance_id not in names]


def _frozen(trail: Trail, view: FleetView) -> None:
    if view.state is FleetState.FROZEN:
        trail.at_most(ClampKind.FROZEN, 0, "it is frozen: nothing is let go")
    if view.provider_frozen:
        text = f"provider {view.spec.provider} is frozen: nothing is let go"
        trail.at_most(ClampKind.PROVIDER_FROZEN, 0, text)


def _scale_up_only(trail: Trail, view: FleetView) -> None:
    if view.state is FleetState.SCALE_UP_ONLY:
        trail.at_most(ClampKind.SCALE_UP_ONLY, 0, "it only grows for now")


def _window(trail: Trail, view: FleetView, over: int, *, ready: int, now: int) -> None:
    """Shrink to the most that was wanted lately, and no further (PLN-014)."""
    window = view.spec.scaling.down.window
    lately = max((count for at, count in view.wanted if now - at < window), default=0)
    text = f"{lately} were wanted within the last {window // 1000} s"
    trail.at_most(ClampKind.WINDOW, max(over, ready - lately), text)


def _busy(trail: Trail, idle: int) -> None:
    trail.at_most(ClampKind.BUSY, idle, "the others have work, which nobody takes from them")


def _pinned(trail: Trail, free: int) -> None:
    trail.at_most(ClampKind.PINNED, free, "the others are pinned")


def _idle_grace(trail: Trail, rested: int) -> None:
    trail.at_most(ClampKind.IDLE_GRACE, rested, "the others have not been idle for long enough")


def _at_once(trail: Trail, view: FleetView, before: int = 0) -> None:
    bound = view.spec.scaling.down.at_once
    trail.at_most(ClampKind.AT_ONCE, bound - before, f"{bound} are let go at once")


def _spared(trail: Trail, there: Muster) -> None:
    """Name the pins that keep machines which have served their time."""
    if there.spared:
        served = len(there.lapsed)
        trail.clamps.append(
            Clamp(
                kind=ClampKind.PINNED,
                before=served + there.spared,
                after=served,
                text=f"{there.spared} that have served their time are pinned",
            )
        )


def _has_rested(instance: InstanceView, view: FleetView, now: int) -> bool:
    """Tell whether a machine is known to have been idle for long enough."""
    since = instance.idle_since
    return since is not None and now - since >= view.spec.scaling.down.idle_grace


def _first_to_go(idle: Iterable[InstanceView], view: FleetView) -> list[InstanceView]:
    """Order machines: of another image first, then the dearest, then the oldest."""
    image = newest(view)
    return sorted(
        idle, key=lambda it: (it.image == image, -it.cost, it.requested_at, it.instance_id)
    )


def _releases(instances: Sequence[InstanceView], reason: ScaleDownReason) -> tuple[Release, ...]:
    return tuple(Release(instance_id=it.instance_id, reason=reason) for it in instances)
