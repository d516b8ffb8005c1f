"""Why blocked jobs wait, counted over all runners at once.

Says exactly what `diagnose.diagnose` says of the same job and the same runners, and words it there.
Only the few runners that a sentence names are looked at one by one.
"""

from collections import Counter
from itertools import chain

import numpy as np
import numpy.typing as npt

from forgeyard.scheduler.columns import EXACT, Columns, Mask, Numbers, Places, fits
from forgeyard.scheduler.diagnose import (
    DEVICES_HELD,
    FULL,
    STAGES,
    Diagnosis,
    Pairing,
    counted,
    never,
    not_now,
)
from forgeyard.scheduler.eligibility import own_absences, own_reasons, rejections
from forgeyard.scheduler.rejection import BOUND, BY_BOUND, RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import passing
from forgeyard.scheduler.stock import Stock
from forgeyard.scheduler.words import DIMENSIONS

Codes = tuple[RejectionCode, ...]
_AMOUNTS = STAGES[RejectionCode.INSUFFICIENT_CPU]
"""The stage from which on it is only a matter of amounts."""
_BY_STAGE = tuple(RejectionCode)


class Census:
    """Finds why jobs wait from what a cycle knows of its runners when it ends."""

    def __init__(self, columns: Columns, stock: Stock) -> None:
        self._columns = columns
        self._stock = stock
        self._absent: Counter[RejectionCode] = Counter()
        self._obstacle = np.full(len(columns.runners), STAGES[FULL], dtype=np.intp)
        """What keeps each runner from any job it could do: being absent outweighs being full."""
        for place in np.flatnonzero(~columns.takes_work).tolist():
            codes = [rejection.code for rejection in own_absences(columns.runners[place])]
            self._absent.update(codes)
            self._obstacle[place] = STAGES[codes[0]]

    def diagnose(self, job: SchedulingJob) -> Diagnosis:
        """Find the nearest way to a runner and say what stands in it."""
        columns = self._columns
        able = columns.satisfying(job)
        able &= fits(columns.wanted(job.resources), columns.room)
        return self._not_now(job, able) if able.any() else self._never(job)

    def _not_now(self, job: SchedulingJob, able: Mask) -> Diagnosis:
        """Count what the runners that could do it are doing instead."""
        obstacles = self._obstacle
        if self._columns.stands:
            full = obstacles == STAGES[FULL]
            obstacles = np.where(full, self._hindrances(job)[self._columns.profile_of], obstacles)
        obstacles = self._bound(job, obstacles)
        takes_work = self._columns.takes_work
        away = [(place, code) for place, code in self._away(job) if takes_work[place]]
        if away:
            obstacles = obstacles.copy()
            obstacles[[place for place, _ in away]] = [STAGES[code] for _, code in away]
        present = np.flatnonzero(able & (obstacles == STAGES[FULL]))
        without = present[~self._stock.fitting(job.requirements.equipment, present)]
        if len(without):
            obstacles = obstacles.copy()
            obstacles[without] = STAGES[DEVICES_HELD]
        counts = np.bincount(obstacles[able]).tolist()
        return not_now(
            job,
            {_BY_STAGE[stage]: count for stage, count in enumerate(counts) if count},
            first=self._columns.runners[int(able.argmax())],
            registered=len(able),
        )

    def _bound(self, job: SchedulingJob, obstacles: Places) -> Places:
        """Add to what keeps each runner the first bound that it would break."""
        for bound in job.bounds:
            breaking = self._columns.breaking(bound) & (obstacles == STAGES[FULL])
            obstacles = np.where(breaking, STAGES[BY_BOUND[bound.kind]], obstacles)
        return obstacles

    def _never(self, job: SchedulingJob) -> Diagnosis:
        """Find the nearest runner of each way to miss, and count every reason."""
        columns = self._columns
        profiles, profile_of = columns.profiles_for(job.requirements)
        lacks = [self._lacks(job, runner) for runner in profiles]
        short = ~_enough(columns.wanted(job.resources), columns.room)
        tally = self._absent + Counter(
            rejection.code
            for place in set(columns.turned_away(job))
            for rejection in own_reasons(job, columns.runners[place])
        )
        for code in BOUND:
            masks = [columns.breaking(it) for it in job.bounds if BY_BOUND[it.kind] is code]
            tally[code] += int(np.any(masks, axis=0).sum()) if masks else 0
        sizes = np.bincount(profile_of, minlength=len(lacks)).tolist()
        for codes, size in zip(lacks, sizes, strict=True):
            tally.update(dict.fromkeys(codes, size))
        for runner, size in zip(profiles, sizes, strict=True):
            held = (RejectionCode(it.code.value) for it in passing(job, runner))
            tally.update(dict.fromkeys(held, size))
        tally.update(chain.from_iterable(self._stock.busy(job.requirements.equipment)))
        busy = ~_enough(columns.wanted(job.resources), columns.free) & ~short
        for name, never_enough, not_enough in zip(DIMENSIONS, short, busy, strict=True):
            tally[RejectionCode(f"insufficient_{name}")] += int(never_enough.sum())
            tally[RejectionCode(f"busy_{name}")] += int(not_enough.sum())
        ways = self._nearest(job, lacks, short, profile_of)
        nearest = [columns.runners[place] for place in ways]
        pairs = [Pairing(runner=it, rejections=rejections(job, it)) for it in nearest]
        return never(job, pairs, tallies=counted(tally), registered=len(columns.runners))

    def _nearest(
        self,
        job: SchedulingJob,
        lacks: list[Codes],
        short: npt.NDArray[np.bool_],
        profile_of: Places,
    ) -> list[int]:
        """List the nearest place of each way to miss, nearest first."""
        columns = self._columns
        ways = {codes: way for way, codes in enumerate(dict.fromkeys(lacks))}
        way = np.array([ways[codes] for codes in lacks], dtype=np.intp)[profile_of]
        for lacking in short:
            way = way * 2 + lacking
        reasons = np.array([len(codes) for codes in lacks], dtype=np.intp)[profile_of]
        stages = np.array(
            [min((STAGES[code] for code in codes), default=_AMOUNTS) for codes in lacks],
            dtype=np.intp,
        )
        order = np.lexsort(
            (
                columns.name_rank,
                self._missing_share(job),
                -stages[profile_of],
                reasons + short.sum(axis=0),
            )
        )
        _, first = np.unique(way[order], return_index=True)
        nearest: list[int] = order[np.sort(first)].tolist()
        return nearest

    def _missing_share(self, job: SchedulingJob) -> Places:
        """Rank what is short in every dimension, in thousandths of what is wanted."""
        wanted = job.resources
        amounts = (wanted.cpu, wanted.memory, wanted.disk, wanted.slots)
        room = self._columns.room
        if max(amounts) > EXACT:
            room = room.astype(np.object_)
        shares = [
            np.where(want > np.maximum(have, 0), (want - have) * 1000 // max(want, 1), 0)
            for want, have in zip(amounts, room, strict=True)
        ]
        total: Numbers = np.sum(shares, axis=0)
        rank: Places = np.unique(total, return_inverse=True)[1]
        return rank

    def _lacks(self, job: SchedulingJob, runner: SchedulingRunner) -> Codes:
        """List what runners like this one lack for good, whatever their amounts."""
        found = rejections(job, runner)
        return tuple(it.code for it in found if it.permanent and STAGES[it.code] < _AMOUNTS)

    def _hindrances(self, job: SchedulingJob) -> Places:
        """Find what keeps the runners of each profile from a job where they stand."""
        first = (next(passing(job, runner), None) for runner in self._columns.profiles)
        stages = (STAGES[RejectionCode(it.code.value) if it else FULL] for it in first)
        return np.fromiter(stages, dtype=np.intp)

    def _away(self, job: SchedulingJob) -> list[tuple[int, RejectionCode]]:
        """List the places that would not have this very job, each with its first reason."""
        columns = self._columns
        return [
            (place, next(own_reasons(job, columns.runners[place])).code)
            for place in columns.turned_away(job)
        ]


def _enough(wanted: list[int], offered: Numbers) -> npt.NDArray[np.bool_]:
    """Tell where each dimension of an amount is available."""
    enough: npt.NDArray[np.bool_] = np.array(
        [have >= want for want, have in zip(wanted, offered, strict=True)], dtype=np.bool_
    )
    return enough
