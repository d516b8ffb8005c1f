"""The judge of one machine: as a table, and what must hold whatever is known of a machine."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.fleet.lifecycle import (
    KEPT_MS,
    RARELY_MS,
    SELDOM_MS,
    Act,
    Facts,
    Pace,
    RunnerFacts,
    Verdict,
    judge,
)
from forgeyard.model.capacity import CapacityInstanceState, MachineState, OperationState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetState, PhaseDeadlines
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import CAPACITY_TRANSITIONS

S, M, Op = CapacityInstanceState, MachineState, OperationState
NOW = 1_700_000_000_000
PACE = Pace()
MINUTE = 60_000
DEADLINES = PhaseDeadlines()
WELL = RunnerFacts(state=RunnerState.ONLINE, admission=Admission.VERIFIED, last_seen_at=NOW)
MADE = {"operation": Op.SUCCEEDED, "calls": 1, "has_ref": True, "asked_at": NOW - MINUTE}
LONG_SILENT = {
    "sightings": 2,
    "missing_since": NOW - PACE.visibility,
    "looked_at": NOW,
}


def judged(state: CapacityInstanceState, **known: object) -> Verdict:
    return judge(replace(Facts(state=state), **known), PACE, now=NOW)


MOVES = [
    (S.REQUESTED, {}, S.PROVISIONING),
    (S.REQUESTED, {"fleet_state": FleetState.SCALE_UP_ONLY}, S.PROVISIONING),
    (S.REQUESTED, {"fleet_state": FleetState.DRAINING}, S.TERMINATED),
    (S.REQUESTED, {"fleet_state": FleetState.DELETING}, S.TERMINATED),
    (S.PROVISIONING, {"fleet_state": FleetState.DELETING}, S.TERMINATING),
    (S.BOOTSTRAPPING, {"fleet_state": FleetState.DRAINING}, S.TERMINATING),
    (S.ENROLLING, {"fleet_state": FleetState.DELETING}, S.TERMINATING),
    (S.PROVISIONING, {**MADE, "machine": M.RUNNING}, S.BOOTSTRAPPING),
    (S.PROVISIONING, {**MADE, "machine": M.STOPPED}, S.FAILED),
    (S.PROVISIONING, {"operation": Op.FAILED, "calls": 1}, S.FAILED),
    (S.PROVISIONING, {**MADE, **LONG_SILENT}, S.FAILED),
    (S.PROVISIONING, {"due_at": NOW}, S.FAILED),
    (S.BOOTSTRAPPING, {**MADE, "redeemed": True}, S.ENROLLING),
    (S.BOOTSTRAPPING, {**MADE, "runner": WELL}, S.ENROLLING),
    (S.BOOTSTRAPPING, {**MADE, "due_at": NOW}, S.FAILED),
    (S.BOOTSTRAPPING, {**MADE, "machine": M.GONE}, S.FAILED),
    (S.ENROLLING, {**MADE, "runner": WELL}, S.HEALTHY),
    (S.ENROLLING, {**MADE, "due_at": NOW}, S.FAILED),
    (
        S.ENROLLING,
        {**MADE, "runner": replace(WELL, admission=Admission.REJECTED)},
        S.QUARANTINED,
    ),
    (S.HEALTHY, {**MADE, "machine": M.STOPPING, "runner": WELL}, S.FAILED),
    (S.HEALTHY, {**MADE, **LONG_SILENT, "runner": WELL}, S.FAILED),
    (
        S.HEALTHY,
        {
            **MADE,
            "runner": replace(
                WELL, state=RunnerState.OFFLINE, last_seen_at=NOW - DEADLINES.bootstrap
            ),
        },
        S.FAILED,
    ),
    (
        S.HEALTHY,
        {**MADE, "runner": replace(WELL, admission=Admission.QUARANTINED)},
        S.QUARANTINED,
    ),
    (S.DRAINING, {**MADE, "runner": WELL}, S.TERMINATING),
    (S.DRAINING, {**MADE, "runner": replace(WELL, leases=2), "due_at": NOW}, S.TERMINATING),
    (S.DRAINING, {**MADE, "machine": M.GONE, "runner": replace(WELL, leases=2)}, S.FAILED),
    (S.QUARANTINED, {**MADE, "is_released": True}, S.TERMINATING),
    (S.QUARANTINED, {**MADE, "due_at": NOW}, S.TERMINATING),
    (S.FAILED, {}, S.TERMINATING),
    (S.TERMINATING, {}, S.TERMINATED),
    (S.TERMINATING, {**MADE, "machine": M.GONE}, S.TERMINATED),
    (S.TERMINATING, {**MADE, **LONG_SILENT}, S.TERMINATED),
    (S.TERMINATING, {"operation": Op.FAILED, "calls": 1, "sightings": 1}, S.TERMINATED),
]


@pytest.mark.parametrize(("state", "known", "to"), MOVES)
def test_what_is_known_of_a_machine_moves_it_on(
    state: CapacityInstanceState, known: dict[str, object], to: CapacityInstanceState
) -> None:
    verdict = judged(state, **known)
    assert verdict.to is to
    assert verdict.reason
    assert to in CAPACITY_TRANSITIONS[state]


ACTS = [
    (S.PROVISIONING, {}, Act.PROVISION),
    (S.PROVISIONING, {"operation": Op.UNKNOWN, "calls": 1, "asked_at": NOW}, Act.LOOK),
    (S.PROVISIONING, {"operation": Op.UNKNOWN, "calls": 1, **LONG_SILENT}, Act.PROVISION),
    (S.PROVISIONING, {**MADE, "machine": M.PENDING}, Act.LOOK),
    (S.BOOTSTRAPPING, {**MADE, "machine": M.RUNNING}, Act.LOOK),
    (S.ENROLLING, {**MADE, "machine": M.RUNNING, "redeemed": True}, Act.LOOK),
    (S.HEALTHY, {**MADE, "runner": WELL, "missing_since": NOW - 1}, Act.LOOK),
    (S.TERMINATING, {**MADE, "asked_at": 0, "machine": M.RUNNING}, Act.TERMINATE),
    (S.TERMINATING, {**MADE, "asked_at": NOW - 1, "machine": M.RUNNING}, Act.LOOK),
    (S.TERMINATING, {**MADE, "asked_at": NOW - PACE.ask_again}, Act.TERMINATE),
]


@pytest.mark.parametrize(("state", "known", "act"), ACTS)
def test_what_is_not_known_is_asked(
    state: CapacityInstanceState, known: dict[str, object], act: Act
) -> None:
    assert judged(state, **known) == Verdict(act=act)


WAITS = [
    (S.REQUESTED, {"fleet_state": FleetState.FROZEN}, RARELY_MS),
    (S.REQUESTED, {"provider_frozen": True}, RARELY_MS),
    (S.PROVISIONING, {"next_at": NOW + 700}, 700),
    (S.PROVISIONING, {"provider_frozen": True}, RARELY_MS),
    (S.PROVISIONING, {**MADE, "looked_at": NOW - 4_000}, 52_000),
    (S.PROVISIONING, {**MADE, "looked_at": NOW - 4_000, "due_at": NOW + 1}, 1),
    (S.HEALTHY, {**MADE, "runner": WELL}, SELDOM_MS),
    (S.DRAINING, {**MADE, "runner": replace(WELL, leases=1), "due_at": NOW + 1}, 1),
    (S.QUARANTINED, {**MADE, "due_at": NOW + KEPT_MS}, SELDOM_MS),
    (S.BOOTSTRAPPING, {**MADE, "next_at": NOW + 900}, 900),
    (S.HEALTHY, {**MADE, "runner": WELL, "missing_since": NOW, "next_at": NOW + 30}, 30),
    (S.TERMINATING, {**MADE, "asked_at": 0, "next_at": NOW + 500}, 500),
    (S.TERMINATED, {}, 0),
]


@pytest.mark.parametrize(("state", "known", "wait"), WAITS)
def test_otherwise_it_is_waited(
    state: CapacityInstanceState, known: dict[str, object], wait: int
) -> None:
    assert judged(state, **known) == Verdict(wait=wait)


@pytest.mark.parametrize("state", [S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING])
def test_a_young_machine_that_is_not_seen_yet_is_not_given_up(state: S) -> None:
    """Most providers show a machine some seconds after they said that they made it."""
    seen_in_vain = {**MADE, "sightings": 2, "missing_since": NOW - 20_000, "looked_at": NOW - 1}
    assert judged(state, **seen_in_vain).to is None


def test_a_machine_whose_agent_works_survives_two_looks_in_vain() -> None:
    seen_in_vain = {**MADE, "sightings": 2, "missing_since": NOW - 20_000, "looked_at": NOW - 1}
    assert judged(S.HEALTHY, runner=replace(WELL, leases=1), **seen_in_vain).to is None


INSTANTS = st.one_of(st.just(0), st.integers(NOW - 30 * MINUTE, NOW))
RUNNERS = st.builds(
    RunnerFacts,
    state=st.sampled_from(RunnerState),
    admission=st.sampled_from(Admission),
    leases=st.integers(0, 2),
    last_seen_at=INSTANTS,
)
FACTS = st.builds(
    Facts,
    state=st.sampled_from(S),
    fleet_state=st.sampled_from(FleetState),
    provider_frozen=st.booleans(),
    operation=st.sampled_from((Op.PENDING, Op.UNKNOWN, Op.SUCCEEDED, Op.FAILED)),
    calls=st.integers(0, 3),
    machine=st.none() | st.sampled_from(M),
    has_ref=st.booleans(),
    asked_at=INSTANTS,
    looked_at=INSTANTS,
    missing_since=st.none() | INSTANTS,
    sightings=st.integers(0, 4),
    next_at=st.integers(0, NOW + MINUTE),
    due_at=st.none() | st.integers(NOW - MINUTE, NOW + 20 * MINUTE),
    redeemed=st.booleans(),
    runner=st.none() | RUNNERS,
    is_released=st.booleans(),
)


@given(FACTS)
@settings(max_examples=1_000)
def test_every_verdict_says_one_thing_and_follows_an_arrow(facts: Facts) -> None:
    verdict = judge(facts, PACE, now=NOW)
    said = [verdict.to is not None, verdict.act is not None, verdict.wait > 0]
    assert sum(said) == (facts.state is not S.TERMINATED)
    assert verdict.to is None or verdict.to in CAPACITY_TRANSITIONS[facts.state]


@pytest.mark.requirement("ACC-041", "INV-050")
@given(FACTS)
@settings(max_examples=1_000)
def test_a_machine_that_works_comes_to_its_end_by_draining_or_because_it_is_lost(
    facts: Facts,
) -> None:
    """One whose runner is well and that its provider has drains, or nobody ends it."""
    assert S.TERMINATING not in CAPACITY_TRANSITIONS[S.HEALTHY]
    well = RunnerFacts(
        state=RunnerState.ONLINE, admission=Admission.VERIFIED, last_seen_at=NOW, leases=1
    )
    there = {"machine": M.RUNNING, "missing_since": None, "sightings": 0, "runner": well}
    facts = replace(facts, **there, calls=1, has_ref=True, operation=Op.SUCCEEDED)
    assert judge(replace(facts, state=S.HEALTHY), PACE, now=NOW).to is None
    draining = judge(replace(facts, state=S.DRAINING, due_at=NOW + 1), PACE, now=NOW)
    assert draining.to is None, "its job may end"
    assert draining.act is not Act.TERMINATE
    idle = replace(facts, state=S.DRAINING, runner=replace(well, leases=0))
    assert judge(idle, PACE, now=NOW).to is S.TERMINATING


@given(FACTS)
@settings(max_examples=1_000)
@pytest.mark.requirement("TST-015")
def test_nothing_is_asked_for_twice_while_the_first_answer_may_still_come(facts: Facts) -> None:
    unknown = replace(facts, state=S.PROVISIONING, operation=Op.UNKNOWN, calls=facts.calls or 1)
    verdict = judge(unknown, PACE, now=NOW)
    if verdict.act is Act.PROVISION:
        assert unknown.sightings >= 2
        assert unknown.missing_since is not None
        assert unknown.looked_at - unknown.missing_since >= PACE.visibility


@given(FACTS)
@settings(max_examples=1_000)
def test_nothing_that_its_provider_may_have_counts_as_gone(facts: Facts) -> None:
    if judge(facts, PACE, now=NOW).to is not S.TERMINATED or facts.state is S.REQUESTED:
        return
    since = facts.missing_since
    never_asked = facts.calls == 0 and not facts.has_ref
    refused = facts.operation is Op.FAILED and facts.sightings > 0
    silent = (
        since is not None and facts.sightings >= 2 and facts.looked_at - since >= PACE.visibility
    )
    assert never_asked or refused or silent or facts.machine is M.GONE


@given(FACTS, st.sampled_from(("fleet", "provider")))
@settings(max_examples=1_000)
def test_frozen_nothing_is_made_or_ended(facts: Facts, what: str) -> None:
    frozen = (
        replace(facts, fleet_state=FleetState.FROZEN)
        if what == "fleet"
        else replace(facts, provider_frozen=True)
    )
    assert judge(frozen, PACE, now=NOW).act not in (Act.PROVISION, Act.TERMINATE)


class Driven:
    """A machine that is judged and asked about until it comes to rest, on a provider that works."""

    def __init__(self, facts: Facts, *, exists: bool, lost: int) -> None:
        self.facts = facts
        self.exists = exists
        self.lost = lost
        """Makings that still come to nothing, and nobody hears why."""
        self.now = NOW

    def run(self, until_ms: int) -> None:
        while self.facts.state is not S.TERMINATED and self.now < NOW + until_ms:
            verdict = judge(self.facts, PACE, now=self.now)
            if verdict.to is not None:
                self._move(verdict)
            elif verdict.act is not None:
                getattr(self, verdict.act.value)()
                self.now += 1
            else:
                self.now += max(1, verdict.wait)

    def _move(self, verdict: Verdict) -> None:
        ending = verdict.to is S.TERMINATING
        due = None if verdict.due_in is None else self.now + verdict.due_in
        self._know(state=verdict.to, due_at=due, **({"asked_at": 0} if ending else {}))

    def provision(self) -> None:
        self._know(calls=self.facts.calls + 1, operation=Op.UNKNOWN, asked_at=self.now)
        self._know(missing_since=None, sightings=0)
        if self.lost:
            self.lost -= 1
        else:
            self.exists = True
            self._know(operation=Op.SUCCEEDED, machine=M.PENDING, has_ref=True)

    def look(self) -> None:
        self._know(looked_at=self.now)
        if self.exists:
            self._know(machine=M.RUNNING, sightings=0, missing_since=None, has_ref=True)
            return
        since = self.facts.missing_since or self.now
        self._know(sightings=self.facts.sightings + 1, missing_since=since)

    def terminate(self) -> None:
        self._know(asked_at=self.now)
        self.exists = False

    def _know(self, **changed: object) -> None:
        self.facts = replace(self.facts, **changed)


@given(FACTS, st.booleans(), st.integers(0, 3))
@settings(max_examples=500)
def test_every_machine_that_never_works_ends_in_bounded_time(
    facts: Facts, exists: bool, lost: int
) -> None:
    """Also one of which its provider never says a word, and one that nobody enrols on."""
    started = facts.state in (S.REQUESTED, S.FAILED, S.TERMINATING, S.TERMINATED)
    facts = replace(
        facts,
        fleet_state=FleetState.ACTIVE,
        provider_frozen=False,
        runner=None,
        redeemed=False,
        next_at=0,
        due_at=None if started else facts.due_at or NOW + 20 * MINUTE,
        machine=M.GONE if facts.state is S.HEALTHY else facts.machine,
    )
    if facts.state is S.REQUESTED:
        facts = Facts(state=S.REQUESTED)
    asked = facts.calls > 0 or facts.has_ref
    seen = facts.machine is not M.GONE and facts.missing_since is None
    seen = seen and facts.state is not S.TERMINATED
    seen = seen and facts.operation in (Op.UNKNOWN, Op.SUCCEEDED)
    driven = Driven(facts, exists=exists and asked and seen, lost=lost)
    driven.run(KEPT_MS)
    assert driven.facts.state is S.TERMINATED
    assert not driven.exists or facts.machine is M.GONE
