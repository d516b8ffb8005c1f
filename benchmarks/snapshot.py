"""Reading the runners of a fleet anew, and reading what changed of it, on both databases.

    python -m benchmarks.snapshot [--quick]

Times are CPU seconds of this process and, for the database's share, wall seconds; the best of some
rounds. Between two looks 200 runners change, as a full batch of placements changes them. Prints a
table to stderr, one JSON object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

import sqlalchemy as sa

from benchmarks.fleets import a_partition
from benchmarks.measures import Goal, at_least, at_most
from forgeyard.config import StoreConfig
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.snapshot import SchedulingRunner
from forgeyard.store import bulk, codec, migrate, snapshot, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.engine import database_now, open_engine, read, write
from forgeyard.store.runner_cache import RunnerCache
from forgeyard.store.snapshot import RunnerReader
from tests.conftest import start_postgresql, stop_postgresql

Figures = dict[str, float]
CHANGES, ROUNDS = 200, 8
PARTITION, POLICY = "default", SchedulingPolicy()


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 4 if parser.parse_args().quick else ROUNDS
    figures: Figures = {}
    for name, engine in _databases():
        for runners in (1_000, 10_000):
            _fill(engine, runners)
            measured = _measure(engine, rounds)
            figures |= {f"{key}_{name}_{runners // 1000}k": it for key, it in measured.items()}
    goals = _goals(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "snapshot",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def _databases() -> Iterator[tuple[str, sa.Engine]]:
    with _directory() as directory:
        yield "sqlite", _migrated(f"sqlite:///{directory / 'forgeyard.db'}")
    with _directory() as directory:
        server = start_postgresql(str(directory / "data"))
        try:
            yield "postgresql", _migrated(server.get_uri())
        finally:
            stop_postgresql(server)


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="forgeyard-snapshot-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _migrated(url: str) -> sa.Engine:
    engine = open_engine(url, StoreConfig())
    migrate.upgrade(engine)
    return engine


def _fill(engine: sa.Engine, count: int) -> None:
    """Replace the fleet by one of this size, written in pieces that no timeout hits."""
    fleet = a_partition(jobs=0, runners=count, classes=1).runners
    with write(engine) as connection:
        connection.execute(sa.delete(tables.runners))
    for first in range(0, count, 1_000):
        with write(engine) as connection:
            rows = [_row(runner) for runner in fleet[first : first + 1_000]]
            bulk.insert(connection, tables.runners, rows)


def _row(runner: SchedulingRunner) -> dict[str, object]:
    """Describe a runner that has not changed for long."""
    return {
        "runner_id": runner.runner_id,
        "name": runner.name,
        "state": runner.state.value,
        "version": 1,
        "session_id": runner.session_id,
        "pool_id": runner.pool_id,
        "trust": runner.trust.value,
        "capabilities": codec.encode(runner.capabilities),
        "capability_digest": runner.capability_digest,
        **_amounts("total", runner.total),
        **_amounts("headroom", runner.headroom),
        **_amounts("reserved", runner.reserved),
        "pressure": runner.pressure.value,
        "registered_at": 1,
        "last_seen_at": 1,
        "changed_at": 1,
    }


def _amounts(prefix: str, amount: Resources) -> dict[str, object]:
    values = (amount.cpu, amount.memory, amount.disk, amount.slots)
    return {f"{prefix}_{name}": value for name, value in zip(DIMENSIONS, values, strict=True)}


def _measure(engine: sa.Engine, rounds: int) -> Figures:
    cache = RunnerCache()
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    _timed(engine, cache.read)
    for number in range(rounds):
        _change(engine, number)
        cold.append(_timed(engine, _cold))
        warm.append(_timed(engine, cache.read))
    (cold_cpu, cold_wall), (warm_cpu, warm_wall) = min(cold), min(warm)
    return {
        "cold_cpu_ms": cold_cpu * 1000,
        "cold_wall_ms": cold_wall * 1000,
        "cached_cpu_ms": warm_cpu * 1000,
        "cached_wall_ms": warm_wall * 1000,
        "times_cheaper": cold_cpu / warm_cpu,
        "reloads": float(cache.reloads),
    }


def _cold(connection: sa.Connection, policy: SchedulingPolicy) -> tuple[SchedulingRunner, ...]:
    return snapshot.load(connection, PARTITION, policy).runners


def _timed(engine: sa.Engine, work: RunnerReader) -> tuple[float, float]:
    with read(engine) as connection:
        cpu, wall = process_time(), perf_counter()
        work(connection, POLICY)
        return process_time() - cpu, perf_counter() - wall


def _change(engine: sa.Engine, number: int) -> None:
    """Let some runners hold more, others in every round; the rounds before lie in the window."""
    runners = tables.runners
    with write(engine) as connection:
        now = database_now(connection)
        ids = connection.execute(sa.select(runners.c.runner_id).order_by(runners.c.runner_id))
        every = list(ids.scalars())
        start = number * CHANGES % len(every)
        rows = [
            {"runner_id": runner_id, "reserved_slots": number + 1, "changed_at": now}
            for runner_id in every[start : start + CHANGES]
        ]
        bulk.update(connection, runners, rows, keys=("runner_id",))


def _goals(figures: Figures) -> Sequence[Goal]:
    return (
        *(
            at_least(
                f"cold ÷ cached, 10k runners, {name}", figures[f"times_cheaper_{name}_10k"], 10
            )
            for name in ("sqlite", "postgresql")
        ),
        at_most(
            "reloads",
            sum(value for name, value in figures.items() if name.startswith("reloads")),
            0,
        ),
    )


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<40}{value:>12.2f}", file=sys.stderr)
    for goal in goals:
        print(
            f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<44}{goal.value:>8.2f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
