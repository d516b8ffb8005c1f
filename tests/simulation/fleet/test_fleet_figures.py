"""Bad days of a fleet, in small: the bounds that `docs/fleet.md` states hold."""

from collections.abc import Iterator

import pytest

from tests.simulation.database import Database
from tests.simulation.fleet import figures
from tests.simulation.fleet.story import alone

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with alone(1):
        yield


@pytest.mark.requirement("TST-039", "GAT-018")
def test_many_machines_that_are_taken_away_at_once_cost_no_job(database: Database) -> None:
    """F20."""
    told = figures.interruption(database, 6)
    assert told["jobs that failed"] == 0
    assert told["machines made instead"] <= 2 * told["taken away"]


@pytest.mark.requirement("TST-036")
def test_a_provider_that_answers_500_is_hardly_asked_and_nothing_is_lost(
    database: Database,
) -> None:
    """F21."""
    told = figures.errors(database, 6)
    assert told["calls within a minute"] <= 4 * told["machines"]
    assert told["jobs done meanwhile"] > 0
    assert told["machines of the other fleet"] > 0
    assert told["machines ended without need"] == 0


@pytest.mark.requirement("TST-040", "TST-026", "GAT-021")
def test_a_region_that_lists_nothing_loses_nothing(database: Database) -> None:
    """F22."""
    told = figures.outage(database, 6)
    assert told["machines kept"] == told["machines"]
    assert told["machines ended"] == 0
    assert told["machines of the other fleet"] > 0
    assert told["jobs done meanwhile"] == told["jobs"]
