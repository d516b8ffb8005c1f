"""Replies are lost, workers killed and Amazon unreachable around calls that make machines there.

Amazon is moto's, behind the proxy that honours client tokens and shows new machines late.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.fleet import Offering
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import runners, tables
from forgeyard.store.engine import write
from forgeyard.store.machines import operation_key
from tests.builders import LEASE_POLICY, register_runner
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.fleet import (
    EVERY_S,
    PROMPT,
    SETTINGS,
    a_fleet,
    let_go,
    machines,
    scale,
    states,
    until_states,
)
from tests.chaos.plant import Plant, until
from tests.chaos.proxy import Proxy as Network
from tests.chaos.rounds import Rounds
from tests.chaos.standin import KILLED_AFTER_MAKING
from tests.fleet.ec2_proxy import proxying
from tests.fleet.moto_server import moto
from tests.integration.contract.benches import AwsBench
from tests.serving import make_authority

pytestmark = [pytest.mark.integration, ON_POSTGRESQL]
BEAT_S = 1.0
HIDDEN_S = 2.0
"""How long Amazon says nothing of a new machine."""


@pytest.fixture(scope="module")
def amazon() -> Iterator[AwsBench]:
    """Run Amazon for the module, with one machine that is not ours though its tags say so."""
    with moto() as port, proxying(port) as proxy:
        bench = AwsBench(proxy)
        proxy.hidden_s = HIDDEN_S
        yield bench


@pytest.fixture(scope="module")
def network(amazon: AwsBench) -> Iterator[Network]:
    """Lie between workers and Amazon."""
    with Network(target=amazon.proxy.port) as between:
        yield between


@pytest.fixture(scope="module")
def settings(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Have machines at Amazon, whose agents would come home over TLS."""
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    provider = {
        "kind": "aws",
        "regions": ["us-east-1"],
        "endpoint_url": network.url,
        "look_s": 0.5,
        "visibility_s": 2 * HIDDEN_S,
    }
    return {
        **SETTINGS,
        "FORGEYARD_FLEETS__PROVIDERS": json.dumps({"aws": provider}),
        "FORGEYARD_FLEETS__AGENT_URL": "https://ci.example:8701",
        "FORGEYARD_API__AGENT_IDENTITY": "certificate",
        "FORGEYARD_API__AUTHORITY": str(folder / "ca"),
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Start what looks at fleets soon."""
    return PROMPT


@contextmanager
def fleets_at(plant: Plant, amazon: AwsBench, rng: Random, count: int = 1) -> Iterator[list[str]]:
    """Have fleets at Amazon; at last nothing is left of them, and nothing else was touched."""
    theirs = amazon.existing() or [amazon.foreign()]
    amazon.proxy.calls.clear()
    large = Offering(name="large", machine="m5.large", settings={"ami": amazon.ami})
    made = [a_fleet(plant, rng, provider="aws", offering=large) for _ in range(count)]
    try:
        yield made
        for fleet in made:
            come_up(plant, fleet)
            let_go(plant, fleet)
    finally:
        say_goodbye(plant)
    assert amazon.existing() == theirs
    ended = {call["InstanceId.1"] for call in amazon.proxy.called("TerminateInstances")}
    assert ended == {row["provider_ref"] for fleet in made for row in machines(plant, fleet)}


def come_up(plant: Plant, fleet: str) -> None:
    """Let the agents on a fleet's machines register, for nothing runs on machines of moto."""
    for row in machines(plant, fleet):
        if row["state"] == "bootstrapping":
            with write(plant.engine) as connection:
                register_runner(connection, row["runner_name"])
    until(
        lambda: set(states(plant, fleet)) <= {"healthy", "terminated"},
        every_s=EVERY_S,
        or_say=lambda: f"{machines(plant, fleet)}\n{plant.story()}\n{plant.tails()}",
    )


def say_goodbye(plant: Plant) -> None:
    """Let the agents that registered end their sessions."""
    sessions = tables.sessions
    for row in plant.rows(sa.select(sessions).where(sessions.c.state == "open")):
        with write(plant.engine) as connection:
            runners.close(connection, row["session_id"], policy=LEASE_POLICY)


def demand_one_each(plant: Plant, amazon: AwsBench, *fleets: str) -> None:
    """Insist that Amazon was asked for each machine once, and has it under the name we know."""
    rows = [row for fleet in fleets for row in machines(plant, fleet)]
    calls = amazon.proxy.called("RunInstances")
    asked = [call["ClientToken"] for call in calls if "DryRun" not in call]
    assert sorted(asked) == sorted(operation_key(row) for row in rows)
    made = {amazon.proxy.tokens[token][2] for token in asked}
    assert made == {row["provider_ref"] for row in rows}
    living = {row["provider_ref"] for row in rows if row["state"] != "terminated"}
    assert living == made & set(amazon.existing())


@pytest.mark.requirement("FRC-006", "TST-015", "ACC-044", "ACC-045")
def test_a_create_whose_answer_is_lost_is_looked_for_and_not_repeated(
    plant: Plant, rounds: Rounds, amazon: AwsBench
) -> None:
    """F4."""
    for rng in rounds.of("machine made, and its answer lost"):
        with fleets_at(plant, amazon, rng) as (fleet,):
            amazon.proxy.lost.append("RunInstances")
            scale(plant, fleet, 1, rng)
            until_states(plant, fleet, "bootstrapping")
            if not amazon.proxy.lost:
                rounds.hit()
            demand_one_each(plant, amazon, fleet)


@pytest.mark.requirement("FRC-004", "FRC-007", "TST-016", "GAT-013", "ACC-065")
def test_a_worker_killed_before_it_wrote_a_machine_down_makes_no_second_one(
    plant: Plant, rounds: Rounds, amazon: AwsBench
) -> None:
    """F2, F3: and whoever looks next does not see it yet."""
    for rng in rounds.of("machine made, its worker killed before it was written down"):
        with fleets_at(plant, amazon, rng) as (fleet,):
            plant.processes["worker"].end()
            scale(plant, fleet, 1, rng)
            deadly = plant.start_worker(fault=KILLED_AFTER_MAKING, heartbeat_s=BEAT_S)
            until(lambda worker=deadly: not worker.is_running, or_say=plant.tails)
            assert deadly.popen.returncode == -signal.SIGKILL
            (row,) = machines(plant, fleet)
            assert row["calls"] == 1
            if row["provider_ref"] is None:
                rounds.hit()
            plant.start_worker(heartbeat_s=BEAT_S)
            until_states(plant, fleet, "bootstrapping")
            demand_one_each(plant, amazon, fleet)


# Soak, for a provider that has failed a few times is not asked again for half a minute.
@pytest.mark.soak
@pytest.mark.requirement("ACC-065")
def test_what_was_wanted_while_amazon_was_unreachable_happens_once_it_is_back(
    plant: Plant, rounds: Rounds, amazon: AwsBench, network: Network
) -> None:
    """F21: a machine of one fleet is to be made, and one of another to be ended."""
    for rng in rounds.of("both were asked for in vain"):
        with fleets_at(plant, amazon, rng, 2) as (old, new):
            scale(plant, old, 1, rng)
            until_states(plant, old, "bootstrapping")
            come_up(plant, old)
            network.drop()
            scale(plant, old, 0, rng)
            scale(plant, new, 1, rng)
            until(lambda: are_stuck(plant, old, new), every_s=EVERY_S, or_say=plant.tails)
            if not amazon.proxy.called("TerminateInstances"):
                rounds.hit()
            network.clear()
            until_states(plant, old, "terminated")
            until_states(plant, new, "bootstrapping")
            demand_one_each(plant, amazon, old, new)


def are_stuck(plant: Plant, old: str, new: str) -> bool:
    """Tell whether Amazon was asked in vain for the end of a machine and for another one."""
    rows = [row for fleet in (old, new) for row in machines(plant, fleet)]
    told = [(row["state"], row["next_at"] > 0) for row in rows]
    return told == [("terminating", True), ("provisioning", True)]
