"""The room that is left while a cycle places its jobs, and the score of every fitting pair.

Jobs that want the same things share a row of scores. A placement changes one runner; before a row
is asked again it judges every runner anew that changed meanwhile, so scores may fall or rise. A row
without a fit is dead, for room only shrinks.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from forgeyard.model.capability import Requirements
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.columns import Columns, Mask, Numbers, Places, fits
from forgeyard.scheduler.devices import Held
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.holds import Holds
from forgeyard.scheduler.preempt import Left
from forgeyard.scheduler.scene import BEST, Scene
from forgeyard.scheduler.score import hash64, score, total_weight
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot
from forgeyard.scheduler.standing import NOBODY
from forgeyard.scheduler.stock import Stock
from forgeyard.scheduler.terms import KindTerms, Terms

Scores = npt.NDArray[np.int32]
Ranked = Iterator[tuple[int, int]]
"""Places and what they score, best first."""
NONE = -(2**30)
"""The score of a runner that cannot take the job: whatever is added, it stays below zero."""


@dataclass(slots=True, kw_only=True)
class _Row:
    """What one kind of job scores at every place, without what each job has of its own."""

    kind: int
    requirements: Requirements
    """Kept so that its identity stays its own."""
    wanted: list[int]
    terms: KindTerms
    scores: Scores
    fitting: int
    seen: int
    """How many of the board's changes it knows."""


