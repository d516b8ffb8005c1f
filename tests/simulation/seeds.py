"""Playing many seeds, and seeing to it that everything that can go wrong has gone wrong in them."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.database import Database
from tests.simulation.ledger import SURVEYED
from tests.simulation.plane import WOKEN
from tests.simulation.story import Told, simulate
from tests.simulation.weather import Fault

OFTEN_ENOUGH = 2
"""How often everything that can go wrong must have gone wrong in twenty seeds."""
COUNTED = (*Fault, SURVEYED, WOKEN)
Note = Callable[[str, object], None]


def demand_that_it_holds(told: Told, *, options: str = "") -> None:
    """Fail with the last events of a seed, and with the command that replays it."""
    if told.violation:
        last = "\n".join(told.lines[-60:])
        pytest.fail(
            f"{last}\n\n{told.violation}\nreplay with: python -m tests.simulation"
            f" --seed {told.seed}{options}",
            pytrace=False,
        )


def halves(config: pytest.Config) -> tuple[range, range]:
    """Share the seeds out between two files, so that two processes may play them."""
    first, seeds = (config.getoption(f"--simulation-{name}") for name in ("seed", "seeds"))
    middle = first + (seeds + 1) // 2
    return range(first, middle), range(middle, first + seeds)


def play(seeds: range, database: Database, steps: int, note: Note) -> list[str]:
    """Play seeds, note how often what happened in them, and tell what happened too seldom."""
    happened, played, rested = Counter[str](), 0, 0
    for seed in seeds:
        told = simulate(seed, steps, database)
        demand_that_it_holds(told, options=f" --steps {steps}")
        happened += told.happened
        played, rested = played + told.steps, max(rested, told.rested_ms)
    note("simulated", f"{len(seeds)} seeds, {played} events, at rest in {rested / 1000} s")
    for what in COUNTED:
        note("happened", f"{happened[what]} x {what}")
    enough = OFTEN_ENOUGH if len(seeds) * steps >= 20 * 500 else 0
    return [what for what in COUNTED if happened[what] < enough]
