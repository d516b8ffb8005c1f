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
WELL = RunnerFacts(state=RunnerState.ONLINE, admission=Admission.VERIFIED)


def rounds(facts: Facts, until: CapacityInstanceState, **known: tuple[int, object]) -> int:
    """Count the rounds of a machine's workflow until a state, given what is so from when on.

    Its fleet tells it at once of what becomes of its runner; the rest it has to ask for.
    """
    count, now = 0, BEGAN
    while facts.state is not until:
        told = {name: fact for name, (since, fact) in known.items() if now >= BEGAN + since}
        verdict = judge(facts, Pace(), now=now)
        if verdict.to is not None:
            due = None if verdict.due_in is None else now + verdict.due_in
            facts = replace(facts, state=verdict.to, due_at=due)
        elif verdict.act is Act.LOOK:
            facts = replace(facts, looked_at=now, **told)
        elif verdict.act is Act.TERMINATE:
            facts = replace(facts, asked_at=now)
        else:
            count += 1
            news = [BEGAN + since for name, (since, _) in known.items() if name == "runner"]
            now = min([now + verdict.wait, *(at for at in news if at > now)])
            facts = replace(facts, runner=told.get("runner"))
            assert count < 10_000
    return count


def made(state: CapacityInstanceState, **changed: object) -> Facts:
    """Describe a machine that was asked for just now."""
    base = Facts(
        state=state, operation=OperationState.SUCCEEDED, calls=1, has_ref=True, asked_at=BEGAN
    )
    return replace(base, **changed)


@pytest.mark.parametrize(
    ("starts_s", "boots_s", "ends_s"), [(5, 20, 5), (60, 120, 60), (300, 600, 120)]
)
def test_the_life_of_a_machine_fits_into_two_hundred_events(
    starts_s: int, boots_s: int, ends_s: int
) -> None:
    coming = rounds(
        made(S.PROVISIONING),
        S.HEALTHY,
        machine=(starts_s * SECOND, M.RUNNING),
        runner=((starts_s + boots_s) * SECOND, WELL),
    )
    going = rounds(made(S.TERMINATING), S.TERMINATED, machine=(ends_s * SECOND, M.GONE))
    at_work = HOUR // judge(made(S.HEALTHY, runner=WELL), Pace(), now=BEGAN).wait
    events = EVENTS_OF_A_ROUND * (coming + going + at_work) + EVENTS_BESIDE
    print(f"{coming} rounds to come, {at_work} in an hour of work, {going} to go: {events} events")
    # A quarter of an hour until it works takes more looks; no run of its workflow has that many.
    assert events <= (200 if starts_s <= 60 else 300)


def test_what_takes_long_is_told_late_by_half_at_most() -> None:
    for elapsed in (20 * SECOND, 100 * SECOND, 400 * SECOND):
        now = BEGAN + elapsed
        facts = made(S.BOOTSTRAPPING, looked_at=now)
        assert judge(facts, Pace(), now=now).wait == max(Pace().look, elapsed // 2)


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
    late = made(S.TERMINATING, due_at=BEGAN + deadline)
    patient = made(S.TERMINATING)
    assert (
        rounds(late, S.TERMINATED, machine=gone) <= rounds(patient, S.TERMINATED, machine=gone) + 1
    )