class Board:
    """Ranks runners for one job after another and keeps account of what they have left."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self.scene = Scene(snapshot, policy)
        self.columns = Columns(snapshot.runners)
        self.stock = Stock(self.columns)
        self._terms = Terms(self.columns, self.scene)
        self._policy = policy
        self._holds = Holds(snapshot.held_room, snapshot.taken_at)
        self._changed: list[int] = []
        self._kinds: dict[object, int] = {}
        self._rows: dict[object, _Row] = {}
        self._known: dict[object, _Row] = {}
        self._held_at = [self.columns.place_of[name] for name in self._held_runners()]
        self._whole = {place: self.columns.left_at(place) for place in self._held_at}
        """What is left at the held places, whoever may have it."""
        for place in self._held_at:
            self.columns.take(place, self._holds.on(self._runner_id(place)))

    def free_for(self, job: SchedulingJob) -> Mapping[str, Resources]:
        """Tell what every runner has left that a job may use."""
        left = self.columns.left()
        for place in self._held_at:
            left[self._runner_id(place)] = self._usable(job, place)
        return left

    def left_for(self, job: SchedulingJob, runner_ids: Iterable[str]) -> Mapping[str, Left]:
        """Tell what some runners have left that a job may use, their devices included."""
        free, place_of = self.free_for(job), self.columns.place_of
        return {
            name: Left(
                free=free[name],
                equipment=self.columns.runners[place_of[name]].capabilities.equipment,
                held=self.stock.held_at(place_of[name]),
            )
            for name in runner_ids
        }

    def nearest(self, job: SchedulingJob, length: int) -> tuple[str, ...]:
        """List runners that take work and could do a job if they were empty, the emptiest first."""
        places = np.flatnonzero(self._could_serve(job))
        wanted = self.columns.wanted(job.resources)
        missing = sum(
            np.maximum(want - free[places], 0) * BEST // max(want, 1)
            for want, free in zip(wanted, self.columns.free, strict=True)
        )
        emptiest = places[np.argsort(missing, kind="stable")].tolist()
        return tuple(self._runner_id(place) for place in emptiest[:length])

    def could_serve(self, job: SchedulingJob, runner_id: str) -> bool:
        """Tell whether a runner takes work and could do a job if it were empty."""
        place = self.columns.place_of.get(runner_id)
        return place is not None and bool(self._could_serve(job)[place])

    def _could_serve(self, job: SchedulingJob) -> Mask:
        columns = self.columns
        able = columns.takes_work & columns.satisfying(job) & columns.open_to(job, NOBODY)
        able &= fits(columns.wanted(job.resources), columns.room)
        able[columns.turned_away(job)] = False
        for bound in job.bounds:
            able[columns.breaking(bound)] = False
        return able

    def _runner_id(self, place: int) -> str:
        return self.columns.runners[place].runner_id

    def _held_runners(self) -> list[str]:
        return [name for name in self._holds.runners if name in self.columns.place_of]

    def _usable(self, job: SchedulingJob, place: int) -> Resources:
        """Tell what a job may use of a runner where room is held, its own room included."""
        return self._whole[place].minus(self._holds.withheld(job, self._runner_id(place)))

    def _held(self, job: SchedulingJob, lent: frozenset[str]) -> Mapping[int, int]:
        """List the held places that a job may use beyond what is free for all, with its scores.

        They are few, so each is judged by the plain rules.
        """
        held: dict[int, int] = {}
        for place in self._held_at:
            runner, usable = self.columns.runners[place], self._usable(job, place)
            more = usable != self.columns.left_at(place)
            devices = self.stock.held_at(place)
            if more and is_eligible(job, runner, free=usable, held=devices, lent=lent):
                held[place] = score(job, runner, usable, self.scene).weighed
        return held

    def _dissolve(self, job: SchedulingJob) -> None:
        """Give the room that was held for a job to all; rows that saw it held are made anew."""
        ended = self._holds.dissolve(job.job_id)
        for hold in ended:
            if hold.runner_id in self.columns.place_of:
                self.columns.give(self.columns.place_of[hold.runner_id], hold.room)
        if ended:
            self._rows.clear()
            self._known.clear()

    def free(self) -> Mapping[str, Resources]:
        """Tell what every runner has left."""
        return self.columns.left()

    def held(self) -> Mapping[str, Held]:
        """Tell what is held of every runner's devices."""
        return self.stock.held()

    def pool_of(self, runner_id: str) -> str:
        """Tell which pool a runner belongs to."""
        return self.columns.runners[self.columns.place_of[runner_id]].pool_id

    def place(
        self,
        job: SchedulingJob,
        *,
        outside: Collection[str] = (),
        lent: frozenset[str] = NOBODY,
    ) -> tuple[tuple[str, int], ...]:
        """Give a job room on the best runner there is; tell who else may take it, best first.

        Runners of the pools that it must stay outside of are passed over; `lent` are pools that are
        kept for owners who have no use for them.
        """
        # One who is bound to others is placed where it was judged, or not at all.
        length = 1 if job.bounds else 1 + self._policy.candidates
        ranked = list(islice(next(self._ranked(job, outside, lent), iter(())), length))
        if ranked:
            winner, _ = ranked[0]
            self._dissolve(job)
            if winner in self._whole:
                self._whole[winner] = self._whole[winner].minus(job.resources)
            self.columns.take(winner, job.resources)
            self.stock.take(winner, job.requirements.equipment)
            self._changed.append(winner)
            self.scene.kin.place(job, self._runner_id(winner))
            self._terms.place(job, winner)
        return self._named(job, ranked)

    def ranking(
        self,
        job: SchedulingJob,
        length: int,
        *,
        outside: Collection[str] = (),
        lent: frozenset[str] = NOBODY,
    ) -> tuple[tuple[str, int], ...]:
        """List the best runners that could take a job now with their scores, and take nothing."""
        ranked = (one for group in self._ranked(job, outside, lent) for one in group)
        return self._named(job, islice(ranked, length))

    def _named(
        self, job: SchedulingJob, ranked: Iterable[tuple[int, int]]
    ) -> tuple[tuple[str, int], ...]:
        runners, whole = self.columns.runners, total_weight(self.scene.weights(job))
        return tuple((runners[place].runner_id, points // whole) for place, points in ranked)

    def _ranked(
        self, job: SchedulingJob, outside: Collection[str], lent: frozenset[str]
    ) -> Iterator[Ranked]:
        """Rank group by group: far from its losses before near, and compared before passed over."""
        row = self._row(job, lent)
        self._catch_up(row)
        held = self._held(job, lent)
        if not row.fitting and not held:
            return
        scores = row.scores.copy()
        if not self._policy.score_at_most:
            for own in self._terms.own(job, slice(None)):
                scores += own.astype(np.int32)
        for place, points in held.items():
            scores[place] = points
        self._bar(scores, job, outside)
        start = bisect_left(self.columns.hashes, hash64(job.job_id))
        near = self._terms.nearness(job)
        for level in (0,) if near is None else np.unique(near).tolist():
            group = scores if near is None else np.where(near == level, scores, NONE)
            if (group < 0).all():
                continue
            if self._policy.score_at_most:
                yield from self._compared(job, row, group, start=start, held=held)
            else:
                yield _best_first(group, start)

    def _bar(self, scores: Scores, job: SchedulingJob, outside: Collection[str]) -> None:
        """Take out whoever turns the job away, is not where it must be, or is of a shut pool."""
        scores[self.columns.turned_away(job)] = NONE
        for bound in job.bounds:
            scores[self.columns.breaking(bound)] = NONE
        for pool_id in outside:
            scores[self.columns.in_pool(pool_id)] = NONE

    def _compared(
        self,
        job: SchedulingJob,
        row: _Row,
        able: Scores,
        *,
        start: int,
        held: Mapping[int, int],
    ) -> Iterator[Ranked]:
        """Score the first able runners of the ring from the job's own place on; then the rest."""
        places = np.flatnonzero(able >= 0)
        turned = np.roll(places, -int(np.searchsorted(places, start)))
        most = self._policy.score_at_most
        for some in (turned[:most], turned[most:]):
            scores = self._scores(row.wanted, row.terms, some)
            for own in self._terms.own(job, some):
                scores += own.astype(np.int32)
            for place, points in held.items():
                scores[some == place] = points
            order = np.lexsort((np.arange(len(some)), -scores))
            yield zip(some[order].tolist(), scores[order].tolist(), strict=True)

    def kind_of(self, job: SchedulingJob) -> int:
        """Number the kinds of job: those of one kind want the same things."""
        return self._row(job, NOBODY).kind

    def _row(self, job: SchedulingJob, lent: frozenset[str]) -> _Row:
        """Find the row of a job's kind; jobs often share the very object of their requirements."""
        stands = self.columns.standing_towards(job, lent)
        known = (id(job.requirements), job.resources, job.scheduling_class, job.spot, stands)
        row = self._known.get(known)
        if row is not None:
            return row
        kind = (*kind_of(job), stands)
        if kind not in self._rows:
            number = self._kinds.setdefault(kind, len(self._kinds))
            self._rows[kind] = self._new_row(job, lent, number)
        row = self._rows[kind]
        if row.requirements is job.requirements:
            self._known[known] = row
        return row

    def _new_row(self, job: SchedulingJob, lent: frozenset[str], kind: int) -> _Row:
        columns, wanted = self.columns, self.columns.wanted(job.resources)
        able = columns.takes_work & columns.satisfying(job) & columns.open_to(job, lent)
        places = np.flatnonzero(able & fits(wanted, columns.room) & fits(wanted, columns.free))
        places = places[self.stock.fitting(job.requirements.equipment, places)]
        scores: Scores = np.full(len(columns.runners), NONE, dtype=np.int32)
        terms = self._terms.of_kind(job)
        scores[places] = self._judged(wanted, terms, places)
        return _Row(
            kind=kind,
            requirements=job.requirements,
            wanted=wanted,
            terms=terms,
            scores=scores,
            fitting=len(places),
            seen=len(self._changed),
        )

    def _catch_up(self, row: _Row) -> None:
        """Judge again whoever has changed and still fitted."""
        if row.fitting and row.seen < len(self._changed):
            changed = np.array(list(set(self._changed[row.seen :])), dtype=np.intp)
            places = changed[row.scores[changed] != NONE]
            scores = self._judged(row.wanted, row.terms, places)
            scores[~self.stock.fitting(row.requirements.equipment, places)] = NONE
            row.scores[places] = scores
            row.fitting -= int((scores == NONE).sum())
        row.seen = len(self._changed)

    def _judged(self, wanted: list[int], terms: KindTerms, places: Places) -> Scores:
        """Score runners, or where only some are compared just tell which still fit."""
        if not self._policy.score_at_most:
            return self._scores(wanted, terms, places)
        some = fits(wanted, self.columns.free[:, places])
        return np.where(some, 0, NONE).astype(np.int32)

    def _scores(self, wanted: list[int], terms: KindTerms, places: Places) -> Scores:
        """Say `score.score` of many runners at once; the oracle's tests hold the two together."""
        room, free = self.columns.room, self.columns.free
        shares: list[Numbers] = []
        short: Mask = np.zeros(len(places), dtype=np.bool_)
        for offered, whole, amount in zip(free, room, wanted, strict=True):
            left = offered[places] - amount
            short |= left < 0
            shares.append(_share(left, whole[places]))
        cpu, memory, disk, slots = shares
        headroom = np.minimum(np.minimum(cpu, memory), disk)
        load = slots // self.columns.divisor[places]
        weights = terms.weights
        weighed = self._terms.lasting(terms, places)
        weighed += (weights.headroom * headroom + weights.load * load).astype(np.int64)
        if weights.packing:
            weighed += (weights.packing * (BEST - headroom)).astype(np.int64)
        weighed[short] = NONE
        scores: Scores = weighed.astype(np.int32)
        return scores


def kind_of(job: SchedulingJob) -> tuple[object, ...]:
    """Group jobs that want the same things; judged by the wants themselves, not by their digest."""
    wanted = job.requirements
    return (
        wanted.platform,
        wanted.os_version,
        wanted.architecture,
        wanted.toolchains,
        tuple(sorted(wanted.labels.items())),
        wanted.trust,
        wanted.agent_version,
        wanted.equipment,
        wanted.pools,
        wanted.regions,
        job.resources,
        job.scheduling_class,
        job.spot,
    )


def _share(left: Numbers, whole: Numbers) -> Numbers:
    """Say `score._share` of many runners at once."""
    some = np.maximum(whole, 1)
    share: Numbers = np.minimum(np.maximum(left, 0), some) * BEST // some
    share[whole <= 0] = BEST
    return share


def _best_first(scores: Scores, start: int) -> Ranked:
    """Take the best places one by one; among equals the first from `start` on, round the ring.

    Places are ordered by hash, so that is the smallest `(H(runner) - H(job)) mod 2^64`.
    """
    while True:
        place = int(scores[start:].argmax()) + start if start < len(scores) else 0
        if start:
            before = int(scores[:start].argmax())
            place = before if scores[before] > scores[place] else place
        points = int(scores[place])
        if points < 0:
            return
        yield place, points
        scores[place] = NONE
