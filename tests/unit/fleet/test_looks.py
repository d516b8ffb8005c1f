"""How often a machine is looked at: its story has to stay short in Temporal, whatever it takes."""

from dataclasses import replace

import pytest

from forgeyard.fleet.lifecycle import Act, Facts, Pace, RunnerFacts, judge
from forgeyard.model.capacity import CapacityInstanceState, MachineState, OperationState
from forgeyard.model.enrolment import Admission
from forgeyard.model.runner import RunnerState

S, M = CapacityInstanceState, MachineState
SECOND, HOUR = 1_000, 3_600_000
BEGAN = 1_700_000_000_000
EVENTS_OF_A_ROUND = 11
"""A timer that fires, an activity, and a workflow task after each; see the fleets on a server."""
EVENTS_BESIDE = 20
"""Start, end, changes of state, a signal for every change that its fleet hears of first."""
LISTED = 15 * SECOND
"""After so long at most a listing has told of what a machine has become, while machines move."""
WELL = RunnerFacts(state=RunnerState.ONLINE, admission=Admission.VERIFIED)


def rounds(
    facts: Facts, until: CapacityInstanceState, *, is_listed: bool, **known: tuple[int, object]
) -> tuple[int, int]:
    """Count the rounds of a machine's workflow until a state, given what is so from when on.

    Its fleet tells it at once of what becomes of its runner, and soon of what a listing shows; the
    rest it has to ask for. The second number is how long it took.
    """
    count, now = 0, BEGAN
    late = {"runner": 0, "machine": LISTED} if is_listed else {"runner": 0}
    news = {name: BEGAN + known[name][0] + late[name] for name in late if name in known}
    while facts.state is not until:
        told = {name: fact for name, (since, fact) in known.items() if now >= BEGAN + since}
        verdict = judge(facts, Pace(), now=now)
        if verdict.to is not None:
            due = None if verdict.due_in is None else now + verdict.due_in
            facts = replace(facts, state=verdict.to, due_at=due)
        elif verdict.act is Act.LOOK:
            facts = replace(facts, looked_at=now, missing_since=None, **told)
        elif verdict.act is Act.TERMINATE:
            facts = replace(facts, asked_at=now)
        else:
            count += 1
            now = min([now + verdict.wait, *(at for at in news.values() if at > now)])
            has_come = "runner" in news and now >= news["runner"]
            facts = replace(facts, runner=known["runner"][1] if has_come else None)
            if news.get("machine") == now and facts.state is S.PROVISIONING:
                facts = replace(facts, machine=M.RUNNING, looked_at=now)
            elif news.get("machine") == now and facts.state is S.TERMINATING:
                facts = replace(facts, missing_since=now)
            assert count < 10_000
    return count, now - BEGAN


def made(state: CapacityInstanceState, **changed: object) -> Facts:
    """Describe a machine that was asked for just now."""
    base = Facts(
        state=state, operation=OperationState.SUCCEEDED, calls=1, has_ref=True, asked_at=BEGAN
    )
    return replace(base, **changed)


CLOUDS = [(5, 20, 5), (60, 120, 60), (300, 600, 120)]
"""Seconds that a machine takes to start, its agent to come, and it to end."""


def coming(starts_s: int, boots_s: int, *, is_listed: bool) -> tuple[int, int]:
    return rounds(
        made(S.PROVISIONING),
        S.HEALTHY,
        is_listed=is_listed,
        machine=(starts_s * SECOND, M.RUNNING),
        runner=((starts_s + boots_s) * SECOND, WELL),
    )


def going(ends_s: int, *, is_listed: bool) -> tuple[int, int]:
    facts = made(S.TERMINATING, ending_at=BEGAN)
    return rounds(facts, S.TERMINATED, is_listed=is_listed, machine=(ends_s * SECOND, M.GONE))


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize(("starts_s", "boots_s", "ends_s"), CLOUDS)
def test_the_life_of_a_machine_fits_into_two_hundred_events(
    starts_s: int, boots_s: int, ends_s: int, is_listed: bool
) -> None:
    """With listings that are of use, or with looks alone."""
    come, _ = coming(starts_s, boots_s, is_listed=is_listed)
    go, _ = going(ends_s, is_listed=is_listed)
    at_work = HOUR // judge(made(S.HEALTHY, runner=WELL), Pace(), now=BEGAN).wait
    events = EVENTS_OF_A_ROUND * (come + go + at_work) + EVENTS_BESIDE
    print(f"{come} rounds to come, {at_work} in an hour of work, {go} to go: {events} events")
    assert events <= 200


@pytest.mark.parametrize(("starts_s", "_boots_s", "ends_s"), CLOUDS)
def test_what_a_listing_tells_is_known_soon_however_long_it_took(
    starts_s: int, _boots_s: int, ends_s: int
) -> None:
    up = made(S.PROVISIONING)
    running = (starts_s * SECOND, M.RUNNING)
    _, started = rounds(up, S.BOOTSTRAPPING, is_listed=True, machine=running)
    _, ended = going(ends_s, is_listed=True)
    assert started - starts_s * SECOND <= LISTED
    assert ended - ends_s * SECOND <= LISTED


def test_what_no_listing_tells_is_looked_at_after_twice_as_long() -> None:
    for elapsed in (20 * SECOND, 100 * SECOND, 400 * SECOND):
        now = BEGAN + elapsed
        facts = made(S.BOOTSTRAPPING, looked_at=now)
        assert judge(facts, Pace(), now=now).wait == elapsed


def test_an_end_that_is_asked_for_again_is_not_looked_at_as_if_it_were_the_first() -> None:
    now = BEGAN + 61 * SECOND
    facts = made(S.TERMINATING, ending_at=BEGAN, asked_at=now, looked_at=now)
    assert judge(facts, Pace(), now=now).wait == 61 * SECOND


def test_a_machine_that_ends_and_is_not_seen_any_more_is_looked_for_once_more() -> None:
    """After so long as an answer may be late: then that is believed."""
    now = BEGAN + 20 * SECOND
    facts = made(
        S.TERMINATING, ending_at=BEGAN, asked_at=now, looked_at=now, missing_since=now, sightings=1
    )
    assert judge(facts, Pace(), now=now).wait == Pace().visibility
    later = now + Pace().visibility
    assert judge(facts, Pace(), now=later - 1).wait == 1
    asked = replace(facts, asked_at=later)  # it is asked for again before that
    assert judge(asked, Pace(), now=later).act is Act.LOOK
    twice = replace(facts, looked_at=later, sightings=2)
    assert judge(twice, Pace(), now=later).to is S.TERMINATED


def test_a_machine_that_is_missing_is_looked_for_at_the_usual_pace() -> None:
    """However long ago it was asked for."""
    now = BEGAN + HOUR
    for state in (S.BOOTSTRAPPING, S.HEALTHY):
        facts = made(state, looked_at=now, missing_since=now, runner=None)
        assert judge(facts, Pace(), now=now).wait == Pace().look


def test_an_end_that_takes_too_long_is_told_of_and_not_looked_at_more_often() -> None:
    deadline = judge(made(S.FAILED), Pace(), now=BEGAN).due_in
    assert deadline == Facts(state=S.FAILED).deadlines.terminate
    gone = (4 * deadline, M.GONE)
    patient = made(S.TERMINATING, ending_at=BEGAN)
    late = replace(patient, due_at=BEGAN + deadline)
    for is_listed in (True, False):
        most, _ = rounds(patient, S.TERMINATED, is_listed=is_listed, machine=gone)
        count, _ = rounds(late, S.TERMINATED, is_listed=is_listed, machine=gone)
        assert count <= most + 1
