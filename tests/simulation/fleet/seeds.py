"""Playing many seeds of fleets, and seeing to it that everything that can go wrong has."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.database import Database
from tests.simulation.fleet.agents import ODD
from tests.simulation.fleet.cloud import Mishap
from tests.simulation.fleet.control import DOUBLE, FORGOTTEN, RIVAL
from tests.simulation.fleet.ledger import PRECONDITIONS
from tests.simulation.fleet.people import Fault
from tests.simulation.fleet.story import simulate

Note = Callable[[str, object], None]
COUNTED = (*Fault, *ODD, *Mishap, DOUBLE, FORGOTTEN, RIVAL, *PRECONDITIONS)
ENOUGH = 15_000
"""Events in which everything that is counted has to happen; in fewer, three quarters of it."""


def seeds_of(config: pytest.Config) -> range:
    """Choose the seeds: as many as of the other simulation."""
    first, seeds = (config.getoption(f"--simulation-{name}") for name in ("seed", "seeds"))
    return range(first, first + seeds)


def play(seeds: range, database: Database, steps: int, note: Note) -> list[str]:
    """Play seeds, note how often what happened in them, and tell what never happened."""
    happened, played, rested = Counter[str](), 0, 0
    for seed in seeds:
        told = simulate(seed, steps, database)
        if told.violation:
            last = "\n".join(told.lines[-60:])
            again = f"python -m tests.simulation.fleet {seed} --steps {steps}"
            pytest.fail(f"{last}\n\n{told.violation}\nreplay with: {again}", pytrace=False)
        happened += told.happened
        played, rested = played + told.steps, max(rested, told.rested_ms)
    note("simulated", f"{len(seeds)} seeds, {played} events, at rest in {rested / 1000} s")
    for what in COUNTED:
        note("happened", f"{happened[what]} x {what}")
    missing = [what for what in COUNTED if not happened[what]]
    return missing if played >= ENOUGH else missing[len(COUNTED) // 4 :]
