"""What a fleet does over time, each as a story in virtual time: machines come, are lost, and go."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict
from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.plan import decide
from forgeyard.fleet.ports import (
    TAG_FLEET,
    TAG_IMAGE,
    TAG_INSTALLATION,
    TAG_INSTANCE,
    TAG_OPERATION,
    TAG_SCOPE,
)
from forgeyard.fleet.view import FleetDecision
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetHealth, FleetScope, ScaleDown, ScaleUp
from forgeyard.model.image import ImageDemand
from forgeyard.scheduler.demand import unmet
from forgeyard.store import (
    codec,
    fleet_decisions,
    fleet_reading,
    fleet_tables,
    fleet_views,
    fleet_wishes,
    lineage,
    machines,
    tables,
)
from forgeyard.store.engine import read, write
from forgeyard.store.fleet_wishes import Window
from tests.builders import PARTITION
from tests.simulation.database import Database
from tests.simulation.fleet.agents import Sort
from tests.simulation.fleet.people import INTENT
from tests.simulation.fleet.scene import Scene, a_spec
from tests.simulation.fleet.story import CAPACITY, MINUTE, POLICY, SCALING, alone

pytestmark = pytest.mark.integration
S = CapacityInstanceState
KEPT_LONG = ScaleDown(idle_grace=3_600_000, window=60_000, at_once=5, drain_within=600_000)
IMAGE = f"sha256:{'1' * 64}"
LIFE = [
    *(S.REQUESTED, S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING, S.HEALTHY),
    *(S.DRAINING, S.TERMINATING, S.TERMINATED),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with alone(1):
        yield


def life(scene: Scene, row: dict[str, Any]) -> list[str]:
    """Read what the history says of a machine, and that each step follows the one before."""
    query = (
        sa.select(tables.history.c.before, tables.history.c.after)
        .where(tables.history.c.entity_id == row["instance_id"])
        .order_by(tables.history.c.history_id)
    )
    with read(scene.world.engine) as connection:
        steps = connection.execute(query).all()
    states = [after for _, after in steps]
    assert [before for before, _ in steps[1:]] == states[:-1]
    return states


def decisions(scene: Scene) -> list[FleetDecision]:
    """Read every decision that was kept, the oldest first."""
    table = fleet_tables.fleet_decisions
    with read(scene.world.engine) as connection:
        found = connection.execute(sa.select(table.c.decision).order_by(table.c.number)).scalars()
        return [codec.decode(FleetDecision, one) for one in found]


@pytest.mark.requirement("FLM-015", "FLM-017", "FLM-018", "FLM-019", "FLM-020", "FLM-021")
def test_a_machine_passes_every_phase_and_is_known_by_its_own_id_in_all_of_them(
    database: Database,
) -> None:
    scene = Scene(database)
    scene.submit()
    scene.run_until(scene.healthy)
    (row,) = scene.rows()
    (made,) = scene.cloud.made.values()
    with read(scene.world.engine) as connection:
        runner = connection.execute(sa.select(tables.runners)).mappings().one()
    assert row["fleet_id"] == scene.fleet().fleet_id
    assert row["provider_ref"] == made.thing.ref
    assert (row["runner_id"], row["runner_name"]) == (runner["runner_id"], runner["name"])
    scene.run_until(lambda: scene.states() == [S.TERMINATED])
    (after,) = scene.rows()
    same = ("instance_id", "fleet_id", "provider_ref", "runner_id")
    assert [after[name] for name in same] == [row[name] for name in same]
    assert life(scene, after) == LIFE


@pytest.mark.requirement("FLM-015")
def test_a_machine_that_goes_wrong_fails_or_is_kept_for_a_look_before_it_goes(
    database: Database,
) -> None:
    scaling = replace(SCALING, min=2, down=KEPT_LONG)
    scene = Scene(database, a_spec(scaling=scaling), sorts=[Sort.NEVER_ENROLS, Sort.COPIED])
    scene.run_until(lambda: "quarantined" in scene.states() and "terminated" in scene.states())
    failed, kept = scene.rows()[:2]
    assert life(scene, failed) == [*LIFE[:3], S.FAILED, S.TERMINATING, S.TERMINATED]
    assert life(scene, kept)[-1] == S.QUARANTINED
    scene.world.change(fleet_wishes.release, kept["instance_id"], INTENT)
    scene.run_until(lambda: life(scene, kept)[-1] == S.TERMINATED, within=60)
    assert life(scene, kept)[-3:] == [S.QUARANTINED, S.TERMINATING, S.TERMINATED]


@pytest.mark.requirement("FRC-017", "FRC-018")
def test_who_never_enrols_and_who_is_never_admitted_fails_in_time_and_ends(
    database: Database,
) -> None:
    sorts = [Sort.NEVER_ENROLS, Sort.NEVER_WELL]
    spec = a_spec(scaling=replace(SCALING, min=2, down=KEPT_LONG))
    scene = Scene(database, spec, sorts=sorts)
    scene.run_until(lambda: scene.states()[:2] == ["terminated"] * 2)
    silent, sick = scene.rows()[:2]
    assert silent["failure"] == "it did not enrol in time"
    assert silent["enrolled_at"] is None
    assert sick["failure"] == "its runner was not admitted in time"
    assert sick["enrolled_at"] is not None
    for row, since, span in (
        (silent, "running_at", spec.deadlines.bootstrap),
        (sick, "enrolled_at", spec.deadlines.enrol),
    ):
        assert span <= row["ending_at"] - row[since] <= span + MINUTE
    assert scene.cloud.left() == [row["provider_ref"] for row in scene.rows()[2:]]


@pytest.mark.case("FLT-027")
@pytest.mark.requirement("FRC-019")
def test_a_machine_whose_agent_falls_silent_is_not_counted_although_it_is_there(
    database: Database,
) -> None:
    spec = a_spec(scaling=replace(SCALING, min=1, down=KEPT_LONG))
    scene = Scene(database, spec, sorts=[Sort.FALLS_SILENT])
    scene.run_until(scene.healthy)
    scene.run_until(lambda: len(scene.rows()) == 2, within=20)
    (silent, _) = scene.rows()
    assert silent["machine"] == "running"
    assert [one.reason for one in decisions(scene)[-1].launch] == ["replacement"]
    assert decisions(scene)[-1].usable == 0
    scene.run_until(lambda: scene.states() == ["terminated", "healthy"])
    (left,) = scene.cloud.left()
    assert left == scene.rows()[1]["provider_ref"]


@pytest.mark.requirement("FRC-001", "FRC-002", "FLM-025")
def test_a_fleet_is_brought_to_what_is_wanted_step_by_step_whatever_it_loses(
    database: Database,
) -> None:
    """Jobs wait, a machine dies at its provider, a runner falls silent: looked at, made good."""
    up = ScaleUp(per_minute=2, burst=2)
    capacity = replace(CAPACITY, image=IMAGE)
    scaling = replace(SCALING, min=3, max=5, up=up, down=KEPT_LONG)
    spec = a_spec(scaling=scaling, capacity=capacity, images=ImageDemand.ANY)
    scene = Scene(database, spec, sorts=[Sort.WELL, Sort.WELL, Sort.FALLS_SILENT])
    scene.run_until(lambda: scene.healthy(3))
    with read(scene.world.engine) as connection:
        seen = fleet_views.standing(connection, "beta")
    assert seen.last is not None
    assert (seen.last.decision.wanted, seen.fleet.spec.capacity.image) == (3, IMAGE)
    scene.submit(10)
    scene.run_until(lambda: scene.healthy(5))
    scene.fake.kill(next(iter(scene.cloud.made)))
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"}, within=30)
    scene.run_until(lambda: scene.states()[2] == "terminated", within=30)
    dead, _, silent, *_ = scene.rows()
    assert (dead["state"], dead["failure"]) == ("terminated", "lost: its machine is gone")
    assert silent["drain_reason"] == "unusable"
    assert scene.states().count("healthy") >= 3
    kept = decisions(scene)
    wanted = {one.wanted for one in kept}
    assert {3, 5} <= wanted <= {3, 4, 5}
    assert [len(one.launch) for one in kept if one.launch][:2] == [2, 1]
    assert all(len(one.launch) <= up.burst for one in kept)
    assert {row["image"] for row in scene.rows()} == {IMAGE}


@pytest.mark.requirement("FRC-003")
def test_no_transaction_is_open_while_a_provider_is_asked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(database, a_spec(scaling=replace(SCALING, min=2, down=KEPT_LONG)))
    pool = database.engine.pool
    assert isinstance(pool, sa.QueuePool)
    with read(database.engine):
        assert pool.checkedout() == 1
    called, asked = scene.fake._called, Counter[str]()
    checked = scene.fake.check

    def watched(name: str) -> None:
        asked[name] += 1
        assert pool.checkedout() == 0, name
        called(name)

    def checking(offerings: Any) -> Any:
        asked["check"] += 1
        assert pool.checkedout() == 0
        return checked(offerings)

    monkeypatch.setattr(scene.fake, "_called", watched)
    monkeypatch.setattr(scene.fake, "check", checking)
    scene.run_until(lambda: scene.healthy(2))
    first, second = scene.cloud.made
    scene.fake.announce(first)
    (ours,) = (one for one in scene.cloud.made.values() if one.thing.ref == second)
    ours.is_late = True
    scene.overwrite(ours.instance_id, provider_ref="another")
    scene.run(8)
    assert set(asked) == {
        *("provision", "inspect", "terminate", "list_machines"),
        *("interruptions", "acknowledge", "check"),
    }


@pytest.mark.requirement("FRC-008", "FRC-009", "FRC-010", "FRC-011")
def test_a_machine_carries_the_names_of_all_that_it_belongs_to(database: Database) -> None:
    scope = FleetScope(project_id="prj_default")
    capacity = replace(CAPACITY, image=IMAGE)
    keeping = replace(SCALING, min=1)
    spec = a_spec(scaling=keeping, scope=scope, capacity=capacity, images=ImageDemand.ANY)
    scene = Scene(database, spec)
    scene.run_until(scene.healthy)
    (row,), (made,) = scene.rows(), scene.cloud.made.values()
    with read(scene.world.engine) as connection:
        installation = lineage.current(connection).store_id
    assert made.thing.tags == {
        TAG_INSTALLATION: installation,
        TAG_FLEET: row["fleet_id"],
        TAG_INSTANCE: row["instance_id"],
        TAG_OPERATION: machines.operation_key(row),
        TAG_IMAGE: IMAGE,
        TAG_SCOPE: "prj_default",
    }


@pytest.mark.requirement("RSV-002", "RSV-003")
def test_what_is_reserved_is_there_for_its_whole_window_though_nobody_holds_a_lease(
    database: Database,
) -> None:
    """And whoever's jobs come then find it, as on any other machine."""
    scene = Scene(database)
    scene.run(1)
    starts_at = scene.world.now_ms + 15 * MINUTE
    window = Window(quantity=3, starts_at=starts_at, ends_at=starts_at + 30 * MINUTE)
    scene.world.change(fleet_wishes.reserve, "beta", window, INTENT, rng=scene.world.ids)
    scene.run(4)
    assert scene.rows() == []
    scene.run(11)
    for _ in range(10):
        assert scene.healthy(3)
        scene.run(2)
    with read(scene.world.engine) as connection:
        for table in (tables.leases, tables.reservations):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0
    scene.submit(2)
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"})
    assert len(scene.rows()) == 3, "they ran on what was there"
    assert scene.attempts() == 2
    scene.run_until(lambda: set(scene.states()) == {"terminated"}, within=30)
    assert scene.world.now_ms >= window.ends_at


