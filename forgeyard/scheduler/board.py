"""The room that is left while a cycle places its jobs, and the score of every fitting pair.

Jobs that want the same things share a row of scores. A placement changes one runner; a row catches
up with the runners that changed since it was last asked, and a row without a fit is dead, for room
only shrinks.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forgeyard.model.capability import Requirements
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.columns import Columns, Numbers, Places, fits
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.holds import Holds
from forgeyard.scheduler.score import BEST, hash64, score
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

Scores = npt.NDArray[np.int16]
NONE = -1
"""The score of a runner that cannot take the job; weights are not negative, nor is any score."""


@dataclass(slots=True, kw_only=True)
class _Row:
    """What one kind of job scores at every place."""

    kind: int
    requirements: Requirements
    """Kept so that its identity stays its own."""
    wanted: list[int]
    scores: Scores
    fitting: int
    seen: int
    """How many of the board's changes it knows."""


class Board:
    """Ranks runners for one job after another and keeps account of what they have left."""

    def __init__(
        self,
        runners: Iterable[SchedulingRunner],
        policy: SchedulingPolicy,
        holds: Holds | None = None,
    ) -> None:
        self.columns = Columns(runners)
        self._policy = policy
        self._holds = Holds() if holds is None else holds
        self._changed: list[int] = []
        self._kinds: dict[object, int] = {}
        self._rows: dict[object, _Row] = {}
        self._known: dict[tuple[int, Resources], _Row] = {}
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

    def nearest(self, job: SchedulingJob, length: int) -> tuple[str, ...]:
        """List runners that take work and could do a job if they were empty, the emptiest first."""
        columns, wanted = self.columns, self.columns.wanted(job.resources)
        able = columns.takes_work & columns.satisfying(job.requirements)
        able &= fits(wanted, columns.room)
        away = set(columns.turned_away(job))
        places = [place for place in np.flatnonzero(able).tolist() if place not in away]
        places.sort(key=lambda place: (_missing(job.resources, columns.left_at(place)), place))
        return tuple(self._runner_id(place) for place in places[:length])

    def _runner_id(self, place: int) -> str:
        return self.columns.runners[place].runner_id

    def _held_runners(self) -> list[str]:
        return [name for name in self._holds.runners if name in self.columns.place_of]

    def _usable(self, job: SchedulingJob, place: int) -> Resources:
        """Tell what a job may use of a runner where room is held, its own room included."""
        return self._whole[place].minus(self._holds.withheld(job, self._runner_id(place)))

    def _lent(self, job: SchedulingJob) -> Iterable[tuple[int, int]]:
        """List the held places that a job may use beyond what is free for all, with its scores.

        They are few, so each is judged by the plain rules.
        """
        for place in self._held_at:
            runner, usable = self.columns.runners[place], self._usable(job, place)
            more = usable != self.columns.left_at(place)
            if more and is_eligible(job, runner, free=usable):
                points = score(job.resources, runner, usable, self._policy.weights)
                yield place, points.total

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

    def pool_of(self, runner_id: str) -> str:
        """Tell which pool a runner belongs to."""
        return self.columns.runners[self.columns.place_of[runner_id]].pool_id

    def place(
        self, job: SchedulingJob, *, outside: Collection[str] = ()
    ) -> tuple[tuple[str, int], ...]:
        """Give a job room on the best runner there is; tell who else may take it, best first.

        Runners of the pools that it must stay outside of are passed over.
        """
        ranked = self._ranked(job, 1 + self._policy.candidates, outside)
        if ranked:
            winner, _ = ranked[0]
            self._dissolve(job)
            if winner in self._whole:
                self._whole[winner] = self._whole[winner].minus(job.resources)
            self.columns.take(winner, job.resources)
            self._changed.append(winner)
        return self._named(ranked)

    def ranking(
        self, job: SchedulingJob, length: int, *, outside: Collection[str] = ()
    ) -> tuple[tuple[str, int], ...]:
        """List the best runners that could take a job now with their scores, and take nothing."""
        return self._named(self._ranked(job, length, outside))

    def _named(self, ranked: Iterable[tuple[int, int]]) -> tuple[tuple[str, int], ...]:
        runners = self.columns.runners
        return tuple((runners[place].runner_id, points) for place, points in ranked)

    def _ranked(
        self, job: SchedulingJob, length: int, outside: Collection[str]
    ) -> list[tuple[int, int]]:
        row = self._row(job)
        self._catch_up(row)
        lent = list(self._lent(job)) if self._held_at else []
        if not row.fitting and not lent:
            return []
        scores = row.scores.copy()
        for place, points in lent:
            scores[place] = points
        scores[self.columns.turned_away(job)] = NONE
        for pool_id in outside:
            scores[self.columns.in_pool(pool_id)] = NONE
        return _best_first(scores, bisect_left(self.columns.hashes, hash64(job.job_id)), length)

    def kind_of(self, job: SchedulingJob) -> int:
        """Number the kinds of job: those of one kind want the same things."""
        return self._row(job).kind

    def _row(self, job: SchedulingJob) -> _Row:
        """Find the row of a job's kind; jobs often share the very object of their requirements."""
        known = (id(job.requirements), job.resources)
        row = self._known.get(known)
        if row is not None:
            return row
        kind = kind_of(job)
        if kind not in self._rows:
            self._rows[kind] = self._new_row(job)
        row = self._rows[kind]
        if row.requirements is job.requirements:
            self._known[known] = row
        return row

    def _new_row(self, job: SchedulingJob) -> _Row:
        columns, wanted = self.columns, self.columns.wanted(job.resources)
        able = columns.takes_work & columns.satisfying(job.requirements)
        places = np.flatnonzero(able & fits(wanted, columns.room) & fits(wanted, columns.free))
        scores: Scores = np.full(len(columns.runners), NONE, dtype=np.int16)
        scores[places] = self._scores(wanted, places)
        return _Row(
            kind=self._kinds.setdefault(kind_of(job), len(self._kinds)),
            requirements=job.requirements,
            wanted=wanted,
            scores=scores,
            fitting=len(places),
            seen=len(self._changed),
        )

    def _catch_up(self, row: _Row) -> None:
        """Judge again whoever has changed and still fitted."""
        if row.fitting and row.seen < len(self._changed):
            changed = np.array(list(set(self._changed[row.seen :])), dtype=np.intp)
            places = changed[row.scores[changed] != NONE]
            scores = self._scores(row.wanted, places)
            row.scores[places] = scores
            row.fitting -= int((scores == NONE).sum())
        row.seen = len(self._changed)

    def _scores(self, wanted: list[int], places: Places) -> Scores:
        """Say `score.score` of many runners at once; the oracle's tests hold the two together."""
        room, free = self.columns.room, self.columns.free
        shares: list[Numbers] = []
        short = np.zeros(len(places), dtype=np.bool_)
        for offered, whole, amount in zip(free, room, wanted, strict=True):
            left = offered[places] - amount
            short |= left < 0
            shares.append(_share(left, whole[places]))
        cpu, memory, disk, slots = shares
        headroom = np.minimum(np.minimum(cpu, memory), disk)
        load = slots // self.columns.divisor[places]
        weights = self._policy.weights
        weight = weights.headroom + weights.load
        weighed = (weights.headroom * headroom + weights.load * load) // max(weight, 1)
        weighed[short] = NONE
        scores: Scores = weighed.astype(np.int16)
        return scores


