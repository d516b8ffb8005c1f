"""What is wrong with the document of a fleet, said before anything is made of it.

A problem is a contradiction that nobody can have meant; a note is what somebody may want to know.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from forgeyard.errors import InvalidRequest
from forgeyard.model.capability import TrustClass
from forgeyard.model.fleet import (
    MOST_INSTANCES,
    FleetSpec,
    IsolationClass,
    Lifetime,
    LifetimeKind,
    Market,
    Offering,
    Scaling,
)
from forgeyard.model.units import brief_duration

LONGEST_WARMUP_MS: Final = 3_600_000
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing in a document: where it stands, and what may stand there."""

    field: str
    value: object
    allowed: str
    text: str


def demand_sane(spec: FleetSpec) -> None:
    """Refuse a document that contradicts itself.

    Raises:
        InvalidRequest: naming the field, when something in it cannot have been meant.
    """
    for one in problems(spec):
        raise InvalidRequest(one.text, field=one.field, value=one.value, allowed=one.allowed)


def problems(spec: FleetSpec) -> tuple[Problem, ...]:
    """List every contradiction in a document, in its order."""
    found = (
        *(_names, _capacity, _offerings, _scaling, _placement),
        *(_lifetime, _rollout, _money, _deadlines, _warmup),
    )
    return tuple(problem for judge in found for problem in judge(spec))


def notes(spec: FleetSpec) -> tuple[Problem, ...]:
    """List what is allowed, and may surprise."""
    return tuple(_notes(spec))


def demand_bounds(scaling: Scaling, least: int | None, most: int | None) -> None:
    """Refuse other bounds that leave no number of machines.

    Raises:
        InvalidRequest: none was given, or the least is more than the most.
    """
    if least is None and most is None:
        raise InvalidRequest("neither bound is given", field="min", allowed="a min, a max, or both")
    lower = scaling.min if least is None else least
    upper = scaling.max if most is None else most
    if not 0 <= lower <= upper <= MOST_INSTANCES:
        raise InvalidRequest(
            f"there cannot be at least {lower} machines and at most {upper}",
            field="max" if least is None else "min",
            value=most if least is None else least,
            allowed=f"0 to {MOST_INSTANCES}, and min no more than max",
        )


def demand_span(field: str, span: int, *, most: int) -> None:
    """Refuse what would last for nothing, or for longer than anybody remembers it.

    Raises:
        InvalidRequest: it does.
    """
    if not 0 < span <= most:
        raise InvalidRequest(
            "this lasts for nothing, or for too long",
            field=field,
            value=span,
            allowed=f"more than 0, at most {brief_duration(most)}",
        )


def _names(spec: FleetSpec) -> Iterator[Problem]:
    if not _NAME.fullmatch(spec.name):
        yield Problem(
            field="name",
            value=spec.name,
            allowed="up to 63 small letters, digits and hyphens, beginning with no hyphen",
            text="a fleet has a short, plain name",
        )


def _capacity(spec: FleetSpec) -> Iterator[Problem]:
    resources = spec.capacity.resources
    for name, amount in (
        ("cpu", resources.cpu),
        ("memory", resources.memory),
        ("slots", resources.slots),
    ):
        if amount <= 0:
            yield Problem(
                field=f"capacity.resources.{name}",
                value=amount,
                allowed="more than 0",
                text=f"a machine without {name} serves nobody",
            )
    if resources.disk < 0:
        yield Problem(
            field="capacity.resources.disk",
            value=resources.disk,
            allowed="0 or more",
            text="there is no less than no disk",
        )
    if spec.capacity.trust is TrustClass.SIGNING_RESTRICTED and not spec.protected:
        yield Problem(
            field="protected",
            value=spec.protected,
            allowed="true, where the trust class is signing_restricted",
            text="people alone decide how many machines may sign",
        )


def _offerings(spec: FleetSpec) -> Iterator[Problem]:
    seen: set[str] = set()
    for place, offering in enumerate(spec.offerings):
        if offering.name in seen:
            yield Problem(
                field=f"offerings.{place}.name",
                value=offering.name,
                allowed="a name that no other offering of this fleet has",
                text="two offerings have one name",
            )
        seen.add(offering.name)


def _scaling(spec: FleetSpec) -> Iterator[Problem]:
    scaling = spec.scaling
    for name, amount in (("min", scaling.min), ("warm", scaling.warm)):
        if amount > scaling.max:
            yield Problem(
                field=f"scaling.{name}",
                value=amount,
                allowed=f"at most scaling.max, which is {scaling.max}",
                text=f"a fleet cannot keep {amount} machines where {scaling.max} are allowed",
            )


def _placement(spec: FleetSpec) -> Iterator[Problem]:
    yield from _places("regions", spec.placement.regions, {one.region for one in spec.offerings})
    yield from _places("zones", spec.placement.zones, {one.zone for one in spec.offerings})
    within = tuple(one for one in spec.offerings if _is_within(one, spec))
    if not within:
        yield Problem(
            field="placement",
            value=", ".join((*spec.placement.regions, *spec.placement.zones)),
            allowed="the region and the zone of one of the offerings",
            text="no offering is where this fleet may be",
        )
    elif spec.placement.spot_percent == 0 and not _stable(within):
        yield Problem(
            field="placement.spot_percent",
            value=0,
            allowed="more than 0, or an offering whose market is stable",
            text="every offering is preemptible, and none of the fleet may be",
        )


