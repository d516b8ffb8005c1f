"""Whatever goes wrong in whatever order, everything holds, and all comes to rest afterwards."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.database import Database, on_postgresql
from tests.simulation.story import Told, simulate
from tests.simulation.weather import Fault

pytestmark = pytest.mark.integration
OFTEN_ENOUGH = 5
"""How often everything that can go wrong must have gone wrong in forty seeds."""


def demand_that_it_holds(told: Told, *, options: str = "") -> None:
    """Fail with the last events of a seed, and with the command that replays it."""
    if told.violation:
        last = "\n".join(told.lines[-60:])
        pytest.fail(
            f"{last}\n\n{told.violation}\nreplay with: python -m tests.simulation"
            f" --seed {told.seed}{options}",
            pytrace=False,
        )


@pytest.mark.requirement("TST-004")
def test_everything_holds_and_comes_to_rest_in_every_seed(
    database: Database,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    first, seeds, steps = (
        request.config.getoption(f"--simulation-{name}") for name in ("seed", "seeds", "steps")
    )
    happened, played, rested = Counter[str](), 0, 0
    for seed in range(first, first + seeds):
        told = simulate(seed, steps, database)
        demand_that_it_holds(told, options=f" --steps {steps}")
        happened += told.happened
        played, rested = played + told.steps, max(rested, told.rested_ms)
    record_property("simulated", f"{seeds} seeds, {played} events, at rest in {rested / 1000} s")
    for fault in Fault:
        record_property("happened", f"{happened[fault]} x {fault}")
    enough = OFTEN_ENOUGH if seeds * steps >= 40 * 500 else 0
    assert [fault for fault in Fault if happened[fault] < enough] == []


def test_the_history_of_a_seed_is_one_that_a_correct_store_can_have(
    recorded: Path, database: Database
) -> None:
    demand_that_it_holds(simulate(1, 300, database), options=" --steps 300")


def test_everything_holds_on_postgresql(own_postgresql_url: str) -> None:
    database = on_postgresql(own_postgresql_url)
    told = simulate(3, 250, database)
    demand_that_it_holds(told, options=" --steps 250 --database postgresql://...")
    database.close()
