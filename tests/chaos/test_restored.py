"""The database comes back from a backup; agents and Temporal know more than it does (F30)."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from activities import contracts
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.chaos import backup
from tests.chaos.plant import Plant, Process, a_job, until, waits_for
from tests.chaos.rounds import Rounds

# Left to `make chaos`: it waits for sessions to be lost, four times: minutes.
pytestmark = [pytest.mark.integration, pytest.mark.soak]


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Let sessions be lost within seconds, and leases outlive the restart of worker and API."""
    return SHORT


@pytest.fixture
def plant(_plant: Plant) -> Iterator[Plant]:
    """Run the module's plant; what it recorded of a lost future contradicts what came instead."""
    _plant.heal()
    yield _plant
    _plant.end_agents()


SHORT = SchedulingPolicy(
    lease=LeasePolicy(
        execution_ttl=Millis(4_000),
        renew_every=Millis(500),
        connectivity_grace=Millis(30_000),
        longest_back_off=Millis(1_000),
        settle_within=Millis(1_000),
        session_silence=Millis(9_000),
        refusal_memory=Millis(1_000),
    ),
    sweep=SweepPolicy(period=Millis(500), outbox_age=Millis(1_000)),
)
HELD_FOR_S = 12.0
"""Longer than a session lives that nobody keeps alive."""


@dataclass(kw_only=True)
class Scene:
    """A run at the moment of the backup, and what came after it."""

    run_id: str
    gates: Mapping[str, Any]
    late_runs: Any
    newcomer: Process
    lost_run: str


def played(plant: Plant, rng: Random) -> tuple[Scene, backup.Backup]:
    """Take a backup in the midst of a run, and go on: an end, a grant, a session and a run."""
    mark = f"{rng.random()}"
    gates = {name: plant.file(f"{name}-{mark}") for name in ("keeps", "ends", "late")}
    late_runs, label = plant.file(f"runs-{mark}"), {"chaos": f"l{rng.randint(1, 10**9)}"}
    plant.until_online(plant.start_agent())
    run_id = plant.submit(
        keeps=a_job(waits_for(gates["keeps"], within_s=900)),
        ends=a_job(waits_for(gates["ends"], within_s=900)),
        late=a_job(
            waits_for(gates["late"], say=f"echo run >> {late_runs}", within_s=900),
            requires={"labels": label},
        ),
    )
    plant.until_running(run_id, "keeps", "ends")
    copy = backup.take(plant, f"old-{mark}")
    newcomer = plant.start_agent(labels=label)
    gates["ends"].touch()
    until(lambda: plant.states(run_id, "ends") == ["succeeded"], or_say=plant.tails)
    plant.until_running(run_id, "late")
    lost_run = plant.submit(lost=a_job("true"))
    plant.until_state(lost_run, "succeeded")
    until(late_runs.exists)
    scene = Scene(
        run_id=run_id, gates=gates, late_runs=late_runs, newcomer=newcomer, lost_run=lost_run
    )
    return scene, copy


def store_of(plant: Plant) -> dict[str, Any]:
    """Ask the API how its store stands, as `forgeyard store status` does."""
    return dict(plant.ask("/v1/store"))


def until_held(plant: Plant) -> None:
    until(lambda: store_of(plant)["held"], or_say=lambda: f"not held\n{plant.tails()}")


@pytest.mark.requirement("INV-016", "RCN-004")
def test_an_older_database_decides_nothing_until_it_is_confirmed_and_then_all_converges(
    plant: Plant, rounds: Rounds
) -> None:
    for rng in rounds.of("an older database was put back while a lost attempt ran"):
        demand_held_then_converged(plant, rounds, rng)


