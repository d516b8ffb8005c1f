"""Which runners say that they hold what the waiting jobs need.

Only what some job needs is looked for, so that the cost does not grow with what runners hold.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from forgeyard.model.holdings import NOTHING_HELD, places_in
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

Places = npt.NDArray[np.intp]
NOBODY: Places = np.zeros(0, dtype=np.intp)


class Holders:
    """Finds the places of the runners that hold an archive or a dependency cache."""

    def __init__(self, runners: Sequence[SchedulingRunner], jobs: Sequence[SchedulingJob]) -> None:
        self._jobs = jobs
        self._having = [
            (place, runner.holdings)
            for place, runner in enumerate(runners)
            if runner.holdings is not NOTHING_HELD
        ]
        self._found: dict[str, Places] = {}

    def of_object(self, digest: str) -> Places:
        """List the runners that have an archive, as far as they said."""
        if digest not in self._found:
            named = self._objects.get(digest, NOBODY)
            others = [named, *(it.holding(digest) for it in self._sets)]
            self._found[digest] = np.unique(np.concatenate(others))
        return self._found[digest]

    def of_closure(self, key: str) -> Places:
        """List the runners that have a dependency cache, as far as they said."""
        return self._closures.get(key, NOBODY)

    @cached_property
    def _objects(self) -> Mapping[str, Places]:
        wanted = frozenset(digest for job in self._jobs for digest, _ in job.inputs)
        return _index((place, wanted.intersection(it.objects)) for place, it in self._having)

    @cached_property
    def _closures(self) -> Mapping[str, Places]:
        wanted = frozenset(key for job in self._jobs for key in job.closures)
        return _index((place, wanted.intersection(it.closures)) for place, it in self._having)

    @cached_property
    def _sets(self) -> list["_Sets"]:
        """Put the Bloom sets of one size together, so that they are asked all at once."""
        alike: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for place, holdings in self._having:
            if holdings.others is not None:
                bits = _bits(holdings.others.bits)
                alike.setdefault((len(bits), holdings.others.hashes), []).append((place, bits))
        return [
            _Sets(members, size=size, hashes=hashes)
            for (size, hashes), members in alike.items()
            if size
        ]


class _Sets:
    """Bloom sets of one size."""

    def __init__(self, members: list[tuple[int, bytes]], *, size: int, hashes: int) -> None:
        self._size, self._hashes = size, hashes
        self._places = np.array([place for place, _ in members], dtype=np.intp)
        rows = np.frombuffer(b"".join(bits for _, bits in members), dtype=np.uint8)
        self._bits = rows.reshape(len(members), size)

    def holding(self, digest: str) -> Places:
        held = np.ones(len(self._places), dtype=np.bool_)
        for bit in places_in(digest, hashes=self._hashes, size=8 * self._size):
            held &= (self._bits[:, bit // 8] >> (bit % 8) & 1).astype(np.bool_)
        return self._places[held]


def _index(found: Iterable[tuple[int, Iterable[str]]]) -> Mapping[str, Places]:
    lists: dict[str, list[int]] = {}
    for place, names in found:
        for name in names:
            lists.setdefault(name, []).append(place)
    return {name: np.array(places, dtype=np.intp) for name, places in lists.items()}


@lru_cache(maxsize=2**14)
def _bits(text: str) -> bytes:
    """Read a set; one that cannot be read is empty."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
