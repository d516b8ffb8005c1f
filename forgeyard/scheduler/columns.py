"""The runners of a cycle as columns of numbers, so that one question is put to all at once.

Integers alone, and none may overflow. Up to `EXACT` nothing can: a difference is at
most 2^50 + 2^50, and a thousand times four of them less than 2^63. A fleet with larger amounts is
reckoned in Python's own integers, by the same code: slow, but right.
"""

from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from forgeyard.model.capability import Requirements
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.model.wishes import Domain
from forgeyard.scheduler.bounds import Bound, BoundKind, places_in
from forgeyard.scheduler.eligibility import (
    is_able,
    is_spared,
    satisfies,
    suits_spot,
    takes_work,
)
from forgeyard.scheduler.room import PLAIN
from forgeyard.scheduler.score import hash64
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import is_plain, lasting, passing, stands_against
from forgeyard.scheduler.words import DIMENSIONS

Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

EXACT = 2**50
"""A pebibyte, or as many thousandths of a core."""
_SUMS_FIT = 2**53
"""Below it neither a difference nor four hundred times it overflows."""
_PARTS = ("total", "headroom", "reserved")
_amounts_of = attrgetter(*(f"{part}.{name}" for part in _PARTS for name in DIMENSIONS))
_percent_of = attrgetter("cpu_percent")
_runner_hash = lru_cache(maxsize=2**17)(hash64)


