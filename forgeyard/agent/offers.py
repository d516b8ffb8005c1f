"""Whether this host takes an offer: the last check, with facts that only the host knows.

The scheduler judged by what the agent said some time ago; what has changed since is judged here.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forgeyard.agent.visible import missing
from forgeyard.machine_settings import ToolchainConfig
from forgeyard.model.capability import Toolchain, ToolchainRequirement, in_range
from forgeyard.model.equipment import DeviceShare, Equipment
from forgeyard.model.gaps import gaps
from forgeyard.model.job import JobSpec
from forgeyard.model.runner import RejectReason, ResourcePressure

SHELLS: Mapping[str, tuple[str, ...]] = {
    "sh": ("sh", "-eu", "-c"),
    "bash": ("bash", "-eu", "-o", "pipefail", "-c"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the host knows when an offer comes in."""

    draining: bool
    quarantined: str
    """Why nothing may run here any more; empty if it may."""
    free_slots: int
    pressure: ResourcePressure
    free_disk: int
    granted: frozenset[str]
    """Names of the secrets that jobs may have here."""
    shells: frozenset[str]
    toolchains: tuple[Toolchain, ...]
    equipment: Equipment


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an offer is turned down."""

    reason: RejectReason
    detail: str


def available_shells(path: str) -> frozenset[str]:
    """List the shells that are found on a PATH."""
    return frozenset(shell for shell in SHELLS if shutil.which(shell, path=path) is not None)


def refusal(
    spec: JobSpec, situation: Situation, *, devices: Sequence[DeviceShare] = ()
) -> Refusal | None:
    """Find the first reason to turn an offer down; None takes it with the devices given to it."""
    absent = ", ".join(missing(devices, situation.equipment))
    gone = (RejectReason.CAPABILITY_CHANGED, f"no such device here: {absent}" if absent else "")
    for reason, detail in (*_reasons(spec, situation), gone):
        if detail:
            return Refusal(reason=reason, detail=detail)
    return None


def _reasons(spec: JobSpec, situation: Situation) -> tuple[tuple[RejectReason, str], ...]:
    return (
        (RejectReason.DRAINING, "the agent is draining" if situation.draining else ""),
        (RejectReason.INTERNAL_PREPARATION_FAILURE, situation.quarantined),
        (RejectReason.UNSUPPORTED_SPEC, _unknown_shells(spec, situation)),
        (RejectReason.LOCAL_POLICY, _missing_secrets(spec, situation)),
        (RejectReason.CAPABILITY_CHANGED, _missing_toolchains(spec, situation)),
        (RejectReason.CAPABILITY_CHANGED, _missing_equipment(spec, situation)),
        (RejectReason.RESOURCE_PRESSURE, _pressure(spec, situation)),
        (RejectReason.DISK_INSUFFICIENT, _too_little_disk(spec, situation)),
    )


def _unknown_shells(spec: JobSpec, situation: Situation) -> str:
    unknown = sorted({step.shell for step in spec.steps} - situation.shells)
    return f"no such shell here: {', '.join(unknown)}" if unknown else ""


def _missing_secrets(spec: JobSpec, situation: Situation) -> str:
    missing = sorted(set(spec.secrets) - situation.granted)
    return f"not granted on this host: {', '.join(missing)}" if missing else ""


def _missing_toolchains(spec: JobSpec, situation: Situation) -> str:
    missing = sorted(
        wanted.name
        for wanted in spec.requires.toolchains
        if not any(satisfies(offered, wanted) for offered in situation.toolchains)
    )
    return f"not offered any more: {', '.join(missing)}" if missing else ""


def _missing_equipment(spec: JobSpec, situation: Situation) -> str:
    """Judge with the scheduler's own rule, by what this agent has registered with."""
    gap = next(gaps(spec.requires.equipment, situation.equipment), None)
    return f"needs {gap.wanted}, has {gap.offered}" if gap else ""


def _pressure(spec: JobSpec, situation: Situation) -> str:
    if situation.free_slots < max(1, spec.resources.slots):
        return "no free slot"
    if situation.pressure not in (ResourcePressure.NORMAL, ResourcePressure.CPU):
        return f"the host is short of {situation.pressure.value}"
    return ""


def _too_little_disk(spec: JobSpec, situation: Situation) -> str:
    wanted, free = spec.resources.disk, situation.free_disk
    return f"needs {wanted} bytes of disk, {free} are free" if free < wanted else ""


def satisfies(offered: Toolchain, wanted: ToolchainRequirement) -> bool:
    """Tell whether a tool is the one wanted; what is unknown about it never is."""
    if offered.name != wanted.name:
        return False
    if wanted.digest is not None and offered.digest != wanted.digest:
        return False
    return wanted.version is None or in_range(offered.version, wanted.version) is True


def search_path(
    wanted: Sequence[ToolchainRequirement],
    configured: Sequence[ToolchainConfig],
    *,
    known: Sequence[Toolchain],
    path: str,
) -> str:
    """Put the directories of the toolchains that a job asked for before the common PATH.

    `known` is what was reported, which begins with what was configured.
    """
    pairs = list(zip(configured, known, strict=False))
    chosen = (
        next((tool.bin for tool, it in pairs if satisfies(it, want)), None) for want in wanted
    )
    return ":".join([*dict.fromkeys(folder for folder in chosen if folder), path])
