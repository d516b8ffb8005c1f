"""A worker dies between the commit's SQL and its activity's result; another takes over."""

import json
import signal
import time
from base64 import b64decode
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from activities import contracts
from forgeyard.store import tables
from tests.chaos.plant import FAILS_ONCE, Plant, a_job, until, waits_for
from tests.chaos.rounds import Rounds
from tests.chaos.standin import AFTER_COMMIT

pytestmark = pytest.mark.integration


def killed_after_commit(plant: Plant, *victims: int, **jobs: Any) -> str:
    """Let a worker commit the leases of a fresh run, and be killed there; return the run."""
    plant.processes["worker"].end(signal.SIGKILL)
    deadly = plant.start_worker(fault=AFTER_COMMIT, victims=victims)
    run_id = plant.submit(**jobs)
    until(lambda: not deadly.is_running, every_s=0.005, or_say=plant.tails)
    assert deadly.popen.returncode == -signal.SIGKILL
    return run_id


def grants(plant: Plant, run_id: str) -> list[tuple[object, ...]]:
    """List which job was leased to which runner, under which lease and epoch."""
    names = ("job_id", "lease_id", "attempt_id", "runner_id", "epoch")
    return [tuple(row[name] for name in names) for row in plant.leases(run_id)]


def commit_of(plant: Plant, workflow_id: str) -> tuple[int, int]:
    """Read how often a cycle's commit was tried, and how many grants it answered in the end."""
    events = plant.events(workflow_id)
    commits = [
        event["eventId"]
        for event in events
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityType")
        == {"name": "cycle.commit"}
    ]

    def only(key: str) -> dict[str, Any]:
        (told,) = (e[key] for e in events if e.get(key, {}).get("scheduledEventId") in commits)
        return told

    (payload,) = only("activityTaskCompletedEventAttributes")["result"]["payloads"]
    granted = json.loads(b64decode(payload["data"]))["granted"]
    return only("activityTaskStartedEventAttributes")["attempt"], granted


def granting_cycles(plant: Plant, run_id: str) -> list[dict[str, Any]]:
    """Read the cycles that planned this run's attempts."""
    cycles, planned = tables.cycles, tables.placements
    attempts = [row["attempt_id"] for row in plant.attempts(run_id)]
    ids = sa.select(planned.c.cycle_id).where(planned.c.attempt_id.in_(attempts))
    return plant.rows(sa.select(cycles).where(cycles.c.cycle_id.in_(ids)))


@pytest.mark.requirement("RCN-004", "RCN-018", "RCN-019", "ACC-026", "ACC-032", "INV-016")
@pytest.mark.case("SP-069")
def test_a_worker_killed_between_commit_and_its_answer_grants_nothing_twice(
    plant: Plant, rounds: Rounds
) -> None:
    plant.until_online(plant.start_agent())
    for rng in rounds.of("commit stored, its result not reported"):
        demand_the_same_grants(plant, rounds, rng)


def demand_the_same_grants(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    jobs = {f"job_{n}": a_job(waits_for(gate)) for n in range(rng.randint(1, 4))}
    successor = plant.start_worker(name="successor", standby=True)
    run_id = killed_after_commit(plant, **jobs)
    killed_at, before = time.monotonic(), grants(plant, run_id)
    successor.popen.send_signal(signal.SIGUSR1)
    next_run = plant.submit(next=a_job("true"))
    cycle = plant.newest_cycle()
    assert len(before) == len(jobs)
    until(lambda: plant.leases(next_run), within_s=60, or_say=plant.tails)
    took = time.monotonic() - killed_at
    rounds.took("killed worker to next lease granted", took, goal_s=15)
    tries, granted = commit_of(plant, cycle)
    assert granted == len(before)
    if tries >= 2:
        rounds.hit()
    gate.touch()
    plant.until_state(run_id, "succeeded")
    plant.until_state(next_run, "succeeded")
    assert grants(plant, run_id) == before
    (row,) = granting_cycles(plant, run_id)
    assert row["granted"] == len(before)
    plant.demand_rest()
    successor.end()


@pytest.mark.requirement("DSP-004")
def test_an_attempt_that_ran_before_its_workflow_was_started_is_settled_all_the_same(
    plant: Plant, rounds: Rounds
) -> None:
    """Worker and Temporal die after the commit, so nobody relays while agents accept and end."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of("accepted and ended, while the relay had not started the workflow"):
        demand_settled_though_started_late(plant, rounds, rng)


def demand_settled_though_started_late(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    assert plant.temporal.process is not None
    run_id = killed_after_commit(
        plant,
        plant.temporal.process.pid,
        quick=a_job("true"),
        fails=FAILS_ONCE,
        slow=a_job(waits_for(gate)),
    )
    plant.temporal.kill()
    until(lambda: ends_of(plant, run_id) == EARLY, or_say=plant.tails)
    until(lambda: given_up(plant, run_id), or_say=plant.tails)
    if ends_of(plant, run_id) == EARLY:
        rounds.hit()
    plant.demand_safe()
    opened_early = rng.random() < 0.5
    if opened_early:
        gate.touch()
    plant.temporal.start()
    plant.start_worker()
    if not opened_early:
        until(lambda: not plant.undelivered(run_id), or_say=plant.tails)
        gate.touch()
    plant.until_state(run_id, "succeeded")
    plant.demand_rest()
    assert plant.states(run_id, "fails") == ["failed", "succeeded"]
    assert plant.states(run_id, "quick") == plant.states(run_id, "slow") == ["succeeded"]
    for row in plant.attempts(run_id):
        plant.until_workflow(
            contracts.attempt_workflow_id(row["job_id"], row["number"]), "COMPLETED"
        )


EARLY = {"quick": "succeeded", "fails": "failed", "slow": "running"}


def given_up(plant: Plant, run_id: str) -> list[dict[str, Any]]:
    """Read the three grants that a relay could not deliver and gave back, once it has."""
    waiting = plant.undelivered(run_id, contracts.LEASE_GRANTED)
    tried = [row for row in waiting if row["tries"] and not row["claimed_until"]]
    return tried if len(tried) == 3 else []


def ends_of(plant: Plant, run_id: str) -> dict[str, str]:
    """Read how the attempts of a run stand."""
    return {row["job"]: row["state"] for row in plant.attempts(run_id)}
