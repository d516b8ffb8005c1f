"""How the benchmarks of commit and cycle judge what they have measured."""

from pathlib import Path

import pytest

from benchmarks import commit, cycle, fleet, forecast
from benchmarks.contenders import PGQUEUER, PROCRASTINATE, PeerUnavailable, Taken, found, installed


def taken(jobs: int, wall_s: float) -> Taken:
    return Taken(jobs=jobs, wall_s=wall_s, client_s=0.01, server_s=0.02)


def rounds(**rates: float) -> dict[tuple[str, int], list[Taken]]:
    """Let everybody take a batch of a hundred three times, once much slower than else."""
    return {
        (name, 100): [taken(100, 100 / rate), taken(100, 100 / rate), taken(100, 90.0)]
        for name, rate in rates.items()
    }


def test_one_slow_round_changes_no_figure() -> None:
    figures = commit.figures_of(rounds(forgeyard=2_000, pgqueuer=2_500))
    assert figures["forgeyard_100_per_second"] == pytest.approx(2_000)
    assert figures["pgqueuer_100_per_second"] == pytest.approx(2_500)
    assert figures["forgeyard_100_client_cpu_ms"] == pytest.approx(0.1)


def test_every_peer_that_was_measured_has_a_goal() -> None:
    measured = rounds(forgeyard=2_000, pgqueuer=2_500, procrastinate=300)
    goals = commit.goals_of(commit.figures_of(measured))
    assert [(goal.threshold, goal.holds) for goal in goals] == [(0.8, True), (10.0, False)]


def test_a_peer_that_is_missing_has_none() -> None:
    assert commit.goals_of(commit.figures_of(rounds(forgeyard=2_000))) == []


def test_a_peer_that_was_never_installed_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(PeerUnavailable, match="pgqueuer is not installed yet"):
        found(PGQUEUER)


def test_an_environment_for_other_packages_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "forgeyard-peer-procrastinate"
    folder.mkdir()
    (folder / "installed.txt").write_text("procrastinate==2.0")
    with pytest.raises(PeerUnavailable):
        found(PROCRASTINATE)
    (folder / "installed.txt").write_text(" ".join(PROCRASTINATE.packages))
    assert found(PROCRASTINATE) == installed(PROCRASTINATE)
    assert found(PROCRASTINATE).is_relative_to(folder)


def test_the_rate_of_a_cycle_counts_all_its_steps() -> None:
    one = {"load": 0.05, "plan": 0.1, "save": 0.02, "commit": 0.08, "leases": 500.0, "cpu": 0.1}
    figures = cycle.figures_of([one, one, {**one, "commit": 9.0}])
    assert figures["leases_per_second"] == pytest.approx(2_000)
    assert [goal.holds for goal in cycle.goals_of(figures)] == [True]


def said(count: int | None) -> forecast.Said:
    return forecast.Said(count=count, low=4, high=8, cpu_s=0.05)


def test_a_forecast_is_held_against_what_came_and_where_there_is_none_as_many_as_now_counts() -> (
    None
):
    steps = [2] * 10 + [6, 6, 2, 2, 2]
    figures = forecast.figures_of("weekdays", steps, [8, 10], [said(5), said(None)], [3.05, 6.5])
    assert figures == {
        "weekdays_ours_mae": pytest.approx((1 + 4) / 2),
        "weekdays_last_value_mae": pytest.approx(4),
        "weekdays_mean_mae": pytest.approx(4),
        "weekdays_statsmodels_mae": pytest.approx((3 + 1) / 2),
        "weekdays_advised": 0.5,
        "weekdays_coverage": 1,
    }


def test_a_forecast_has_a_goal_for_each_load_and_one_for_the_peer_that_was_measured() -> None:
    loads = ("weekdays", "trend", "nightly", "bursts", "walk")
    figures = {f"{load}_{who}_mae": 2.0 for load in loads for who in ("ours", "last_value")}
    figures |= {f"{load}_mean_mae": 8.0 for load in loads}
    figures |= {f"{load}_coverage": 0.9 for load in loads} | {"forecast_cpu_ms": 90.0}
    goals = forecast.goals_of(figures)
    assert [goal.holds for goal in goals] == [False] * 3 + [True] * 8
    peer = {f"{load}_statsmodels_mae": 1.0 for load in loads}
    assert [goal.goal for goal in forecast.goals_of(figures | peer) if goal not in goals] == [
        "off, ours ÷ statsmodels, regular ≤ 1.1"
    ]


def test_lots_and_job_by_job_take_as_many_machines() -> None:
    loads = [
        fleet.Load(name=name, count=count, each=(cpu, 0, 0, 1, 0), offerings=fleet.ANY)
        for name, count, cpu in (("large", 7, 5_000), ("small", 30, 700))
    ]
    assert fleet.packed(loads) == fleet.first_fit(loads) == 8


def test_a_tick_that_takes_too_long_or_misses_jobs_fails_its_goals() -> None:
    good = {
        "demand_ms": 600.0,
        "allocate_ms": 400.0,
        "decide_ms": 100.0,
        "times_faster": 900.0,
        "machines_by_lots": 10.0,
        "machines_job_by_job": 10.0,
        "jobs_counted": float(fleet.JOBS),
    }
    assert all(goal.holds for goal in fleet.goals_of(good))
    bad = {**good, "decide_ms": 700.0, "jobs_counted": float(fleet.JOBS - 1)}
    assert [goal.holds for goal in fleet.goals_of(bad)] == [True, False, True, True, False]
