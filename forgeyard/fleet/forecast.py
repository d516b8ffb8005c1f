"""How many machines a fleet will soon need, as far as its past can tell: advice, never authority.

A fleet without advice goes by its demand and loses nothing but a head start. Hence advice is given
only by a model that, asked again at every step of the last days, was no worse than "as many as
now"; and with it comes how far off it was. The same past gives the same advice.

What the scheduled windows of a fleet bring is not forecast: whoever reserves capacity knows better.
Within such a window of the past, need beyond what was reserved counts as ordinary, and need within
it tells nothing. What a window yet to come reserves is told beside the advice and is not in it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NewType

import numpy as np

from forgeyard.fleet.season import Steps, holt_winters, last_value, peaks, seasonal_naive
from forgeyard.model.fleet import DAY_MS, MOST_INSTANCES

ForecastModelVersion = NewType("ForecastModelVersion", int)
VERSION: Final = ForecastModelVersion(1)
"""Grows with every change of what comes out for the same past (FCT-007)."""
STEP_MS: Final = 15 * 60 * 1000
HORIZON_MS: Final = 30 * 60 * 1000
"""About as long as a slow machine takes from the wish to its first job."""
LOOKS_BACK_MS: Final = 35 * DAY_MS
NOMINAL: Final = 0.9
"""How much of what comes the interval is meant to hold."""
LAST_VALUE: Final = "last-value"
_DAY: Final = DAY_MS // STEP_MS
_WEEK: Final = 7 * _DAY
_FRESH: Final = 4
"""Of the last steps one must be known: the end of the past is the beginning of the forecast."""
_LEAST_ORIGINS: Final = _DAY // 2
_NEGLIGIBLE: Final = 0.1
"""No machine is made for less than a tenth of one; everything else is rounded up."""

_INEXACT: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time for which somebody reserved machines."""

    starts_at: int
    ends_at: int
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a fleet: how many machines its demand needed, and what was reserved."""

    points: Sequence[tuple[int, int]]
    """Instant and count, in any order, with gaps."""
    windows: Sequence[Window] = ()
    """Past ones and coming ones; those that overlap add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTest:
    """How a model did when it was asked at every step of the last days."""

    model: str
    origins: int
    """How often it could be compared with what came."""
    mae: float
    """Machines it was off on average."""
    baseline: float
    """Machines that "as many as now" was off."""
    coverage: float | None = None
    """Share of what came that its interval held, where it was asked for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The most machines that ordinary demand will need within the horizon, or why none is named."""

    count: int | None
    low: int | None = None
    high: int | None = None
    """Between them lies, by what was seen, nine times in ten what comes."""
    model: str = ""
    version: ForecastModelVersion = VERSION
    error: BackTest | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A forecast with all that people need to judge it."""

    advice: Advice
    considered: tuple[BackTest, ...]
    """Every model that had enough past, and "as many as now"."""
    until: int
    """When the horizon ends."""
    reserved: int
    """The most that windows reserve at once within the horizon; comes on top, where it is added."""
    step_ms: int
    begins_at: int
    """Of the first step of `recent`."""
    recent: tuple[int | None, ...]
    """The ordinary need of the last day, step by step; `None` where it is not known."""


def forecast(past: Past, *, now: int, horizon: int = HORIZON_MS) -> Outlook:
    """Foresee the most that is needed until `horizon` (a day at most) from now.

    Only whole steps are looked at: the one that has begun belongs to what comes.
    """
    ends_at = now - now % STEP_MS
    ahead = min(max(math.ceil(horizon / STEP_MS), 1) + 1, _DAY)
    until = ends_at + ahead * STEP_MS
    values = _ordinary(past, ends_at)
    advice, considered = _advised(values, ahead)
    return Outlook(
        advice=advice,
        considered=considered,
        until=until,
        reserved=int(_reserved(past.windows, begins_at=ends_at, steps=ahead).max()),
        step_ms=STEP_MS,
        begins_at=ends_at - _DAY * STEP_MS,
        recent=tuple(None if math.isnan(value) else int(value) for value in values[-_DAY:]),
    )


def _ordinary(past: Past, ends_at: int) -> Steps:
    """Lay the past on even steps, the most of each, and take out what windows brought."""
    steps = LOOKS_BACK_MS // STEP_MS
    begins_at = ends_at - steps * STEP_MS
    values = np.full(steps, np.nan)
    most: dict[int, int] = {}
    for at, needed in past.points:
        if begins_at <= at < ends_at:
            place = (at - begins_at) // STEP_MS
            most[place] = min(max(needed, most.get(place, 0)), MOST_INSTANCES)
    values[[*most.keys()]] = [*most.values()]
    reserved = _reserved(past.windows, begins_at=begins_at, steps=steps)
    values[(reserved > 0) & (values <= reserved)] = np.nan
    return values - np.where(np.isnan(values), 0, reserved)


def _reserved(windows: Iterable[Window], *, begins_at: int, steps: int) -> Steps:
    """Add up what windows reserve in each step that they touch."""
    changes = np.zeros(steps + 1)
    for window in windows:
        first = max((window.starts_at - begins_at) // STEP_MS, 0)
        end = min(-((begins_at - window.ends_at) // STEP_MS), steps)
        if first < end:
            changes[first] += window.quantity
            changes[end] -= window.quantity
    return np.cumsum(changes)[:steps]


def _advised(values: Steps, ahead: int) -> tuple[Advice, tuple[BackTest, ...]]:
    """Choose by back-test, or say why nothing is advised."""
    known = np.flatnonzero(~np.isnan(values))
    values = values[known[0] :] if len(known) else values[:0]
    if len(values) < 2 * _DAY:
        days = f"{len(values) / _DAY:.1f}"
        return _none(f"the history is too short: {days} days, where 2 are the least"), ()
    if known[-1] < LOOKS_BACK_MS // STEP_MS - _FRESH:
        return _none("the history has ended: nothing is known of the last hour"), ()
    return _tested(values, ahead)


def _none(reason: str) -> Advice:
    return Advice(count=None, reason=reason)


def _tested(values: Steps, ahead: int) -> tuple[Advice, tuple[BackTest, ...]]:
    """Ask all models throughout the last days, and take the one that came nearest."""
    trained = len(values) - min(_WEEK, max(_DAY, len(values) // 3))
    came = peaks(values, horizon=ahead)
    is_scored = ~np.isnan(came)
    is_scored[:trained] = False
    origins = int(is_scored.sum())
    if origins < _LEAST_ORIGINS:
        return _none("the history has too many gaps to be tested on"), ()
    expected = _expected(values, ahead, trained)
    off = {name: float(np.abs(it - came)[is_scored].mean()) for name, it in expected.items()}
    tests = {
        name: BackTest(model=name, origins=origins, mae=off[name], baseline=off[LAST_VALUE])
        for name in expected
    }
    best = min((name for name in tests if name != LAST_VALUE), key=lambda name: off[name])
    low, high = interval(expected[best], came, ahead=ahead, trained=trained)
    is_held = ((low <= came[trained:]) & (came[trained:] <= high))[is_scored[trained:]]
    tests[best] = replace(tests[best], coverage=float(is_held.mean()))
    between = (int(low[-1]), int(expected[best][-1]), int(high[-1]))
    return _judged(tests[best], between), tuple(tests.values())


def _expected(values: Steps, ahead: int, trained: int) -> Mapping[str, Steps]:
    """Ask every model that has enough past before the test begins, the simplest first."""
    found = {LAST_VALUE: last_value(values)}
    seasons = {"daily": _DAY, "weekly": _WEEK}
    for name, season in seasons.items():
        if trained >= season:
            naive = seasonal_naive(values, season=season, horizon=ahead)
            found[f"seasonal-naive/{name}"] = naive
    for name, season in seasons.items():
        if trained >= 2 * season:
            smooth = holt_winters(values, season=season, horizon=ahead, trained=trained)
            found[f"holt-winters/{name}"] = smooth
    return {name: _machines(expected) for name, expected in found.items()}


def _machines(expected: Steps) -> Steps:
    return np.clip(np.ceil(expected - _NEGLIGIBLE), 0, MOST_INSTANCES)


def interval(expected: Steps, came: Steps, *, ahead: int, trained: int) -> tuple[Steps, Steps]:
    """Tell for each step of the test between what the forecast lies, by what was seen until then.

    How far off a forecast is grows with the root of what it names, as with anything that is
    counted; so nights, when nothing happens, do not make the days look safe.
    """
    scale = np.sqrt(1 + expected)
    pad = np.full(_WEEK + ahead - 1, np.nan)
    misses = np.concatenate([pad, (came - expected) / scale])[: len(pad) + len(came) - ahead]
    windows = np.lib.stride_tricks.sliding_window_view(misses, _WEEK)[trained:]
    ranked = np.sort(windows, axis=1)  # what is not known comes last
    known = np.count_nonzero(~np.isnan(ranked), axis=1)
    tail = (1 - NOMINAL) / 2
    rows, last = np.arange(len(ranked)), np.maximum(known - 1, 0)
    lower = np.clip(np.floor(tail * (known + 1)).astype(int) - 1, 0, last)
    upper = np.clip(np.ceil((1 - tail) * (known + 1)).astype(int) - 1, 0, last)
    centre, spread = expected[trained:], scale[trained:]
    low, high = (centre + ranked[rows, at] * spread for at in (lower, upper))
    return (
        np.clip(np.fmin(np.ceil(low - _INEXACT), centre), 0, MOST_INSTANCES),
        np.clip(np.fmax(np.floor(high + _INEXACT), centre), 0, MOST_INSTANCES),
    )


def _judged(test: BackTest, between: tuple[int, int, int]) -> Advice:
    text = (
        f"over the last {test.origins * STEP_MS / DAY_MS:.1f} days {test.model} was off by"
        f" {test.mae:.2f} machines on average, the last value by {test.baseline:.2f}"
    )
    if test.mae > test.baseline:
        refused = f"no model is better than the last value: {text}"
        return Advice(count=None, model=test.model, error=test, reason=refused)
    low, count, high = between
    return Advice(
        count=count,
        low=low,
        high=high,
        model=test.model,
        error=test,
        reason=f"{text}; its interval held {test.coverage:.0%} of what came",
    )
