"""Safeguards of fleets matter: without any one of these some seed is violated."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.database import Database
from tests.simulation.fleet.mutants import MUTANTS
from tests.simulation.fleet.story import broken_off, simulate

pytestmark = pytest.mark.integration
FIRST, SEEDS, STEPS = 15, 16, 500
"""The first is one that finds the shyest of them, which others do once in some twenty."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.requirement("GAT-015", "GAT-019")
def test_the_simulation_finds_out_a_product(
    mutant: Callable[[], Any],
    database: Database,
    record_property: Callable[[str, object], None],
) -> None:
    for seed in range(FIRST, FIRST + SEEDS):
        with mutant():
            told = simulate(seed, STEPS, database, then=broken_off)
        assert "Error" not in told.violation, "the mutant itself is broken"
        if told.violation:
            again = f"{seed} --steps {STEPS} --mutant {mutant.__name__}"
            record_property("refuted", f"event {told.steps} of {again}: {told.violation[:160]}")
            return
    pytest.fail(f"{SEEDS} seeds of {STEPS} events each found nothing", pytrace=False)
