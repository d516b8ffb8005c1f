"""Estimates in whole millionths, rounded so that a ceiling is kept."""

import pytest

from forgeyard.fleet.cost import Budget, Life, for_so_long, hourly, spent_today, till_midnight
from forgeyard.fleet.view import ClampKind
from forgeyard.model.fleet import DAY_MS, Guardrail
from tests.fleets import HOUR, S, a_busy, a_fleet, an_instance
from tests.scheduling import MINUTE, NOW

MORNING = NOW - NOW % DAY_MS


@pytest.mark.requirement("CST-001", "CST-009")
def test_a_span_is_priced_in_whole_millionths_and_rounded_up() -> None:
    assert for_so_long(100_000, HOUR) == 100_000
    assert for_so_long(100_000, HOUR // 2) == 50_000
    assert for_so_long(1, 1) == 1
    assert for_so_long(100_000, -5) == 0


def test_an_hour_costs_what_all_that_may_exist_costs() -> None:
    there = (a_busy("a"), an_instance("b", state=S.FAILED), an_instance("c", may_exist=False))
    assert hourly(there) == 200_000


def test_a_day_counts_from_midnight_and_those_that_are_gone() -> None:
    lives = (
        Life(cost=60_000, started_at=MORNING - HOUR),
        Life(cost=60_000, started_at=MORNING - HOUR, ended_at=MORNING + MINUTE),
        Life(cost=60_000, started_at=MORNING - 2 * HOUR, ended_at=MORNING - HOUR),
        Life(cost=60_000, started_at=MORNING + 2 * HOUR),
    )
    assert spent_today(lives, MORNING + 3 * HOUR) == 180_000 + 1_000 + 60_000
    assert till_midnight(MORNING) == DAY_MS
    assert till_midnight(MORNING + DAY_MS - 1) == 1


def test_a_budget_shrinks_with_every_machine() -> None:
    view = a_fleet(guardrail=Guardrail(hourly=250_000, daily=10**9), instances=(a_busy("a"),))
    budget = Budget(view, MORNING)
    assert budget.most(100_000) == 1
    assert budget.against(100_000) is None
    budget.take(100_000)
    assert budget.against(100_000) is ClampKind.HOURLY_COST
    assert budget.against(50_000) is None


def test_without_a_ceiling_nothing_is_too_much() -> None:
    budget = Budget(a_fleet(), NOW)
    assert budget.most(10**12) is None
    assert budget.against(10**12) is None


def test_what_costs_nothing_is_bounded_only_where_all_is_spent() -> None:
    spent = a_fleet(guardrail=Guardrail(daily=5), spent_today=6)
    assert Budget(spent, NOW).most(0) == 0
    assert Budget(a_fleet(guardrail=Guardrail(daily=5)), NOW).most(0) is None
