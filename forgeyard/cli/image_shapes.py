"""What the API answers about images and their rollouts, as far as the command line looks at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How an image was made."""

    builder: str = ""
    source: str = ""
    sbom: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSignature:
    """Whose key signed the record of an image."""

    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerImage:
    """An image and what providers call it."""

    digest: str
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    provenance: Provenance = field(default_factory=Provenance)
    signature: ImageSignature | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as it stands."""

    image: RunnerImage
    state: str
    state_reason: str = ""
    severity: str | None = None
    aliases: tuple[str, ...] = ()
    machines: int = 0
    created_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What was found of a compromised image."""

    machines: int
    tokens: int
    runners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCount:
    """Machines of one image, by state."""

    image: str
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How far an image has come."""

    fleet: str
    image: str
    before: str
    state: str
    state_reason: str = ""
    paused: bool = False
    pause_reason: str = ""
    machines: tuple[ImageCount, ...] = ()
