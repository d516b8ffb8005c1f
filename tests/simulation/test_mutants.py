"""Safeguards of the product matter: without any one of these some seed is violated."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import mutants
from tests.simulation.database import Database
from tests.simulation.mutants import MUTANTS
from tests.simulation.story import broken_off, simulate, to_rest

SEEDS, STEPS = 8, 500
ROUGH = 3.0
LASTING = (mutants.without_wakes, mutants.without_promotion)
"""What these do without only shows when everything should have come to rest."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulation_finds_out_a_product(
    mutant: Callable[[], Any],
    database: Database,
    record_property: Callable[[str, object], None],
) -> None:
    then = to_rest if mutant in LASTING else broken_off
    for seed in range(1, SEEDS + 1):
        with mutant():
            told = simulate(seed, STEPS, database, rough=ROUGH, then=then)
        assert "TypeError" not in told.violation, "the mutant itself is broken"
        if told.violation:
            again = f"--seed {seed} --steps {STEPS} --rough {ROUGH} --mutant {mutant.__name__}"
            record_property("refuted", f"event {told.steps} of {again}: {told.violation[:160]}")
            return
    pytest.fail(f"{SEEDS} seeds of {STEPS} events each found nothing", pytrace=False)
