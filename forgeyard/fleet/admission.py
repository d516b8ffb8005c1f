"""Whether a machine is the runner that was meant: its report against what its enrolment granted.

What was granted overrides what is reported; what only a grant can give, and none gave, turns the
machine away. Being well is judged later, by its first heartbeat.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forgeyard.model.capability import MAX_LABELS, Capabilities, in_range
from forgeyard.model.enrolment import TRUSTED, Admission, CloudMachine, Expectation, Grant
from forgeyard.model.equipment import Device, Gpu, IsolationClass, Provenance
from forgeyard.model.protocol import Register, Report
from forgeyard.trust.evidence import Doubt, Facts, Unproved

MOST_SKEW_MS: Final = 5 * 60 * 1000
"""A machine whose clock is further off cannot be believed about anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a runner has come, and why it has come no further."""

    admission: Admission
    reason: str = ""


def judge(
    message: Register, grant: Grant, *, expected_name: str, agent_versions: str, now: int
) -> Verdict:
    """Tell whether a machine may go on to its first heartbeat (BOO-007 to BOO-012)."""
    complaints = (
        *_identity(message, expected_name),
        *skew_complaints(message.clock_ms, now=now),
        *_version(message, agent_versions),
        *_size(message, grant.expects),
        *_gpus(message.capabilities.equipment.gpus or (), grant.expects),
        *ungranted(message.capabilities, grant),
    )
    if complaints:
        return Verdict(admission=Admission.REJECTED, reason="; ".join(complaints))
    return Verdict(admission=Admission.PENDING)


def _identity(message: Register, expected: str) -> Iterator[str]:
    if message.runner_name != expected:
        yield f"its certificate is that of {expected}"


def skew_complaints(clock_ms: int | None, *, now: int) -> Iterator[str]:
    """Say how far off a machine's clock is, if that is too far."""
    if clock_ms is None:
        yield "it does not say what it takes for the time"
    elif abs(clock_ms - now) > MOST_SKEW_MS:
        way = "ahead" if clock_ms > now else "behind"
        yield f"its clock is {abs(clock_ms - now) // 1000} s {way}"


def doubt(facts: Facts, wanted: CloudMachine, *, now: int) -> Unproved | None:
    """Tell why what a cloud has signed is not about the machine that was meant, if so."""
    comparisons = (
        (Doubt.OTHER_ACCOUNT, "account", facts.account, wanted.account),
        (Doubt.OTHER_REGION, "region", facts.region, wanted.region),
        (Doubt.OTHER_INSTANCE, "instance", facts.instance, wanted.instance),
    )
    for kind, name, has, expected in comparisons:
        if expected not in ("", has):
            return Unproved(doubt=kind, detail=f"its {name} is {has}, expected {expected}")
    age = now - facts.launched_at
    if not -MOST_SKEW_MS <= age <= wanted.launched_within_ms:
        return Unproved(
            doubt=Doubt.STALE,
            detail=f"it was launched {age // 1000} s ago, "
            f"expected {wanted.launched_within_ms // 1000} s at most",
        )
    return None


def _version(message: Register, wanted: str) -> Iterator[str]:
    has = message.capabilities.agent_version
    if wanted and not in_range(has or None, wanted):
        yield f"its agent is {has or 'of an unknown version'}, wanted {wanted}"


def _size(message: Register, expects: Expectation) -> Iterator[str]:
    """Compare with the least that its class promises; what it could not tell is not enough."""
    has = message.capabilities
    for name in ("platform", "architecture"):
        wanted = getattr(expects, name)
        if wanted not in (None, getattr(has, name)):
            yield f"its {name} is {getattr(has, name) or 'unknown'}, expected {wanted}"
    for name in ("cpu", "memory"):
        wanted, found = getattr(expects, name), getattr(message.total, name)
        if found < wanted:
            yield f"it has {name} {found}, expected {wanted} at least"


