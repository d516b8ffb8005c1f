"""One listing tells of every machine that comes or goes, and proves the end of none."""

import pytest
import sqlalchemy as sa

from forgeyard.fleet.ports import TAG_INSTALLATION, TAG_INSTANCE, Listing, Machine
from forgeyard.model.capacity import CapacityInstanceState, MachineState
from forgeyard.store import fleet_tables, machines, sightings
from forgeyard.store.engine import database_now
from forgeyard.store.sightings import IN_MOTION_MS, Seen
from tests.integration.store.grounds import a_fleet_of, a_machine
from tests.leasing import Desk

pytestmark = pytest.mark.integration
INSTANCES = fleet_tables.capacity_instances
S, M = CapacityInstanceState, MachineState
REF, AT, LATER = "i-1", 1_000_000, 2**52
USUAL, SOON = 30_000, 10_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    desk = Desk(engine)
    a_fleet_of(desk, "")
    return desk


def a_row(desk: Desk, state: CapacityInstanceState, **changed: object) -> str:
    """Want a machine that its provider has, and whose workflow sleeps for long."""
    usual = {"calls": 1, "provider_ref": REF, "machine": "pending", "tended_until": LATER}
    return a_machine(desk, state=state.value, **{**usual, **changed})


def listed(desk: Desk, made: str, *states: MachineState, complete: bool = True) -> Seen:
    tags = {TAG_INSTALLATION: "here", TAG_INSTANCE: made}
    found = tuple(Machine(ref=REF, state=state, tags=tags, detail="so it is") for state in states)
    listing = Listing(machines=found, complete=complete)
    return desk.change(sightings.observe, "local", "here", listing, now=AT)


def is_told(desk: Desk, made: str) -> bool:
    """Tell whether the next look at the fleet has the machine looked after."""

    def claimed(connection: sa.Connection) -> list[tuple[str, str]]:
        fleet_id = desk.row(INSTANCES, made)["fleet_id"]
        now = database_now(connection)
        return machines.claim_untended(connection, fleet_id, silence=1_000, now=now)

    return [instance_id for instance_id, _ in desk.change(claimed)] == [made]


def test_a_machine_that_is_seen_running_is_looked_after_at_once(desk: Desk) -> None:
    made = a_row(desk, S.PROVISIONING)
    assert listed(desk, made, M.PENDING).news == 0
    assert not is_told(desk, made)
    assert listed(desk, made, M.RUNNING).news == 1
    row = desk.row(INSTANCES, made)
    assert (row["machine"], row["running_at"], row["looked_at"]) == (M.RUNNING, AT, AT)
    assert is_told(desk, made)


@pytest.mark.parametrize("state", [S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING])
def test_a_machine_that_ended_on_its_way_is_looked_after_at_once(
    desk: Desk, state: CapacityInstanceState
) -> None:
    made = a_row(desk, state)
    assert listed(desk, made, M.STOPPED).news == 1
    row = desk.row(INSTANCES, made)
    assert (row["machine"], row["detail"]) == (M.STOPPED, "so it is")
    assert is_told(desk, made)


@pytest.mark.parametrize("states", [(M.GONE,), ()])
def test_an_end_that_a_listing_shows_is_looked_at_before_it_is_believed(
    desk: Desk, states: tuple[MachineState, ...]
) -> None:
    made = a_row(desk, S.TERMINATING, machine="stopping")
    assert listed(desk, made, M.STOPPING).news == 0
    assert listed(desk, made, *states).news == 1
    row = desk.row(INSTANCES, made)
    assert (row["machine"], row["missing_since"], row["sightings"]) == (M.STOPPING, AT, 0)
    assert is_told(desk, made)
    assert listed(desk, made, *states).news == 0, "said once"


@pytest.mark.parametrize("state", [S.PROVISIONING, S.BOOTSTRAPPING, S.TERMINATING])
def test_a_page_that_was_not_read_tells_nothing(desk: Desk, state: CapacityInstanceState) -> None:
    made = a_row(desk, state)
    assert listed(desk, made, complete=False).news == 0
    assert not is_told(desk, made)


def test_a_listing_from_before_a_machine_was_given_up_changes_nothing(desk: Desk) -> None:
    """Its row is another's by the time that it is written down."""
    made = a_row(desk, S.PROVISIONING)
    before = desk.row(INSTANCES, made)
    desk.overwrite(INSTANCES, made, provider_ref="i-2")
    one = Machine(ref=REF, state=M.RUNNING)
    told = desk.change(sightings._tell, [before], {REF: one}, now=AT)
    assert told == 0
    assert desk.row(INSTANCES, made)["machine"] == M.PENDING


def period(desk: Desk, now: int) -> int:
    return desk.change(sightings.period, "local", usual=USUAL, soon=SOON, now=now)


def test_a_provider_is_looked_at_more_often_while_machines_of_it_come_or_go(desk: Desk) -> None:
    made = a_row(desk, S.HEALTHY, asked_at=AT)
    assert period(desk, AT + 1) == USUAL
    for state, since in ((S.PROVISIONING, "asked_at"), (S.TERMINATING, "ending_at")):
        desk.overwrite(INSTANCES, made, state=state.value, **{since: AT})
        assert period(desk, AT + 1) == SOON
        assert period(desk, AT + IN_MOTION_MS) == USUAL, "one that never comes or goes"
    assert desk.change(sightings.period, "other", usual=USUAL, soon=SOON, now=AT) == USUAL


def test_a_look_is_due_once_a_period_whoever_has_looked(desk: Desk) -> None:
    def due(now: int) -> bool:
        return desk.change(sightings.is_due, "local", every=USUAL, now=now)

    assert due(AT)
    assert desk.change(sightings.take_turn, "local", every=USUAL, now=AT)
    assert not due(AT + USUAL - 1)
    assert due(AT + USUAL)
