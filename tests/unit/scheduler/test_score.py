import pytest

from forgeyard.model.policy import ScoreWeights
from forgeyard.model.runner import ResourcePressure
from forgeyard.scheduler.score import hash64, score, tie_break
from tests.scheduling import a_runner, amounts

WEIGHTS = ScoreWeights(headroom=2, load=1)
HASH = 0x1F564E3F9481B5AA  # blake2b, 8 bytes, of the text below


@pytest.mark.requirement("SCO-011")
def test_headroom_is_what_stays_of_the_scarcest_resource() -> None:
    runner = a_runner()  # 4 cores, 12 GiB, 100 GiB of disk
    judged = score(amounts(cpu=1_000, memory_gib=9), runner, runner.free, WEIGHTS)
    assert judged.headroom == 250
    assert judged.load == 750
    assert judged.total == (2 * 250 + 750) // 3


def test_an_emptier_runner_is_better() -> None:
    runner = a_runner()
    idle = score(amounts(), runner, runner.free, WEIGHTS)
    busy = score(amounts(), runner, runner.free.minus(amounts()), WEIGHTS)
    assert idle.total > busy.total


def test_cpu_pressure_halves_the_load_term_only() -> None:
    calm, hot = a_runner(), a_runner(pressure=ResourcePressure.CPU)
    before = score(amounts(), calm, calm.free, WEIGHTS)
    after = score(amounts(), hot, hot.free, WEIGHTS)
    assert (after.headroom, after.load) == (before.headroom, before.load // 2)


@pytest.mark.requirement("SCO-003")
def test_policy_weighs_the_terms() -> None:
    runner = a_runner()
    wanted = amounts(cpu=3_000)
    only_load = score(wanted, runner, runner.free, ScoreWeights(headroom=0, load=5))
    only_headroom = score(wanted, runner, runner.free, ScoreWeights(headroom=5, load=0))
    assert (only_load.total, only_headroom.total) == (only_load.load, only_headroom.headroom)
    assert score(wanted, runner, runner.free, ScoreWeights(headroom=0, load=0)).total == 0


def test_a_resource_that_a_runner_does_not_count_limits_no_score() -> None:
    runner = a_runner(total=amounts(cpu=2_000, memory_gib=2, disk_gib=0, slots=2))
    judged = score(amounts(disk_gib=0), runner, runner.free, WEIGHTS)
    assert judged.headroom == 500


@pytest.mark.requirement("SCO-033")
def test_the_tie_break_is_stable_and_differs_from_job_to_job() -> None:
    assert tie_break("job_1", "rnr_1") == (hash64("rnr_1") - hash64("job_1")) % 2**64
    assert hash64("forgeyard") == HASH
    runners = [f"rnr_{number}" for number in range(10)]
    winners = {
        min(runners, key=lambda runner: tie_break(f"job_{job}", runner)) for job in range(200)
    }
    assert len(winners) > 5
