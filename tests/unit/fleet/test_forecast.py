"""A forecast is what the past bears out, with its error; else it says why there is none."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from forgeyard.fleet import forecast as module
from forgeyard.fleet.forecast import STEP_MS, VERSION, Advice, Past, Window, forecast
from forgeyard.model.fleet import DAY_MS, MOST_INSTANCES
from tests.pasts import BUCKET, HOUR, MINUTE, MONDAY, NOON, Load, a_past, at_work

MORNING = NOON - 3 * HOUR
"""Nine o'clock, when the work of a Monday begins."""


def advice(past: Past, now: int = NOON) -> Advice:
    return forecast(past, now=now).advice


def rush(at: int) -> int:
    """Need forty machines on Mondays at noon, for an hour, and three else."""
    return 40 if (at - MONDAY) % (7 * DAY_MS) in range(12 * HOUR, 13 * HOUR) else 3


def wander(seed: int) -> Load:
    """Go up or down by one, without a pattern."""
    rng, here, steps = Random(seed), 500, {}
    for at in range(NOON - 36 * DAY_MS, NOON, BUCKET):
        here += rng.choice((-1, 1))
        steps[at] = here
    return steps.__getitem__


@pytest.mark.requirement("FCT-003")
def test_the_time_of_day_is_known_before_it_comes() -> None:
    soon = MORNING - 10 * MINUTE
    told = advice(a_past(at_work, until=soon), soon)
    assert (at_work(soon), told.count) == (2, 20)


def test_sunday_is_told_from_monday() -> None:
    soon = MORNING - DAY_MS - 10 * MINUTE
    told = advice(a_past(at_work, until=soon), soon)
    assert (told.count, told.high) == (2, 2)
    assert told.model.endswith("weekly")


def test_a_daily_load_needs_two_days() -> None:
    def daily(at: int) -> int:
        return 9 if at % DAY_MS < 12 * HOUR else 1

    assert advice(a_past(daily, days=2.1)).count == 1
    told = advice(a_past(daily, days=1.9))
    assert told.count is None
    assert "too short: 1.9 days" in told.reason


def test_growth_goes_on_for_a_while() -> None:
    def growing(at: int) -> int:
        return at_work(at) + max(0, at - NOON + 35 * DAY_MS) // DAY_MS

    told = advice(a_past(growing))
    assert told.count in (growing(NOON), growing(NOON) + 1)
    assert told.count > growing(NOON - 7 * DAY_MS) + 5


def test_nothing_is_advised_where_as_many_as_now_comes_nearer() -> None:
    told = advice(a_past(wander(1)))
    assert told.count is None
    assert told.reason.startswith("no model is better than the last value")
    assert told.error is not None
    assert told.error.mae > told.error.baseline


@pytest.mark.requirement("FCT-005")
def test_an_advice_says_between_what_it_lies_and_how_far_off_its_model_was() -> None:
    rng = Random(3)

    def noisy(at: int) -> int:
        return max(0, round(rng.gauss(at_work(at), at_work(at) ** 0.5)))

    told = advice(a_past(noisy))
    assert told.count is not None
    assert told.low is not None
    assert told.high is not None
    assert 8 < told.low < told.count < told.high < 40
    assert told.error is not None
    assert told.error.coverage is not None
    assert 0.85 < told.error.coverage <= 0.97
    assert 0 < told.error.mae < told.error.baseline
    assert f"{told.error.mae:.2f} machines" in told.reason


def test_an_interval_knows_only_what_had_come_by_then() -> None:
    """Each forecast looks three steps ahead, so that it is judged three steps later."""
    steps = np.arange(400)
    expected, came = np.full(400, 10.0), np.where(steps < 290, np.nan, 11.0)
    other = np.where(steps < 300, came, 99.0)
    low, high = module.interval(expected, came, ahead=3, trained=200)
    _, later = module.interval(expected, other, ahead=3, trained=200)
    assert ({*low}, {*high[93:]}) == ({10.0}, {11.0})
    assert np.array_equal(high[:103], later[:103])
    assert later[103] == 99


@pytest.mark.requirement("FCT-007", "FCT-008")
def test_an_advice_names_its_model_and_the_version_of_it() -> None:
    told = advice(a_past(at_work))
    assert told.model in {"seasonal-naive/weekly", "holt-winters/weekly"}
    assert told.version == VERSION
    assert 0 < VERSION < 2**16


def test_the_error_is_that_of_the_numbers_that_were_advised() -> None:
    """Ask as a fleet would have asked, now and then: the mean of the misses is the error told."""
    past, misses = a_past(at_work, days=15), []
    error = advice(past).error
    assert error is not None
    steps, came = 2 * 96, dict(past.points)
    for at in range(NOON - steps * STEP_MS, NOON - 4 * STEP_MS, 5 * STEP_MS):
        told = forecast(replace(past, points=[p for p in past.points if p[0] < at]), now=at).advice
        most = max(came[then] for then in range(at, at + 3 * STEP_MS, BUCKET))
        misses.append(abs((told.count or 0) - most))
    assert sum(misses) / len(misses) == pytest.approx(error.mae, abs=0.5)


