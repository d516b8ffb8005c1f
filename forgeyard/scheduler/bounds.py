"""Where a job may be in view of where other jobs of its run are: apart from some, beside one.

These are hard. A place that is not known is neither apart from another nor the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Protocol

from forgeyard.model.location import Location
from forgeyard.model.wishes import Domain


class Somewhere(Protocol):
    """A runner, as far as it matters where it is."""

    @property
    def runner_id(self) -> str:
        """Tell its id."""
        ...

    @property
    def location(self) -> Location:
        """Tell where it is."""
        ...

    @property
    def trust(self) -> str:
        """Tell what it may be trusted with."""
        ...


class BoundKind(StrEnum):
    """What a bound demands."""

    APART = "apart"
    """Another place than the jobs that it names (RTY-006)."""
    SPREAD = "spread"
    """Another place than every shard of the group (SCO-017)."""
    BESIDE = "beside"
    """The place of the job that it names (FAR-029)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One such demand, and where the other jobs are."""

    kind: BoundKind
    domain: Domain
    of: str
    """The other jobs, in words."""
    taken: Mapping[str, int]
    """How many of them are in each place that has any; it grows while a cycle places more."""

    def is_kept(self, runner: Somewhere) -> bool:
        """Tell whether a runner is where the job may be."""
        found = place_in(self.domain, runner)
        if self.kind is BoundKind.BESIDE:
            return found in self.taken
        return found is not None and found not in self.taken

    @property
    def wanted(self) -> str:
        """Say what it demands."""
        if self.kind is BoundKind.BESIDE:
            return f"the {self.domain} of {self.of}" if self.taken else f"{self.of} to run first"
        return f"another {self.domain} than {self.of}"

    def offered(self, runner: Somewhere) -> str:
        """Say what a runner has instead."""
        found = place_in(self.domain, runner)
        return f"an unknown {self.domain}" if found is None else f"on {self.domain} {found}"


_PLACES = {
    Domain.RUNNER: attrgetter("runner_id"),
    Domain.HOST: attrgetter("location.host"),
    Domain.SITE: attrgetter("location.site"),
    Domain.REGION: attrgetter("location.region"),
    Domain.TRUST: attrgetter("trust"),
}


def place_in(domain: Domain, runner: Somewhere) -> str | None:
    """Tell where a runner is, on the level of one domain."""
    place: str | None = _PLACES[domain](runner)
    return place


def places_in(domain: Domain, runners: Iterable[Somewhere]) -> Iterator[str | None]:
    """Tell the same of many."""
    return map(_PLACES[domain], runners)
