"""What a fleet did, reckoned by hand."""

from dataclasses import fields, replace

import pytest

from forgeyard.fleet.analytics import (
    Analytics,
    Decided,
    MachineTimes,
    Seen,
    Spread,
    analyse,
    spread,
)
from forgeyard.model.fleet import Market

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SINCE, UNTIL = 100 * HOUR, 110 * HOUR
STILL = MachineTimes(cost=600_000, requested_at=SINCE + HOUR, ready_at=SINCE + 2 * HOUR)
"""Wanted an hour after the window began, ready an hour later, and there since."""


def seen(*machines: MachineTimes, **more: object) -> Analytics:
    return analyse(Seen(**{"since": SINCE, "until": UNTIL, "machines": machines, **more}))


@pytest.mark.requirement("MET-023", "MET-027")
def test_use_and_idle_cost_are_of_the_time_in_which_machines_were_ready() -> None:
    gone = MachineTimes(
        cost=1_200_000,
        requested_at=SINCE - 9 * HOUR,
        ready_at=SINCE - 8 * HOUR,
        left_at=SINCE + 2 * HOUR,
        ended_at=SINCE + 3 * HOUR,
        busy=HOUR // 2,
    )
    found = seen(replace(STILL, busy=6 * HOUR), gone)
    assert (found.ready_ms, found.busy_ms) == (10 * HOUR, 6 * HOUR + HOUR // 2)
    assert found.utilisation == 0.65
    assert found.idle_cost == 2 * 600_000 + 1_200_000 * 3 // 2
    assert found.cost == 9 * 600_000 + 3 * 1_200_000


@pytest.mark.requirement("MET-023")
def test_nothing_ready_is_no_share_at_all() -> None:
    found = seen(replace(STILL, ready_at=None))
    assert (found.utilisation, found.ready_ms, found.idle_cost) == (None, 0, 0)
    assert found.cost == 9 * 600_000
    assert seen().utilisation is None


@pytest.mark.requirement("MET-024")
def test_the_wait_of_jobs_is_told_by_its_middle_and_its_end() -> None:
    waits = tuple(range(1, 101))
    assert seen(waits=waits[::-1]).queue_wait == Spread(count=100, median=50, p95=95, longest=100)
    assert spread([7]) == Spread(count=1, median=7, p95=7, longest=7)
    assert spread([]) == Spread(count=0)


@pytest.mark.requirement("MET-026")
def test_provisioning_is_of_machines_wanted_in_the_window_whether_or_not_for_jobs() -> None:
    before = replace(STILL, requested_at=SINCE - 1)
    failed = replace(STILL, ready_at=None, has_failed=True)
    lost = replace(STILL, has_failed=True)
    coming = replace(STILL, ready_at=None)
    found = seen(STILL, before, failed, lost, coming)
    assert found.provision_latency == Spread(count=2, median=HOUR, p95=HOUR, longest=HOUR)
    assert (found.never_ready, found.machines) == (1, 5)


def decided(at: int, wanted: int, usable: int, launched: int) -> Decided:
    return Decided(at=SINCE + at, wanted=wanted, usable=usable, launched=launched)


def made(at: int, took: int, **changed: object) -> MachineTimes:
    begun = SINCE + at
    base = MachineTimes(requested_at=begun, ready_at=begun + took, is_for_demand=True)
    return replace(base, **changed)


@pytest.mark.requirement("MET-025")
def test_scaling_takes_as_long_as_the_wish_that_was_not_served_is_old() -> None:
    decisions = (
        decided(1, wanted=2, usable=0, launched=2),
        # All wanted is made: what follows is a wish of its own, and open for two decisions.
        decided(10, wanted=5, usable=2, launched=1),
        decided(20, wanted=5, usable=3, launched=0),
        decided(50, wanted=5, usable=3, launched=2),
        decided(90, wanted=6, usable=5, launched=1),
    )
    machines = [made(1, 7), made(10, 7), made(50, 7), made(90, 7)]
    for machine, took in zip(machines, (7, 7, 47, 7), strict=True):
        assert seen(machine, decisions=decisions).scale_latency.longest == took
    assert seen(*machines, decisions=decisions).scale_latency.count == 4
    unasked = made(50, 7, is_for_demand=False)
    not_yet = made(50, 7, ready_at=None)
    assert seen(unasked, not_yet, decisions=decisions).scale_latency == Spread(count=0)
    assert seen(made(33, 7), decisions=decisions).scale_latency.longest == 7


@pytest.mark.requirement("MET-028")
def test_interruptions_are_counted_beside_what_could_have_been_interrupted() -> None:
    spot = replace(STILL, market=Market.PREEMPTIBLE)
    taken = replace(spot, interrupted_at=SINCE + 5 * HOUR, left_at=SINCE + 6 * HOUR)
    before = replace(taken, requested_at=SINCE - HOUR, interrupted_at=SINCE - 1)
    found = seen(STILL, spot, taken, before)
    assert (found.interruptions, found.preemptible) == (1, 3)
    assert found.preemptible_ready_ms == (8 + 4 + 4) * HOUR


@pytest.mark.requirement("MET-030")
def test_no_figure_follows_from_the_others() -> None:
    """What is better in one way and worse in another is not better or worse in a third."""
    busy = seen(replace(STILL, busy=8 * HOUR), waits=(HOUR,))
    quick = seen(replace(STILL, busy=HOUR), waits=(1,))
    differing = {
        one.name for one in fields(Analytics) if getattr(busy, one.name) != getattr(quick, one.name)
    }
    assert differing == {"busy_ms", "utilisation", "idle_cost", "queue_wait"}
    assert not [
        one.name for one in fields(Analytics) if {"score", "efficiency"} & {*one.name.split("_")}
    ]
