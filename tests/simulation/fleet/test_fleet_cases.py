"""Public bug reports about fleets of machines, each as a story in virtual time."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from activities import contracts
from forgeyard.errors import NotFound
from forgeyard.fleet.ports import TAG_INSTALLATION, TAG_INSTANCE, TAG_OPERATION
from forgeyard.model.fleet import ScaleDown, Scaling
from forgeyard.store import (
    fleet_reading,
    fleet_symptoms,
    fleet_tables,
    fleet_wishes,
    fleets,
    machines,
    pools,
)
from forgeyard.store.engine import read, write
from forgeyard.store.pools import PoolRules
from tests.fleet.fake import NEVER
from tests.simulation.database import Database
from tests.simulation.fleet.agents import Sort
from tests.simulation.fleet.control import Control
from tests.simulation.fleet.people import INTENT
from tests.simulation.fleet.scene import Scene, a_spec
from tests.simulation.fleet.story import POLICY, SCALING, alone

pytestmark = pytest.mark.integration
KEPT_LONG = ScaleDown(idle_grace=3_600_000, window=60_000, at_once=5, drain_within=600_000)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with alone(1):
        yield


def keeping(count: int, **changed: object) -> Scaling:
    """Keep so many machines."""
    return replace(SCALING, min=count, down=KEPT_LONG, **changed)


@pytest.mark.case("FLT-001", "FLT-086")
@pytest.mark.requirement("TST-015", "TST-016")
def test_an_error_that_made_a_machine_makes_one(database: Database) -> None:
    scene = Scene(database)
    scene.fake.knobs.creates.append("raises")
    scene.submit()
    scene.run_until(lambda: scene.jobs() == ["succeeded"])
    assert len(scene.cloud.made) == 1
    assert scene.fake.calls["provision"] == 1
    assert len(scene.rows()) == 1


@pytest.mark.case("FLT-003")
@pytest.mark.requirement("FLM-024")
def test_a_key_whose_machine_has_ended_is_followed_by_another(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(1)))
    knobs = scene.fake.knobs
    knobs.dedupes, knobs.lag_ms = True, (NEVER, NEVER)
    knobs.creates.append("lost")
    scene.run_until(lambda: scene.cloud.made)
    (before,) = scene.rows()
    scene.fake.kill(next(iter(scene.cloud.made)))
    knobs.lag_ms = (0, 0)
    scene.run_until(scene.healthy)
    (row,) = scene.rows()
    assert row["generation"] == 2
    first, second = scene.cloud.made
    assert row["provider_ref"] == second != first
    assert row["instance_id"] == before["instance_id"], "ours, whatever its provider calls it"


@pytest.mark.case("FLT-004")
def test_another_offering_is_another_wish(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.fake.knobs.dedupes = True
    scene.fake.knobs.offerings.update(cheap="ice", spot="ice")
    scene.run_until(scene.healthy)
    (made,) = scene.cloud.made.values()
    assert made.request.offering.name == "dear"


@pytest.mark.case("FLT-029")
def test_another_document_does_not_stop_a_machine_that_is_on_its_way(database: Database) -> None:
    spec = a_spec(scaling=keeping(1))
    scene = Scene(database, spec)
    scene.world.change(pools.create, "quiet", PoolRules(), INTENT, rng=scene.world.ids)
    scene.fake.knobs.creates.append("down")
    scene.run_until(lambda: scene.fake.calls["provision"] == 1)
    changed = {"expected_version": None, "rng": scene.world.ids}
    scene.world.change(fleets.apply, replace(spec, pool="quiet"), INTENT, **changed)
    scene.run_until(scene.healthy)
    assert len(scene.rows()) == len(scene.cloud.made) == 1


@pytest.mark.case("FLT-005", "FLT-070", "FLT-091")
@pytest.mark.requirement("TST-016")
def test_two_workers_that_see_the_same_demand_make_one_machine(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=replace(SCALING, max=1)))
    turn, ticks = database.turn, []

    def meanwhile() -> None:
        turn.meanwhile = lambda: None
        ticks.append(scene.tick())

    scene.run(0.02)
    scene.submit(3)
    turn.meanwhile = meanwhile
    ticks.append(scene.tick())
    other = Control(scene.world, scene.story.clouds)
    (row,) = scene.rows()
    machine = contracts.Machine(instance_id=row["instance_id"])
    for control in (scene.story.control, other):
        control.machines.advance_instance(machine)
    scene.run_until(scene.healthy)
    assert len(ticks) == 2
    assert len(scene.rows()) == len(scene.cloud.made) == scene.fake.calls["provision"] == 1
    with read(scene.world.engine) as connection:
        breakers = fleet_tables.provider_breakers
        failures = connection.execute(sa.select(sa.func.sum(breakers.c.failures))).scalar_one()
    assert not failures


def test_a_bound_that_is_set_while_a_fleet_decides_holds(database: Database) -> None:
    scene = Scene(database)
    scene.run(0.02)
    scene.submit(8)

    def meanwhile() -> None:
        database.turn.meanwhile = lambda: None
        given = {"for_ms": 600_000, "rng": scene.world.ids}
        scene.world.change(fleets.scale, "beta", 1, INTENT, **given)

    database.turn.meanwhile = meanwhile
    assert scene.tick().launched == 1
    assert len(scene.rows()) == 1


def test_a_class_of_jobs_is_not_futile_because_others_were_quicker(database: Database) -> None:
    """Machines that found nothing, of a fleet that has served such jobs, say nothing of them."""
    scene = Scene(database, a_spec(scaling=replace(SCALING, min=0, down=KEPT_LONG)))
    scene.submit(8)
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"})
    first, *others = scene.rows()
    assert first["made_for"]
    assert len(others) == 3
    runners = fleet_tables.metadata.tables["runners"]
    leases = fleet_tables.metadata.tables["leases"]
    idle = [row["runner_id"] for row in others]
    with write(scene.world.engine) as connection:
        connection.execute(
            sa.update(runners).where(runners.c.runner_id.in_(idle)).values(freed_at=0)
        )
        connection.execute(
            sa.update(leases)
            .where(leases.c.runner_id.in_(idle))
            .values(runner_id=first["runner_id"])
        )
    with read(scene.world.engine) as connection:
        now = scene.world.now_ms
        (view,) = fleet_reading.views(connection, (), POLICY, now=now)
        assert view.futile == frozenset()


@pytest.mark.case("FLT-008", "FLT-035", "FLT-034", "FLT-105")
@pytest.mark.requirement("PRI-062")
def test_whatever_listings_say_what_is_known_counts(database: Database) -> None:
    """Tags are edited, pages are shuffled, listings are empty: nothing is made or ended."""
    scene = Scene(database, a_spec(scaling=keeping(3)))
    knobs = scene.fake.knobs
    knobs.page_size, knobs.shuffles = 2, True
    scene.run_until(lambda: scene.healthy(3))
    scene.run(3)
    knobs.is_empty = True
    scene.run(3)
    knobs.is_empty, knobs.shuffles = False, False
    for ref in scene.cloud.made:
        scene.fake.retag(ref, {})
    scene.run(3)
    assert scene.states() == ["healthy"] * 3
    assert scene.fake.calls["page"] >= 8
    assert len(scene.cloud.made) == 3
    assert not scene.fake.calls["terminate"]


@pytest.mark.case("FLT-013", "FLT-042", "FLT-051")
@pytest.mark.requirement("PRI-061", "PHA-017", "TST-013")
def test_an_end_that_was_accepted_is_asked_for_until_it_has_come(database: Database) -> None:
    """Nor is it asked for while a job runs that came after the decision to drain."""
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.run_until(scene.healthy)
    scene.submit()
    scene.run_until(lambda: scene.jobs() == ["preparing"])
    scene.world.change(fleets.delete, "beta", INTENT)
    scene.fake.knobs.stop_ms = NEVER
    scene.run_until(lambda: scene.states() == ["terminating"])
    assert scene.jobs() == ["succeeded"]
    scene.run(4)
    assert scene.states() == ["terminating"]
    assert 3 <= scene.fake.calls["terminate"] <= 6
    scene.fake.knobs.stop_ms = 5_000
    scene.run_until(lambda: scene.states() == ["terminated"])
    assert not scene.cloud.left()


@pytest.mark.case("FLT-014", "FLT-015", "FLT-019")
def test_a_fleet_that_is_deleted_amid_creates_leaves_nothing(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(3)))
    knobs = scene.fake.knobs
    knobs.creates.extend(["lost", "raises", "lost"])
    scene.run_until(lambda: len(scene.cloud.made) == 3)
    scene.world.change(fleets.delete, "beta", INTENT)
    knobs.calls = "down"
    scene.run(2.5)
    with read(scene.world.engine) as connection:
        assert fleets.find(connection, "beta")["state"] == "deleting"
    knobs.calls = ""
    scene.run_until(lambda: not scene.cloud.left())
    scene.run_until(lambda: set(scene.states()) == {"terminated"})
    scene.run(1)
    with read(scene.world.engine) as connection, pytest.raises(NotFound):
        fleets.find(connection, "beta")


@pytest.mark.case("FLT-016")
def test_whoever_finds_no_capacity_ends_nothing_that_others_have_made(database: Database) -> None:
    """No machine is ever started again; the one that somebody keeps was made by another wish."""
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.run_until(scene.healthy)
    (pinned,) = scene.rows()
    hour = {"for_ms": 3_600_000}
    scene.world.change(fleet_wishes.pin, pinned["instance_id"], INTENT, **hour)
    scene.fake.knobs.offerings.update(spot="ice", cheap="ice", dear="ice")
    scene.world.change(fleets.scale, "beta", 3, INTENT, **hour, rng=scene.world.ids)
    scene.run(6)
    first, *others = scene.rows()
    assert len(others) >= 2
    assert {row["state"] for row in others} == {"terminated"}
    assert {row["detail"].partition(":")[0] for row in others} == {"provider.out_of_capacity"}
    assert (first["state"], first["provider_ref"]) == ("healthy", *scene.cloud.left())


@pytest.mark.case("FLT-017")
def test_a_machine_that_was_stopped_is_on_record_until_its_provider_has_nothing_of_it(
    database: Database,
) -> None:
    """It is not started again; while it cannot be ended it counts, and the doctor names it."""
    scene = Scene(database, a_spec(scaling=keeping(1, max=1)))
    scene.run_until(scene.healthy)
    (made,) = scene.cloud.made.values()
    scene.fake.knobs.stop_ms = NEVER
    made.thing.stopping_at = scene.world.now_ms
    scene.run_until(lambda: scene.states() == ["terminating"])
    scene.run(10)
    (row,) = scene.rows()
    assert (row["state"], row["may_exist"], row["provider_ref"]) == (
        "terminating",
        1,
        made.thing.ref,
    )
    with read(scene.world.engine) as connection:
        (seen,) = fleet_symptoms.read_symptoms(connection, "beta")
    assert [one.runner_name for one in seen.overdue] == [row["runner_name"]]
    scene.fake.knobs.stop_ms = 5_000
    scene.run_until(lambda: scene.states()[:1] == ["terminated"])
    assert made.thing.ref not in scene.cloud.left()
    scene.run_until(scene.healthy)


@pytest.mark.case("FLT-018", "FLT-024", "FLT-028", "FLT-058", "FLT-100")
@pytest.mark.requirement("PRI-062", "INV-070")
def test_a_machine_that_died_by_itself_is_noticed_and_replaced(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(2, max=2)))
    scene.run_until(lambda: scene.healthy(2))
    first, second = list(scene.cloud.made)
    scene.fake.kill(first)
    scene.fake.kill(second)
    took = scene.run_until(lambda: scene.states()[:2] == ["terminated"] * 2)
    assert took <= 2
    assert scene.rows()[0]["failure"].startswith("lost: ")
    scene.run_until(lambda: scene.healthy(2))
    assert len(scene.cloud.made) == 4


@pytest.mark.case("FLT-018")
def test_a_machine_that_dies_before_its_agent_comes_ends(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.run_until(lambda: scene.cloud.made)
    scene.fake.kill(next(iter(scene.cloud.made)))
    scene.run_until(scene.healthy)
    assert scene.rows()[0]["failure"] == "its machine is gone"


@pytest.mark.case("FLT-023", "FLT-092")
def test_what_an_old_worker_hears_late_is_not_written_down(database: Database) -> None:
    scene = Scene(database, a_spec(scaling=keeping(1)))

    def used_up() -> None:
        """Let another worker begin a new generation as soon as the first machine is made."""
        if scene.cloud.made:
            database.turn.meanwhile = lambda: None
            (made,) = scene.cloud.made.values()
            made.is_late = True
            scene.world.change(machines.used_up, scene.rows()[0])

    database.turn.meanwhile = used_up
    scene.run(0.02)
    (row,) = scene.rows()
    (first, second) = scene.cloud.made
    assert row["generation"] == 2
    assert row["provider_ref"] == second != first
    scene.run_until(lambda: scene.cloud.left() == [second])


@pytest.mark.case("FLT-036", "FLT-094", "FLT-105")
@pytest.mark.requirement("TST-017", "ACC-055", "ACC-056", "GAT-019", "INV-063", "INV-064")
@pytest.mark.requirement("FRC-012", "FRC-013", "FRC-014", "FRC-015", "FRC-016")
def test_only_an_orphan_that_is_proved_to_be_ours_ends_and_not_at_once(
    database: Database,
) -> None:
    """A store that knows nothing of many machines with its own tags leaves all of them alone."""
    scene = Scene(database, a_spec(scaling=keeping(1)))
    scene.run_until(scene.healthy)
    (ours,) = scene.cloud.made.values()
    installation = ours.thing.tags[TAG_INSTALLATION]
    for place in range(6):
        tags = {TAG_INSTALLATION: installation, TAG_INSTANCE: f"cin_unknown-{place}"}
        scene.cloud.plant(f"x-{place}", tags)
    scene.cloud.plant("y", {**ours.thing.tags, TAG_INSTALLATION: "str_other"})
    scene.cloud.plant("z", {**ours.thing.tags, TAG_OPERATION: "somebody-else"})
    # As after a create that arrived when nobody waited for it any more.
    ours.is_late = True
    scene.overwrite(ours.instance_id, generation=2, provider_ref="another")
    scene.run(1)
    assert scene.cloud.is_living(ours.thing)
    scene.run(5)
    assert not scene.cloud.is_living(ours.thing)
    scene.cloud.demand_foreign_untouched()
    sightings = fleet_tables.provider_sightings
    with read(scene.world.engine) as connection:
        told = connection.execute(sa.select(sightings.c.ref, sightings.c.verdict)).all()
    strangers = (*(f"x-{place}" for place in range(6)), "z")
    assert dict(told) == {ours.thing.ref: "orphan", **dict.fromkeys(strangers, "foreign")}


@pytest.mark.case("FLT-052", "FLT-055", "FLT-057", "FLT-069", "FLT-078")
@pytest.mark.requirement("TST-038")
def test_machines_that_never_become_runners_end_and_are_replaced(database: Database) -> None:
    sorts = [Sort.NEVER_ENROLS, Sort.NEVER_WELL, Sort.NEVER_ENROLS]
    scene = Scene(database, a_spec(scaling=keeping(3, max=3)), sorts=sorts)
    scene.run_until(lambda: scene.states()[:3] == ["terminated"] * 3)
    scene.run_until(lambda: scene.healthy(3))
    assert all(row["failure"] for row in scene.rows()[:3])


@pytest.mark.case("FLT-046")
def test_a_fleet_that_is_not_needed_goes_to_zero_and_stays_there(database: Database) -> None:
    scene = Scene(database)
    scene.submit(4)
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"})
    scene.run_until(lambda: set(scene.states()) == {"terminated"})
    made = len(scene.cloud.made)
    scene.run(4)
    assert len(scene.rows()) == made == 2


@pytest.mark.case("FLT-099")
@pytest.mark.requirement("TST-039", "GAT-018")
def test_every_job_of_many_machines_that_are_taken_away_at_once_runs_again(
    database: Database,
) -> None:
    scaling = replace(SCALING, max=6)
    scene = Scene(database, a_spec(scaling=scaling))
    scene.submit(12)
    scene.run_until(lambda: scene.jobs().count("preparing") >= 4)
    running = len([state for state in scene.jobs() if state != "succeeded"])
    for ref in [one.thing.ref for one in scene.cloud.living()]:
        scene.fake.kill(ref)
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"})
    assert 12 < scene.attempts() <= 12 + running
    asked = sorted(row["requested_at"] for row in scene.rows())
    most = scaling.up.burst + scaling.up.per_minute
    assert all(late - early > 60_000 for early, late in zip(asked, asked[most:], strict=False))