def test_the_simplest_of_equally_good_models_is_taken() -> None:
    assert advice(a_past(lambda at: 9 if at % DAY_MS < 12 * HOUR else 1)).model == (
        "seasonal-naive/daily"
    )


@pytest.mark.requirement("FCT-003")
def test_what_a_past_window_brought_is_not_expected_again() -> None:
    """The rush was a release, and its machines were reserved."""
    week = 7 * DAY_MS
    windows = tuple(
        Window(starts_at=NOON - n * week, ends_at=NOON - n * week + HOUR, quantity=40)
        for n in range(1, 6)
    )
    assert advice(a_past(rush)).count == 40
    assert advice(a_past(rush, *windows)).count == 3


@pytest.mark.requirement("FCT-003")
def test_a_window_to_come_is_told_beside_the_advice_and_not_in_it() -> None:
    here = Window(starts_at=NOON + 10 * MINUTE, ends_at=NOON + HOUR, quantity=7)
    overlapping = replace(here, quantity=5)
    later = replace(here, starts_at=NOON + 2 * HOUR, ends_at=NOON + 3 * HOUR)
    alone = forecast(a_past(at_work), now=NOON)
    told = forecast(a_past(at_work, here, overlapping, later), now=NOON)
    assert (alone.reserved, told.reserved) == (0, 12)
    assert told.advice == alone.advice


def test_need_beyond_what_a_window_reserved_is_ordinary() -> None:
    always = Window(starts_at=NOON - 40 * DAY_MS, ends_at=NOON, quantity=1)
    assert advice(a_past(at_work, always)).count == 19


@pytest.mark.parametrize("gap", [HOUR, 3 * DAY_MS])
def test_a_gap_teaches_nothing(gap: int) -> None:
    past = a_past(at_work)
    for end in (NOON - 8 * DAY_MS, NOON - 2 * DAY_MS):
        kept = [point for point in past.points if not end - gap <= point[0] < end]
        past = replace(past, points=kept)
    assert advice(past).count == 20


def test_a_past_that_has_ended_is_no_ground_for_advice() -> None:
    told = advice(a_past(at_work, until=NOON - 2 * HOUR))
    assert (told.count, told.reason) == (
        None,
        "the history has ended: nothing is known of the last hour",
    )


def test_a_past_full_of_gaps_is_not_tested_on() -> None:
    past = a_past(at_work)
    seldom = replace(past, points=[p for p in past.points if p[0] % (8 * HOUR) < HOUR])
    kept = replace(seldom, points=[*seldom.points, past.points[-1]])
    assert advice(kept).reason == "the history has too many gaps to be tested on"


def test_nothing_at_all_is_too_short() -> None:
    assert "too short: 0.0 days" in advice(Past(points=())).reason
    assert advice(Past(points=((NOON - BUCKET, 3),))).count is None


@pytest.mark.parametrize("value", [0, 1, MOST_INSTANCES])
def test_a_constant_need_goes_on(value: int) -> None:
    told = advice(a_past(lambda _: value))
    assert (told.low, told.count, told.high) == (value, value, value)
    assert told.error is not None
    assert (told.error.mae, told.error.coverage) == (0, 1)


def test_absurd_numbers_are_held_within_what_a_fleet_may_have() -> None:
    past = a_past(lambda at: 10**30 if at_work(at) > 2 else -(10**30))
    told = forecast(replace(past, points=[*past.points, (10**40, 5), (-(10**40), 5)]), now=NOON)
    assert told.advice.count == MOST_INSTANCES
    huge = Window(starts_at=-(10**40), ends_at=10**40, quantity=10**30)
    assert forecast(replace(past, windows=(huge,)), now=NOON).advice.count is None


def test_a_longer_horizon_sees_further() -> None:
    soon = MORNING - 2 * HOUR
    past = a_past(at_work, until=soon)
    near, far = (forecast(past, now=soon, horizon=it) for it in (HOUR, 3 * HOUR))
    assert (near.advice.count, far.advice.count) == (2, 20)
    assert far.until - near.until == 2 * HOUR
    assert forecast(past, now=soon, horizon=10**15).until == soon + DAY_MS


def test_an_outlook_shows_all_that_it_weighed() -> None:
    told = forecast(a_past(at_work), now=NOON + MINUTE)
    assert [test.model for test in told.considered] == [
        *("last-value", "seasonal-naive/daily", "seasonal-naive/weekly"),
        *("holt-winters/daily", "holt-winters/weekly"),
    ]
    assert told.advice.error in told.considered
    assert {test.origins for test in told.considered} == {7 * 96 - 3}
    day = [at_work(told.begins_at + n * told.step_ms) for n in range(96)]
    assert list(told.recent) == day
    assert told.until == NOON + 3 * STEP_MS


def test_only_whole_steps_are_looked_at() -> None:
    past = a_past(at_work, until=NOON + BUCKET)
    begun = replace(past, points=[*past.points[:-1], (NOON, 9_999)])
    assert forecast(begun, now=NOON + BUCKET) == forecast(past, now=NOON + BUCKET)
    assert module.HORIZON_MS >= 2 * STEP_MS
