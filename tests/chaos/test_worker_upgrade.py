"""Workers of one release give way to those of the next, while loops and leases are open (F18)."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from activities import contracts
from tests.chaos.cluster import Cluster, opened
from tests.chaos.plant import Process, a_job, until, waits_for
from tests.chaos.rounds import Rounds

# Soak, for each round starts a worker and ends another with all that it began: minutes.
pytestmark = [pytest.mark.integration, pytest.mark.soak]
LOOP = contracts.loop_workflow_id("default")
UPKEEP = contracts.upkeep_workflow_id("default")
CONTRADICTION = "TMPRL1100"
"""What Temporal's SDK writes where a history and the code that replays it do not agree."""


@pytest.fixture
def cluster(
    tmp_path: Path, make_postgresql: Callable[[str], AbstractContextManager[str]]
) -> Iterator[Cluster]:
    """Give a cluster of which nothing runs yet."""
    with make_postgresql("upgrade") as url, opened(Cluster(folder=tmp_path, url=url)) as cluster:
        yield cluster


def held_job(cluster: Cluster, name: str) -> tuple[str, Path]:
    """Have a job executed that ends when its gate is opened; return its attempt's workflow."""
    gate = cluster.file(f"gate-{name}")
    with cluster.client() as client:
        document = {"name": name, "jobs": {"held": a_job(waits_for(gate, within_s=900))}}
        answer = client.post("/v1/runs", {"document": document, "submitted_by": "chaos"})
    run_id = str(dict(answer)["run_id"])
    until(lambda: cluster.states(run_id, "held")[-1:] == ["running"], within_s=300)
    (attempt,) = cluster.attempts(run_id)
    return contracts.attempt_workflow_id(attempt["job_id"], attempt["number"]), gate


def demand_no_failed_task(cluster: Cluster, *workflow_ids: str) -> int:
    """Insist that no workflow task failed in these histories, and that no worker saw one fail."""
    checked = 0
    for workflow_id in workflow_ids:
        for event in cluster.events(workflow_id):
            assert "workflowTaskFailedEventAttributes" not in event, (workflow_id, event)
            checked += 1
    for process in cluster.processes.values():
        assert CONTRADICTION not in process.log.read_text(errors="replace"), process.name
    return checked


def until_completed(cluster: Cluster, workflow_id: str) -> None:
    """Wait until a workflow has completed, however busy the machine is."""
    until(
        lambda: cluster.workflow_status(workflow_id) == "COMPLETED",
        within_s=200,
        every_s=0.5,
        or_say=cluster.tails,
    )


def build_of(cluster: Cluster, workflow_id: str) -> str:
    """Ask Temporal which build a workflow's newest run belongs to; empty if to none."""
    told = cluster.temporal_cli("workflow", "describe", "-w", workflow_id, "--output", "json")
    info: dict[str, Any] = json.loads(told)["workflowExecutionInfo"].get("versioningInfo", {})
    return str(info.get("deploymentVersion", {}).get("buildId", ""))


def make_current(cluster: Cluster, build: str) -> None:
    """Type what an operator types once the workers of a build are there."""

    def is_current() -> bool:
        try:
            cluster.temporal_cli(
                *("worker", "deployment", "set-current-version", "--yes"),
                *("--deployment-name", "forgeyard", "--build-id", build),
            )
        except AssertionError:
            return False
        return True

    until(is_current, within_s=300, every_s=0.5, or_say=cluster.tails)


def open_build(cluster: Cluster, build: str) -> Process:
    """Start a worker of a build and make it the current one."""
    worker = cluster.open_worker(f"worker-{build}", FORGEYARD_WORKER__BUILD=build)
    cluster.until_polling(worker)
    make_current(cluster, build)
    return worker


def begin(cluster: Cluster) -> None:
    """Start what is not a worker, and an agent."""
    cluster.temporal.start()
    cluster.open_api("api-1")
    cluster.until_serving("api-1")


def test_an_old_build_ends_what_it_began_while_the_new_one_takes_all_that_begins(
    cluster: Cluster, rounds: Rounds
) -> None:
    begin(cluster)
    worker = open_build(cluster, "build-0")
    cluster.until_online(cluster.start_agent(url=cluster.agents_url))
    for rng in rounds.of("leases open on the old build while the new one was current"):
        worker = demand_given_way(cluster, rounds, rng, old=worker, new=f"build-{rounds.number}")


def demand_given_way(
    cluster: Cluster, rounds: Rounds, rng: Random, *, old: Process, new: str
) -> Process:
    build = old.name.removeprefix("worker-")
    before, gate = held_job(cluster, f"before-{new}")
    assert [build_of(cluster, one) for one in (LOOP, UPKEEP, before)] == [build] * 3
    with cluster.traffic(rng, submitters=1) as flow:
        flow.until_flowing()
        worker = open_build(cluster, new)
        until(
            lambda: {build_of(cluster, one) for one in (LOOP, UPKEEP)} == {new},
            within_s=300,
            every_s=0.5,
            or_say=cluster.tails,
        )
        after, second_gate = held_job(cluster, f"after-{new}")
        second_gate.touch()
        until_completed(cluster, after)
        assert (build_of(cluster, before), build_of(cluster, after)) == (build, new)
        if cluster.workflow_status(before) == "RUNNING":
            rounds.hit()
        gate.touch()
        until_completed(cluster, before)
        old.popen.send_signal(signal.SIGTERM)
        assert old.popen.wait(150) == 0
        flow.until_flowing()
    rounds.note("jobs, each executed once", flow.demand_once_each())
    events = demand_no_failed_task(cluster, LOOP, UPKEEP, before, after)
    rounds.note("events without a failed task", events)
    cluster.demand_rest()
    return worker
