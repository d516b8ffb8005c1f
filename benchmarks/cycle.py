"""Whole scheduling cycles at ten thousand runners, on a PostgreSQL that keeps what it acknowledges.

    python -m benchmarks.cycle [--quick]

A cycle reads the queue and what has changed of the runners, plans, saves the plan and commits it,
as the activities do; nothing is told to Temporal. Beside it, leases are accepted, completed and
settled one after the other, each step in a transaction of its own, as agents make it happen. Prints
a table to stderr, one JSON object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, process_time

import sqlalchemy as sa

from benchmarks.measures import Goal, at_least, stopwatch
from benchmarks.stock import HOUR, POLICY, Yard, a_server, make_database
from forgeyard.model.ids import SessionId
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import Accepted, Complete, CompletionVerdict, Holder, Outcome
from forgeyard.scheduler import place
from forgeyard.store import leases, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import read, write
from forgeyard.store.settle import settle

Figures = dict[str, float]
RUNNERS, BATCH, WARM = 10_000, 500, 2
# Leases that were offered before the settling begins must still be offered then.
CYCLE = replace(POLICY, batch=BATCH, lease=LeasePolicy(offer_ttl=HOUR))
STEPS = ("load", "plan", "save", "commit")


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cycle")
    parser.add_argument("--quick", action="store_true", help="fewer cycles, within 60 s")
    quick = parser.parse_args().quick
    figures = _measure(cycles=3 if quick else 12, settled=50 if quick else 500)
    goals = goals_of(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "cycle",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def _measure(*, cycles: int, settled: int) -> Figures:
    with a_server() as server:
        yard = Yard.on(make_database(server, "forgeyard"))
        yard.stock(runners=RUNNERS, jobs=(WARM + cycles) * BATCH)
        gc.collect()
        gc.freeze()  # what the benchmark itself keeps is not for a cycle to sweep
        for _ in range(WARM):
            _cycle(yard)
        yard.vacuum()
        rounds = [_cycle(yard) for _ in range(cycles)]
        return {**figures_of(rounds), "settled_per_second": _settle(yard, settled)}


def _cycle(yard: Yard) -> Figures:
    """Run one cycle; tell how long each step lasted, and how many leases came of it."""
    cpu, marks = process_time(), [perf_counter()]
    seen = yard.look(CYCLE)
    marks.append(perf_counter())
    plan = place.plan(seen, CYCLE)
    marks.append(perf_counter())
    saved = yard.save(plan, seen.digest(yard.lines), CYCLE)
    marks.append(perf_counter())
    outcome = yard.commit(saved.cycle_id, CYCLE)
    marks.append(perf_counter())
    lasted = {name: marks[n + 1] - marks[n] for n, name in enumerate(STEPS)}
    return {**lasted, "leases": float(outcome.granted), "cpu": process_time() - cpu}


def figures_of(rounds: Sequence[Figures]) -> Figures:
    """Take the medians over all cycles."""
    whole = [sum(one[step] for step in STEPS) for one in rounds]
    rates = [one["leases"] / wall for one, wall in zip(rounds, whole, strict=True)]
    steps = {f"{step}_ms": median(one[step] for one in rounds) * 1000 for step in STEPS}
    return {
        "leases_per_cycle": median(one["leases"] for one in rounds),
        "leases_per_second": median(rates),
        "cycle_ms": median(whole) * 1000,
        **steps,
        "client_cpu_ms": median(one["cpu"] for one in rounds) * 1000,
    }


def _settle(yard: Yard, count: int) -> float:
    """Accept, complete and settle so many leases, one by one; tell how many a second."""
    with read(yard.engine) as connection:
        query = sa.select(tables.leases).where(tables.leases.c.state == "offered").limit(count)
        offered = [dict(row) for row in connection.execute(query).mappings()]
    elapsed = stopwatch()
    for lease in offered:
        _live(yard, lease)
    return len(offered) / elapsed()


def _live(yard: Yard, lease: Row) -> None:
    session, epoch, policy = SessionId(lease["session_id"]), lease["epoch"], CYCLE.lease
    holder = Holder(session_id=session, epoch=epoch)
    done = Complete(session_id=session, epoch=epoch, outcome=Outcome.SUCCEEDED)
    with write(yard.engine) as connection:
        accepted = leases.accept(connection, lease["lease_id"], holder, policy=policy)
    with write(yard.engine) as connection:
        completed = leases.complete(connection, lease["lease_id"], done, policy=policy)
    with write(yard.engine) as connection:
        settle(connection, lease["attempt_id"], policy=policy)
    # Who is refused is served faster than anybody else.
    assert isinstance(accepted, Accepted)
    assert completed is CompletionVerdict.ACCEPTED


def goals_of(figures: Figures) -> list[Goal]:
    """Hold the rate against what the design asks of two quiet cores."""
    return [at_least("durable leases per second", figures["leases_per_second"], 1_500)]


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<30}{value:>12.2f}", file=sys.stderr)
    for goal in goals:
        print(
            f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<40}{goal.value:>8.2f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
