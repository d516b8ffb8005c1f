"""Whatever goes wrong in whatever order, everything holds, and all comes to rest afterwards."""

from pathlib import Path

import pytest

from tests.simulation.database import Database, on_postgresql
from tests.simulation.seeds import Note, demand_that_it_holds, halves, play
from tests.simulation.story import simulate

pytestmark = pytest.mark.integration


@pytest.mark.requirement("TST-004")
def test_everything_holds_and_comes_to_rest_in_every_seed(
    database: Database, request: pytest.FixtureRequest, record_property: Note
) -> None:
    steps = request.config.getoption("--simulation-steps")
    assert play(halves(request.config)[0], database, steps, record_property) == []


def test_the_history_of_a_seed_is_one_that_a_correct_store_can_have(
    recorded: Path, database: Database
) -> None:
    demand_that_it_holds(simulate(1, 300, database), options=" --steps 300")


def test_everything_holds_on_postgresql(own_postgresql_url: str) -> None:
    database = on_postgresql(own_postgresql_url)
    told = simulate(3, 250, database)
    demand_that_it_holds(told, options=" --steps 250 --database postgresql://...")
    database.close()
