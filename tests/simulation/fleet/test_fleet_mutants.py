"""Safeguards of fleets matter: without any one of these some seed is violated."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.database import Database
from tests.simulation.fleet.mutants import MUTANTS
from tests.simulation.fleet.story import broken_off, simulate

pytestmark = pytest.mark.integration
SEEDS, STEPS = 8, 500


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.requirement("GAT-015", "GAT-019")
def test_the_simulation_finds_out_a_product(
    mutant: Callable[[], Any],
    database: Database,
    record_property: Callable[[str, object], None],
) -> None:
    for seed in range(1, SEEDS + 1):
        with mutant():
            told = simulate(seed, STEPS, database, then=broken_off)
        assert "Error" not in told.violation, "the mutant itself is broken"
        if told.violation:
            again = f"{seed} --steps {STEPS} --mutant {mutant.__name__}"
            record_property("refuted", f"event {told.steps} of {again}: {told.violation[:160]}")
            return
    pytest.fail(f"{SEEDS} seeds of {STEPS} events each found nothing", pytrace=False)
