"""The other half of the seeds of `test_seeds`, in a file of its own for a process of its own."""

import pytest

from tests.simulation.database import Database
from tests.simulation.seeds import Note, halves, play

pytestmark = pytest.mark.integration


def test_everything_holds_and_comes_to_rest_in_every_further_seed(
    database: Database, request: pytest.FixtureRequest, record_property: Note
) -> None:
    steps = request.config.getoption("--simulation-steps")
    assert play(halves(request.config)[1], database, steps, record_property) == []
