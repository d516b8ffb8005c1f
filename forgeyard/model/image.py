"""Images that the machines of fleets boot: named by digest, made on record, trusted or not.

An image never changes; another one has another digest, and so do the machines that boot it
(IMG-008). Names for people point at digests and may move; nothing that is kept says a name.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from annotated_types import MaxLen

from forgeyard.model.equipment import Word

DIGEST: Final = r"sha256:[0-9a-f]{64}"
MOST_REFERENCES: Final = 200
MOST_SIGNATURE: Final = 1_000
RECORD: Final = "forgeyard/image-record/1"
"""What a signature is over, lest one that was made for something else is taken for it."""
Line = Annotated[str, MaxLen(500)]


class ImageState(StrEnum):
    """Whether machines may boot an image (IMG-018)."""

    TRUSTED = "trusted"
    COMPROMISED = "compromised"
    """Nothing boots it any more, and what did goes."""
    RETIRED = "retired"
    """No fleet may begin to use it; one that does goes on."""


class ImageSeverity(StrEnum):
    """What becomes of the machines of a compromised image (IMG-020)."""

    MODERATE = "moderate"
    """They finish what they have, and go."""
    CRITICAL = "critical"
    """Work and certificates are taken from them, and they are kept for a look."""


class ImageStanding(StrEnum):
    """What an image means for a machine that has it."""

    FINE = "fine"
    BLOCKED = "blocked"
    CONDEMNED = "condemned"


class ImageDemand(StrEnum):
    """Which images a fleet takes."""

    ANY = "any"
    """Also those that nobody has registered."""
    KNOWN = "known"
    """Those that are registered and trusted."""
    ATTESTED = "attested"
    """Those, if it is on record how they were made."""
    SIGNED = "signed"
    """Those, if one of the keys that are configured has signed this record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How an image was made, as whoever registered it says (IMG-005)."""

    builder: Line = ""
    source: Line = ""
    """The commit or document that it was made from."""
    sbom: Line = ""
    """The digest of the list of what is in it."""
    signature: Line = ""
    """Where the signature of its digest is."""

    @property
    def is_complete(self) -> bool:
        """Tell whether it says who made it, from what, of what, and who vouches for it."""
        return self.is_told and bool(self.signature)

    @property
    def is_told(self) -> bool:
        """Tell whether it says who made it, from what and of what."""
        return all((self.builder, self.source, self.sbom))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSignature:
    """A signature over the record of an image, and whose it was found to be."""

    by: Line
    """The name of the key."""
    value: Annotated[str, MaxLen(MOST_SIGNATURE)]
    """Base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerImage:
    """An image, and what providers call it (IMG-014)."""

    digest: str
    references: Annotated[Mapping[Word, Word], MaxLen(MOST_REFERENCES)] = field(
        default_factory=dict[str, str]
    )
    """By provider, or by `provider/region`, or by `provider/offering`."""
    provenance: Provenance = field(default_factory=Provenance)
    signature: ImageSignature | None = None
    """Over all of the above (GAT-016)."""

    @property
    def is_attested(self) -> bool:
        """Tell whether it is on record how it was made, and who vouches for that."""
        is_signed = self.signature is not None
        return self.provenance.is_complete or (self.provenance.is_told and is_signed)

    def statement(self) -> bytes:
        """Write the record as the bytes that are signed, the same for the same record."""
        said = {
            "record": RECORD,
            "digest": self.digest,
            "references": dict(self.references),
            "provenance": asdict(self.provenance),
        }
        return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    def reference(self, provider: str, *places: str) -> str:
        """Tell what a provider calls it, at the first of these places that has a name of its own.

        Empty if it is called nothing there.
        """
        keys = [*(f"{provider}/{place}" for place in places if place), provider]
        return next((self.references[key] for key in keys if key in self.references), "")


class RolloutState(StrEnum):
    """Where the rollout of an image stands (IMG-009)."""

    CANARY = "canary"
    """A few machines of it are watched."""
    REPLACING = "replacing"
    """The others go, a few at a time."""
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    """The fleet has the image that it had before; what is left of the new one goes."""
