"""The room that is left while a cycle places its jobs, and the score of every fitting pair.

Jobs that want the same things share a row of scores. A placement changes one runner; a row catches
up with the runners that changed since it was last asked, and a row without a fit is dead, for room
only shrinks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forgeyard.model.capability import Requirements
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.columns import Columns, Numbers, Places, fits
from forgeyard.scheduler.devices import Held
from forgeyard.scheduler.score import BEST, hash64
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.stock import Stock

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

    def __init__(self, runners: Iterable[SchedulingRunner], policy: SchedulingPolicy) -> None:
        self.columns = Columns(runners)
        self.stock = Stock(self.columns)
        self._policy = policy
        self._changed: list[int] = []
        self._rows: dict[object, _Row] = {}
        self._known: dict[tuple[int, Resources], _Row] = {}

    def free(self) -> Mapping[str, Resources]:
        """Tell what every runner has left."""
        return self.columns.left()

    def held(self) -> Mapping[str, Held]:
        """Tell what is held of every runner's devices."""
        return self.stock.held()

    def place(self, job: SchedulingJob) -> tuple[tuple[str, int], ...]:
        """Give a job room on the best runner there is; tell who else may take it, best first."""
        ranked = self._ranked(job, 1 + self._policy.candidates)
        if ranked:
            winner, _ = ranked[0]
            self.columns.take(winner, job.resources)
            self.stock.take(winner, job.requirements.equipment)
            self._changed.append(winner)
        return self._named(ranked)

    def ranking(self, job: SchedulingJob, length: int) -> tuple[tuple[str, int], ...]:
        """List the best runners that could take a job now with their scores, and take nothing."""
        return self._named(self._ranked(job, length))

    def _named(self, ranked: Iterable[tuple[int, int]]) -> tuple[tuple[str, int], ...]:
        runners = self.columns.runners
        return tuple((runners[place].runner_id, points) for place, points in ranked)

    def _ranked(self, job: SchedulingJob, length: int) -> list[tuple[int, int]]:
        row = self._row(job)
        self._catch_up(row)
        if not row.fitting:
            return []
        scores = row.scores.copy()
        if job.refused_by:
            places = self.columns.place_of
            scores[[places[name] for name in job.refused_by if name in places]] = NONE
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
        places = places[self.stock.fitting(job.requirements.equipment, places)]
        scores: Scores = np.full(len(columns.runners), NONE, dtype=np.int16)
        scores[places] = self._scores(wanted, places)
        return _Row(
            kind=len(self._rows),
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
            scores[~self.stock.fitting(row.requirements.equipment, places)] = NONE
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
