"""What speaks against a runner fades: half after each half-life, and never below nothing."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.model.job import FailureClass
from forgeyard.scheduler.reliability import FAULT, FAULTS, MOST, decayed, raised
from tests.scheduling import MINUTE, NOW
from tests.worlds import demand_hits, fixed

HALF = 30 * MINUTE
penalties = st.integers(0, 4 * MOST)
sixteenths = st.integers(-16, 16 * 16)
"""Of a half-life."""
half_lives = st.sampled_from([1, 7, MINUTE, HALF])


@pytest.mark.requirement("SCO-015")
def test_half_of_a_penalty_is_left_after_a_half_life() -> None:
    left = [decayed(1_000, since=NOW, now=NOW + n * HALF // 2, half_life=HALF) for n in range(7)]
    assert left == [1_000, 750, 500, 375, 250, 188, 125]
    assert decayed(MOST, since=NOW, now=NOW + 15 * HALF, half_life=HALF) == 0


@pytest.mark.requirement("SCO-014", "SCO-015")
def test_a_penalty_only_falls_with_time_and_never_below_nothing() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(penalty=penalties, first=sixteenths, second=sixteenths, half_life=half_lives)
    def check(penalty: int, first: int, second: int, half_life: int) -> None:
        earlier, later = sorted(NOW + n * half_life // 16 for n in (first, second))
        before = decayed(penalty, since=NOW, now=earlier, half_life=half_life)
        after = decayed(penalty, since=NOW, now=later, half_life=half_life)
        assert penalty >= before >= after >= 0
        hits["falls"] += before > after
        hits["left"] += after > 0

    check()
    demand_hits(hits, "falls", "left")


@pytest.mark.requirement("SCO-015")
@given(faults=st.lists(st.integers(0, HALF), max_size=60))
@fixed
def test_however_often_a_runner_fails_it_is_as_good_as_new_in_bounded_time(
    faults: list[int],
) -> None:
    penalty, since = 0, NOW
    for pause in faults:
        now = since + pause
        penalty, since = raised(penalty, by=FAULT, since=since, now=now, half_life=HALF), now
        assert FAULT <= penalty <= MOST
    assert decayed(penalty, since=since, now=since + 15 * HALF, half_life=HALF) == 0


@pytest.mark.case("SP-042")
def test_what_a_user_or_a_job_did_never_counts_against_a_runner() -> None:
    assert FAULTS.isdisjoint(
        {
            FailureClass.USER_COMMAND,
            FailureClass.TEST_FAILURE,
            FailureClass.COMPILE_FAILURE,
            FailureClass.TIMEOUT,
            FailureClass.CANCELLED,
            FailureClass.POLICY,
        }
    )
