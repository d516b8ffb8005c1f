"""`forgeyard up` is killed in mid-run and started again: the run goes on where it was."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from forgeyard.config import StoreConfig
from forgeyard.store.engine import open_engine
from tests.acceptance.conftest import Forgeyard, kill_what_is_left
from tests.chaos.invariants import ALWAYS, AT_REST, violations
from tests.chaos.plant import lives, until
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration
THREE_JOBS = """
jobs:
  slow:
    retry: {max-attempts: 5}
    steps: [{run: "until test -e GATE; do sleep 0.1; done"}]
  quick: {retry: {max-attempts: 5}, steps: [{run: "true"}]}
  last: {needs: [slow, quick], steps: [{run: "echo all done"}]}
"""


@pytest.fixture
def house(tmp_path: Path, database: str) -> Iterator[Forgeyard]:
    """Give an empty home whose store is the database; end whatever runs there afterwards."""
    forgeyard = Forgeyard(home=tmp_path, environment={"FORGEYARD_STORE__URL": database})
    yield forgeyard
    forgeyard.type("down")
    kill_what_is_left(tmp_path / "data")


def test_a_killed_up_that_is_started_again_finishes_the_run(
    house: Forgeyard, rounds: Rounds, database: str
) -> None:
    house.type("up", "-d").ok()
    for rng in rounds.of("killed with the run under way and its children alive"):
        demand_the_run_goes_on(house, rounds, rng, database)


def demand_the_run_goes_on(house: Forgeyard, rounds: Rounds, rng: Random, database: str) -> None:
    mark = f"{rng.random()}"
    gate = house.home / f"gate-{mark}"
    project = house.project(f"run-{mark}", THREE_JOBS.replace("GATE", str(gate)))
    first = house.type("status", "--json").ok().json()
    file = str(project / "forgeyard.yaml")
    run = house.type("run", "submit", file, "--no-source", "--json").ok().json()
    time.sleep(rng.uniform(0, 1.5))
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not lives(first["pid"]))
    if all(lives(pid) for pid in first["processes"].values()):
        rounds.hit()
    house.type("up", "-d").ok()
    left = [pid for pid in first["processes"].values() if lives(pid)]
    gate.touch()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    watched = house.type("run", "watch", run["run_id"], "--timeout", "90s")
    assert watched.code == 0, watched.out + watched.err
    engine = open_engine(database, StoreConfig())
    until(lambda: not violations(engine, of=AT_REST))
    assert not violations(engine, of=ALWAYS)
    engine.dispose()
