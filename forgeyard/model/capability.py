"""What a runner can do and what a job needs, typed and versioned (ELG-017, ELG-019).

Versions compare as PEP 440 specifiers over dotted numbers, or by exact digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import MaxLen
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from forgeyard.errors import InvalidRequirements

MAX_TOOLCHAINS = 200
MAX_LABELS = 64
Word = Annotated[str, MaxLen(128)]
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
    schema_version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Everything a job must find on its runner; `None` means any will do."""

    platform: Platform | None = None
    os_version: Word | None = None
    architecture: Architecture | None = None
    toolchains: Annotated[tuple[ToolchainRequirement, ...], MaxLen(MAX_TOOLCHAINS)] = ()
    labels: Labels = field(default_factory=dict[str, str])
    trust: TrustClass | None = None


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
