"""What is wrong with fleets, judged from one reading of the store: pure, and changes nothing.

Whether a provider lets us in, and has our images, is asked by whoever can talk to it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from forgeyard.fleet import sanity
from forgeyard.fleet.view import Unserved
from forgeyard.model.capability import in_range
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetHealth, FleetSpec, FleetState
from forgeyard.model.units import brief_duration
from forgeyard.scheduler.doctor import Check, CheckVerdict

UNTENDED_MS: Final = 60_000
"""A fleet is looked at every few seconds; after so long nobody does."""
SICK: Final = 3
"""Machines that did not come up, until it is more than bad luck."""
NAMED: Final = 3
OK, WARN, FAIL = CheckVerdict.OK, CheckVerdict.WARN, CheckVerdict.FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class SickMachine:
    """A machine that did not become, or did not stay, what it should."""

    runner_name: str
    state: CapacityInstanceState
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSymptoms:
    """What was read of one fleet; ages are milliseconds, costs millionths."""

    spec: FleetSpec
    state: FleetState = FleetState.ACTIVE
    health: FleetHealth = FleetHealth.HEALTHY
    health_reason: str = ""
    tended_ms: int | None = 0
    """Since its reconciler last decided; `None` if it never did."""
    wanted: int | None = None
    """In the last decision; `None` if there was none."""
    healthy: int = 0
    shut: tuple[str, ...] = ()
    """Why offerings are not asked for at present."""
    provider_frozen: bool = False
    complaints: tuple[str, ...] = ()
    """What its provider said of our credentials, images and places when it was asked last."""
    overdue: tuple[SickMachine, ...] = ()
    """Machines that have been in a state for too long."""
    failed: tuple[SickMachine, ...] = ()
    """Machines that failed, were given up or are kept for a look, within the last hour."""
    unadmitted: tuple[SickMachine, ...] = ()
    """Machines whose runner was not admitted: its version, its capabilities, its certificate."""
    enrolled: int = 0
    """Machines that used their token within the last hour."""
    silent: tuple[SickMachine, ...] = ()
    """Machines that were seen running within the last hour, and did not come in time."""
    tokens: tuple[SickMachine, ...] = ()
    """Machines whose token came with two keys, or with who was not the machine that was meant."""
    agents: Mapping[str, str] = field(default_factory=dict[str, str])
    """The version of the agent on each of its machines, by the name of the runner."""
    hourly: int = 0
    spent_today: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where new machines are told to enrol, and what is asked of them there."""

    url: str = ""
    is_local: bool = False
    """Whether only this very host reaches it."""
    takes_certificates: bool = True
    """Else agents come with the token of the data directory, which leaves this host never."""
    trouble: str = ""
    """Why nothing can be signed for those who come, if so."""
    agent_versions: str = ""
    """Which versions of the agent are let in, as a range; empty for every one."""
    at_home: frozenset[str] = frozenset()
    """Providers whose machines are on this host, or where people say."""


_Found = tuple[CheckVerdict, str, str]
OPEN: Final = Door()


def examine(
    fleets: Iterable[FleetSymptoms], unserved: Iterable[Unserved] = (), *, door: Door = OPEN
) -> tuple[Check, ...]:
    """Make every check for every fleet, and one for the jobs that none of them serves."""
    checks: tuple[tuple[str, Callable[[FleetSymptoms], _Found]], ...] = (
        ("document", _document),
        ("reconciler", _reconciler),
        ("provider", _provider),
        ("bootstrap", _bootstrap),
        ("egress", partial(_egress, door)),
        ("enrolment", partial(_enrolment, door)),
        ("versions", partial(_versions, door)),
        ("deadlines", _deadlines),
        ("admission", _admission),
        ("capacity", _capacity),
        ("budget", _budget),
    )
    made = [
        _check(f"{fleet.spec.name}: {name}", look(fleet))
        for fleet in fleets
        for name, look in checks
    ]
    return (*made, _check("waiting jobs", _unserved(tuple(unserved))))


def _check(name: str, found: _Found) -> Check:
    verdict, sentence, advice = found
    return Check(name=name, verdict=verdict, sentence=sentence, advice=advice)


def _document(seen: FleetSymptoms) -> _Found:
    wrong = sanity.problems(seen.spec)
    if wrong:
        first = wrong[0]
        return FAIL, f"{first.field}: {first.text}.", f"It should be {first.allowed}."
    notes = sanity.notes(seen.spec)
    if notes:
        first = notes[0]
        return WARN, f"{first.field}: {first.text}.", f"Think of {first.allowed}."
    return OK, "Its document contradicts itself nowhere.", ""


def _reconciler(seen: FleetSymptoms) -> _Found:
    if seen.tended_ms is None:
        return FAIL, "Nobody has decided about it yet.", "Is a worker running?"
    if seen.tended_ms > UNTENDED_MS:
        ago = brief_duration(seen.tended_ms)
        return FAIL, f"Nobody has decided about it for {ago}.", "Is a worker running?"
    return OK, "It is looked after.", ""


def _provider(seen: FleetSymptoms) -> _Found:
    provider = seen.spec.provider
    if seen.provider_frozen:
        advice = f"Lift it with `forgeyard fleet provider thaw {provider}` when it is safe."
        return WARN, f"An operator froze provider {provider}.", advice
    if seen.complaints:
        what = _several(seen.complaints)
        return FAIL, f"Provider {provider} complains: {what}.", "It is asked every ten minutes."
    if seen.health is FleetHealth.PROVIDER_DEGRADED:
        return FAIL, f"Its provider is in trouble: {seen.health_reason}.", "See the provider."
    if seen.shut:
        what = _several(seen.shut)
        return WARN, f"Not asked for at present: {what}.", "It is tried again by itself."
    return OK, f"Nothing speaks against provider {provider}.", ""


