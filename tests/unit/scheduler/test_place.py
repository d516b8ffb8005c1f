from dataclasses import replace

import pytest

from forgeyard.model.capability import Platform
from forgeyard.model.job import Priority
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.place import Decision, plan
from tests.scheduling import (
    NOW,
    POLICY,
    a_job,
    a_job_that_requires,
    a_runner,
    a_snapshot,
    amounts,
)

ONE_SLOT = amounts(cpu=4_000, memory_gib=12, disk_gib=100, slots=1)


def winners(*decisions: Decision) -> dict[str, str]:
    return {decision.job_id: decision.candidates[0][0] for decision in decisions}


def test_an_empty_queue_and_an_empty_fleet_make_an_empty_plan() -> None:
    nothing = plan(a_snapshot([], []), POLICY)
    assert (nothing.decisions, nothing.diagnoses) == ((), ())
    assert (nothing.eligible, nothing.runners) == (0, 0)


def test_a_plan_counts_what_it_looked_at() -> None:
    made = plan(a_snapshot([a_job()], [a_runner(), a_runner("linux-2")], waiting=70), POLICY)
    assert (made.eligible, made.runners) == (70, 2)


@pytest.mark.requirement("FAR-014")
def test_jobs_spread_because_every_placement_uses_room() -> None:
    runners = [a_runner(f"linux-{number}") for number in range(4)]
    made = plan(a_snapshot([a_job(str(number)) for number in range(8)], runners), POLICY)
    taken = list(winners(*made.decisions).values())
    assert sorted(taken.count(runner.runner_id) for runner in runners) == [2, 2, 2, 2]


def test_the_most_urgent_job_gets_the_last_slot() -> None:
    jobs = [a_job("low", priority=Priority.LOW), a_job("high", priority=Priority.HIGH)]
    made = plan(a_snapshot(jobs, [a_runner(total=ONE_SLOT)]), POLICY)
    assert winners(*made.decisions) == {"job_high": "rnr_linux-1"}
    assert [diagnosis.job_id for diagnosis in made.diagnoses] == ["job_low"]


def test_a_job_that_cannot_be_placed_does_not_hold_up_those_behind_it() -> None:
    giant = a_job("giant", resources=amounts(cpu=64_000), eligible_at=NOW - 1)
    made = plan(a_snapshot([giant, a_job("small")], [a_runner()]), POLICY)
    assert winners(*made.decisions) == {"job_small": "rnr_linux-1"}


@pytest.mark.requirement("FAR-013")
def test_a_full_batch_ends_the_cycle_and_says_nothing_of_the_rest() -> None:
    jobs = [a_job(str(number)) for number in range(4)]
    made = plan(a_snapshot(jobs, [a_runner()]), replace(POLICY, batch=2))
    assert [decision.job_id for decision in made.decisions] == ["job_0", "job_1"]
    assert made.diagnoses == ()


@pytest.mark.requirement("SCO-001", "ACC-006", "ACC-007")
def test_a_decision_carries_the_next_best_runners_to_fall_back_on() -> None:
    runners = [
        a_runner("idle"),
        a_runner("half", reserved=amounts(cpu=2_000, memory_gib=0, disk_gib=0, slots=2)),
        a_runner("busy", reserved=amounts(cpu=3_000, memory_gib=0, disk_gib=0, slots=3)),
        a_runner("gone", state=RunnerState.OFFLINE),
    ]
    (decision,) = plan(a_snapshot([a_job()], runners), POLICY).decisions
    assert [runner_id for runner_id, _ in decision.candidates] == [
        "rnr_idle",
        "rnr_half",
        "rnr_busy",
    ]
    scores = [points for _, points in decision.candidates]
    assert scores == sorted(scores, reverse=True)
    (short,) = plan(a_snapshot([a_job()], runners), replace(POLICY, candidates=1)).decisions
    assert short.candidates == decision.candidates[:2]


def test_a_runner_that_refused_the_job_is_passed_over_for_this_job_only() -> None:
    refused = a_job("refused", refused_by={"rnr_linux-1": "draining"})
    made = plan(a_snapshot([refused, a_job("other")], [a_runner()]), POLICY)
    assert winners(*made.decisions) == {"job_other": "rnr_linux-1"}


@pytest.mark.requirement(
    "SCO-004", "ELG-025", "ACC-008", "ACC-023", "INV-006", "INV-013", "INV-025", "INV-030"
)
def test_the_best_score_never_beats_a_missing_requirement() -> None:
    small_mac = a_runner(
        "mac",
        capabilities=replace(a_runner().capabilities, platform=Platform.MACOS),
        reserved=amounts(cpu=3_000, memory_gib=11, disk_gib=90, slots=3),
    )
    job = a_job_that_requires(platform=Platform.MACOS)
    made = plan(a_snapshot([job], [a_runner(), small_mac]), POLICY)
    assert [runner_id for runner_id, _ in made.decisions[0].candidates] == ["rnr_mac"]


def test_ranking_takes_nothing_from_the_board() -> None:
    board = Board([a_runner(total=ONE_SLOT)], POLICY)
    assert board.ranking(a_job(), 5) == board.ranking(a_job(), 5)
    assert board.place(a_job())
    assert board.ranking(a_job(), 5) == ()
    assert not board.place(a_job("next"))
    assert board.free()["rnr_linux-1"].slots == 0
