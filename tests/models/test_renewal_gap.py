"""An outage of our own, with two APIs and an agent to whom a job is offered: no offer is lost.

The agent accepts at once while an API serves, and within its longest back-off once one serves
again; between two outages it comes to it. An API beats before it serves, and then again before time
passes. The product says what is an
outage, what an outage adds to a lease, and when a lease has lapsed; the model adds the row of
beats, time and crashes. (A lease that was accepted ends by its agent's own clock: test_deadlines.)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from forgeyard.errors import InvalidPolicy
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.policy_document import read
from forgeyard.model.transitions import LeaseState
from forgeyard.model.units import Millis
from forgeyard.store import fence, liveness
from tests.models.search import Outcome, explore

GAP, BACK_OFF, TTL = 2, 1, 4
LONG = 8
"""So long is as good as for ever."""
POLICY = SchedulingPolicy(
    lease=LeasePolicy(offer_ttl=Millis(TTL), longest_back_off=Millis(BACK_OFF)),
    sweep=SweepPolicy(renewal_gap=Millis(GAP)),
)
DOWN, UP = -2, -1
"""How an API stands; a number that is not negative is the beat's age that it has just read."""


class State(NamedTuple):
    """Where everything stands, with now as zero."""

    apis: tuple[int, int] = (UP, UP)
    age: int = 0
    """Of the last beat."""
    expires: int = TTL
    waited: int = 0
    """How long the agent could have accepted."""
    spare: int = 0
    """Time that passed and was not bridged yet."""
    lost: bool = False


class Rules(NamedTuple):
    """The decisions; a mutant has another for one of them."""

    policy: SchedulingPolicy = POLICY
    locks_the_beat: bool = True
    spares_during_outage: bool = True
    bridges: bool = True


def _after(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for api, stands in enumerate(state.apis):
        last = UP in state.apis and UP not in _to(state, api, DOWN).apis
        if stands != DOWN and not (last and state.expires < TTL):
            yield f"API {api} goes down", _to(state, api, DOWN)
        if stands >= 0:
            yield f"API {api} beats", _to(_beat(state, stands, rules), api, UP)
        elif rules.locks_the_beat:
            yield f"API {api} beats", _to(_beat(state, state.age, rules), api, UP)
        else:
            yield f"API {api} reads the beat", _to(state, api, state.age)
    if UP in state.apis:
        accepted = state._replace(expires=TTL, waited=0)
        what = "the agent accepts, and another offer is made"
        yield what, accepted if _is_live(state) else state._replace(lost=True)
    if _expires(state, rules):
        yield "the sweep expires the offer", state._replace(lost=True)
    if not _is_urgent(state):
        yield "time passes", _older(state)


def _to(state: State, api: int, stands: int) -> State:
    apis = tuple(stands if place == api else one for place, one in enumerate(state.apis))
    return state._replace(apis=apis, waited=state.waited if UP in apis else 0)


def _beat(state: State, age: int, rules: Rules) -> State:
    gap = liveness.outage(age, rules.policy)
    expires = state.expires
    if gap and rules.bridges:
        expires = liveness.bridged(expires, gap=gap, now=0, ttl=TTL, back_off=BACK_OFF)
    return state._replace(age=0, expires=min(expires, LONG), spare=state.spare - gap)


def _is_live(state: State) -> bool:
    row = {"state": LeaseState.OFFERED, "expires_at": state.expires, "grace_ms": 0}
    return not fence.has_lapsed(row, 0)


def _expires(state: State, rules: Rules) -> bool:
    out = liveness.outage(state.age, rules.policy) and rules.spares_during_outage
    return not out and not _is_live(state)


def _is_urgent(state: State) -> bool:
    """Tell whether somebody does something before time passes."""
    return UP in state.apis and (state.age > 0 or state.waited >= BACK_OFF)


def _older(state: State) -> State:
    """Let time pass; what is longer ago than any deadline is as good as for ever."""
    return state._replace(
        apis=tuple(min(one + 1, LONG) if one >= 0 else one for one in state.apis),
        age=min(state.age + 1, LONG),
        expires=max(state.expires - 1, -LONG),
        waited=state.waited + (UP in state.apis),
        spare=min(state.spare + 1, LONG),
    )


def _wrong(state: State) -> str:
    if state.lost:
        return "an outage of ours costs an offer"
    return "one gap is bridged twice" if state.spare < 0 else ""


def search(rules: Rules, said: str) -> tuple[Outcome[State], str]:
    """Visit every state."""
    outcome = explore(
        [State()], lambda state: _after(state, rules), lambda state: bool(_wrong(state))
    )
    wrong = _wrong(outcome.trace[-1][1]) if outcome.trace else ""
    print(f"\n{said}: {outcome.told()}{wrong and ': '}{wrong}")
    return outcome, wrong


def too_long() -> SchedulingPolicy:
    """Take an outage for one only when offers have lapsed over it."""
    return replace(POLICY, sweep=SweepPolicy(renewal_gap=Millis(TTL)))


def test_no_outage_of_ours_costs_an_offer_and_none_is_bridged_twice() -> None:
    outcome, wrong = search(Rules(), "the product")
    assert not wrong
    assert outcome.states > 100


@pytest.mark.parametrize(
    ("said", "rules", "wrong"),
    [
        ("no lock", Rules(locks_the_beat=False), "one gap is bridged twice"),
        ("expiry goes on", Rules(spares_during_outage=False), "an outage of ours costs an offer"),
        ("nothing is added", Rules(bridges=False), "an outage of ours costs an offer"),
        ("noticed too late", Rules(policy=too_long()), "an outage of ours costs an offer"),
    ],
)
def test_an_outage_that_is_bridged_wrongly_is_refuted(said: str, rules: Rules, wrong: str) -> None:
    outcome, found = search(rules, said)
    assert found == wrong
    assert outcome.trace is not None
    assert len(outcome.trace) <= 16


def test_a_policy_that_would_notice_an_outage_too_late_is_refused() -> None:
    """One minute of lease and one of grace, less 15 s until a renewal and 15 s of back-off."""
    assert read({"sweep": {"renewal_gap": "90s"}}).sweep.renewal_gap == 90_000
    with pytest.raises(InvalidPolicy, match="less lease"):
        read({"sweep": {"renewal_gap": "91s"}})
