"""Our own outages cost no lease that its agent kept alive, and save none that it did not."""

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgeyard.model.job import RetryPolicy
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import RenewalVerdict
from forgeyard.store import liveness, tables
from tests.builders import a_job_spec
from tests.leasing import Desk

moments = st.integers(min_value=0, max_value=10**9)
spans = st.integers(min_value=0, max_value=10**8)


@given(sent_at=moments, on_its_way=spans, since=spans, gap=spans, ttl=spans, back_off=spans)
def test_after_an_outage_an_agent_may_back_off_once_more_and_stops_before_its_lease_lapses(
    sent_at: int, on_its_way: int, since: int, gap: int, ttl: int, back_off: int
) -> None:
    """Whatever the grace, which both sides add."""
    handled_at = sent_at + on_its_way
    now = handled_at + since + gap
    expires_at = handled_at + ttl
    moved = liveness.bridged(expires_at, gap=gap, now=now, ttl=ttl, back_off=back_off)
    assert moved >= now + back_off, "its next call comes in time"
    assert moved >= sent_at + ttl, "the agent has stopped by then if that call never comes"
    assert moved - now >= expires_at - (now - gap), "it has no less left than before the outage"
    assert moved <= max(expires_at + gap, now + ttl + back_off)


PERIOD, GAP = 9_000, SchedulingPolicy().sweep.renewal_gap
STEP = st.tuples(st.sampled_from((PERIOD, GAP + 5_000, 40 * GAP)), st.booleans(), st.booleans())
"""How much time passes, and which of two APIs live then and beat."""


@pytest.fixture
def desk(sqlite_engine: sa.Engine) -> Desk:
    return Desk(sqlite_engine)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, min_size=1, max_size=6))
def test_with_two_apis_each_gap_is_bridged_once_and_only_the_dead_lapse(
    desk: Desk, steps: list[tuple[int, bool, bool]]
) -> None:
    desk.change(_forget)
    once = a_job_spec(retry=RetryPolicy(max_attempts=1))
    kept, left = desk.active(once, runner="kept"), desk.active(once, runner="left")
    beat(desk)
    silent, gaps = 0, 0
    for passed, first, second in steps:
        desk.later(passed)
        silent += passed
        if not first and not second:
            assert desk.sweep().expired == 0
            continue
        expected = silent > GAP
        found = [beat(desk) for lives in (first, second) if lives]
        assert [bool(gap) for gap in found] == [expected] + [False] * (len(found) - 1)
        gaps += expected
        silent = 0
        assert desk.renew(kept) is RenewalVerdict.RENEWED
        desk.sweep()
        assert desk.states(kept)[0] == "active"
    policy = desk.policy.lease
    beat(desk)
    assert desk.rows(tables.liveness)[0]["gaps"] == gaps + (silent > GAP)
    most = policy.execution_ttl + policy.connectivity_grace + policy.longest_back_off
    for _ in range(most // PERIOD + 2):
        desk.later(PERIOD)
        beat(desk)
    desk.sweep()
    # Neither was renewed any more, so that no job is left for the next example.
    assert desk.states(left)[0] == "expired"
    for lease in (kept, left):
        desk.settle(lease)


def beat(desk: Desk) -> int:
    return desk.change(liveness.beat_renewal, policy=desk.policy)


def _forget(connection: sa.Connection) -> None:
    connection.execute(sa.delete(tables.liveness))
