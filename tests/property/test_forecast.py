"""Whatever the past of a fleet, its forecast is a number of machines or a reason."""

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.fleet.forecast import STEP_MS, Past, Window, forecast
from forgeyard.fleet.season import holt_winters, last_value, seasonal_naive
from forgeyard.model.fleet import DAY_MS, MOST_INSTANCES
from tests.pasts import NOON

COUNTS = st.one_of(
    st.integers(0, 30), st.integers(-(2**70), 2**70), st.sampled_from([0, MOST_INSTANCES])
)
DAYS = 4
STEPS = DAYS * DAY_MS // STEP_MS
SPANS = st.integers(-DAYS * DAY_MS, DAY_MS)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    """Repeat some counts over and over, with gaps that some of them leave."""
    pattern = draw(st.lists(st.none() | COUNTS, min_size=1, max_size=40))
    length = draw(st.integers(0, STEPS) | st.just(STEPS))
    counts = [pattern[place % len(pattern)] for place in range(length)]
    points = [
        (NOON - (length - place) * STEP_MS, count)
        for place, count in enumerate(counts)
        if count is not None
    ]
    windows = draw(
        st.lists(
            st.builds(
                lambda start, end, quantity: Window(
                    starts_at=NOON + start, ends_at=NOON + end, quantity=quantity
                ),
                SPANS,
                SPANS,
                st.integers(0, MOST_INSTANCES),
            ),
            max_size=3,
        )
    )
    return Past(points=draw(st.permutations(points)) if length < 30 else points, windows=windows)


ADVISED = {"yes": 0, "no": 0}


@settings(deadline=None)
@given(pasts())
def check_a_forecast_is_a_number_of_machines_or_a_reason(past: Past) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not a number, too large, nothing to take the mean of
        told = forecast(past, now=NOON)
    advice = told.advice
    assert told == forecast(past, now=NOON)
    assert told == forecast(Past(points=past.points[::-1], windows=past.windows), now=NOON)
    assert told.reserved >= 0
    if advice.count is None:
        ADVISED["no"] += 1
        assert advice.reason
        return
    ADVISED["yes"] += 1
    assert advice.low is not None
    assert advice.high is not None
    assert 0 <= advice.low <= advice.count <= advice.high <= MOST_INSTANCES
    assert advice.error is not None
    assert advice.error.coverage is not None
    assert 0 <= advice.error.mae <= advice.error.baseline
    assert 0 <= advice.error.coverage <= 1


def test_a_forecast_is_a_number_of_machines_or_a_reason() -> None:
    ADVISED.update(yes=0, no=0)
    check_a_forecast_is_a_number_of_machines_or_a_reason()
    assert min(ADVISED.values()) >= 10, "both must have happened"


@settings(deadline=None)
@given(past=pasts(), later=st.lists(COUNTS, min_size=8, max_size=8))
def test_no_model_looks_ahead(past: Past, later: list[int]) -> None:
    season, horizon = 12, 3
    values = np.array([float(min(max(count, 0), 9_999)) for _, count in past.points][:200])
    if len(values) < 3 * season:
        return
    more = np.concatenate([values, np.clip(np.array(later, dtype=float), 0, 9_999)])
    trained = len(values)
    models = (
        lambda it: seasonal_naive(it, season=season, horizon=horizon),
        lambda it: holt_winters(it, season=season, horizon=horizon, trained=trained),
        last_value,
    )
    for model in models:
        assert np.array_equal(model(values), model(more)[: len(values)], equal_nan=True)
