"""An agent's deadline against the server's: never are two processes of one job at work at once.

Two agents, one job, and a network that delays and loses whatever it likes; the host of the first
may be frozen at any time, for any time. The first agent reckons with the product's `HeldLease`,
the server with the product's fence. The second agent starts as soon as the job is given away.

A host that is thawed looks at its clock before its processes do anything: the product does so
within `LOOK_AGAIN_S`. Both sides count seconds of one length; whose zero is where does not matter.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from forgeyard.agent.lease import HeldLease
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import Holder, Offer
from forgeyard.model.transitions import LeaseState
from forgeyard.model.units import Millis
from forgeyard.store import fence
from tests.models.search import Outcome, explore
from tests.unit.agent.deals import an_offer

TTL, GRACE = 3, 2
AGES = TTL + GRACE + 2
"""Older than this nothing matters any more."""
FLIGHTS = 2
SESSION = SessionId("ses_1")
NEVER = -AGES


class Flight(NamedTuple):
    """A request of the first agent, or the answer to it."""

    age: int
    """How long ago the request was sent."""
    answered: bool = False


class State(NamedTuple):
    """Where everybody stands, with now as zero."""

    state: str = LeaseState.OFFERED.value
    expires: int = TTL
    flights: tuple[Flight, ...] = ()
    acknowledged: int = NEVER
    """When the newest request was sent that the agent knows to have been granted."""
    works: bool = False
    worked: bool = False
    """An agent starts a process for a lease once."""
    frozen: bool = False
    given_away: bool = False


Count = Callable[[int], int]
"""From when an agent counts, given how long ago it sent what is answered now."""


class Rules(NamedTuple):
    """The decisions; a mutant has another for one of them."""

    count_from: Count = lambda age: -age
    grace_of_server: int = GRACE
    looks_before_start: bool = True
    dies_by_itself: bool = True


@cache
def offer() -> Offer:
    """Make the offer of the one lease there is."""
    return an_offer(epoch=1, ttl=Millis(TTL * 1000), grace=Millis(GRACE * 1000))


def held_lease(*sent_at: int) -> HeldLease:
    """Make the product's lease, whose requests of these moments were granted."""
    held = HeldLease(offer(), session_id=SESSION, clock=lambda: 0.0)
    for moment in sent_at:
        if moment > NEVER:
            held.acknowledged(sent_at=float(moment), ttl=Millis(TTL * 1000))
    return held


@cache
def has_to_stop(acknowledged: int) -> bool:
    """Ask it whether to stop now."""
    return held_lease(acknowledged).stop_reason() is not None


@cache
def newest(before: int, sent_at: int) -> int:
    """Ask it from when it counts once another answer has come."""
    return int(held_lease(before, sent_at)._acknowledged)


def _row(state: State, rules: Rules) -> dict[str, object]:
    return {
        "state": state.state,
        "epoch": 1,
        "expires_at": state.expires,
        "grace_ms": rules.grace_of_server,
    }


def _after(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if not state.frozen:
        yield from _agent(state, rules)
    yield from _server(state, rules)
    for place, flight in enumerate(state.flights):
        others = (*state.flights[:place], *state.flights[place + 1 :])
        yield "a message is lost", state._replace(flights=others)
        if flight.answered and not state.frozen:
            counted = newest(state.acknowledged, rules.count_from(flight.age))
            yield "an answer arrives", state._replace(flights=others, acknowledged=counted)
    if not _is_urgent(state, rules):
        yield "time passes", _older(state)


def _agent(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if len(state.flights) < FLIGHTS:
        flights = tuple(sorted((*state.flights, Flight(0))))
        yield "the agent asks for more time", state._replace(flights=flights)
    stops = has_to_stop(state.acknowledged)
    accepted = state.acknowledged > NEVER
    if accepted and not state.worked and not (stops and rules.looks_before_start):
        yield "the agent starts a process", state._replace(works=True, worked=True)
    if state.works and stops and rules.dies_by_itself:
        yield "the agent kills its process", state._replace(works=False)
    yield "the host freezes", state._replace(frozen=True)


def _server(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    row = _row(state, rules)
    for place, flight in enumerate(state.flights):
        holder = Holder(session_id=SESSION, epoch=1)
        live = (LeaseState.OFFERED, LeaseState.ACTIVE)
        if not flight.answered and not fence.staleness(row, holder, 0, *live):
            flights = list(state.flights)
            flights[place] = flight._replace(answered=True)
            yield (
                "the server grants more time",
                state._replace(
                    state=LeaseState.ACTIVE.value, expires=TTL, flights=tuple(sorted(flights))
                ),
            )
    if fence.has_lapsed(row, 0):
        yield (
            "the server gives the job to another, who starts",
            state._replace(state=LeaseState.EXPIRED.value, expires=0, given_away=True),
        )
    if state.frozen:
        thawed = state._replace(frozen=False)
        stops = has_to_stop(state.acknowledged) and rules.dies_by_itself
        yield "the host goes on", thawed._replace(works=state.works and not stops)


def _is_urgent(state: State, rules: Rules) -> bool:
    """Tell whether an agent that is not frozen has something to do at this very moment."""
    stops = state.works and rules.dies_by_itself and has_to_stop(state.acknowledged)
    return stops and not state.frozen


def _older(state: State) -> State:
    """Let a second pass; whatever is older than all deadlines is as old as any."""
    live = state.state != LeaseState.EXPIRED
    return state._replace(
        expires=max(state.expires - 1, -GRACE - 1) if live else 0,
        acknowledged=max(state.acknowledged - 1, NEVER + 1)
        if state.acknowledged > NEVER
        else NEVER,
        flights=tuple(
            sorted(flight._replace(age=min(flight.age + 1, AGES - 1)) for flight in state.flights)
        ),
    )


def search(rules: Rules, said: str) -> Outcome[State]:
    """Visit every state; bad is one in which both are at work."""
    outcome = explore(
        [State()],
        lambda state: _after(state, rules),
        lambda state: state.works and not state.frozen and state.given_away,
    )
    print(f"\n{said}: {outcome.told()}")
    return outcome


@pytest.mark.requirement("EOS-055")
def test_two_processes_of_one_job_are_never_at_work_at_once() -> None:
    outcome = search(Rules(), "the product")
    assert outcome.trace is None
    assert outcome.states > 500


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("counted from when the answer came", Rules(count_from=lambda _: 0)),
        ("a server that knows of no grace", Rules(grace_of_server=0)),
        ("started without a look at the clock", Rules(looks_before_start=False)),
        ("an agent that knows no deadline", Rules(dies_by_itself=False)),
    ],
)
def test_a_deadline_that_is_counted_wrongly_is_refuted(said: str, rules: Rules) -> None:
    outcome = search(rules, said)
    assert outcome.trace is not None
    assert len(outcome.trace) <= 14
