"""What goes wrong around a machine or below everything, each as a story in virtual time."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements, TrustClass
from forgeyard.model.fleet import Market, ScaleDown, Scaling
from forgeyard.model.job import AUTOMATIC_RETRY, FailureClass
from forgeyard.store import fleets, tables
from forgeyard.store.engine import read
from tests.builders import a_job_spec, submit_run
from tests.fleet.fake import NEVER
from tests.simulation.database import Database, Mishap
from tests.simulation.fleet.people import INTENT
from tests.simulation.fleet.scene import Scene, a_spec
from tests.simulation.fleet.story import SCALING, alone

pytestmark = pytest.mark.integration
KEPT_LONG = ScaleDown(idle_grace=3_600_000, window=60_000, at_once=5, drain_within=600_000)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with alone(1):
        yield


def keeping(count: int, **changed: object) -> Scaling:
    """Keep so many machines."""
    return replace(SCALING, min=count, down=KEPT_LONG, **changed)


@pytest.mark.requirement("TST-037")
def test_a_machine_that_is_stuck_on_its_way_is_given_up_and_followed_by_another(
    database: Database,
) -> None:
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.fake.knobs.start_ms = NEVER
    scene.run_until(lambda: scene.cloud.made)
    scene.fake.knobs.start_ms = 10_000
    took = scene.run_until(lambda: scene.states()[0] == "terminated")
    assert took > 4, "it has the time that its fleet gives it"
    scene.run_until(scene.healthy)
    assert scene.rows()[0]["failure"] == "it was not running in time"
    assert len(scene.cloud.left()) == 1


@pytest.mark.requirement("INV-065", "TST-036")
def test_while_a_provider_is_out_jobs_wait_though_a_machine_that_they_must_not_have_is_idle(
    database: Database,
) -> None:
    weak = a_spec("alpha", scaling=keeping(1))
    weak = replace(
        weak,
        provider="one",
        capacity=replace(weak.capacity, trust=TrustClass.UNTRUSTED_GENERAL),
    )
    scene = Scene(database, a_spec(), weak)
    scene.run_until(scene.healthy)
    scene.fake.knobs.calls = "down"
    trusted = Requirements(trust=TrustClass.TRUSTED_INTERNAL)
    jobs = [a_job_spec(f"job-{place}", requires=trusted) for place in range(2)]
    scene.world.change(submit_run, *jobs)
    scene.run(4)
    assert scene.jobs() == ["eligible"] * 2
    assert scene.attempts() == 0
    scene.fake.knobs.calls = ""
    scene.run_until(lambda: scene.jobs() == ["succeeded"] * 2, within=30)
    with read(scene.world.engine) as connection:
        (used,) = connection.execute(sa.select(tables.leases.c.runner_id).distinct()).scalars()
    (one,) = [row for row in scene.rows() if row["runner_id"] == used]
    assert one["provider"] == "two"


@pytest.mark.requirement("TST-014", "GAT-018", "PHA-020")
def test_what_a_spot_machine_takes_along_is_no_fault_of_the_job_and_runs_again(
    database: Database,
) -> None:
    scene = Scene(database)
    scene.submit()
    scene.run_until(lambda: scene.jobs() == ["preparing"])
    (row,) = scene.rows()
    assert scene.cloud.made[row["provider_ref"]].request.offering.market is Market.PREEMPTIBLE
    scene.fake.kill(row["provider_ref"])
    scene.run_until(lambda: scene.jobs() == ["succeeded"])
    attempts = tables.attempts
    query = sa.select(attempts.c.state, attempts.c.failure_class).order_by(attempts.c.number)
    with read(scene.world.engine) as connection:
        ended = [tuple(one) for one in connection.execute(query)]
    assert ended == [("lost", FailureClass.RUNNER_LOST.value), ("succeeded", None)]
    assert FailureClass.RUNNER_LOST in AUTOMATIC_RETRY


@pytest.mark.requirement("TST-032")
@pytest.mark.parametrize("mishap", Mishap)
def test_a_database_that_fails_again_and_again_while_a_machine_ends_costs_no_second_one(
    database: Database, mishap: Mishap
) -> None:
    """Two of five transactions fail, from the decision to the last word of the provider."""
    scene = Scene(database, a_spec(scaling=keeping(3, max=3)))
    scene.run_until(lambda: scene.healthy(3))
    drawn, rng = Counter[bool](), Random(1)

    def draw() -> Mishap | None:
        fails = rng.random() < 0.4
        drawn[fails] += 1
        return mishap if fails else None

    scene.world.change(fleets.scale, "beta", 2, INTENT, for_ms=3_600_000, rng=scene.world.ids)
    database.turn.draw = draw
    scene.run_until(lambda: "terminated" in scene.states())
    scene.run(5)
    assert drawn[True] > 20
    assert sorted(scene.states()) == ["healthy", "healthy", "terminated"]
    assert len(scene.cloud.made) == 3
    assert len(scene.cloud.left()) == 2