def _missing(wanted: Resources, free: Resources) -> int:
    """Add up what is short in every dimension, in thousandths of what is wanted."""
    pairs = (
        (wanted.cpu, free.cpu),
        (wanted.memory, free.memory),
        (wanted.disk, free.disk),
        (wanted.slots, free.slots),
    )
    return sum((want - have) * BEST // want for want, have in pairs if want > max(have, 0))


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
        job.resources,
    )


def _share(left: Numbers, whole: Numbers) -> Numbers:
    """Say `score._share` of many runners at once."""
    some = np.maximum(whole, 1)
    share: Numbers = np.minimum(np.maximum(left, 0), some) * BEST // some
    share[whole <= 0] = BEST
    return share


def _best_first(scores: Scores, start: int, length: int) -> list[tuple[int, int]]:
    """Take the best places one by one; among equals the first from `start` on, round the ring.

    Places are ordered by hash, so that is the smallest `(H(runner) - H(job)) mod 2^64`.
    """
    ranked: list[tuple[int, int]] = []
    while len(ranked) < length:
        place = int(scores[start:].argmax()) + start if start < len(scores) else 0
        if start:
            before = int(scores[:start].argmax())
            place = before if scores[before] > scores[place] else place
        points = int(scores[place])
        if points == NONE:
            break
        ranked.append((place, points))
        scores[place] = NONE
    return ranked
