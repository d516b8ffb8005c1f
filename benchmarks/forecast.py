"""The forecast of a fleet's need against simpler guesses, and against statsmodels.

    python -m benchmarks.forecast [--quick]

Six weeks of need are drawn for each kind of load. At moments of the last week everybody says how
many machines will be needed at most within the horizon, knowing the five weeks before. Ours is what
a fleet gets, choice of model, rounding and all; where it gives no advice, the fleet goes by what it
needs now, and so it counts. The exponential smoothing of statsmodels, of weekly season and damped
trend, runs in an environment of its own that is made in the folder for temporary files and stays
there; if it cannot be had, it is reported as not measured. Prints a table to stderr, one JSON
object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import process_time

from benchmarks.contenders import PeerUnavailable, Recipe, found, installed
from benchmarks.loads import BUCKET_MS, LOADS
from benchmarks.measures import Goal, at_least, at_most
from forgeyard.fleet.forecast import HORIZON_MS, LOOKS_BACK_MS, STEP_MS, Past, forecast
from forgeyard.model.fleet import DAY_MS

Figures = dict[str, float]
STATSMODELS = Recipe(name="statsmodels", packages=("statsmodels==0.15.0",))
PROGRAM = Path(__file__).with_name("smoothing.py")
DAYS, TESTED_DAYS = 42, 7
PER_STEP = STEP_MS // BUCKET_MS
AHEAD = HORIZON_MS // STEP_MS + 1
DAY, WEEK = DAY_MS // STEP_MS, 7 * DAY_MS // STEP_MS
SMOOTH_SECONDS = 900
REGULAR = ("weekdays", "trend", "nightly")
"""Loads with a pattern and no more than noise beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many steps lie between two moments at which everybody is asked."""

    every: int
    environment: Callable[[Recipe], Path]


FULL = Extent(every=5, environment=installed)
QUICK = Extent(every=29, environment=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What ours said at one moment."""

    count: int | None
    low: int
    high: int
    cpu_s: float


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast")
    parser.add_argument("--quick", action="store_true", help="fewer moments, within 60 s")
    extent = QUICK if parser.parse_args().quick else FULL
    figures, missing = _measure(extent)
    goals = goals_of(figures)
    _tell(figures, goals, missing)
    result = {
        "benchmark": "forecast",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
        "not_measured": missing,
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def _measure(extent: Extent) -> tuple[Figures, Mapping[str, str]]:
    origins = range((DAYS - TESTED_DAYS) * DAY, DAYS * DAY - AHEAD, extent.every)
    needs = {name: draw(Random(name), DAYS) for name, draw in LOADS.items()}
    steps = {name: [*_stepwise(need)] for name, need in needs.items()}
    missing: dict[str, str] = {}
    peer: dict[str, list[float]] = {}
    try:
        peer = _smoothed(extent.environment(STATSMODELS), steps, origins)
    except (PeerUnavailable, subprocess.SubprocessError) as error:
        missing[STATSMODELS.name] = str(error)
    figures: Figures = {"origins": len(origins)}
    spent: list[float] = []
    for name, need in needs.items():
        said = [_said(need, origin) for origin in origins]
        spent += [one.cpu_s for one in said]
        figures |= figures_of(name, steps[name], origins, said, peer.get(name))
    return {**figures, "forecast_cpu_ms": 1000 * median(spent)}, missing


def _stepwise(need: Sequence[int]) -> list[int]:
    """Take the most of each step."""
    return [max(need[place : place + PER_STEP]) for place in range(0, len(need), PER_STEP)]


def _said(need: Sequence[int], origin: int) -> Said:
    """Ask ours at the end of a step, about what comes."""
    now = origin * STEP_MS
    first = (now - LOOKS_BACK_MS) // BUCKET_MS
    points = [(place * BUCKET_MS, need[place]) for place in range(first, now // BUCKET_MS)]
    started = process_time()
    advice = forecast(Past(points=points), now=now).advice
    return Said(
        count=advice.count,
        low=advice.low or 0,
        high=advice.high or 0,
        cpu_s=process_time() - started,
    )


def _smoothed(
    python: Path, steps: Mapping[str, Sequence[int]], origins: Sequence[int]
) -> dict[str, list[float]]:
    """Let statsmodels forecast all series.

    Raises:
        PeerUnavailable: it could not.
    """
    asked = [
        {"values": values, "origins": [*origins], "season": WEEK, "horizon": AHEAD}
        for values in steps.values()
    ]
    done = subprocess.run(
        [str(python), str(PROGRAM)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=SMOOTH_SECONDS,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended by itself"])[-1]
        raise PeerUnavailable(f"{STATSMODELS.name} failed: {last}")
    return dict(zip(steps, json.loads(done.stdout), strict=True))


def figures_of(
    name: str,
    steps: Sequence[int],
    origins: Sequence[int],
    said: Sequence[Said],
    peer: Sequence[float] | None,
) -> Figures:
    """Average how far off everybody was, in machines, and how often our interval held."""
    came = [max(steps[origin : origin + AHEAD]) for origin in origins]
    last = [steps[origin - 1] for origin in origins]
    guesses: dict[str, Sequence[int]] = {
        "ours": [
            now if one.count is None else one.count for one, now in zip(said, last, strict=True)
        ],
        "last_value": last,
        "mean": [math.ceil(fmean(steps[:origin])) for origin in origins],
    }
    if peer is not None:
        guesses[STATSMODELS.name] = [max(0, math.ceil(one - 0.1)) for one in peer]
    figures = {
        f"{name}_{who}_mae": fmean(abs(told - true) for told, true in zip(guess, came, strict=True))
        for who, guess in guesses.items()
    }
    held = [
        one.low <= true <= one.high
        for one, true in zip(said, came, strict=True)
        if one.count is not None
    ]
    figures[f"{name}_advised"] = len(held) / len(said)
    return {**figures, f"{name}_coverage": fmean(held)} if held else figures


def goals_of(figures: Figures) -> list[Goal]:
    """Hold ours against each guess: clearly better where there is a pattern, else no worse."""
    bounds = {"weekdays": 0.8, "trend": 0.8, "nightly": 0.5, "bursts": 1.0, "walk": 1.0}
    goals = [
        at_most(f"off, ours ÷ last value, {name}", _ratio(figures, "last_value", name), bound)
        for name, bound in bounds.items()
    ]
    goals += [
        at_most(f"off, ours ÷ mean, {name}", _ratio(figures, "mean", name), 0.5) for name in REGULAR
    ]
    if f"weekdays_{STATSMODELS.name}_mae" in figures:
        goals.append(
            at_most(
                "off, ours ÷ statsmodels, regular", _ratio(figures, "statsmodels", *REGULAR), 1.1
            )
        )
    held = fmean(figures[f"{name}_coverage"] for name in REGULAR if f"{name}_coverage" in figures)
    return [
        *goals,
        at_least("interval held, regular", held, 0.85),
        at_most("interval held, regular", held, 0.98),
        at_most("CPU ms of a forecast", figures["forecast_cpu_ms"], 150),
    ]


def _ratio(figures: Figures, peer: str, *names: str) -> float:
    ours, theirs = (sum(figures[f"{name}_{who}_mae"] for name in names) for who in ("ours", peer))
    return ours / theirs if theirs else float(ours > 0) + 1


def _tell(figures: Figures, goals: Sequence[Goal], missing: Mapping[str, str]) -> None:
    for name, value in figures.items():
        _say(f"{name.replace('_', ' '):<40}{value:>12.3f}")
    for goal in goals:
        _say(f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<44}{goal.value:>8.2f}")
    for name, why in missing.items():
        _say(f"not measured: {name}: {why}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
