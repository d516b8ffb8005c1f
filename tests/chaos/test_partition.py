"""F15: a runner is cut off, in one direction only, for longer than leases and sessions last."""

import time
from dataclasses import dataclass, replace
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

# Left to `make chaos`: it waits for leases to lapse, twice: most of a minute.
pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
LEASE: LeasePolicy = replace(
    SHORT.lease,
    offer_ttl=Millis(10_000),
    execution_ttl=Millis(7_000),
    connectivity_grace=Millis(3_000),
    session_silence=Millis(5_000),
    offline_at_most=Millis(60_000),
)


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Lose silent sessions before their leases lapse, and let jobs run on offline.

    Leases outlast the seconds for which a busy machine may leave a process waiting.
    """
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
    plant.until_online(plant.start_agent())
    time.sleep(rng.uniform(0, 1))
    proxy.blackhole(way)
    cut_at = time.time()
    cut = {
        name: Cut(beat=beat, number=len(plant.states(run_id, name))) for name, beat in beats.items()
    }
    until(lambda: cut["grace"].begun_anew and cut["watched"].begun_anew, or_say=plant.tails)
    for name in ("grace", "watched"):
        begun = cut[name].begun_anew
        assert cut[name].last_at_work < begun, f"both were at {name} at once"
        rounds.took("cut off to started elsewhere", begun - cut_at, goal_s=40)
    assert cut["watched"].last_at_work < cut["grace"].last_at_work
    plant.until_offline(cut_off)
    if proxy.counts[f"silenced toward {way}"]:
        rounds.hit()
    proxy.clear()
    plant.until_online(cut_off)
    gate.touch()
    plant.until_state(run_id, "succeeded")
    assert cut["alone"].number == len(plant.states(run_id, "alone"))
    for name in ("grace", "watched"):
        states = plant.states(run_id, name)
        assert (states[cut[name].number - 1], states[-1]) == ("lost", "succeeded")
    plant.demand_rest()


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A job whose runner is cut off while one of its attempts runs there."""

    beat: Path
    number: int
    """Of that attempt."""

    @property
    def begun_anew(self) -> float:
        """Tell when a later attempt began; 0 if none has."""
        began = (Path(f"{self.beat}-{self.number + n}.began") for n in range(1, 4))
        return min((path.stat().st_mtime for path in began if path.exists()), default=0.0)

    @property
    def last_at_work(self) -> float:
        """Tell when the attempt was last seen at work."""
        return Path(f"{self.beat}-{self.number}").stat().st_mtime
