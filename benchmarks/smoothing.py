"""Forecasts with the exponential smoothing of statsmodels; run by an interpreter that has it.

    python smoothing.py < series.json > forecasts.json

Knows nothing of Forgeyard. Weights are fitted once, on what precedes the first origin; at each
origin the series up to it is smoothed with them, and the most of the next steps is told.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
from statsmodels.tsa.holtwinters import ExponentialSmoothing

WEIGHTS = ("smoothing_level", "smoothing_trend", "smoothing_seasonal", "damping_trend")


def main() -> None:
    """Forecast every series of the input."""
    warnings.simplefilter("ignore")  # it says so when a fit could be better
    json.dump([_forecasts(asked) for asked in json.load(sys.stdin)], sys.stdout)


def _forecasts(asked: dict[str, Any]) -> list[float]:
    values, season = np.array(asked["values"], dtype=float), asked["season"]
    fitted = _model(values[: asked["origins"][0]], season).fit()
    weights = {name: fitted.params[name] for name in WEIGHTS}
    return [
        float(
            _model(values[:origin], season)
            .fit(optimized=False, **weights)
            .forecast(asked["horizon"])
            .max()
        )
        for origin in asked["origins"]
    ]


def _model(values: np.ndarray, season: int) -> ExponentialSmoothing:
    return ExponentialSmoothing(
        values,
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=season,
        initialization_method="heuristic",
    )


if __name__ == "__main__":
    main()