def _gpus(has: Sequence[Gpu], expects: Expectation) -> Iterator[str]:
    """Compare GPUs with those of its class, each of which wants one of its own (DEV-015)."""
    # Whoever asks for most chooses first, and takes the least that will do.
    left = sorted(has, key=_worth)
    for wanted in sorted(expects.gpus, key=_worth, reverse=True):
        found = next((it for it in left if _is_as_good(it, wanted)), None)
        if found is None:
            model = f"{wanted.vendor or ''} {wanted.model or 'GPU'}".strip()
            memory = "" if wanted.memory is None else f" with {wanted.memory} bytes"
            yield f"it has no {model}{memory} of the {len(expects.gpus)} GPUs that are expected"
            return
        left.remove(found)


def _worth(gpu: Gpu) -> tuple[bool, bool, int]:
    return (gpu.model is not None, gpu.vendor is not None, gpu.memory or 0)


def _is_as_good(has: Gpu, wanted: Gpu) -> bool:
    """Tell whether a GPU is what was promised; what its agent could not tell is not enough."""
    if wanted.vendor not in (None, has.vendor):
        return False
    if wanted.model is not None and wanted.model.casefold() != (has.model or "").casefold():
        return False
    capability = wanted.compute_capability
    if capability is not None and not in_range(has.compute_capability, f">={capability}"):
        return False
    if wanted.sharing not in (None, has.sharing):
        return False
    return wanted.memory is None or (has.memory or 0) >= wanted.memory


def ungranted(has: Capabilities, grant: Grant) -> Iterator[str]:
    """Name what a machine offers that only its enrolment could have given it (ELG-039)."""
    tools = [tool.name for tool in has.toolchains]
    devices = [device.kind for device in has.equipment.devices or ()]
    offered = (*_trusted(tools), *_trusted(devices))
    wrong = {*offered} - {*grant.trusted} | {*_trusted(has.labels)} - {*grant.labels}
    if wrong:
        yield f"it offers {', '.join(sorted(wrong))}, which its enrolment does not grant"


def _trusted(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(TRUSTED)]


def granted(report: Report, grant: Grant) -> Report:
    """Give a report what its enrolment grants, and take out of it what only a grant can give.

    Whatever it says about its own trust, its enrolment decides (INV-055).
    """
    has, equipment = report.capabilities, report.capabilities.equipment
    kept = replace(
        has,
        labels={name: value for name, value in has.labels.items() if not name.startswith(TRUSTED)},
        toolchains=tuple(tool for tool in has.toolchains if _may(tool.name, grant)),
        equipment=replace(
            equipment,
            devices=None
            if equipment.devices is None
            else tuple(device for device in equipment.devices if _may(device.kind, grant)),
        ),
    )
    return replace(report, capabilities=_vouched(kept, grant))


def _may(name: str, grant: Grant) -> bool:
    return not name.startswith(TRUSTED) or name in grant.trusted


def _vouched(has: Capabilities, grant: Grant) -> Capabilities:
    """Say of what was granted that it was."""
    provisioned = Provenance.PROVISIONED
    devices = has.equipment.devices
    return replace(
        has,
        trust=grant.trust,
        labels=_labels(has, grant),
        provenance={**has.provenance, "trust": provisioned},
        toolchains=tuple(
            replace(tool, provenance=provisioned) if tool.name.startswith(TRUSTED) else tool
            for tool in has.toolchains
        ),
        equipment=replace(
            has.equipment,
            devices=None if devices is None else tuple(_provisioned(one) for one in devices),
            isolation=_isolation(has, grant),
        ),
    )


def _isolation(has: Capabilities, grant: Grant) -> tuple[IsolationClass, ...] | None:
    """Add what stands around the machine to what its agent has found inside."""
    found = has.equipment.isolation
    return (
        found if not grant.isolation else tuple(dict.fromkeys((*(found or ()), *grant.isolation)))
    )


def _labels(has: Capabilities, grant: Grant) -> dict[str, str]:
    """Put the granted labels over the reported ones, of which as many stay as there is room for."""
    own = [name for name in has.labels if name not in grant.labels]
    kept = own[: MAX_LABELS - len(grant.labels)]
    return {**{name: has.labels[name] for name in kept}, **grant.labels}


def _provisioned(device: Device) -> Device:
    if not device.kind.startswith(TRUSTED):
        return device
    return replace(device, provenance=Provenance.PROVISIONED)
