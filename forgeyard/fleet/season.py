"""Models of a load that repeats itself, and the two figures that they are held against.

Values are evenly spaced, NaN where nothing is known. Each function answers for every step at once:
the most of the `horizon` steps after it, by what was known up to it. So the back-test judges the
very numbers that the forecast is made of, and nobody looks ahead. A model that has not seen a whole
season yet answers NaN.
"""

from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.float64]

DAMPING: Final = 0.9
"""What a step leaves of the trend: none goes on for ever."""
_WEIGHTS: Final = np.array([*product((0.05, 0.2, 0.5, 0.8), (0.0, 0.1), (0.05, 0.2, 0.5))]).T
"""Of level, trend and season: each column is one way to learn from a surprise."""


def peaks(values: Steps, *, horizon: int) -> Steps:
    """Tell what came: the most of the next steps, NaN unless all of them are known."""
    came = np.full(len(values), np.nan)
    if len(values) > horizon:
        windows = np.lib.stride_tricks.sliding_window_view(values[1:], horizon)
        came[: len(windows)] = windows.max(axis=1)
    return came


def last_value(values: Steps) -> Steps:
    """Expect what is: the last value that is known; what a fleet without a forecast goes by."""
    places = np.where(np.isnan(values), 0, np.arange(len(values)))
    last: Steps = values[np.maximum.accumulate(places)]
    return last


def seasonal_naive(values: Steps, *, season: int, horizon: int) -> Steps:
    """Expect what was a season ago, or at the last such time that is known."""
    filled = values.copy()
    for start in range(season, len(filled), season):
        block = filled[start : start + season]
        earlier = filled[start - season : start - season + len(block)]
        np.copyto(block, earlier, where=np.isnan(block))
    windows = np.lib.stride_tricks.sliding_window_view(filled, horizon)
    expected = np.full(len(values), np.nan)
    expected[season - 1 :] = np.fmax.reduce(windows[: len(values) - season + 1], axis=1)
    expected[season:] = np.where(np.isnan(expected), last_value(values), expected)[season:]
    return expected


def holt_winters(values: Steps, *, season: int, horizon: int, trained: int) -> Steps:
    """Expect level, damped trend and season together, by the weights that did best so far.

    "So far" are the first `trained` steps, of which no later one has a say.
    """
    level, trend, seasonal = _smoothed(values, season)
    expected = np.zeros_like(level)
    for step in range(horizon):
        ahead = np.sum(DAMPING ** np.arange(1, step + 2))
        there = level + ahead * trend + seasonal[step : step + len(level)]
        np.maximum(expected, there, out=expected)
    came = peaks(values[:trained], horizon=horizon)[season - 1 :, None]
    is_known = ~np.isnan(came[:, 0])
    errors = np.abs(expected[: len(came)] - came)[is_known].sum(axis=0)
    best = expected[:, int(np.argmin(errors))]
    return np.concatenate([np.full(season - 1, np.nan), best])


def _smoothed(values: Steps, season: int) -> tuple[Steps, Steps, Steps]:
    """Go through all steps with all weights; a step that is not known teaches nothing.

    Level and trend begin with the end of the first season, the seasonal parts with its start. What
    the second season has more than the first is growth, and no part of the season.
    """
    alpha, beta, gamma = _WEIGHTS
    kinds, steps = len(alpha), len(values)
    first, growth = values[:season], _growth(values, season)
    middle, half = float(np.nanmean(first)), growth * (season - 1) / 2
    level = np.full((steps - season + 1, kinds), middle + half)
    trend = np.full_like(level, growth)
    seasonal = np.empty((steps, kinds))
    usual = first - np.linspace(middle - half, middle + half, season)
    seasonal[:season] = np.nan_to_num(usual)[:, None]
    for_trend, for_season = alpha * beta, gamma * (1 - alpha)
    for place, value in enumerate(values[season:].tolist()):
        drift, usual = DAMPING * trend[place], seasonal[place]
        there = level[place] + drift
        surprise = 0.0 if value != value else value - there - usual
        level[place + 1] = there + alpha * surprise
        trend[place + 1] = drift + for_trend * surprise
        seasonal[place + season] = usual + for_season * surprise
    return level, trend, seasonal


def _growth(values: Steps, season: int) -> float:
    """Tell how much each step of the first two seasons adds, if both have something known."""
    first, second = values[:season], values[season : 2 * season]
    if np.isnan(first).all() or np.isnan(second).all():
        return 0.0
    return float(np.nanmean(second) - np.nanmean(first)) / season
