"""Ten thousand jobs of one tenant against twenty others: a virtual clock and the real planner."""

import pytest

from benchmarks.fairness import SCENARIOS, Scenario, simulate

EQUAL, UNEQUAL, LIGHT, _ = SCENARIOS


@pytest.mark.requirement("FAR-001", "FAR-003", "FAR-004", "ACC-017", "PRI-016", "GAT-005")
@pytest.mark.parametrize("scenario", [EQUAL, UNEQUAL], ids=lambda it: it.name)
@pytest.mark.requirement("DEM-019")
def test_a_flood_gets_its_share_and_no_more(scenario: Scenario) -> None:
    figures = simulate(scenario, minutes=20)
    print(f"\n{figures}")
    assert figures["jain_ours"] >= 0.95
    assert figures["jain_fifo"] < 0.1, "the flood is large enough to take everything"


@pytest.mark.requirement("FAR-001", "PRI-015")
def test_who_asks_for_less_than_its_share_hardly_waits_and_the_flood_has_the_rest() -> None:
    figures = simulate(LIGHT, minutes=20)
    assert figures["p95_wait_minutes_ours"] <= 1
    assert figures["p95_wait_minutes_fifo"] >= 10
    assert figures["flood_share_ours"] > 0.9
