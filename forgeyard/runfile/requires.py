"""Reads what a job must find on its runner, and refuses what no runner could ever be asked."""

from collections.abc import Sequence
from typing import TypeVar

from forgeyard.errors import InvalidRequirements, InvalidRunFile
from forgeyard.model.capability import (
    Requirements,
    ToolchainRequirement,
    normal_labels,
    parse_range,
)
from forgeyard.model.equipment import (
    DeviceRequirement,
    EquipmentRequirement,
    GpuRequirement,
    RuntimeRequirement,
)
from forgeyard.model.units import Bytes, Rounding, parse_bytes
from forgeyard.runfile.complaint import shown
from forgeyard.runfile.schema import GpuPart, RequiresPart

MOST_BYTES = Bytes(2**50)
DIGEST = "sha256:"
ANY = "*"
Text = TypeVar("Text", bound=str)


def compile_requires(part: RequiresPart, at: str) -> Requirements:
    """Read the part at this path.

    Raises:
        InvalidRunFile, InvalidRequirements, InvalidQuantity: `field` is the path of what is wrong.
    """
    if part.os_version is not None:
        parse_range(part.os_version, field=f"{at}.os-version")
    if part.agent_version is not None:
        parse_range(part.agent_version, field=f"{at}.agent-version")
    return Requirements(
        platform=part.platform,
        os_version=part.os_version,
        architecture=part.arch,
        toolchains=_toolchains(part, f"{at}.toolchains"),
        labels=normal_labels(part.labels),
        trust=part.trust,
        agent_version=part.agent_version,
        equipment=_equipment(part, at),
    )


def _toolchains(part: RequiresPart, at: str) -> tuple[ToolchainRequirement, ...]:
    if isinstance(part.toolchains, dict):
        return tuple(_toolchain(n, wanted, f"{at}.{n}") for n, wanted in part.toolchains.items())
    return tuple(ToolchainRequirement(name=name) for name in unique(part.toolchains, at))


def _toolchain(name: str, wanted: str, at: str) -> ToolchainRequirement:
    if wanted == ANY:
        return ToolchainRequirement(name=name)
    if wanted.startswith(DIGEST):
        hexadecimal = wanted.removeprefix(DIGEST)
        if len(hexadecimal) != 64 or not set(hexadecimal) <= set("0123456789abcdef"):
            raise InvalidRequirements(
                f"{at}: {shown(wanted)!r} is not a digest",
                field=at,
                value=wanted,
                allowed="sha256: and 64 digits of 0-9a-f",
            )
        return ToolchainRequirement(name=name, digest=wanted)
    parse_range(wanted, field=at)
    return ToolchainRequirement(name=name, version=wanted)


def _equipment(part: RequiresPart, at: str) -> EquipmentRequirement:
    """Read it in a fixed order, so that the same wants are the same value."""
    return EquipmentRequirement(
        cpu_features=tuple(
            sorted(unique([one.lower() for one in part.cpu_features], f"{at}.cpu-features"))
        ),
        runtimes=_runtimes(part, f"{at}.runtimes"),
        sandbox=part.sandbox,
        network=part.network,
        isolation=part.isolation,
        devices=tuple(
            DeviceRequirement(kind=kind, count=count)
            for kind, count in sorted(part.devices.items())
        ),
        gpu=None if part.gpu is None else _gpu(part.gpu, f"{at}.gpu"),
    )


def _runtimes(part: RequiresPart, at: str) -> tuple[RuntimeRequirement, ...]:
    if not isinstance(part.runtimes, dict):
        names = sorted(unique(part.runtimes, at))
        return tuple(RuntimeRequirement(name=name) for name in names)
    for name, wanted in part.runtimes.items():
        if wanted != ANY:
            parse_range(wanted, field=f"{at}.{name}")
    return tuple(
        RuntimeRequirement(name=name, version=None if wanted == ANY else wanted)
        for name, wanted in sorted(part.runtimes.items())
    )


def _gpu(part: GpuPart, at: str) -> GpuRequirement:
    memory: Bytes | None = None
    if part.memory is not None:
        field = f"{at}.memory"
        size = parse_bytes(part.memory, field=field, rounding=Rounding.REQUEST)
        memory = Bytes(within(size, 1, MOST_BYTES, field, part.memory, "1 byte to 1Pi"))
    if part.compute_capability is not None:
        parse_range(part.compute_capability, field=f"{at}.compute-capability")
    return GpuRequirement(
        count=part.count,
        vendor=part.vendor,
        model=part.model,
        memory=memory,
        compute_capability=part.compute_capability,
        sharing=part.sharing,
    )


def within(
    found: int, least: int, most: int, at: str, given: str | int | float, allowed: str
) -> int:
    """Return an amount that lies in its range, or complain about what was given."""
    if not least <= found <= most:
        raise InvalidRequirements(
            f"{at}: {shown(given)!r} is out of range", field=at, value=given, allowed=allowed
        )
    return found


def unique(names: Sequence[Text], at: str) -> tuple[Text, ...]:
    """Keep the order, and refuse a name that comes twice."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            where = f"{at}.{number}"
            raise InvalidRunFile(
                f"{where}: {name!r} comes twice", field=where, value=name, allowed="each name once"
            )
        seen.add(name)
    return tuple(names)
