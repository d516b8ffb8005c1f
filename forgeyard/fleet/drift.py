"""Which machines of a fleet have the wrong image, and how others come in their place.

A machine has drifted when its image is none of those that it may have; that a second one is
allowed as well makes no drift of the first (FLT-063). What drifted is replaced while the fleet
stays as large as it is wanted, give or take what its document allows; busy ones finish their job,
and pinned ones stay (IMG-010, FLT-038, FLT-064, FLT-065).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from forgeyard.fleet.view import COMING, FleetView, InstanceView, Launch
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.image import RolloutState


def allowed(view: FleetView) -> frozenset[str]:
    """Tell which images a machine of a fleet may have at present."""
    stage, own = view.rollout, view.spec.capacity.image
    if stage is None:
        return frozenset({own})
    replaces = stage.state is RolloutState.REPLACING and not stage.is_paused
    return frozenset({stage.image} if replaces else {own, stage.image})


def has_drifted(instance: InstanceView, view: FleetView) -> bool:
    """Tell whether a machine has an image that it may not have."""
    return instance.image not in allowed(view)


def newest(view: FleetView) -> str:
    """Tell the image that the fleet is on its way to."""
    return view.spec.capacity.image if view.rollout is None else view.rollout.image


def surge(view: FleetView, wanted: int, now: int) -> int:
    """Count the machines that are wanted only while others are replaced.

    Canaries come beside what is wanted, also where nothing is: without them nothing is proved.
    """
    stage, rules = view.rollout, view.spec.rollout
    if stage is not None and stage.state is RolloutState.CANARY:
        return _proving(view) if stage.is_paused else rules.canaries
    return min(rules.max_surge, wanted, len(to_replace(view, _present(view), now)))


def to_replace(
    view: FleetView, instances: Iterable[InstanceView], now: int
) -> tuple[InstanceView, ...]:
    """Pick the machines that have drifted and that nobody keeps."""
    return tuple(
        it
        for it in instances
        if has_drifted(it, view) and (it.pinned_until is None or it.pinned_until <= now)
    )


def missing_canaries(view: FleetView) -> int:
    """Count the canaries that are neither there nor coming."""
    stage = view.rollout
    if stage is None or stage.is_paused or stage.state is not RolloutState.CANARY:
        return 0
    return max(0, view.spec.rollout.canaries - _proving(view))


def with_images(view: FleetView, launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """Say which of the machines to make have the image of a rollout."""
    stage = view.rollout
    if stage is None or stage.is_paused:
        return tuple(launches)
    new = len(launches) if stage.state is RolloutState.REPLACING else missing_canaries(view)
    return (*(replace(one, image=stage.image) for one in launches[:new]), *launches[new:])


def blocked_but(view: FleetView) -> int | None:
    """Count the machines that can be made although an image is blocked; `None`: none is.

    Its canaries can, where only the image of the document is blocked.
    """
    stage, own = view.rollout, view.spec.capacity.image
    if stage is None or stage.is_paused:
        return 0 if own in view.blocked_images else None
    if stage.image in view.blocked_images:
        return 0
    if stage.state is RolloutState.REPLACING or own not in view.blocked_images:
        return None
    return missing_canaries(view)


def _proving(view: FleetView) -> int:
    return sum(it.image == newest(view) for it in _present(view))


def _present(view: FleetView) -> list[InstanceView]:
    """List what is there or coming, and is not about to be taken away."""
    states = COMING | {CapacityInstanceState.HEALTHY}
    return [
        it
        for it in view.instances
        if it.may_exist and it.state in states and not it.interrupted and it.is_healthy
    ]