class Columns:
    """One place for each runner, in the order of their hashes; that is the order of a tie."""

    def __init__(self, runners: Iterable[SchedulingRunner]) -> None:
        by_id = sorted(runners, key=attrgetter("runner_id"))
        hashes = np.array([_runner_hash(runner.runner_id) for runner in by_id], dtype=np.uint64)
        order: Places = np.argsort(hashes, kind="stable")
        self.runners: list[SchedulingRunner] = [by_id[place] for place in order.tolist()]
        self.hashes: list[int] = hashes[order].tolist()
        self.profiles: list[SchedulingRunner] = []
        """The first runner of each sort that can do the same things."""
        self.profile_of = self._profile()
        self._skills: list[SchedulingRunner] = []
        """The first profile of each set of skills: what no place or price changes."""
        self._skill_of = self._skill()
        self._looks: dict[int, tuple[Requirements, list[bool]]] = {}
        self.stands = _stands(self.profiles)
        """A runner for each place to stand that keeps anything from anybody."""
        self.takes_work: Mask = np.array([takes_work(it) for it in self.runners], dtype=np.bool_)
        self.divisor: Numbers = np.array(
            [1 + (runner.pressure is ResourcePressure.CPU) for runner in self.runners],
            dtype=np.int64,
        )
        self._domains: dict[Domain, tuple[Places, dict[str, int]]] = {}
        self.room, self.free = _room_and_free(self.runners)
        """What jobs may ever hold and what is left of it; a row for each dimension."""

    @property
    def exact(self) -> bool:
        """Tell whether the numbers are small enough for the machine's own arithmetic."""
        return self.free.dtype != np.object_

    @cached_property
    def place_of(self) -> dict[str, int]:
        """Find a runner's place by its id."""
        return {runner.runner_id: place for place, runner in enumerate(self.runners)}

    def turned_away(self, job: SchedulingJob) -> list[int]:
        """List the places that would not have this very job now: asked before, or not well."""
        refused = [self.place_of[name] for name in job.refused_by if name in self.place_of]
        return [*refused, *(place for place in self._unwell if self._spares(place, job))]

    def _spares(self, place: int, job: SchedulingJob) -> bool:
        runner = self.runners[place]
        return runner.runner_id not in job.refused_by and is_spared(runner, job)

    @cached_property
    def _unwell(self) -> list[int]:
        return [place for place, runner in enumerate(self.runners) if runner.degraded]

    @property
    def has_unwell(self) -> bool:
        """Tell whether the priority of a job decides about a runner."""
        return bool(self._unwell)

    def in_pool(self, pool_id: str) -> Places:
        """List the places of a pool's runners."""
        return self._pools.get(pool_id, np.empty(0, dtype=np.intp))

    @cached_property
    def _pools(self) -> dict[str, Places]:
        members: dict[str, list[int]] = {}
        for place, runner in enumerate(self.runners):
            members.setdefault(runner.pool_id, []).append(place)
        return {pool_id: np.array(places, dtype=np.intp) for pool_id, places in members.items()}

    @cached_property
    def name_rank(self) -> Places:
        """Number the runners by name."""
        named = [(runner.name, runner.runner_id) for runner in self.runners]
        rank: Places = np.empty(len(named), dtype=np.intp)
        rank[sorted(range(len(named)), key=named.__getitem__)] = np.arange(len(named))
        return rank

    def wanted(self, resources: Resources) -> list[int]:
        """List an amount; more than there can be anywhere is cut down to just that."""
        amounts = [resources.cpu, resources.memory, resources.disk, resources.slots]
        return [min(amount, EXACT + 1) for amount in amounts] if self.exact else amounts

    def satisfying(self, job: SchedulingJob) -> Mask:
        """Tell which runners meet every requirement where they stand, one look for each profile."""
        profiles, profile_of = self.profiles_for(job.requirements)
        if profiles is not self.profiles:
            looks = [is_able(job, it) for it in profiles]
        else:
            skilled = self._skilled(job.requirements)
            looks = [
                able and suits_spot(job.spot, it.capabilities) and not stands_against(job, it)
                for able, it in zip(skilled, profiles, strict=True)
            ]
        met: Mask = np.array(looks, dtype=np.bool_)[profile_of]
        return met

    def _skilled(self, wanted: Requirements) -> list[bool]:
        """Tell which profiles have what is required, one look for each set of skills."""
        known = self._looks.get(id(wanted))
        if known is None:
            skills = [satisfies(wanted, it.capabilities, it.trust) for it in self._skills]
            known = (wanted, [skills[number] for number in self._skill_of])
            # Kept with its requirements, so that their identity stays their own.
            self._looks[id(wanted)] = known
        return known[1]

    def profiles_for(self, requirements: Requirements) -> tuple[list[SchedulingRunner], Places]:
        """Group runners by what such a job can tell apart; one that names a device, all of them."""
        if requirements.equipment.names_devices:
            return self.runners, np.arange(len(self.runners))
        return self.profiles, self.profile_of

    def domain(self, domain: Domain) -> tuple[Places, dict[str, int]]:
        """Number the places of a domain; a runner whose place is not known has number 0."""
        if domain not in self._domains:
            numbers: dict[str, int] = {}
            codes = [
                0 if place is None else numbers.setdefault(place, len(numbers) + 1)
                for place in places_in(domain, self.runners)
            ]
            self._domains[domain] = np.array(codes, dtype=np.intp), numbers
        return self._domains[domain]

    def breaking(self, bound: Bound) -> Mask:
        """Tell which runners are not where a bound wants the job."""
        codes, numbers = self.domain(bound.domain)
        taken = np.zeros(len(numbers) + 1, dtype=np.bool_)
        taken[[numbers[place] for place in bound.taken if place in numbers]] = True
        if bound.kind is BoundKind.BESIDE:
            return np.logical_not(taken[codes])
        taken[0] = True
        return taken[codes]

    def open_to(self, job: SchedulingJob, lent: frozenset[str]) -> Mask:
        """Tell which runners are kept from a job by nothing that passes where they stand."""
        if not self.stands:
            return np.ones(len(self.runners), dtype=np.bool_)
        kept = [next(passing(job, it, lent=lent), None) is None for it in self.profiles]
        of_places: Mask = np.array(kept, dtype=np.bool_)[self.profile_of]
        return of_places

    def standing_towards(self, job: SchedulingJob, lent: frozenset[str]) -> tuple[object, ...]:
        """Group jobs of one kind by what each place to stand has against them."""
        return tuple(
            tuple(it.code for it in (*passing(job, stand, lent=lent), *lasting(job, stand)))
            for stand in self.stands
        )

    def take(self, place: int, resources: Resources) -> None:
        """Give some of a runner's room away."""
        self.free[:, place] -= np.array(self.wanted(resources), dtype=self.free.dtype)

    def give(self, place: int, resources: Resources) -> None:
        """Give room back to a runner."""
        self.free[:, place] += np.array(self.wanted(resources), dtype=self.free.dtype)

    def left_at(self, place: int) -> Resources:
        """Tell what one runner has left."""
        cpu, memory, disk, slots = self.free[:, place].tolist()
        return Resources(cpu=MilliCpu(cpu), memory=Bytes(memory), disk=Bytes(disk), slots=slots)

    def left(self) -> dict[str, Resources]:
        """Tell what every runner has left."""
        return {
            runner.runner_id: Resources(
                cpu=MilliCpu(cpu), memory=Bytes(memory), disk=Bytes(disk), slots=slots
            )
            for runner, cpu, memory, disk, slots in zip(
                self.runners, *self.free.tolist(), strict=True
            )
        }

    def _skill(self) -> list[int]:
        """Number the sets of skills of the profiles."""
        numbers: dict[object, int] = {}
        found: list[int] = []
        for runner in self.profiles:
            key = _skill_key(runner)
            if key not in numbers:
                numbers[key] = len(self._skills)
                self._skills.append(runner)
            found.append(numbers[key])
        return found

    def _profile(self) -> Places:
        """Number the profiles; runners often share the very objects, which saves comparisons."""
        parts = (
            _identities(runner.capabilities for runner in self.runners),
            _identities(runner.trust for runner in self.runners),
            _identities(runner.pool for runner in self.runners),
            _numbered(runner.location.region for runner in self.runners),
            _identities(runner.freshness for runner in self.runners),
        )
        pairs, first, pair_of = np.unique(
            np.stack(parts), axis=1, return_index=True, return_inverse=True
        )
        numbers: dict[object, int] = {}
        profiles = np.empty(pairs.shape[1], dtype=np.intp)
        examples: list[int] = first.tolist()
        for pair, place in enumerate(examples):
            runner = self.runners[place]
            profile = _profile_of(runner)
            if profile not in numbers:
                numbers[profile] = len(self.profiles)
                self.profiles.append(runner)
            profiles[pair] = numbers[profile]
        found: Places = profiles[pair_of]
        return found


