"""The soft scores of many runners at once; `score` says the same of one, and tests compare them.

What lies in the runner alone is reckoned once for a cycle, what lies in the kind of job once for a
kind. What only this job has (its inputs, caches, home, group) is added when its turn comes. Terms
that the policy does not weigh are never reckoned.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from forgeyard.model.location import SOMEWHERE, Location, ReliabilityClass
from forgeyard.model.policy import ScoreWeights
from forgeyard.model.wishes import Domain
from forgeyard.scheduler.avoidance import NEARER, avoided_domains
from forgeyard.scheduler.bounds import place_in
from forgeyard.scheduler.columns import Columns, Numbers, Places
from forgeyard.scheduler.holders import Holders
from forgeyard.scheduler.kin import SPREAD_OVER, group_of
from forgeyard.scheduler.scene import (
    BEST,
    SAME_SITE,
    Feature,
    Scene,
    features,
    size_of,
    wants,
)
from forgeyard.scheduler.score import LARGEST_INPUT, NEUTRAL, SAME_HOST, SPOT
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

CLASSES = tuple(ReliabilityClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTerms:
    """What a kind of job thinks of runners, by what they are."""

    weights: ScoreWeights
    spot: Numbers
    """By class of machine."""
    waste: Numbers
    """By profile, what is the rarest thing that the kind has no use for."""
    memory: int
    """How rare the memory is that it needs."""


NONE_WASTED: Numbers = np.empty(0, dtype=np.int64)


class Terms:
    """Reckons with the runners of a cycle, in the order of their columns."""

    def __init__(self, columns: Columns, scene: Scene) -> None:
        self._columns = columns
        self._scene = scene
        self._holders = Holders(columns.runners, scene.snapshot.jobs)
        self._shards: dict[str, list[tuple[Numbers, Places]]] = {}
        self._wastes: dict[frozenset[tuple[str, str]], Numbers] = {}

    def of_kind(self, job: SchedulingJob) -> KindTerms:
        """Look at what a job shares with its kind."""
        weights = self._scene.weights(job)
        return KindTerms(
            weights=weights,
            spot=np.array([SPOT[job.spot][it] for it in CLASSES], dtype=np.int64),
            waste=self._waste(wants(job.requirements)) if weights.scarcity else NONE_WASTED,
            memory=self._scene.rarity_of_memory(job.resources.memory) if weights.scarcity else 0,
        )

    def _waste(self, wanted: frozenset[tuple[str, str]]) -> Numbers:
        """Find the rarest thing of each profile that such a job has no use for."""
        if wanted not in self._wastes:
            waste = [
                next((rarity for rarity, feature in rare if feature[:2] not in wanted), 0)
                for rare in self._rare
            ]
            self._wastes[wanted] = np.array(waste, dtype=np.int64)
        return self._wastes[wanted]

    def lasting(self, kind: KindTerms, places: Places) -> Numbers:
        """Weigh what no placement of this cycle changes and the whole kind shares."""
        weights = kind.weights
        found: Numbers = np.full(len(places), self._neutral(weights), dtype=np.int64)
        if weights.reliability:
            found += weights.reliability * self._reliability[places]
        if weights.cost:
            found += weights.cost * self._cost[places]
        if weights.spot:
            found += weights.spot * kind.spot[self._class_of[places]]
        if weights.scarcity:
            memory = self._memory[places] - kind.memory
            waste = np.maximum(kind.waste[self._columns.profile_of[places]], memory)
            found += weights.scarcity * (BEST - np.maximum(waste, 0))
        return found

    def own(self, job: SchedulingJob, places: Places | slice) -> list[Numbers]:
        """Weigh what only this job has; an empty list means that it has nothing of its own."""
        weights = self._scene.weights(job)
        found: list[Numbers] = []
        if weights.locality and job.inputs:
            found.append(weights.locality * self._locality(job, places))
        if weights.cache and job.closures:
            found.append(weights.cache * self._warmth(job.closures, places))
        if weights.fairness and not self._scene.owners.isdisjoint(job.scopes):
            found.append(weights.fairness * self._fairness(job)[places])
        if weights.affinity and job.home in self._columns.place_of:
            found.append(weights.affinity * self._affinity(job.home, places))
        group = group_of(job)
        if weights.spread and group is not None:
            found.append(weights.spread * (self._spread(group, places) - BEST))
        return found

    def nearness(self, job: SchedulingJob) -> Numbers | None:
        """Tell how near each runner is to one that failed the job; none if it need not care."""
        lost = [self._scene.runners[it] for it in job.losses if it in self._scene.runners]
        domains = avoided_domains(job, self._scene.policy.avoid_after) if lost else ()
        if not domains:
            return None
        near_to: Numbers = np.zeros(len(self._columns.runners), dtype=np.int64)
        for domain in domains:
            codes, numbers = self._columns.domain(domain)
            shared = [numbers[place] for it in lost if (place := place_in(domain, it)) is not None]
            near_to[np.isin(codes, shared)] = 1 + NEARER.index(domain)
        return near_to

    def place(self, job: SchedulingJob, place: int) -> None:
        """Count a shard that was placed."""
        for counts, codes in self._shards.get(group_of(job) or "", ()):
            counts[codes[place]] += codes[place] != 0

    def _neutral(self, weights: ScoreWeights) -> int:
        """Weigh what the terms are that `own` adds to, and those of which nothing is known."""
        return weights.spread * NEUTRAL["spread"]

    @cached_property
    def _rare(self) -> list[list[tuple[int, Feature]]]:
        """List what every profile has, the rarest first."""
        rarity = self._scene.rarity
        return [
            sorted(
                ((rarity.get(it, 0), it) for it in features(one.capabilities, one.trust)),
                reverse=True,
            )
            for one in self._columns.profiles
        ]

    def _locality(self, job: SchedulingJob, places: Places | slice) -> Numbers:
        """Weigh by bytes: what a runner has, and how near it is to where the rest is."""
        sizes = {name: 0 for name, _ in job.inputs}
        for name, size in job.inputs:
            sizes[name] += min(size, LARGEST_INPUT)
        total = sum(sizes.values())
        held: Numbers = np.zeros(len(self._columns.runners), dtype=np.int64)
        for name, size in sizes.items():
            held[self._holders.of_object(name)] += size
        held = held[places]
        points: Numbers = held * BEST
        if self._is_anybody_near:
            points += (total - held) * self._near[places]
        return points // max(total, self._scene.policy.locality_bytes)

    def _warmth(self, closures: tuple[str, ...], places: Places | slice) -> Numbers:
        has: Numbers = np.zeros(len(self._columns.runners), dtype=np.int64)
        for key in closures:
            has[self._holders.of_closure(key)] += 1
        return has[places] * BEST // len(closures)

    def _fairness(self, job: SchedulingJob) -> Numbers:
        codes, owners = self._owner_of
        return BEST * np.array([owner in job.scopes for owner in owners], dtype=np.int64)[codes]

    def _affinity(self, home_id: str, places: Places | slice) -> Numbers:
        columns = self._columns
        at = columns.place_of[home_id]
        points: Numbers = np.zeros(len(columns.runners), dtype=np.int64)[places]
        for domain, worth in (
            (Domain.SITE, SAME_SITE),
            (Domain.HOST, SAME_HOST),
            (Domain.RUNNER, BEST),
        ):
            codes, _ = columns.domain(domain)
            if codes[at]:
                points[codes[places] == codes[at]] = worth
        return points

    def _spread(self, group: str, places: Places | slice) -> Numbers:
        if group not in self._shards:
            counts = self._scene.kin.counts(group)
            self._shards[group] = [self._counted(counts[domain], domain) for domain in SPREAD_OVER]
        shares = [BEST // (1 + counts[codes[places]]) for counts, codes in self._shards[group]]
        total: Numbers = np.sum(shares, axis=0)
        return total // len(SPREAD_OVER)

    def _counted(self, counts: Mapping[str, int], domain: Domain) -> tuple[Numbers, Places]:
        codes, numbers = self._columns.domain(domain)
        by_code: Numbers = np.zeros(len(numbers) + 1, dtype=np.int64)
        for place, shards in counts.items():
            if place in numbers:
                by_code[numbers[place]] = shards
        return by_code, codes

    @cached_property
    def _reliability(self) -> Numbers:
        judge, spotless = self._scene.reliability, BEST
        return _numbers(
            judge(it) if it.penalty or it.degraded else spotless for it in self._columns.runners
        )

    @cached_property
    def _cost(self) -> Numbers:
        return self._by_capabilities(self._scene.cost)

    @cached_property
    def _class_of(self) -> Numbers:
        number = {it: place for place, it in enumerate(CLASSES)}
        return self._by_capabilities(lambda it: number[it.capabilities.reliability])

    @cached_property
    def _memory(self) -> Numbers:
        """Tell how rare the memory of every runner is."""
        tiers, room = self._scene.tiers, self._columns.room[1]
        sizes, codes = np.unique(room, return_inverse=True)
        rarity = _numbers(tiers.get(size_of(size), 0) for size in sizes.tolist())
        return rarity[codes]

    @cached_property
    def _near(self) -> Numbers:
        return self._where(self._scene.nearness)

    @cached_property
    def _is_anybody_near(self) -> bool:
        storage = self._scene.snapshot.storage
        return storage != SOMEWHERE and bool(self._near.any())

    @cached_property
    def _owner_of(self) -> tuple[Places, list[str | None]]:
        numbers: dict[str | None, int] = {}
        codes = [numbers.setdefault(it.pool.owner_id, len(numbers)) for it in self._columns.runners]
        return np.array(codes, dtype=np.intp), list(numbers)

    def _where(self, judge: Callable[[Location], int]) -> Numbers:
        """Judge every place once; runners often share the very object."""
        return self._each(attrgetter("location"), lambda it: judge(it.location))

    def _by_capabilities(self, judge: Callable[[SchedulingRunner], int]) -> Numbers:
        return self._each(attrgetter("capabilities"), judge)

    def _each(
        self, part: Callable[[SchedulingRunner], object], judge: Callable[[SchedulingRunner], int]
    ) -> Numbers:
        """Judge one runner for each object that runners share."""
        runners = self._columns.runners
        _, first, codes = np.unique(
            np.fromiter((id(part(it)) for it in runners), dtype=np.intp),
            return_index=True,
            return_inverse=True,
        )
        places: list[int] = first.tolist()
        return _numbers(judge(runners[place]) for place in places)[codes]


def _numbers(values: Iterable[int]) -> Numbers:
    found: Numbers = np.fromiter(values, dtype=np.int64)
    return found
