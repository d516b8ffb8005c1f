"""What a runner says it has at hand already, in a summary that stays small whatever it has.

A hint and nothing more: it may be stale the moment it is written, so it moves scores and never
decides whether a job can run. The agent looks, verifies and fetches what is missing (SCO-008).
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from forgeyard.model.equipment import Word
from forgeyard.model.units import LARGEST

MAX_OBJECTS = 256
MAX_CLOSURES = 64
MAX_BLOOM_BYTES = 4_096
BLOOM_HASHES = 7
BLOOM_BITS_PER_OBJECT = 10
"""With seven hashes, about one object in a hundred is taken to be there although it is not."""
Size = Annotated[int, Ge(0), Le(LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bloom:
    """A set of digests that may hold a few too many, but never one too few."""

    bits: Annotated[str, MaxLen(4 * -(-MAX_BLOOM_BYTES // 3))]
    """In base64."""
    hashes: Annotated[int, Ge(1), Le(16)] = BLOOM_HASHES

    def may_hold(self, digest: str) -> bool:
        """Tell whether a digest is in the set, or looks as if it were."""
        try:
            bits = base64.b64decode(self.bits, validate=True)
        except ValueError:
            return False
        places = _places(digest, hashes=self.hashes, size=8 * len(bits))
        return bool(bits) and all(bits[place // 8] >> place % 8 & 1 for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The archives that a runner need not fetch, and the dependency caches it used lately."""

    objects: Annotated[Mapping[Word, Size], MaxLen(MAX_OBJECTS)] = field(
        default_factory=dict[str, int]
    )
    """The size of each, by digest; those used last."""
    closures: Annotated[tuple[Word, ...], MaxLen(MAX_CLOSURES)] = ()
    """Keys of the dependency caches used last whose archives are here."""
    others: Bloom | None = None
    """The archives beyond those named one by one."""

    def holds(self, digest: str) -> bool:
        """Tell whether an archive was there when this was written, as far as can be told."""
        return digest in self.objects or (self.others is not None and self.others.may_hold(digest))


NOTHING_HELD = Holdings()
"""What an agent has that keeps nothing."""


def bloom_of(digests: Iterable[str]) -> Bloom | None:
    """Put digests into a set of bounded size; none of them make none."""
    # Thirty lines instead of a library: what two processes compare must hash alike in both, and
    # for ever, which the hash functions of such libraries do not promise.
    members = tuple(digests)
    if not members:
        return None
    size = min(MAX_BLOOM_BYTES, -(-len(members) * BLOOM_BITS_PER_OBJECT // 8))
    bits = bytearray(size)
    for member in members:
        for place in _places(member, hashes=BLOOM_HASHES, size=8 * size):
            bits[place // 8] |= 1 << place % 8
    return Bloom(bits=base64.b64encode(bits).decode())


def _places(member: str, *, hashes: int, size: int) -> Iterator[int]:
    """Find a member's bits by double hashing; an empty set has none."""
    if not size:
        return
    hashed = hashlib.sha256(member.encode()).digest()
    first, step = int.from_bytes(hashed[:8]), int.from_bytes(hashed[8:16]) | 1
    yield from ((first + step * turn) % size for turn in range(hashes))
