"""Whatever contradicts itself in the store is found, told and repaired, and nothing else is."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.ids import LeaseId
from forgeyard.model.policy import ReconcilePolicy
from forgeyard.model.units import GIB
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.findings import Finding, FindingKind, FindingOutcome
from forgeyard.store import runners, tables
from forgeyard.store.engine import read
from forgeyard.store.reconcile import passes
from forgeyard.store.reconcile.passes import Reconciled
from tests.builders import a_job_spec, some_resources
from tests.chaos.invariants import violations
from tests.damage import DAMAGES, World, a_world, dump, restore
from tests.leasing import HOUR, POLICY, Desk

pytestmark = pytest.mark.integration
ROOM = some_resources(cpu=4_000, memory=8 * GIB, disk=50 * GIB, slots=4)


_BUILT: dict[str, tuple[World, dict[str, list[tuple[object, ...]]]]] = {}


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


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
    if FindingKind.QUEUE_FORGOTTEN in expected:
        world.desk.cycle()  # as the loop does once it is woken
    reconcile(engine)
    assert survey(engine).findings == ()
    assert violations(engine) == []


@pytest.mark.requirement("RCN-014")
def test_a_runner_that_gave_away_too_much_is_told_and_gets_nothing_more(desk: Desk) -> None:
    """Its host shrank under its jobs: they go on, and nothing joins them, however little it is."""
    runner = desk.register(total=ROOM)
    desk.submit(a_job_spec(resources=some_resources(cpu=3_000, memory=GIB)))
    assert desk.cycle().granted == 1
    desk.overwrite(tables.runners, runner.runner_id, total_cpu_milli=2_000)
    (found,) = survey(desk.engine).findings
    assert (found.kind, found.entity) == (FindingKind.RUNNER_OVERFULL, runner.runner_id)
    assert "1 core" in found.found
    for _ in range(2):
        (found,) = reconcile(desk.engine).findings
        assert found.outcome is FindingOutcome.REPORTED
    (row,) = desk.rows(tables.findings)
    assert (row["kind"], row["outcome"]) == ("runner_overfull", "reported"), "told once"
    assert row["seen_at"] >= row["at"]
    desk.submit(a_job_spec("tiny", resources=some_resources(cpu=0, memory=0, disk=0, slots=1)))
    assert desk.cycle().granted == 0
    assert len(desk.leases(state="offered")) == 1, "no work was taken from anybody"


@pytest.mark.requirement("RCN-016")
def test_a_lease_that_a_draining_runner_got_afterwards_is_told(desk: Desk) -> None:
    before = desk.active()
    drain = {"reason": "so", "actor": "ann", "channel": "test"}
    desk.change(runners.drain, "runner-1", **drain)
    assert survey(desk.engine).findings == (), "what it had before is its own"
    drained = desk.rows(tables.history, kind="runner", after="draining")[-1]["at"]
    desk.overwrite(tables.leases, before.lease_id, offered_at=drained + 1)
    (found,) = reconcile(desk.engine).findings
    assert (found.kind, found.entity) == (FindingKind.LEASE_AFTER_DRAIN, before.lease_id)
    assert found.outcome is FindingOutcome.REPORTED
    assert desk.states(before)[0] == "active"


def test_a_device_of_which_too_much_is_held_is_told(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    assert desk.cycle().granted == 2
    for lease in desk.leases():
        hold = {"device_id": "GPU-0", "runner_id": lease.runner_id, "share": 600}
        desk.change(insert, tables.device_holds, {**hold, "lease_id": lease.lease_id})
    (found,) = reconcile(desk.engine).findings
    assert (found.kind, found.entity) == (FindingKind.DEVICE_OVERFULL, "GPU-0")
    assert found.found.startswith("1200 ")
    assert len(desk.rows(tables.device_holds)) == 2


def insert(connection: sa.Connection, table: sa.Table, row: dict[str, object]) -> None:
    connection.execute(sa.insert(table).values(row))


def test_a_key_that_two_live_leases_should_hold_is_told_and_taken_from_nobody(desk: Desk) -> None:
    wishes = Wishes(keys=("db",))
    first = desk.active(a_job_spec(wishes=wishes))
    change = {"lease_id": "lse_other"}
    desk.overwrite(tables.key_holds, "db", **change)
    desk.submit(a_job_spec())
    desk.cycle()
    (second,) = desk.leases(state="offered")
    desk.overwrite(tables.key_holds, "db", lease_id=second.lease_id, job_id=second.job_id)
    (found,) = reconcile(desk.engine).findings
    assert (found.kind, found.within) == (FindingKind.KEY_MISSING, first.lease_id)
    assert found.outcome is FindingOutcome.REPORTED
    assert desk.row(tables.key_holds, "db")["lease_id"] == second.lease_id


def test_what_cannot_be_repaired_is_told_and_stops_nothing_else(desk: Desk) -> None:
    """A job in a state of a release to come: its lease cannot be judged, other runners can."""
    lease = desk.active()
    desk.overwrite(tables.jobs, lease.job_id, state="unheard_of")
    desk.register("runner-2")
    (other,) = desk.rows(tables.runners, name="runner-2")
    desk.overwrite(tables.runners, other["runner_id"], reserved_slots=9)
    for _ in range(2):
        found = {one.kind: one.outcome for one in reconcile(desk.engine).findings}
        assert found.pop(FindingKind.RUNNER_SUM, None) in (None, FindingOutcome.REPAIRED)
        assert found == {FindingKind.LEASE_ORPHAN: FindingOutcome.FAILED}
    assert desk.run_state(lease.run_id) == "running", "what nobody understands has not ended"
    assert len(desk.rows(tables.findings, kind="runner_sum")) == 1
    assert len(desk.rows(tables.findings, outcome="failed")) == 1, "the same failure is told once"


def test_one_reconciliation_repairs_a_bounded_number_and_the_next_one_goes_on(
    engine: sa.Engine,
) -> None:
    policy = replace(POLICY, reconcile=ReconcilePolicy(repairs=2))
    desk = Desk(engine, policy)
    for number in range(5):
        desk.register(f"runner-{number}")
    desk.change(lambda c: c.execute(sa.update(tables.runners).values(reserved_slots=1)))
    left = []
    for _ in range(3):
        done = passes.reconcile(engine, policy)
        left.append((len(done.findings), done.more))
    assert left == [(2, True), (2, True), (1, False)]
    assert survey(engine).findings == ()


def test_a_reconciliation_of_one_partition_leaves_the_jobs_of_another_alone(desk: Desk) -> None:
    mine, other = desk.submit(), desk.submit(partition="mac")
    for run_id in (mine, other):
        desk.overwrite(tables.runs, run_id, open_jobs=9)
    found = passes.reconcile(desk.engine, POLICY, partition="mac").findings
    assert [one.entity for one in found] == [other]
    assert [one.entity for one in survey(desk.engine).findings] == [mine]


def test_looking_takes_as_many_statements_however_much_there_is(engine: sa.Engine) -> None:
    desk, counted = Desk(engine), []
    for _ in range(2):
        for number in range(6):
            desk.register(f"runner-{len(desk.rows(tables.runners))}-{number}")
        desk.submit(*(a_job_spec(f"job-{n}") for n in range(20)))
        desk.cycle()
        counted.append(statements_of(engine))
    assert counted[0] == counted[1] <= 30
    record = counted[1]
    print("statements of one look:", record)


def statements_of(engine: sa.Engine) -> int:
    """Count what one look asks of the database."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        survey(engine)
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    return len(seen)