def _bootstrap(seen: FleetSymptoms) -> _Found:
    if not seen.failed:
        return OK, "No machine failed within the last hour.", ""
    causes = Counter(one.why or "for no reason that is known" for one in seen.failed)
    mostly, _ = causes.most_common(1)[0]
    count = len(seen.failed)
    verdict = FAIL if count >= SICK else WARN
    return verdict, f"{count} failed within the last hour, mostly: {mostly}.", _LOOK


_LOOK: Final = "Look at them with `forgeyard fleet instances`."


def _egress(door: Door, seen: FleetSymptoms) -> _Found:
    """Judge whether machines reach us, by those that were seen running (FRC-036)."""
    if door.is_local and seen.spec.provider not in door.at_home:
        said = f"Machines are told to enrol at {door.url}, where each of them finds itself."
        return FAIL, said, "Set fleets.agent_url to where they reach the agent API."
    if not seen.silent:
        return OK, f"Every machine that ran has reached {door.url or 'the agent API'}.", ""
    named = _several([one.runner_name for one in seen.silent])
    said = f"Seen running, and never came to {door.url or 'the agent API'}: {named}."
    if seen.enrolled:
        return WARN, f"{said} {seen.enrolled} others did.", _LOOK
    advice = "See whether their network lets them out, and whether the image starts the agent."
    return FAIL, said, advice


def _enrolment(door: Door, seen: FleetSymptoms) -> _Found:
    """Judge the way from a token to a certificate (FRC-035)."""
    if not door.takes_certificates and seen.spec.provider not in door.at_home:
        said = "Agents come with the token of the data directory, which no machine elsewhere has."
        return FAIL, said, "Make an authority, and set api.agent_identity to certificate."
    if door.trouble:
        return FAIL, f"No machine can get a certificate: {door.trouble}.", "See `forgeyard ca`."
    if seen.tokens:
        named = _several([f"{one.runner_name}: {one.why}" for one in seen.tokens])
        return (
            WARN,
            f"Tokens that led nobody in: {named}.",
            "See `forgeyard runner invitations`; somebody may have copied it.",
        )
    return OK, f"{seen.enrolled} machines used their token within the last hour.", ""


def _versions(door: Door, seen: FleetSymptoms) -> _Found:
    """Compare the agents of its machines with what is let in (FRC-037)."""
    wanted = door.agent_versions
    versions = ", ".join(sorted({one or "unknown" for one in seen.agents.values()}))
    if not wanted:
        return OK, f"Every version is let in; there are: {versions or 'none'}.", ""
    wrong = [
        f"{name} has {version or 'an unknown one'}"
        for name, version in sorted(seen.agents.items())
        if not in_range(version or None, wanted)
    ]
    if wrong:
        said = f"Agents have to be {wanted}, but {_several(wrong)}."
        return FAIL, said, "Renew the image; machines with it are not admitted again."
    return OK, f"Its agents are {wanted}: {versions or 'there are none yet'}.", ""


def _deadlines(seen: FleetSymptoms) -> _Found:
    if not seen.overdue:
        return OK, "No machine is late.", ""
    named = _several([f"{one.runner_name} ({one.state})" for one in seen.overdue])
    return WARN, f"These should be further by now: {named}.", _LOOK


def _admission(seen: FleetSymptoms) -> _Found:
    if not seen.unadmitted:
        return OK, "Every runner that came was admitted.", ""
    first = seen.unadmitted[0]
    count = len(seen.unadmitted)
    said = f"{count} not admitted, such as {first.runner_name}: {first.why or 'no reason'}."
    return FAIL, said, "Renew the image, or change what the class promises."


def _capacity(seen: FleetSymptoms) -> _Found:
    name = seen.spec.name
    if seen.state is not FleetState.ACTIVE:
        advice = f"`forgeyard fleet activate {name}` ends that."
        return WARN, f"It is {seen.state.value.replace('_', ' ')}.", advice
    if seen.wanted is None or seen.healthy >= seen.wanted:
        return OK, f"{seen.healthy} healthy, {seen.wanted or 0} wanted.", ""
    short = f"{seen.healthy} healthy, {seen.wanted} wanted."
    if seen.health is FleetHealth.CAPACITY_CONSTRAINED:
        return FAIL, f"{short} None of its offerings can be had.", seen.health_reason
    return WARN, short, f"`forgeyard fleet explain {name}` says what is done about it."


def _budget(seen: FleetSymptoms) -> _Found:
    guardrail = seen.spec.guardrail
    for name, most, spent in (
        ("hour", guardrail.hourly, seen.hourly),
        ("day", guardrail.daily, seen.spent_today),
    ):
        if most is not None and spent >= most:
            said = f"It has reached what it may cost in an {name}, by estimate."
            return WARN, said.replace("an day", "a day"), "Jobs wait; raise the guardrail, or not."
    return OK, "It costs less than it may, by estimate.", ""


def _unserved(unserved: tuple[Unserved, ...]) -> _Found:
    if not unserved:
        return OK, "Some fleet serves every job that waits for room.", ""
    count = sum(one.count for one in unserved)
    reasons = unserved[0].reasons.items()
    why = _several([f"{fleet}: {reason}" for fleet, reason in sorted(reasons)])
    said = f"{count} waiting jobs are served by no fleet ({why or 'there is none'})."
    return WARN, said, "Apply a fleet whose class fits them; see `forgeyard fleet demand`."


def _several(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = len(listed) - NAMED
    return "; ".join(listed[:NAMED]) + (f"; and {more} more" if more > 0 else "")
