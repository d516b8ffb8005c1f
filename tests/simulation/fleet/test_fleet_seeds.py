"""Whatever befalls machines and providers, fleets keep what they promise, and come to rest."""

import pytest

from tests.simulation.database import Database
from tests.simulation.fleet.seeds import Note, play, seeds_of
from tests.simulation.fleet.story import simulate

pytestmark = pytest.mark.integration


@pytest.mark.requirement(
    "PHA-024", "TST-013", "ACC-042", "INV-049", "INV-050", "INV-070", "GAT-015"
)
def test_fleets_keep_what_they_promise_in_every_seed(
    database: Database, request: pytest.FixtureRequest, record_property: Note
) -> None:
    steps = request.config.getoption("--simulation-steps")
    assert play(seeds_of(request.config), database, steps, record_property) == []


def test_a_seed_decides_everything(database: Database) -> None:
    first, second = (simulate(7, 120, database, then=lambda _story: None) for _ in range(2))
    assert first.lines == second.lines