@pytest.mark.requirement("RCN-001", "RCN-018")
def test_all_that_is_kept_beside_jobs_and_leases_may_be_lost(desk: Desk) -> None:
    """Plans, wakes, parked classes, generations, habits: the queue is the table of jobs."""
    lease = desk.active()
    waiting = desk.submit(a_job_spec("next"))
    desk.submit(a_job_spec("huge", resources=some_resources(memory=64 * GIB)))
    desk.plan()
    aside = (
        *(tables.placements, tables.cycles, tables.wakes, tables.parked_classes),
        *(tables.generations, tables.habits, tables.held_room, tables.refusals),
    )
    for table in aside:
        desk.change(lambda connection, table=table: connection.execute(sa.delete(table)))
    assert survey(desk.engine).findings == ()
    assert desk.cycle().granted == 1
    (offered,) = desk.leases(state="offered")
    assert offered.run_id == waiting
    desk.complete(lease)
    assert desk.run_state(lease.run_id) == "succeeded"


# What runners report


@pytest.mark.requirement("RCN-017")
def test_a_lease_that_its_runner_does_not_report_for_long_is_told(desk: Desk) -> None:
    lease = desk.active()
    mine = (LeaseId(lease.lease_id),)
    desk.heartbeat(lease.session_id, held=mine)
    assert desk.row(tables.leases, lease.lease_id)["unreported_since"] is None
    desk.heartbeat(lease.session_id)
    since = desk.row(tables.leases, lease.lease_id)["unreported_since"]
    desk.heartbeat(lease.session_id)
    assert desk.row(tables.leases, lease.lease_id)["unreported_since"] == since
    assert reconcile(desk.engine).findings == (), "it may be about to report it"
    desk.overwrite(tables.leases, lease.lease_id, unreported_since=since - 90_000)
    (found,) = reconcile(desk.engine).findings
    assert (found.kind, found.entity) == (FindingKind.LEASE_UNREPORTED, lease.lease_id)
    desk.heartbeat(lease.session_id, held=mine)
    assert reconcile(desk.engine).findings == ()
    assert desk.states(lease)[0] == "active"


def test_a_lease_that_a_runner_made_up_is_abandoned_and_told_once(desk: Desk) -> None:
    lease = desk.active()
    other = desk.active(runner="runner-2")
    made_up = (LeaseId("lse_nobody_gave"), LeaseId(other.lease_id))
    for _ in range(2):
        answer = desk.heartbeat(lease.session_id, held=(LeaseId(lease.lease_id), *made_up))
        assert answer.abandon == made_up
    (row,) = desk.rows(tables.findings)
    assert (row["kind"], row["entity"]) == ("lease_unknown", lease.runner_id)
    assert "2 leases" in row["found"]
    assert "lse_nobody_gave" in row["found"]


def test_a_lease_that_has_just_ended_is_abandoned_without_ado(desk: Desk) -> None:
    lease = desk.active()
    desk.later(HOUR)
    assert desk.sweep().expired == 1
    held = (LeaseId(lease.lease_id),)
    session_id = desk.register("runner-2").session_id
    desk.heartbeat(session_id)
    assert desk.rows(tables.findings) == []
    lost = desk.row(tables.runners, lease.runner_id)["session_id"]
    if lost is not None:
        assert desk.heartbeat(lost, held=held).abandon == held
    assert desk.rows(tables.findings) == []