def _places(name: str, wanted: tuple[str, ...], offered: set[str]) -> Iterator[Problem]:
    known = ", ".join(sorted(offered - {""})) or "none; give the offerings theirs"
    for place, one in enumerate(wanted):
        if one not in offered:
            yield Problem(
                field=f"placement.{name}.{place}",
                value=one,
                allowed=f"those of the offerings: {known}",
                text=f"no offering is in {one}",
            )


def _is_within(offering: Offering, spec: FleetSpec) -> bool:
    regions, zones = spec.placement.regions, spec.placement.zones
    return (not regions or offering.region in regions) and (not zones or offering.zone in zones)


def _stable(offerings: tuple[Offering, ...]) -> bool:
    return any(one.market is Market.STABLE for one in offerings)


def _lifetime(spec: FleetSpec) -> Iterator[Problem]:
    lifetime = spec.lifetime
    yield from _amount("age", lifetime.age, LifetimeKind.MAX_AGE, lifetime)
    yield from _amount("jobs", lifetime.jobs, LifetimeKind.MAX_JOBS, lifetime)
    slots = spec.capacity.resources.slots
    if lifetime.kind is LifetimeKind.ONE_JOB and slots > 1:
        yield Problem(
            field="capacity.resources.slots",
            value=slots,
            allowed="1, where a machine lives for one job",
            text="two jobs side by side would share a machine that is made for one",
        )


def _amount(name: str, amount: int, kind: LifetimeKind, lifetime: Lifetime) -> Iterator[Problem]:
    if (lifetime.kind is kind) != (amount > 0):
        yield Problem(
            field=f"lifetime.{name}",
            value=amount,
            allowed=f"more than 0 with the kind {kind.value}, and nothing with another kind",
            text=f"lifetime.{name} and lifetime.kind do not go together",
        )


def _rollout(spec: FleetSpec) -> Iterator[Problem]:
    rules = spec.rollout
    if rules.max_surge == 0 and rules.max_unavailable == 0:
        yield Problem(
            field="rollout.max_surge",
            value=rules.max_surge,
            allowed="more than 0, or rollout.max_unavailable more than 0",
            text="with none beside and none missing no machine can be replaced",
        )
    if rules.canaries > spec.scaling.max:
        yield Problem(
            field="rollout.canaries",
            value=rules.canaries,
            allowed=f"at most {spec.scaling.max}, which is the maximum",
            text="more canaries than machines prove nothing",
        )


def _money(spec: FleetSpec) -> Iterator[Problem]:
    guardrail = spec.guardrail
    if not _CURRENCY.fullmatch(guardrail.currency):
        yield Problem(
            field="guardrail.currency",
            value=guardrail.currency,
            allowed="three capital letters, such as USD",
            text="this is no currency",
        )
    cheapest = min((one.cost for one in spec.offerings if _is_within(one, spec)), default=0)
    for name, most in (("hourly", guardrail.hourly), ("daily", guardrail.daily)):
        if most is not None and most < cheapest:
            yield Problem(
                field=f"guardrail.{name}",
                value=most,
                allowed=f"at least an hour of the cheapest offering, {cheapest} millionths",
                text="no machine could ever be made",
            )


def _deadlines(spec: FleetSpec) -> Iterator[Problem]:
    deadlines = spec.deadlines
    for name, span in (
        ("provision", deadlines.provision),
        ("bootstrap", deadlines.bootstrap),
        ("enrol", deadlines.enrol),
        ("terminate", deadlines.terminate),
    ):
        if span <= 0:
            yield Problem(
                field=f"deadlines.{name}",
                value=span,
                allowed="more than 0",
                text="no machine could ever be in time",
            )


def _warmup(spec: FleetSpec) -> Iterator[Problem]:
    within = spec.warmup.within
    if not 0 < within <= LONGEST_WARMUP_MS:
        yield Problem(
            field="warmup.within",
            value=within,
            allowed=f"more than 0, at most {brief_duration(LONGEST_WARMUP_MS)}",
            text="what is fetched beside the first jobs must be there soon",
        )


def _notes(spec: FleetSpec) -> Iterator[Problem]:
    isolation, scaling = spec.capacity.isolation, spec.scaling
    is_shared = spec.scope.tenant_id is None and spec.scope.project_id is None
    if (
        is_shared
        and spec.capacity.trust is TrustClass.UNTRUSTED_GENERAL
        and isolation is not IsolationClass.VM
        and spec.lifetime.kind is not LifetimeKind.ONE_JOB
    ):
        yield Problem(
            field="capacity.isolation",
            value=isolation.value,
            allowed="vm, or a scope of one tenant, or a lifetime of one job",
            text="tenants that are hostile to each other would share its machines (FOP-028)",
        )
    if scaling.scale_to_zero and (scaling.min or scaling.warm):
        yield Problem(
            field="scaling.scale_to_zero",
            value=True,
            allowed="min and warm of 0, if it is to come to nothing",
            text=f"it never comes to zero: {scaling.min} are always kept, {scaling.warm} warm",
        )
    if not _stable(spec.offerings) and spec.placement.stable_fallback:
        yield Problem(
            field="placement.stable_fallback",
            value=True,
            allowed="an offering whose market is stable",
            text="there is nothing stable to fall back on",
        )
