"""Whatever is damaged at once, two reconciliations leave a store in which every rule holds."""

from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.errors import StaleRejected
from forgeyard.store.engine import read
from forgeyard.store.reconcile import passes
from tests.chaos.invariants import violations
from tests.damage import DAMAGES, World, a_world, dump, restore
from tests.integration.store.test_runner_cache import STEPS
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
SETS = 12
FEWEST, MOST = 2, 7
ALONE = frozenset({"a job runs whose attempt has succeeded", "no cycle for long"})
"""Damage to the story itself: that a job was told to have succeeded, and when cycles were."""


def findings(engine: sa.Engine) -> tuple:
    with read(engine) as connection:
        return passes.survey(connection, POLICY).findings


def test_any_set_of_damages_is_mended_by_at_most_two_reconciliations(engine: sa.Engine) -> None:
    built = a_world(engine)
    rows, found = dump(engine), 0
    names = sorted(DAMAGES.keys() - ALONE)
    for seed in range(SETS):
        rng = Random(seed)
        chosen = rng.sample(names, rng.randint(FEWEST, MOST))
        restore(engine, rows)
        for name in chosen:
            DAMAGES[name][0](world_of(built, engine))
        found += bool(findings(engine))
        runs = [passes.reconcile(engine, POLICY) for _ in range(2)]
        said = f"seed {seed}: {chosen}: {[one.findings for one in runs]}"
        assert findings(engine) == (), said
        assert violations(engine) == [], said
    assert found == SETS, "every set was found"


def world_of(built: World, engine: sa.Engine) -> World:
    return World(
        **{n: getattr(built, n) for n in World.__slots__ if n != "desk"}, desk=Desk(engine)
    )


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_found_while_only_transitions_change_the_store(
    engine: sa.Engine, seed: int
) -> None:
    """A false alarm would repair what is right."""
    desk, rng, done = Desk(engine), Random(seed), set()
    for _ in range(25):
        step = rng.choice(STEPS)
        try:
            step(desk, rng)
        except StaleRejected:
            continue
        done.add(step.__name__)
        assert findings(engine) == (), f"seed {seed}, after {step.__name__}"
    assert len(done) >= 8