def _skill_key(runner: SchedulingRunner) -> tuple[object, ...]:
    """List what `satisfies` looks at."""
    offered = runner.capabilities
    return (
        offered.platform,
        offered.os_version,
        offered.architecture,
        offered.toolchains,
        tuple(sorted(offered.labels.items())),
        runner.trust,
        offered.agent_version,
        offered.equipment,
    )


def _identities(objects: Iterable[object]) -> Places:
    return np.fromiter(map(id, objects), dtype=np.intp)


def _numbered(values: Iterable[object]) -> Places:
    """Number values, for equal ones are often not the same object."""
    numbers: dict[object, int] = {}
    found = (numbers.setdefault(value, len(numbers)) for value in values)
    return np.fromiter(found, dtype=np.intp)


def _stands(profiles: Iterable[SchedulingRunner]) -> list[SchedulingRunner]:
    by_place = {
        (runner.pool, runner.trust, runner.freshness): runner
        for runner in profiles
        if not is_plain(runner)
    }
    return list(by_place.values())


def fits(wanted: list[int], offered: Numbers) -> Mask:
    """Tell where every dimension of an amount is available."""
    cpu, memory, disk, slots = wanted
    big: Mask = (offered[0] >= cpu) & (offered[1] >= memory)
    enough: Mask = big & (offered[2] >= disk) & (offered[3] >= slots)
    return enough


def _room_and_free(runners: list[SchedulingRunner]) -> tuple[Numbers, Numbers]:
    try:
        parts = _parts(runners, np.int64)
    except OverflowError:
        parts = None
    if parts is not None and _within(parts, _SUMS_FIT):
        room, free = _subtracted(parts, _percents(runners, np.int64))
        if _within(room, EXACT) and _within(free, EXACT):
            return room, free
    return _subtracted(_parts(runners, np.object_), _percents(runners, np.object_))


def _parts(runners: list[SchedulingRunner], dtype: npt.DTypeLike) -> Numbers:
    """Read every amount: by part, dimension and runner."""
    flat: Numbers = np.fromiter(chain.from_iterable(map(_amounts_of, runners)), dtype=dtype)
    by_runner = flat.reshape(-1, len(_PARTS), len(DIMENSIONS))
    return np.ascontiguousarray(by_runner.transpose(1, 2, 0))


def _percents(runners: list[SchedulingRunner], dtype: npt.DTypeLike) -> Numbers:
    """Read how much of its CPU each runner may give away."""
    percents: Numbers = np.fromiter(map(_percent_of, runners), dtype=dtype, count=len(runners))
    return percents


def _subtracted(parts: Numbers, percents: Numbers) -> tuple[Numbers, Numbers]:
    """Say `room.allocatable` of many runners at once, and what is left of it."""
    total, headroom, reserved = parts
    room = np.maximum(total - headroom, 0)
    room[0] = room[0] * percents // PLAIN
    return room, room - reserved


def _within(numbers: Numbers, limit: int) -> bool:
    return not numbers.size or (-limit <= int(numbers.min()) and int(numbers.max()) <= limit)


def _profile_of(runner: SchedulingRunner) -> tuple[object, ...]:
    """Group runners that can do the same things where they stand."""
    return (
        *_skill_key(runner),
        runner.capabilities.reliability,
        runner.pool,
        runner.location.region,
        runner.freshness,
    )
