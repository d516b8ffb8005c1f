"""A seed decides everything: neither the process nor any clock of it changes a line."""

import os
import subprocess
import sys

from tests.simulation.database import Database
from tests.simulation.story import simulate

SEED, STEPS = 11, 250


def test_two_processes_tell_the_same_story() -> None:
    told = [replayed(hash_seed) for hash_seed in ("1", "2")]
    assert len(told[0]) > STEPS / 4
    assert told[0] == told[1]


def replayed(hash_seed: str) -> list[str]:
    """Replay the seed in a process whose sets have an order of their own."""
    command = (sys.executable, "-m", "tests.simulation", "--seed", str(SEED), "--steps", str(STEPS))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=True
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("seed ")]


def test_clocks_of_processes_may_jump_as_they_like(database: Database) -> None:
    first, second = (simulate(SEED, STEPS, database, clocks=clocks) for clocks in (1, 2))
    assert first == second