def demand_held_then_converged(plant: Plant, rounds: Rounds, rng: Random) -> None:
    scene, copy = played(plant, rng)
    lost = epochs(plant, scene.run_id, "late")
    backup.put_back(plant, copy)
    until_held(plant)
    before = decided(plant, scene.run_id)
    assert before == {"keeps": ["active"], "ends": ["active"], "late": []}
    ends_while_held = rng.random() < 0.5
    if ends_while_held:
        scene.gates["late"].touch()
    time.sleep(HELD_FOR_S)
    until(
        lambda: {"unknown": 1, "going_on": 1, "silent": 1}.items() <= store_of(plant).items(),
        or_say=lambda: f"{store_of(plant)}\n{plant.tails()}",
    )
    assert decided(plant, scene.run_id) == before
    assert plant.http.get("/readyz").json()["status"] == "held"
    assert plant.offer(job=a_job("true")).status_code == 503
    # The lost attempt was neither killed nor started anew; its end is told in vain.
    assert scene.late_runs.read_text().split() == ["run"]
    rounds.hit()
    confirmed = plant.ask("/v1/store/confirm", {"reason": "chaos"})
    assert {"abandoned": 1, "going_on": 1, "silent": 1}.items() <= confirmed.items()
    until(lambda: len(scene.late_runs.read_text().split()) == 2, or_say=plant.tails)
    for gate in scene.gates.values():
        gate.touch()
    plant.until_state(scene.run_id, "succeeded", within_s=180)
    plant.demand_rest(within_s=120)
    assert plant.states(scene.run_id, "keeps") == ["succeeded"]
    assert plant.states(scene.run_id, "ends") == ["lost", "succeeded"]
    assert plant.states(scene.run_id, "late") == ["succeeded"]
    era = confirmed["era"]
    assert min(epochs(plant, scene.run_id, "late")) > era > max(lost)
    (late,) = (row for row in plant.attempts(scene.run_id) if row["job"] == "late")
    own = contracts.attempt_workflow_id(late["job_id"], late["number"], era)
    plant.until_workflow(own, "COMPLETED")
    assert not plant.rows(sa.select(tables.runs).where(tables.runs.c.run_id == scene.lost_run))
    demand_works(plant)


def demand_works(plant: Plant) -> None:
    """Insist that the store is free, and that a new run is placed and ends."""
    assert not store_of(plant)["held"]
    plant.until_state(plant.submit(next=a_job("true")), "succeeded")
    assert not store_of(plant)["held"]


def test_putting_the_newer_database_back_loses_nothing(plant: Plant, rounds: Rounds) -> None:
    """Whoever restored by mistake can undo it, for nothing was decided meanwhile."""
    for rng in rounds.of("the newer database was put back before anybody confirmed"):
        demand_undone(plant, rounds, rng)


def demand_undone(plant: Plant, rounds: Rounds, rng: Random) -> None:
    scene, copy = played(plant, rng)
    newer = backup.put_back(plant, copy)
    until_held(plant)
    time.sleep(HELD_FOR_S / 2)
    rounds.hit()
    backup.put_back(plant, newer)
    assert not store_of(plant)["held"]
    for gate in scene.gates.values():
        gate.touch()
    plant.until_state(scene.run_id, "succeeded", within_s=120)
    plant.demand_rest(within_s=120)
    assert {row["state"] for row in plant.attempts(scene.run_id)} == {"succeeded"}
    assert scene.late_runs.read_text().split() == ["run"]
    demand_works(plant)


def decided(plant: Plant, run_id: str) -> dict[str, list[str]]:
    """Read the states of the leases of each job of a run."""
    jobs, leases = tables.jobs, tables.leases
    rows = plant.rows(
        sa.select(jobs.c.name, leases.c.state)
        .outerjoin(leases, leases.c.job_id == jobs.c.job_id)
        .where(jobs.c.run_id == run_id)
        .order_by(jobs.c.name, leases.c.epoch)
    )
    found: dict[str, list[str]] = {row["name"]: [] for row in rows}
    for row in rows:
        if row["state"] is not None:
            found[row["name"]].append(row["state"])
    return found


def epochs(plant: Plant, run_id: str, job: str) -> list[int]:
    """Read the epochs of a job's leases."""
    jobs, leases = tables.jobs, tables.leases
    rows = plant.rows(
        sa.select(leases.c.epoch)
        .join(jobs, jobs.c.job_id == leases.c.job_id)
        .where(jobs.c.run_id == run_id, jobs.c.name == job)
    )
    return [row["epoch"] for row in rows]
