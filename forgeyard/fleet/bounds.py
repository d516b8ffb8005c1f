"""How many machines a fleet aims at: what is needed, moved by every bound on that, each named.

First what raises it (ready ones, reservations, forecast, minimum), then what caps it: so a maximum
holds against everything, and nothing is lowered by a forecast.
"""

from dataclasses import dataclass

from forgeyard.fleet.drift import surge
from forgeyard.fleet.trail import Trail
from forgeyard.fleet.view import Clamp, ClampKind, FleetView
from forgeyard.model.capacity import ScaleReason
from forgeyard.model.fleet import CapacityReservation, FleetState, Override

_REASON = {
    ClampKind.WARM: ScaleReason.WARM_DEFICIT,
    ClampKind.RESERVED: ScaleReason.RESERVATION,
    ClampKind.FORECAST: ScaleReason.FORECAST,
    ClampKind.MINIMUM: ScaleReason.MINIMUM,
    ClampKind.OVERRIDE: ScaleReason.MANUAL,
    ClampKind.SCALE_TO_ZERO: ScaleReason.MINIMUM,
    ClampKind.ROLLOUT: ScaleReason.REPLACEMENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a fleet aims at, and which bounds moved it there."""

    wanted: int
    steady: int
    """The same without those that are wanted only while others are replaced."""
    most: int
    """The maximum that is in force."""
    raised: tuple[tuple[ScaleReason, int], ...]
    """For what reasons it is more than demand needs, and by how many machines."""
    clamps: tuple[Clamp, ...]


def aim(view: FleetView, needed: int, now: int) -> Aim:
    """Move what is needed through every bound on what is aimed at."""
    trail = Trail(needed)
    _protected(trail, view)
    _warm(trail, view)
    _reserved(trail, view, now)
    _forecast(trail, view)
    _minimum(trail, view, now)
    _scale_to_zero(trail, view)
    steady = trail.number
    _surge(trail, view, now)
    _maximum(trail, view, now)
    _draining(trail, view)
    raised = (
        (_REASON[it.kind], it.after - it.before) for it in trail.clamps if it.after > it.before
    )
    return Aim(
        wanted=trail.number,
        steady=min(steady, trail.number),
        most=most(view, now),
        raised=tuple(raised),
        clamps=tuple(trail.clamps),
    )


def most(view: FleetView, now: int) -> int:
    """Tell the maximum that is in force."""
    override = _in_force(view, now)
    return view.spec.scaling.max if override is None or override.max is None else override.max


def is_held(reservation: CapacityReservation, now: int) -> bool:
    """Tell whether machines are to be there for a reservation: from its lead on (RSV-008)."""
    return reservation.starts_at - reservation.lead <= now < reservation.ends_at


def _in_force(view: FleetView, now: int) -> Override | None:
    override = view.override
    return override if override is not None and now < override.expires_at else None


def _protected(trail: Trail, view: FleetView) -> None:
    if view.spec.protected:
        text = "it is protected: demand does not move it"
        trail.at_most(ClampKind.PROTECTED, 0, text)


def _warm(trail: Trail, view: FleetView) -> None:
    warm = view.spec.scaling.warm
    trail.plus(ClampKind.WARM, warm, f"{warm} idle machines are kept ready beside those needed")


def _reserved(trail: Trail, view: FleetView, now: int) -> None:
    """Hold what is reserved; reservations that overlap add up (RSV-010)."""
    held = [it for it in view.reservations if is_held(it, now)]
    total = sum(it.quantity for it in held)
    names = ", ".join(sorted(it.reservation_id for it in held))
    trail.at_least(ClampKind.RESERVED, total, f"{total} machines are reserved: {names}")


def _forecast(trail: Trail, view: FleetView) -> None:
    if view.forecast is not None:
        text = f"the forecast expects {view.forecast} to be wanted soon"
        trail.at_least(ClampKind.FORECAST, view.forecast, text)


def _minimum(trail: Trail, view: FleetView, now: int) -> None:
    override = _in_force(view, now)
    if override is None or override.min is None:
        least = view.spec.scaling.min
        trail.at_least(ClampKind.MINIMUM, least, f"the minimum is {least}")
    else:
        text = f"the minimum is {override.min} for now, instead of {view.spec.scaling.min}"
        trail.at_least(ClampKind.OVERRIDE, override.min, text)


def _scale_to_zero(trail: Trail, view: FleetView) -> None:
    if not view.spec.scaling.scale_to_zero:
        trail.at_least(ClampKind.SCALE_TO_ZERO, 1, "it never scales to zero")


def _surge(trail: Trail, view: FleetView, now: int) -> None:
    more = surge(view, trail.number, now)
    trail.plus(ClampKind.ROLLOUT, more, f"{more} more while machines of another image are replaced")


def _maximum(trail: Trail, view: FleetView, now: int) -> None:
    override, bound = _in_force(view, now), most(view, now)
    if override is None or override.max is None:
        trail.at_most(ClampKind.MAXIMUM, bound, f"the maximum is {bound}")
    else:
        text = f"the maximum is {bound} for now, instead of {view.spec.scaling.max}"
        trail.at_most(ClampKind.OVERRIDE, bound, text)


def _draining(trail: Trail, view: FleetView) -> None:
    if view.state in (FleetState.DRAINING, FleetState.DELETING):
        trail.at_most(ClampKind.DRAINING, 0, f"it is {view.state}")
