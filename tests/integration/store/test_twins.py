"""Two machines that one wish has made: whoever may be the runner stays, the other one ends."""

import pytest
import sqlalchemy as sa

from forgeyard.fleet.ports import TAG_INSTALLATION, TAG_INSTANCE, TAG_OPERATION, Listing, Machine
from forgeyard.model.capacity import CapacityInstanceState, MachineState
from forgeyard.store import fleet_tables, machines, sightings
from forgeyard.store.sightings import ORPHAN_GRACE_MS, Seen
from tests.integration.store.grounds import a_fleet_of, a_machine
from tests.leasing import Desk

pytestmark = pytest.mark.integration
INSTANCES, SIGHTINGS = fleet_tables.capacity_instances, fleet_tables.provider_sightings
RUNNING, GONE = MachineState.RUNNING, MachineState.GONE
FIRST, SECOND = "i-1", "i-2"


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def a_row(desk: Desk, state: CapacityInstanceState, *, enrolled: bool) -> str:
    """Want a machine that its provider made twice; its row knows the one that was found first."""
    a_fleet_of(desk, "")
    made = a_machine(desk, state=state.value, calls=2, provider_ref=FIRST, running_at=1)
    if enrolled:
        runner = desk.register(desk.row(INSTANCES, made)["runner_name"])
        desk.overwrite(INSTANCES, made, runner_id=runner.runner_id)
    return made


def look(desk: Desk, made: str, *listed: tuple[str, MachineState], complete: bool = True) -> Seen:
    """Look twice with the grace of an orphan between, and list the machines of a row."""
    row = desk.row(INSTANCES, made)
    tags = {TAG_INSTALLATION: "here", TAG_INSTANCE: made}
    tags |= {TAG_OPERATION: machines.operation_key(row)}
    found = tuple(Machine(ref=ref, state=state, tags=tags) for ref, state in listed)
    listing = Listing(machines=found, complete=complete)
    for now in (1, 1 + ORPHAN_GRACE_MS):
        seen = desk.change(sightings.observe, "local", "here", listing, now=now)
    return seen


def ended(seen: Seen) -> list[str]:
    return [one.ref for one in seen.orphans]


def ref_of(desk: Desk, made: str) -> str:
    return str(desk.row(INSTANCES, made)["provider_ref"])


BOTH = ((FIRST, RUNNING), (SECOND, RUNNING))
in_any_order = pytest.mark.parametrize("listed", [BOTH, BOTH[::-1]])


@in_any_order
def test_nobody_has_enrolled_so_the_machine_that_its_row_does_not_know_ends(
    desk: Desk, listed: tuple[tuple[str, MachineState], ...]
) -> None:
    made = a_row(desk, CapacityInstanceState.BOOTSTRAPPING, enrolled=False)
    assert ended(look(desk, made, *listed)) == [SECOND]
    assert ref_of(desk, made) == FIRST


@in_any_order
def test_neither_ends_while_either_may_be_the_runner(
    desk: Desk, listed: tuple[tuple[str, MachineState], ...]
) -> None:
    """The token was on both; nothing says which of them has used it."""
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    assert ended(look(desk, made, *listed)) == []
    (sighting,) = desk.rows(SIGHTINGS)
    assert (sighting["ref"], sighting["verdict"]) == (SECOND, "twin")


@pytest.mark.parametrize("listed", [((SECOND, RUNNING),), ((FIRST, GONE), (SECOND, RUNNING))])
def test_the_runner_is_on_the_one_that_is_left(
    desk: Desk, listed: tuple[tuple[str, MachineState], ...]
) -> None:
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    assert ended(look(desk, made, *listed)) == []
    row = desk.row(INSTANCES, made)
    assert (row["provider_ref"], row["machine"], row["missing_since"]) == (SECOND, RUNNING, None)
    assert row["state"] == CapacityInstanceState.HEALTHY


def test_a_listing_that_is_not_complete_proves_nothing_of_the_first(desk: Desk) -> None:
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    look(desk, made, (SECOND, RUNNING), complete=False)
    assert ref_of(desk, made) == FIRST


def test_a_stranger_with_the_tags_of_a_row_is_never_taken_for_its_machine(desk: Desk) -> None:
    """Anybody who may tag machines can write the name of a row on one; the key was ours."""
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    tags = {TAG_INSTALLATION: "here", TAG_INSTANCE: made, TAG_OPERATION: "guessed"}
    one = Machine(ref=SECOND, state=RUNNING, tags=tags)
    desk.change(sightings.observe, "local", "here", Listing(machines=(one,), complete=True), now=1)
    assert ref_of(desk, made) == FIRST
    assert [row["verdict"] for row in desk.rows(SIGHTINGS)] == ["foreign"]


def test_a_machine_of_an_earlier_wish_has_another_token_and_ends(desk: Desk) -> None:
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    before = machines.operation_key(desk.row(INSTANCES, made))
    desk.overwrite(INSTANCES, made, generation=2)
    tags = {TAG_INSTALLATION: "here", TAG_INSTANCE: made, TAG_OPERATION: before}
    listing = Listing(machines=(Machine(ref=SECOND, state=RUNNING, tags=tags),), complete=True)
    for now in (1, 1 + ORPHAN_GRACE_MS):
        seen = desk.change(sightings.observe, "local", "here", listing, now=now)
    assert ended(seen) == [SECOND]
    assert ref_of(desk, made) == FIRST


def test_what_is_left_of_both_ends_with_the_row(desk: Desk) -> None:
    made = a_row(desk, CapacityInstanceState.HEALTHY, enrolled=True)
    look(desk, made, *BOTH)
    desk.overwrite(INSTANCES, made, state="terminated", ended_at=1 + ORPHAN_GRACE_MS)
    assert ended(look(desk, made, (SECOND, RUNNING))) == [SECOND]
