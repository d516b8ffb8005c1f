"""Scores that rise when a runner is given work stay exact, because changed runners are judged anew.

A planner that trusts the scores it began with is wrong in either direction; one that only lowers
them, as if no term could ever rise, is right until the policy packs.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.naive import NaivePlanner
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.scheduler import place
from forgeyard.scheduler.board import NONE, Board
from forgeyard.scheduler.columns import fits
from forgeyard.scheduler.score import TERMS, rising_terms
from forgeyard.scheduler.snapshot import Snapshot
from tests.property.test_fast_placement import a_crowd

WORLDS = 60
PACKING = SchedulingPolicy(batch=100, weights=ScoreWeights(packing=40))
FALLING = SchedulingPolicy(batch=100)


class NeverAgain(Board):
    """Keeps the scores that it began with, and only sees who is full."""

    def _catch_up(self, row: Any) -> None:
        for at in set(self._changed[row.seen :]):
            if row.scores[at] != NONE and not fits(row.wanted, self.columns.free[:, [at]])[0]:
                row.scores[at] = NONE
                row.fitting -= 1
        row.seen = len(self._changed)


class OnlyDown(Board):
    """Takes a score from before for the most that it can be."""

    def _catch_up(self, row: Any) -> None:
        before = row.scores.copy()
        super()._catch_up(row)
        np.minimum(row.scores, before, out=row.scores)


def simple(seed: int) -> Snapshot:
    """Draw a world in which only room and the order of scores matter."""
    world = a_crowd(seed)
    jobs = tuple(replace(job, losses=(), wishes=type(job.wishes)()) for job in world.jobs)
    return replace(world, jobs=jobs, held_room=())


def wrong(policy: SchedulingPolicy, monkeypatch: pytest.MonkeyPatch, board: type[Board]) -> int:
    """Count the worlds in which a planner with this board differs from the naive one."""
    monkeypatch.setattr(place, "Board", board)
    found: Counter[bool] = Counter()
    for seed in range(WORLDS):
        world = simple(seed)
        naive = NaivePlanner(snapshot=world, policy=policy).run()
        found[place.plan(world, policy).decisions != tuple(naive.decisions)] += 1
    return found[True]


@pytest.mark.requirement("SCO-003", "SCO-032")
@pytest.mark.parametrize(
    ("board", "policy", "is_right"),
    [
        pytest.param(Board, FALLING, True, id="the board while scores only fall"),
        pytest.param(Board, PACKING, True, id="the board although scores rise"),
        pytest.param(NeverAgain, FALLING, False, id="a mutant that judges nobody anew"),
        pytest.param(NeverAgain, PACKING, False, id="the same where scores rise"),
        pytest.param(OnlyDown, FALLING, True, id="a mutant for which scores only fall"),
        pytest.param(OnlyDown, PACKING, False, id="the same where one rises"),
    ],
)
def test_a_board_is_right_if_it_judges_anew_whoever_it_gave_work(
    monkeypatch: pytest.MonkeyPatch, board: type[Board], policy: SchedulingPolicy, is_right: bool
) -> None:
    count = wrong(policy, monkeypatch, board)
    print(f"\n{count} of {WORLDS} worlds wrong")
    assert (count == 0) is is_right


def test_the_terms_that_are_said_to_rise_are_those_that_the_policy_weighs() -> None:
    for name in TERMS:
        alone = ScoreWeights(**{term: int(term == name) for term in TERMS})
        told = rising_terms(SchedulingPolicy(weights=alone))
        assert told == (("packing",) if name == "packing" else ())
