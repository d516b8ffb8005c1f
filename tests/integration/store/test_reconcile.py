"""Whatever contradicts itself in the store is found, told and repaired, and nothing else is."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.scheduler.findings import Finding, FindingKind, FindingOutcome
from forgeyard.store import tables
from forgeyard.store.engine import read
from forgeyard.store.reconcile import passes
from forgeyard.store.reconcile.passes import Reconciled
from tests.chaos.invariants import violations
from tests.damage import DAMAGES, World, a_world, dump, restore
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration


_BUILT: dict[str, tuple[World, dict[str, list[tuple[object, ...]]]]] = {}


@pytest.fixture
def world(engine: sa.Engine) -> World:
    """Build a world once for each kind of database; what costs is to play it."""
    kind = engine.dialect.name
    if kind not in _BUILT:
        built = a_world(engine)
        _BUILT[kind] = (built, dump(engine))
    built, rows = _BUILT[kind]
    restore(engine, rows)
    return replace(built, desk=Desk(engine))


def survey(engine: sa.Engine) -> Reconciled:
    with read(engine) as connection:
        return passes.survey(connection, POLICY)


def reconcile(engine: sa.Engine) -> Reconciled:
    return passes.reconcile(engine, POLICY)


def kinds(found: Iterable[Finding]) -> set[FindingKind]:
    return {one.kind for one in found}


def test_where_everything_agrees_nothing_is_found(world: World) -> None:
    engine = world.desk.engine
    before = dump(engine)
    assert survey(engine).findings == ()
    assert reconcile(engine) == Reconciled(findings=())
    assert dump(engine) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_told_and_repaired(world: World, damage: str) -> None:
    engine, (harm, expected) = world.desk.engine, DAMAGES[damage]
    harm(world)
    before = dump(engine)
    told = survey(engine)
    assert kinds(told.findings) == expected, told.findings
    assert {one.outcome for one in told.findings} == {FindingOutcome.FOUND}
    assert dump(engine) == before, "a dry run writes nothing"
    done = reconcile(engine)
    assert {one.outcome for one in done.findings} == {FindingOutcome.REPAIRED}, done.findings
    assert kinds(done.findings) & expected
    recorded = world.desk.rows(tables.findings)
    assert [(row["kind"], row["entity"]) for row in recorded] == [
        (one.kind, one.entity) for one in done.findings
    ]
    assert all(row["found"] and row["expected"] and row["at"] for row in recorded)
    reconcile(engine)
    assert survey(engine).findings == ()
    assert violations(engine) == []
