"""Rollouts of images in the store: begun, moved on by what machines show, paused, taken back."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from activities import rollout_contracts
from activities.rollouts import RolloutActivities
from forgeyard.errors import Conflict, NotFound
from forgeyard.fleet.lifecycle import Pace
from forgeyard.fleet.view import Stage
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import Rollout
from forgeyard.model.image import ImageSeverity, RolloutState
from forgeyard.model.protocol import Outcome
from forgeyard.store import (
    fleet_reading,
    fleet_tables,
    fleet_wishes,
    fleets,
    images,
    machine_life,
    rollouts,
    runners,
)
from forgeyard.store.engine import database_now, read
from forgeyard.store.entrance import Entry
from forgeyard.store.rollouts import RolloutRecord
from tests.builders import (
    PARTITION,
    RNG,
    a_fleet_spec,
    a_job_spec,
    a_registration,
    some_capabilities,
)
from tests.integration.store.grounds import (
    ANN,
    NEW,
    OLD,
    a_fleet_of,
    a_machine,
    an_image,
    digest_of,
    healthy,
)
from tests.leasing import POLICY, Desk
from tests.trusting import enrolled

pytestmark = pytest.mark.integration
INSTANCES = fleet_tables.capacity_instances
S = RolloutState
GONE = {"state": "terminated", "ended_at": 5, "may_exist": 0}


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    """Begin with a fleet of two machines of the old image."""
    desk = Desk(engine)
    an_image(desk, OLD)
    an_image(desk, NEW)
    a_fleet_of(desk, OLD, rollout=Rollout(canaries=1, failures=2))
    healthy(desk)
    healthy(desk)
    return desk


def start(desk: Desk, image: str = NEW) -> RolloutRecord:
    return desk.change(rollouts.start, "builders", image, ANN, rng=RNG)


def advance(desk: Desk, found: RolloutRecord) -> RolloutState:
    return desk.change(rollouts.advance, found.rollout_id).record.state


def back(desk: Desk) -> RolloutRecord:
    return desk.change(rollouts.roll_back, "builders", ANN, rng=RNG)


def image_of_fleet(desk: Desk) -> tuple[str, int]:
    with read(desk.engine) as connection:
        found = fleets.view(fleets.find(connection, "builders"))
    return found.spec.capacity.image, found.version


def canary_with_a_job(desk: Desk) -> None:
    healthy(desk, image=NEW)
    desk.submit(*(a_job_spec(f"job-{place}") for place in range(12)))
    while desk.cycle().granted:
        pass
    for lease in desk.leases(state="offered"):
        desk.accept(lease)
        desk.complete(lease, Outcome.SUCCEEDED)


@pytest.mark.requirement("IMG-007", "IMG-009", "IMG-016")
@pytest.mark.requirement("INV-058", "PRI-064")
@pytest.mark.requirement("ALR-011")
def test_an_image_comes_by_a_canary_and_is_the_fleets_own_once_nothing_has_another(
    desk: Desk,
) -> None:
    found = start(desk)
    assert (found.state, found.before) == (S.CANARY, OLD)
    assert advance(desk, found) is S.CANARY
    canary_with_a_job(desk)
    assert advance(desk, found) is S.REPLACING
    assert image_of_fleet(desk) == (OLD, 1)
    old = [row["instance_id"] for row in desk.rows(INSTANCES, image=OLD)]
    desk.overwrite(INSTANCES, old[0], **GONE)
    assert advance(desk, found) is S.REPLACING
    desk.change(fleet_wishes.pin, old[1], ANN, for_ms=60_000)
    assert advance(desk, found) is S.DONE, "a pinned machine is waited for by nobody"
    assert image_of_fleet(desk) == (NEW, 2)
    assert advance(desk, found) is S.DONE
    assert image_of_fleet(desk) == (NEW, 2), "whoever asks twice changes nothing"
    with read(desk.engine) as connection:
        shown = rollouts.status(connection, "builders")
    assert {one.image: one.states for one in shown.machines} == {
        OLD: {"healthy": 1},
        NEW: {"healthy": 1},
    }
    (began,), (done,) = (desk.audited(f"rollout.{what}") for what in ("start", "done"))
    assert began["actor"] == ANN.actor
    assert began["detail"] == f"builders: from {OLD} to {NEW}: {ANN.reason}"
    (fleet,) = desk.rows(fleet_tables.fleets)
    assert began["target"] == done["target"] == fleet["fleet_id"]


def test_the_planner_reads_how_far_it_is(desk: Desk) -> None:
    found = start(desk)
    desk.change(rollouts.pause, "builders", ANN)
    with read(desk.engine) as connection:
        (view,) = fleet_reading.read(connection, PARTITION, POLICY).fleets
        assert rollouts.stage(connection, view.fleet_id) == view.rollout
    assert view.rollout == Stage(
        rollout_id=found.rollout_id, image=NEW, state=S.CANARY, is_paused=True
    )
    canary_with_a_job(desk)
    assert advance(desk, found) is S.CANARY
    desk.change(rollouts.resume, "builders", ANN)
    assert advance(desk, found) is S.REPLACING


def test_whoever_pauses_a_rollout_that_could_go_on_stops_it_where_it_is(desk: Desk) -> None:
    found = start(desk)
    canary_with_a_job(desk)
    rollout = rollout_contracts.Rollout(
        rollout_id=found.rollout_id, fleet_id="builders", fleet="builders", image=NEW
    )
    acting = RolloutActivities(desk.engine, rng=RNG)

    def told(action: str) -> rollout_contracts.RolloutStep:
        command = rollout_contracts.RolloutCommand(action=action, reason="a look")
        order = rollout_contracts.RolloutOrder(rollout=rollout, command=command)
        return acting.command_rollout(order)

    assert (told("pause").state, told("pause").line) == ("canary", "a look")
    assert told("resume").state == "replacing"
    assert (told("rollback").state, told("rollback").ended) == ("rolled_back", True)
    (line,) = desk.audited("rollout.pause")
    assert line["channel"] == "temporal"


@pytest.mark.requirement("IMG-017")
def test_canaries_that_go_wrong_take_the_image_back_by_themselves(desk: Desk) -> None:
    found = start(desk)
    wrong = {"failure": "it did not enrol in time", "state": "failed", "running_at": 1}
    a_machine(desk, image=NEW, **wrong)
    a_machine(desk, image=NEW, failure="no capacity", state="failed")
    assert advance(desk, found) is S.CANARY, "that it could not be had says nothing of an image"
    a_machine(desk, image=NEW, **wrong)
    assert advance(desk, found) is S.ROLLED_BACK
    assert image_of_fleet(desk) == (OLD, 1)
    (line,) = desk.audited("rollout.rolled_back")
    assert "2 machines of it went wrong, the last one: it did not enrol in time" in line["detail"]
    assert start(desk).state is S.CANARY, "it may be tried again"


@pytest.mark.requirement("IMG-021", "IMG-022")
def test_the_version_of_an_agent_is_that_of_its_image_and_an_old_one_takes_the_image_back(
    desk: Desk,
) -> None:
    """A host that people look after has its agent updated apart, and any time."""
    found = start(desk)
    for _ in range(2):
        made = a_machine(desk, image=NEW, state="enrolling", running_at=1, calls=1)
        name = desk.row(INSTANCES, made)["runner_name"]
        assert registered(desk, name, "1.9") is Admission.REJECTED
        desk.change(machine_life.advance, made, Pace(), POLICY.lease)
        assert desk.row(INSTANCES, made)["state"] in ("quarantined", "failed")
    assert advance(desk, found) is S.ROLLED_BACK
    assert image_of_fleet(desk) == (OLD, 1)
    assert registered(desk, "by-hand", "1.9") is Admission.REJECTED
    assert registered(desk, "by-hand", "2.1") is Admission.PENDING


def registered(desk: Desk, name: str, version: str) -> Admission:
    """Let a machine enrol, if it has not, and register with an agent of some version."""

    def register(connection: sa.Connection) -> Admission:
        issued = enrolled(connection, name)
        message = replace(
            a_registration(name, capabilities=some_capabilities(agent_version=version)),
            clock_ms=database_now(connection),
        )
        entry = Entry(runner_id=issued.runner_id, agent_versions=">=2")
        return runners.register(
            connection, message, policy=POLICY.lease, rng=RNG, entry=entry
        ).admission

    return desk.change(register)


@pytest.mark.requirement("IMG-017")
def test_an_operator_takes_an_image_back_before_and_after_it_is_the_fleets_own(
    desk: Desk,
) -> None:
    with pytest.raises(NotFound, match="nothing was rolled out"):
        back(desk)
    start(desk)
    assert back(desk).state is S.ROLLED_BACK
    found = start(desk)
    canary_with_a_job(desk)
    advance(desk, found)
    for row in desk.rows(INSTANCES, image=OLD):
        desk.overwrite(INSTANCES, row["instance_id"], **GONE)
    assert advance(desk, found) is S.DONE
    again = back(desk)
    assert (again.state, again.image, again.before) == (S.REPLACING, OLD, NEW)
    desk.change(images.compromise, NEW, ImageSeverity.MODERATE, ANN)
    for row in desk.rows(INSTANCES, image=NEW):
        desk.overwrite(INSTANCES, row["instance_id"], **GONE)
    assert advance(desk, again) is S.DONE
    with pytest.raises(Conflict, match="is compromised"):
        back(desk)


@pytest.mark.requirement("IMG-018")
def test_an_image_that_is_struck_out_on_its_way_is_taken_back_even_while_paused(
    desk: Desk,
) -> None:
    found = start(desk)
    desk.change(rollouts.pause, "builders", ANN)
    desk.change(images.compromise, NEW, ImageSeverity.CRITICAL, ANN)
    assert advance(desk, found) is S.ROLLED_BACK


def test_one_at_a_time_and_only_what_the_fleet_may_have(desk: Desk) -> None:
    with pytest.raises(Conflict, match="has this image"):
        start(desk, OLD)
    with pytest.raises(NotFound):
        start(desk, digest_of("unknown"))
    start(desk)
    with pytest.raises(Conflict, match="is being rolled out"):
        start(desk)
    other = an_image(desk, digest_of("other"))
    with pytest.raises(Conflict, match="is being rolled out"):
        a_fleet_of(desk, other, rollout=Rollout(canaries=1, failures=2))
    desk.change(fleets.delete, "builders", ANN)
    with read(desk.engine) as connection:
        found = rollouts.status(connection, "builders")
    assert advance(desk, found) is S.ROLLED_BACK
    with pytest.raises(Conflict, match="is deleting"):
        start(desk)


def test_the_workflow_of_a_rollout_is_missed_when_nobody_has_looked(desk: Desk) -> None:
    found = start(desk)

    def missed(before: int) -> object:
        with read(desk.engine) as connection:
            fleet_id = fleets.find(connection, "builders")["fleet_id"]
            return rollouts.untended(connection, fleet_id, before=before)

    assert missed(1) == (found.rollout_id, NEW)
    advance(desk, found)
    assert missed(1) is None
    assert missed(2**50) == (found.rollout_id, NEW)
    back(desk)
    assert missed(2**50) is None


def test_a_fleet_without_images_has_no_rollout(desk: Desk) -> None:
    desk.change(fleets.apply, a_fleet_spec("bare"), ANN, expected_version=None, rng=RNG)
    with read(desk.engine) as connection, pytest.raises(NotFound, match="was rolled out"):
        rollouts.status(connection, "bare")