@pytest.mark.case("FLT-083")
def test_jobs_that_a_decision_has_not_seen_are_decided_about_at_the_next_look(
    database: Database,
) -> None:
    scene = Scene(database)
    scene.run(0.02)

    def meanwhile() -> None:
        database.turn.meanwhile = lambda: None
        scene.submit(6)

    database.turn.meanwhile = meanwhile
    assert scene.tick().launched == 0, "it was made from what was read before"
    assert scene.tick().launched == 3
    assert scene.tick().launched == 0


@pytest.mark.case("FLT-083")
def test_a_decision_from_before_another_one_is_void_however_late_it_comes(
    database: Database,
) -> None:
    scene = Scene(database)
    scene.run(0.02)
    scene.submit(6)
    with read(scene.world.engine) as connection:
        old = fleet_reading.read(connection, PARTITION, POLICY)
    (view,) = old.fleets
    demand = unmet(old.snapshot, old.policy)
    allocation = allocate(demand, old.fleets, old.now)
    decision = decide(view, allocation.of(view.fleet_id), demand=demand, now=old.now)
    assert len(decision.launch) == 3
    assert scene.tick().launched == 3
    with pytest.raises(Conflict), write(scene.world.engine) as connection:
        fleet_decisions.commit(
            connection,
            view,
            decision,
            partition=PARTITION,
            demand=demand,
            allocation=allocation,
            version=old.allocation_version,
            rng=scene.world.ids,
        )
    assert len(scene.rows()) == 3


@pytest.mark.case("FLT-104")
def test_a_fifth_of_machines_that_never_enrol_costs_no_job_and_few_machines(
    database: Database,
) -> None:
    draw = random.Random(104)
    sorts = [draw.choices((Sort.NEVER_ENROLS, Sort.WELL), (1, 4))[0] for _ in range(200)]
    up = ScaleUp(per_minute=60, burst=60)
    scaling = replace(SCALING, max=50, up=up, down=replace(KEPT_LONG, idle_grace=10 * MINUTE))
    scene = Scene(database, a_spec(scaling=scaling), sorts=sorts)
    scene.submit(100)
    health: set[str] = set()

    def served() -> bool:
        with read(scene.world.engine) as connection:
            health.add(connection.execute(sa.select(fleet_tables.fleets.c.health)).scalar() or "")
        return set(scene.jobs()) == {"succeeded"}

    scene.run_until(served, within=60)
    made = len(scene.cloud.made)
    failed = sorts[:made].count(Sort.NEVER_ENROLS)
    assert failed >= 3
    assert made <= 50 + 2 * failed
    assert FleetHealth.BOOTSTRAP_DEGRADED in health
    assert scene.attempts() == 100
