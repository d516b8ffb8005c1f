"""Ten explanations, written by hand before the code that prints them."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest

from forgeyard.scheduler import telling
from forgeyard.scheduler.explain import Explanation, explain
from tests.golden.worlds import WORLDS, World

GOLDEN = Path(__file__).parents[2] / "golden" / "explanations"


def told(world: World) -> str:
    return telling.text(explained(world))


def explained(world: World) -> Explanation:
    return explain(world.job, world.snapshot, world.policy, background=world.background)


def canonical(found: Explanation) -> str:
    return json.dumps(asdict(found), sort_keys=True, separators=(",", ":"))


@pytest.mark.requirement("DIA-002", "DIA-004", "ACC-033", "POL-003", "POL-004")
@pytest.mark.parametrize("name", WORLDS)
def test_an_explanation_reads_as_it_was_written_by_hand(name: str) -> None:
    world = WORLDS[name]()
    wanted = (GOLDEN / f"{name}.txt").read_text().replace("{digest}", world.policy.digest())
    assert told(world) + "\n" == wanted


def test_every_text_has_its_world() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(WORLDS)
    assert len(WORLDS) == 10


@pytest.mark.requirement("DIA-002")
@pytest.mark.parametrize("name", WORLDS)
def test_the_same_snapshot_in_any_order_gives_the_same_bytes(name: str) -> None:
    world = WORLDS[name]()
    for seed in range(5):
        rng, seen = Random(seed), world.snapshot
        jobs, runners = list(seen.jobs), list(seen.runners)
        rng.shuffle(jobs)
        rng.shuffle(runners)
        shuffled = replace(seen, jobs=tuple(jobs), runners=tuple(runners))
        again = replace(world, snapshot=shuffled)
        assert canonical(explained(again)) == canonical(explained(world))
        assert told(again) == told(world)


@pytest.mark.case("SP-089")
def test_a_job_that_waits_for_a_key_is_told_of_its_holder_and_not_of_runners() -> None:
    world = WORLDS["key_held"]()
    found = explain(world.job, world.snapshot, world.policy)
    assert (found.code, found.permanent) == ("KEY_HELD", False)
    assert found.gate is not None
    assert (found.gate.subject, found.gate.text) == (
        "production",
        "job deploy-blue holds the key production",
    )
