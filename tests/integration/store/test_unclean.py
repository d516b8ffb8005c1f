"""Machines that cannot be cleaned after a job: shut at once, kept for a look, replaced."""

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.fleet.lifecycle import Pace
from forgeyard.model.fleet import Scaling
from forgeyard.model.job import CacheSpec
from forgeyard.model.protocol import Outcome
from forgeyard.model.runner import RunnerHealth
from forgeyard.store import blobs, caches, changes, fleet_tables, fleets, machine_life, tables
from forgeyard.store.changes import LEASE
from forgeyard.store.engine import read
from tests.builders import PARTITION, RNG, a_job_spec
from tests.integration.store.grounds import a_fleet_of, digest_of, healthy
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
INSTANCES = fleet_tables.capacity_instances
WHY = "quarantined: the workspace of job 'build' cannot be removed"
JOB = a_job_spec(caches=(CacheSpec(name="pip", path=".c", key=("a.lock",)),))


def unclean(desk: Desk, session_id: str, *held: str) -> None:
    desk.heartbeat(
        session_id, health=RunnerHealth.UNHEALTHY, health_reason=WHY, unclean=True, held=held
    )


def tick(desk: Desk) -> contracts.FleetTick:
    with read(desk.engine) as connection:
        fleet_id = fleets.find(connection, "builders")["fleet_id"]
    fleet = contracts.Fleet(fleet_id=fleet_id, partition=PARTITION)
    return FleetActivities(desk.engine, POLICY, {}, Rhythm(), rng=RNG).tick_fleet(fleet)


def state_after_a_step(desk: Desk, instance_id: str) -> str:
    desk.change(machine_life.advance, instance_id, Pace(), POLICY.lease)
    return str(desk.row(INSTANCES, instance_id)["state"])


@pytest.mark.case("FLT-101")
@pytest.mark.requirement("FOP-006", "FOP-012", "FOP-013")
def test_a_machine_that_cannot_be_cleaned_is_kept_apart_and_another_one_comes(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    a_fleet_of(desk, "", scaling=Scaling(min=1, max=3))
    made, session_id = healthy(desk)
    desk.submit(JOB, a_job_spec("other"))
    while desk.cycle().granted:
        pass
    of_job = {desk.row(tables.jobs, it.job_id)["name"]: it for it in desk.leases(state="offered")}
    ended, running = of_job["build"], of_job["other"]
    for lease in (ended, running):
        desk.accept(lease)
    row = desk.change(changes.find, LEASE, ended.lease_id)
    key = digest_of("cache")
    desk.change(blobs.record, key, 3)
    desk.change(caches.record, row, "pip", key, key, 3)
    desk.complete(ended, Outcome.CANCELLED)

    unclean(desk, session_id, running.lease_id)
    assert state_after_a_step(desk, made) == "healthy", "what it still runs may end"
    desk.submit(a_job_spec("next"))
    assert desk.cycle().granted == 0, "nothing new comes to it"
    assert desk.change(caches.find, row, "pip", key) is None, "nothing of it is used again"

    desk.complete(running, Outcome.SUCCEEDED)
    unclean(desk, session_id)
    tick(desk)
    assert state_after_a_step(desk, made) == "quarantined"
    assert desk.rows(tables.runners)[0]["admission_reason"] == WHY
    assert len(desk.audited("instance.unclean")) == 1
    tick(desk)
    assert [row["state"] for row in desk.rows(INSTANCES)] == ["quarantined", "requested"]
    desk.heartbeat(session_id)
    assert desk.cycle().granted == 0, "that its agent says it is well changes nothing"


def test_a_runner_that_people_look_after_is_not_shut(engine: sa.Engine) -> None:
    desk = Desk(engine)
    session_id = desk.register().session_id
    unclean(desk, session_id)
    (runner,) = desk.rows(tables.runners)
    assert (runner["admission"], runner["state"]) == ("verified", "unhealthy")
    desk.heartbeat(session_id)
    assert desk.rows(tables.runners)[0]["state"] == "online"
