"""What a runner can do and what a job needs, typed and versioned (ELG-017, ELG-019).

Versions compare as PEP 440 specifiers over dotted numbers, or by exact digest.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, cast
from unicodedata import normalize

from annotated_types import MaxLen
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from forgeyard.errors import InvalidRequirements
from forgeyard.model.equipment import Equipment, EquipmentRequirement, Provenance, Word
from forgeyard.model.location import Micros, ReliabilityClass

REPORT_VERSION = 3
"""The schema of capability reports (ELG-027): 2 added equipment and provenance, 3 the
reliability class and the cost."""
MAX_TOOLCHAINS = 200
MAX_LABELS = 64
Labels = Annotated[Mapping[Word, Word], MaxLen(MAX_LABELS)]


class Platform(StrEnum):
    """An operating system family."""

    LINUX = "linux"
    MACOS = "macos"
    WINDOWS = "windows"


class Architecture(StrEnum):
    """A processor architecture, in the kernel's own words."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class TrustClass(StrEnum):
    """What a runner may be trusted with (DEV-009)."""

    UNTRUSTED_GENERAL = "untrusted_general"
    TRUSTED_INTERNAL = "trusted_internal"
    SIGNING_RESTRICTED = "signing_restricted"
    CONFIDENTIAL = "confidential"


GENERAL_TRUST = frozenset({TrustClass.UNTRUSTED_GENERAL, TrustClass.TRUSTED_INTERNAL})
"""Classes that serve jobs which name no trust class; the others must be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A tool that a runner offers, with what identifies its build."""

    name: Word
    version: Word | None = None
    digest: Word | None = None
    provenance: Provenance = field(default=Provenance.SELF_REPORTED, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolchainRequirement:
    """A tool that a job needs: a PEP 440 range, an exact digest, or any version."""

    name: Word
    version: Word | None = None
    digest: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Everything a runner says it can do; `None` means it could not tell."""

    platform: Platform | None = None
    os_version: Word | None = None
    architecture: Architecture | None = None
    toolchains: Annotated[tuple[Toolchain, ...], MaxLen(MAX_TOOLCHAINS)] = ()
    labels: Labels = field(default_factory=dict[str, str])
    trust: TrustClass = TrustClass.UNTRUSTED_GENERAL
    agent_version: Word = ""
    equipment: Equipment = field(default_factory=Equipment)
    provenance: Annotated[Mapping[Word, Provenance], MaxLen(MAX_LABELS)] = field(
        default_factory=dict[str, Provenance]
    )
    """By field, how it is known; what is not named is self-reported. Tools, runtimes, devices and
    GPUs say it themselves."""
    reliability: ReliabilityClass = ReliabilityClass.STANDARD
    cost_micros_per_hour: Micros | None = None
    schema_version: int = 1
    """What the agent says; one that says nothing wrote the first version."""

    def provenances(self) -> frozenset[Provenance]:
        """List every provenance that the report claims."""
        has = self.equipment
        return frozenset(
            (
                *self.provenance.values(),
                *(tool.provenance for tool in self.toolchains),
                *(runtime.provenance for runtime in has.runtimes or ()),
                *(device.provenance for device in has.devices or ()),
                *(gpu.provenance for gpu in has.gpus or ()),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Everything a job must find on its runner; `None` means any will do."""

    platform: Platform | None = None
    os_version: Word | None = None
    architecture: Architecture | None = None
    toolchains: Annotated[tuple[ToolchainRequirement, ...], MaxLen(MAX_TOOLCHAINS)] = ()
    labels: Labels = field(default_factory=dict[str, str])
    trust: TrustClass | None = None
    agent_version: Word | None = None
    equipment: EquipmentRequirement = field(default_factory=EquipmentRequirement)


def normal_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Write labels the one way that Unicode calls composed, so that what looks alike is alike."""
    return {normalize("NFC", name): normalize("NFC", value) for name, value in labels.items()}


def parse_range(text: str, *, field: str) -> SpecifierSet:
    """Read a version range such as `>=3.11,<4`.

    Raises:
        InvalidRequirements: naming the field, when it is not a PEP 440 specifier set.
    """
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise InvalidRequirements(
            f"{field}: {text!r} is not a version range",
            field=field,
            value=text,
            allowed="PEP 440 ranges such as >=3.11,<4 or ==22.*",
        ) from None


@lru_cache(maxsize=4096)
def in_range(version: str | None, wanted: str) -> bool | None:
    """Tell whether a version lies in a PEP 440 range; `None` when either cannot be read."""
    if version is None:
        return None
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return None


def report_digest(report: str) -> str:
    """Name the content of a capability report in JSON, whatever order its parts come in."""
    canonical = json.dumps(_in_order(json.loads(report)), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _in_order(part: object) -> object:
    """Sort the lists in it: in a report, every one is a set."""
    if isinstance(part, dict):
        entries = cast("dict[str, object]", part)
        return {name: _in_order(value) for name, value in entries.items()}
    if isinstance(part, list):
        ordered = [_in_order(value) for value in cast("list[object]", part)]
        return sorted(ordered, key=lambda value: json.dumps(value, sort_keys=True))
    return part
