"""Two APIs serve renewals: one that dies is no outage of ours; both of them are one, once."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.chaos.backup import begin, successors
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.proxy import Proxy
from tests.chaos.rounds import Rounds
from tests.chaos.test_agent_killed import SHORT
from tests.integration.temporal.server import free_port

# Left to `make chaos`: it waits for two outages: half a minute.
pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
GAP_S = 10.0
"""An API process beats every five seconds; far longer silence of all of them is an outage."""


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Let leases and sessions live shorter than an outage, and agents wait a little longer."""
    lease = replace(SHORT.lease, connectivity_grace=Millis(120_000), session_silence=Millis(6_000))
    sweep = SweepPolicy(period=Millis(500), renewal_gap=Millis(int(GAP_S * 1_000)))
    return SchedulingPolicy(lease=lease, sweep=sweep)


PORT, AGENT_PORT = "FORGEYARD_API__PORT", "FORGEYARD_API__AGENT_PORT"


@pytest.fixture
def second(plant: Plant) -> Iterator[Mapping[str, str]]:
    """Run another API on the same database, on ports of its own."""
    ports = {PORT: str(free_port()), AGENT_PORT: str(free_port())}
    plant.start_api(name="api-2", settings=ports)
    yield ports
    plant.processes.pop("api-2").end()


def test_one_of_two_apis_that_dies_is_no_gap_and_both_are_exactly_one(
    plant: Plant, rounds: Rounds, second: Mapping[str, str]
) -> None:
    with Proxy(target=plant.agent_port) as balancer:
        plant.until_online(plant.start_agent(url=balancer.url))
        for rng in rounds.of("one API, then both, were dead for longer than a gap"):
            demand_one_gap(plant, rounds, rng, balancer, second)


def demand_one_gap(
    plant: Plant, rounds: Rounds, rng: Random, balancer: Proxy, second: Mapping[str, str]
) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    plant.until_ready(int(second[PORT]))
    api = partial(plant.start_api, standby=True)
    new = successors(plant, api, partial(api, name="api-2", settings=second))
    balancer.target = plant.agent_port
    balancer.reset()
    run_id = plant.submit(job=a_job(waits_for(gate)))
    plant.until_running(run_id, "job")
    before = plant.gaps()
    time.sleep(rng.uniform(0, 1))
    plant.processes["old-api"].kill()
    balancer.target = int(second[AGENT_PORT])
    time.sleep(GAP_S + 1)
    assert plant.gaps() == before, "the other one served renewals all along"
    (lease,) = plant.leases(run_id)
    assert lease["state"] == "active"
    plant.processes["old-api-2"].kill()
    time.sleep(GAP_S + 1)
    (gone,) = plant.leases(run_id)
    assert gone["state"] == "active", "it was our outage"
    if gone["expires_at"] < time.time() * 1_000:
        rounds.hit()
    back_at = time.monotonic()
    begin(new)
    plant.until_ready()
    until(lambda: plant.gaps() > before, or_say=plant.tails)
    until(lambda: plant.leases(run_id)[0]["expires_at"] > gone["expires_at"], or_say=plant.tails)
    rounds.took("APIs begun to lease renewed", time.monotonic() - back_at, goal_s=100)
    gate.touch()
    plant.until_state(run_id, "succeeded")
    assert plant.states(run_id, "job") == ["succeeded"]
    assert plant.gaps() == before + 1
    audit = tables.audit
    bridged = plant.rows(sa.select(audit.c.detail).where(audit.c.action == "renewal.gap_bridged"))
    assert len(bridged) == plant.gaps()
    plant.demand_rest()
