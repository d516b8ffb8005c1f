"""The lease commit against other queues on the same PostgreSQL, which keeps what it acknowledges.

    python -m benchmarks.commit [--quick]

Ours is the function that a cycle calls, with limits on all scopes, and with exclusivity keys and
devices for some jobs; history, outbox and audit are written as ever. The others only mark jobs as
taken: pgqueuer dequeues in batches, procrastinate and BuildGrid take one at a time. All take turns,
round by round, so that whatever else the machine does hits everybody; what counts are medians.
A peer that cannot be had from the package index is reported as not measured. The environments of
the peers stay in the folder for temporary files. Prints a table to stderr, one JSON object to
stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from benchmarks.contenders import (
    BUILDGRID,
    PGQUEUER,
    PROCRASTINATE,
    Committer,
    Contender,
    PeerUnavailable,
    Recipe,
    Taken,
    a_peer,
    found,
    installed,
)
from benchmarks.measures import Goal, at_least
from benchmarks.stock import Yard, a_server, make_database

Figures = dict[str, float]
OURS, BATCH = "forgeyard", 100
GOALS = {PGQUEUER.name: 0.8, PROCRASTINATE.name: 10.0, BUILDGRID.name: 100.0}
ONE_BY_ONE = {PROCRASTINATE.name: 10, BUILDGRID.name: 3}
"""So many jobs they take in a round of the batch of a hundred."""
WARM = 8
"""Rounds before the measured ones: until then statements are planned anew each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many rounds there are of which batch, among how many runners."""

    runners: int
    rounds: Mapping[int, int]
    environment: Callable[[Recipe], Path]
    """How to come by the environment of a peer that takes long to install."""

    @property
    def jobs(self) -> int:
        """Count the jobs that ours will take, and a hundred in reserve."""
        return WARM * BATCH + sum(size * count for size, count in self.rounds.items()) + BATCH


FULL = Extent(runners=5_000, rounds={1: 30, 10: 20, 100: 30, 500: 8}, environment=installed)
QUICK = Extent(runners=2_000, rounds={1: 8, 10: 6, 100: 10, 500: 1}, environment=found)


@dataclass(kw_only=True)
class Match:
    """The contenders, and what each took in every round."""

    contenders: dict[str, Contender]
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Why peers are not measured."""
    rounds: dict[tuple[str, int], list[Taken]] = field(
        default_factory=dict[tuple[str, int], list[Taken]]
    )

    def play(self, size: int, count: int) -> None:
        """Let everybody who can take batches of this size do so in turn."""
        for _ in range(count):
            for name, contender in self.contenders.items():
                if name in ONE_BY_ONE and size != BATCH:
                    continue
                taken = contender.take(ONE_BY_ONE.get(name, size))
                self.rounds.setdefault((name, size), []).append(taken)


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, within 60 s")
    extent = QUICK if parser.parse_args().quick else FULL
    with ExitStack() as stack:
        figures, missing = _measure(stack, extent)
    goals = goals_of(figures)
    _tell(figures, goals, missing)
    result = {
        "benchmark": "commit",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
        "not_measured": missing,
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def _measure(stack: ExitStack, extent: Extent) -> tuple[Figures, Mapping[str, str]]:
    server = stack.enter_context(a_server())
    yard = Yard.on(make_database(server, OURS))
    yard.stock(runners=extent.runners, jobs=extent.jobs)
    match = Match(contenders={OURS: Committer.of(yard)})
    for recipe in (PGQUEUER, PROCRASTINATE, BUILDGRID):
        try:
            python = extent.environment(recipe) if recipe is BUILDGRID else installed(recipe)
            database = make_database(server, recipe.name)
            peer = stack.enter_context(a_peer(python, recipe, database, jobs=extent.jobs))
            match.contenders[recipe.name] = peer
        except PeerUnavailable as error:
            match.missing[recipe.name] = str(error)
    gc.collect()
    gc.freeze()  # what the benchmark itself keeps is not for the commit to sweep
    match.play(BATCH, WARM)
    match.rounds.clear()
    yard.vacuum()
    written = _written(yard.engine)
    for size, count in extent.rounds.items():
        match.play(size, count)
    leases = sum(
        taken.jobs for (name, _), rounds in match.rounds.items() if name == OURS for taken in rounds
    )
    grown = zip(("rows", "wal_bytes"), _written(yard.engine), written, strict=True)
    per_lease = {f"{name}_per_lease": (now - then) / leases for name, now, then in grown}
    return {**figures_of(match.rounds), **per_lease}, match.missing


def _written(engine: sa.Engine) -> tuple[int, int]:
    """Count the rows written so far, plans and all, and the bytes of the log."""
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        connection.commit()
        rows = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables"
        written = connection.execute(sa.text(rows)).scalar_one()
        log = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"
        return written, connection.execute(sa.text(log)).scalar_one()


def figures_of(rounds: Mapping[tuple[str, int], Sequence[Taken]]) -> Figures:
    """Take the medians: jobs a second, and CPU milliseconds a job of both sides together."""
    figures: Figures = {}
    for (name, size), taken in rounds.items():
        key = name if name in ONE_BY_ONE else f"{name}_{size}"
        figures[f"{key}_per_second"] = median(one.jobs / one.wall_s for one in taken)
        for side in ("client", "server"):
            spent = (getattr(one, f"{side}_s") * 1000 / max(1, one.jobs) for one in taken)
            figures[f"{key}_{side}_cpu_ms"] = median(spent)
    return figures


def goals_of(figures: Figures) -> list[Goal]:
    """Hold ours at a batch of a hundred against every peer that was measured."""
    ours = figures[f"{OURS}_{BATCH}_per_second"]
    keys = {PGQUEUER.name: f"{PGQUEUER.name}_{BATCH}"}
    theirs = {name: figures.get(f"{keys.get(name, name)}_per_second") for name in GOALS}
    return [
        at_least(f"lease commit ÷ {name}, batch {BATCH}", ours / rate, GOALS[name])
        for name, rate in theirs.items()
        if rate is not None
    ]


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
