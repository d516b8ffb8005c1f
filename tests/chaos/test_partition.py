"""F15: a runner is cut off, in one direction only, for longer than leases and sessions last."""

import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.units import Millis
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, a_job, until, works_until
from tests.chaos.proxy import Proxy, Toward
from tests.chaos.rounds import Rounds
from tests.chaos.test_agent_killed import SHORT

pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
LEASE: LeasePolicy = replace(
    SHORT.lease,
    offer_ttl=Millis(3_000),
    execution_ttl=Millis(3_000),
    connectivity_grace=Millis(2_000),
    session_silence=Millis(2_000),
    offline_at_most=Millis(60_000),
)


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Lose silent sessions before their leases lapse, and let jobs run on offline."""
    return replace(SHORT, lease=LEASE)


@pytest.mark.requirement("TST-005", "RCN-023", "ACC-013")
@pytest.mark.parametrize("way", list(Toward))
def test_who_is_cut_off_stops_before_another_starts_and_goes_on_if_it_may(
    plant: Plant, rounds: Rounds, way: Toward
) -> None:
    for rng in rounds.of(f"nothing arrived toward the {way} while three jobs ran"):
        with Proxy(target=plant.agent_port, seed=rng.randint(1, 10**6)) as proxy:
            demand_no_overlap(plant, rounds, rng, proxy, way)
        plant.end_agents()


def demand_no_overlap(plant: Plant, rounds: Rounds, rng: Random, proxy: Proxy, way: Toward) -> None:
    cut_off = plant.start_agent(url=proxy.url)
    plant.until_online(cut_off)
    gate = plant.file(f"gate-{rng.random()}")
    beats = {name: plant.file(f"{name}-{rng.random()}") for name in ("grace", "watched", "alone")}
    run_id = plant.submit(
        grace=a_job(works_until(gate, beats["grace"])),
        watched=a_job(works_until(gate, beats["watched"]), connectivity="continuous"),
        alone=a_job(works_until(gate, beats["alone"]), connectivity={"offline": "1m"}),
    )
    plant.until_running(run_id, *beats)
    time.sleep(rng.uniform(0, 1))
    proxy.blackhole(way)
    cut_at = time.time()
    plant.until_online(plant.start_agent())
    until(lambda: begun_anew(beats["grace"]) and begun_anew(beats["watched"]), or_say=plant.tails)
    for name in ("grace", "watched"):
        assert last_at_work(beats[name]) < begun_anew(beats[name]), f"both were at {name} at once"
        took = begun_anew(beats[name]) - cut_at
        rounds.took("cut off to started elsewhere", took, goal_s=40)
    assert last_at_work(beats["watched"]) < last_at_work(beats["grace"])
    plant.until_offline(cut_off)
    if proxy.counts[f"silenced toward {way}"]:
        rounds.hit()
    proxy.clear()
    plant.until_online(cut_off)
    gate.touch()
    plant.until_state(run_id, "succeeded")
    assert plant.states(run_id, "alone") == ["succeeded"]
    for name in ("grace", "watched"):
        first, *_, last = plant.states(run_id, name)
        assert (first, last) == ("lost", "succeeded")
    plant.demand_rest()


def begun_anew(beat: Path) -> float:
    """Tell when another attempt than the first began; 0 if none has."""
    first = Path(f"{beat}-1.began")
    others = set(beat.parent.glob(f"{beat.name}-*.began")) - {first}
    return min((path.stat().st_mtime for path in others), default=0.0)


def last_at_work(beat: Path) -> float:
    """Tell when the first attempt was last seen at work."""
    return Path(f"{beat}-1").stat().st_mtime
