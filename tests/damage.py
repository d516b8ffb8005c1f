"""A small busy store in which everything agrees, and a hand that makes it contradict itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import (
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
)
from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.protocol import Outcome, Phase
from forgeyard.model.run import Concurrency
from forgeyard.model.units import GIB, Millis
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.findings import FindingKind
from forgeyard.store import runs, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, read, write
from tests.builders import (
    LEASE_POLICY,
    RNG,
    a_job_spec,
    a_run_spec,
    a_submission,
    some_capabilities,
    some_resources,
)
from tests.leasing import HOUR, Desk, Lease
from tests.sharing import declare
from tests.unguarded import unguarded

K = FindingKind
LATER: Final = RetryPolicy(
    max_attempts=3, on=(FailureClass.INFRASTRUCTURE,), delay=Millis(HOUR), max_delay=Millis(HOUR)
)
BIG = some_resources(cpu=16_000)
"""As much as an idle runner has, and none is idle."""
leases, jobs, attempts, holds = tables.leases, tables.jobs, tables.attempts, tables.held_room


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the store holds: one lease of each sort, and a run of each."""

    desk: Desk
    offered: Lease
    preparing: Lease
    running: Lease
    keyed: Lease
    on_device: Lease
    done: Lease
    retrying: Lease
    """Its attempt failed; its job waits for another."""
    chain: str
    """A run whose first job runs, and whose second needs it."""
    held: str
    """A run that waits for another of its group."""
    big: str
    """A run of one job that no runner has room for."""

    def job(self, run_id: str, name: str) -> Row:
        """Read a job by its name."""
        (found,) = self.desk.rows(jobs, run_id=run_id, name=name)
        return found


def a_world(engine: sa.Engine) -> World:
    """Let jobs of every sort come as far as they should."""
    desk = Desk(engine)
    gpus = Equipment(gpus=(Gpu(id="GPU-0"), Gpu(id="GPU-1")), devices=())
    capabilities = some_capabilities(equipment=gpus)
    room = some_resources(cpu=16_000, memory=32 * GIB, disk=50 * GIB, slots=16)
    for name in ("runner-1", "runner-2"):
        desk.register(name, capabilities=capabilities, total=room)
    path = declare(desk, "acme", max_jobs=50)
    gpu = Requirements(equipment=EquipmentRequirement(gpus=(GpuRequirement(),)))
    preparing = _granted(desk, a_job_spec())
    running = _granted(desk, a_job_spec("build"), a_job_spec("test", needs=("build",)), queue=path)
    keyed = _granted(desk, a_job_spec(wishes=Wishes(keys=("db",))), queue=path)
    on_device = _granted(desk, a_job_spec(requires=gpu))
    done = _granted(
        desk, a_job_spec("first"), a_job_spec("second", needs=("first",), resources=BIG)
    )
    retrying = _granted(desk, a_job_spec(retry=LATER))
    for lease in (preparing, running, keyed, on_device, done, retrying):
        desk.accept(lease)
    desk.progress(running, Phase.RUNNING)
    desk.complete(done)
    desk.complete(retrying, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
    desk.settle(retrying)
    offered = _granted(desk, a_job_spec(), queue=path)
    held = _in_group(desk)
    big = desk.submit(a_job_spec(resources=BIG))
    return World(
        desk=desk,
        offered=offered,
        preparing=preparing,
        running=running,
        keyed=keyed,
        on_device=on_device,
        done=done,
        retrying=retrying,
        chain=running.run_id,
        held=held,
        big=big,
    )


def _granted(desk: Desk, *specs: Any, **changed: Any) -> Lease:
    """Submit a run, and give its one eligible job to a runner; what waited before waits on."""
    run_id = desk.submit(*specs, **changed)
    desk.cycle()
    (lease,) = (one for one in desk.leases(state="offered") if one.run_id == run_id)
    return lease


def _in_group(desk: Desk) -> str:
    """Let one run of a group go on and another wait; return that."""
    spec = replace(a_run_spec(), concurrency=Concurrency(group="deploy"))
    first, second = (
        desk.change(runs.submit, a_submission(spec), policy=LEASE_POLICY, rng=RNG) for _ in range(2)
    )
    assert first.created
    desk.cycle()
    return second.run_id


Damage = Callable[[World], None]


def of(table: sa.Table, key: Callable[[World], str], **values: object) -> Damage:
    """Overwrite one row."""
    return lambda world: world.desk.overwrite(table, key(world), **values)


def run(world: World, *statements: sa.Executable) -> None:
    """Execute statements behind the store's back."""
    with write(world.desk.engine) as connection:
        for statement in statements:
            connection.execute(statement)


def without(table: sa.Table, **where: Callable[[World], str] | str) -> Damage:
    """Delete rows."""

    def damage(world: World) -> None:
        wanted = {name: x if isinstance(x, str) else x(world) for name, x in where.items()}
        run(world, sa.delete(table).where(*(table.c[n] == v for n, v in wanted.items())))

    return damage


def plus(table: sa.Table, **values: object) -> Damage:
    """Insert a row."""

    def damage(world: World) -> None:
        row = {name: x(world) if callable(x) else x for name, x in values.items()}
        run(world, sa.insert(table).values(row))

    return damage


def all_of(*damages: Damage) -> Damage:
    """Do several."""

    def damage(world: World) -> None:
        for one in damages:
            one(world)

    return damage


def lease(name: str) -> Callable[[World], str]:
    """Name a lease of the world."""
    return lambda world: getattr(world, name).lease_id


def attempt(name: str) -> Callable[[World], str]:
    """Name the attempt of a lease."""
    return lambda world: getattr(world, name).attempt_id


def job(name: str) -> Callable[[World], str]:
    """Name the job of a lease."""
    return lambda world: getattr(world, name).job_id


def runner(name: str) -> Callable[[World], str]:
    """Name the runner of a lease."""
    return lambda world: getattr(world, name).runner_id


def of_run(name: str) -> Callable[[World], str]:
    """Name the run of a lease."""
    return lambda world: getattr(world, name).run_id


def _big(world: World) -> str:
    return str(world.job(world.big, "build")["job_id"])


def _needing(world: World) -> str:
    return str(world.job(world.chain, "test")["job_id"])


_DEADLINE = tables.deadlines
_ALIVE = {"state": "active"}
DAMAGES: Final[Mapping[str, tuple[Damage, frozenset[FindingKind]]]] = {
    "a reservation is gone": (
        without(tables.reservations, lease_id=lease("running")),
        frozenset({K.RESERVATION_MISSING}),
    ),
    "a reservation outlived its lease": (
        plus(
            tables.reservations,
            lease_id=lease("done"),
            runner_id=runner("done"),
            cpu_milli=1,
            memory_bytes=1,
            disk_bytes=1,
            slots=1,
        ),
        frozenset({K.RESERVATION_STRAY}),
    ),
    "a reservation holds other amounts": (
        of(tables.reservations, lease("keyed"), memory_bytes=7),
        frozenset({K.RESERVATION_WRONG}),
    ),
    "a reservation counts against another tenant": (
        of(tables.reservations, lease("keyed"), tenant_id="tnt_default"),
        frozenset({K.RESERVATION_WRONG}),
    ),
    "a runner says that it holds nothing": (
        of(tables.runners, runner("running"), reserved_cpu_milli=0, reserved_slots=0),
        frozenset({K.RUNNER_SUM}),
    ),
    "a runner says that it is full": (
        of(tables.runners, runner("running"), reserved_memory_bytes=32 * GIB),
        frozenset({K.RUNNER_SUM}),
    ),
    "a device is held for an ended lease": (
        plus(
            tables.device_holds,
            lease_id=lease("done"),
            device_id="GPU-9",
            runner_id=runner("done"),
            share=1_000,
        ),
        frozenset({K.DEVICE_STRAY}),
    ),
    "a key is held for an ended lease": (
        plus(tables.key_holds, key_name="port", lease_id=lease("done"), job_id=job("done")),
        frozenset({K.KEY_STRAY}),
    ),
    "a key is not held by whom it was given to": (
        without(tables.key_holds, key_name="db"),
        frozenset({K.KEY_MISSING}),
    ),
    "a key went to an ended lease": (
        of(tables.key_holds, lambda _: "db", lease_id="lse_gone", job_id="job_gone"),
        frozenset({K.KEY_STRAY, K.KEY_MISSING}),
    ),
    "room is held for a job that ended": (
        all_of(
            of(jobs, job("done"), finished_at=1, leased_at=1),
            plus(
                holds,
                job_id=job("done"),
                kind="backfill",
                partition="default",
                runner_id=runner("done"),
                cpu_milli=1,
                memory_bytes=1,
                disk_bytes=1,
                slots=1,
                since_at=1,
                deadline_at=1,
            ),
        ),
        frozenset({K.ROOM_STRAY}),
    ),
    "an ended lease lives again": (
        of(leases, lease("done"), **_ALIVE),
        frozenset({K.RESERVATION_MISSING, K.RUNNER_SUM, K.LEASE_ORPHAN}),
    ),
    "a leased job ended without its lease": (
        of(jobs, job("preparing"), state="cancelled", finished_at=1),
        frozenset({K.LEASE_ORPHAN, K.RUN_COUNT, K.RUN_NOT_ENDED}),
    ),
    "a job of epoch 1 has given epoch 2": (
        of(jobs, job("running"), epoch=2),
        frozenset({K.LEASE_ORPHAN}),
    ),
    "a job that runs waits again": (
        of(jobs, job("running"), state="eligible"),
        frozenset({K.JOB_BEHIND, K.DEADLINE_MISSING}),
    ),
    "a job that runs is pending": (
        of(jobs, job("running"), state="pending"),
        frozenset({K.JOB_BEHIND, K.JOB_NOT_PROMOTED}),
    ),
    "a job is ahead of its attempt": (
        of(jobs, job("preparing"), state="uploading_outputs"),
        frozenset({K.LEASE_ORPHAN}),
    ),
    "a lease ended without its attempt": (
        of(leases, lease("running"), state="expired"),
        frozenset({K.RESERVATION_STRAY, K.RUNNER_SUM, K.ATTEMPT_ORPHAN}),
    ),
    "an offer ended without its attempt": (
        of(leases, lease("offered"), state="revoked"),
        frozenset({K.RESERVATION_STRAY, K.RUNNER_SUM, K.ATTEMPT_ORPHAN}),
    ),
    "an ended attempt will never be settled": (
        all_of(
            of(attempts, attempt("retrying"), settled_at=None),
            of(jobs, job("retrying"), state="preparing"),
            without(_DEADLINE, entity_id=attempt("retrying")),
        ),
        frozenset({K.ATTEMPT_UNSETTLED}),
    ),
    "a job runs whose attempt has failed": (
        of(jobs, job("retrying"), state="running"),
        frozenset({K.JOB_ORPHAN}),
    ),
    "a job runs whose attempt has succeeded": (
        all_of(
            of(jobs, job("done"), state="running", finished_at=None),
            of(tables.runs, of_run("done"), open_jobs=2),
            without(tables.history, entity_id=job("done"), after="succeeded"),
        ),
        frozenset({K.JOB_ORPHAN}),
    ),
    "a job is leased to nobody": (
        all_of(
            of(jobs, _big, state="leased"),
            without(_DEADLINE, entity_id=_big),
        ),
        frozenset({K.JOB_ORPHAN}),
    ),
    "a job counts a need that has ended": (
        of(jobs, _needing, waiting_needs=2),
        frozenset({K.NEEDS_COUNT}),
    ),
    "a job counts no need": (of(jobs, _needing, waiting_needs=0), frozenset({K.NEEDS_COUNT})),
    "a job was not promoted": (
        lambda world: world.desk.overwrite(
            jobs, str(world.job(world.done.run_id, "second")["job_id"]), state="pending"
        ),
        frozenset({K.JOB_NOT_PROMOTED}),
    ),
    "a run counts too many open jobs": (
        of(tables.runs, of_run("running"), open_jobs=9),
        frozenset({K.RUN_COUNT}),
    ),
    "a run counts failures that were none": (
        of(tables.runs, of_run("running"), failed_jobs=1),
        frozenset({K.RUN_COUNT}),
    ),
    "a run did not end": (
        all_of(
            of(jobs, _big, state="cancelled", finished_at=1),
            without(_DEADLINE, entity_id=_big),
        ),
        frozenset({K.RUN_COUNT, K.RUN_NOT_ENDED}),
    ),
    "a run ended before its jobs": (
        of(tables.runs, lambda world: world.chain, state="failed", finished_at=1),
        frozenset({K.RUN_ENDED_EARLY}),
    ),
    "no deadline ends a run": (
        without(_DEADLINE, kind="run", entity_id=of_run("running")),
        frozenset({K.DEADLINE_MISSING}),
    ),
    "nothing looks after a run that is held": (
        without(_DEADLINE, entity_id=lambda world: world.held),
        frozenset({K.DEADLINE_MISSING}),
    ),
    "no deadline ends a wait for a runner": (
        without(_DEADLINE, entity_id=_big),
        frozenset({K.DEADLINE_MISSING}),
    ),
    "no deadline ends a retry's delay": (
        without(_DEADLINE, entity_id=job("retrying")),
        frozenset({K.DEADLINE_MISSING}),
    ),
    "no deadline ends a phase": (
        without(_DEADLINE, entity_id=attempt("running")),
        frozenset({K.DEADLINE_MISSING}),
    ),
    "a deadline is of nothing": (
        plus(_DEADLINE, kind="queue", entity_id="job_none", partition="default", due_at=1),
        frozenset({K.DEADLINE_STRAY}),
    ),
    "no cycle for long": (
        lambda world: run(
            world,
            sa.update(tables.cycles).values(created_at=1),
            sa.update(jobs).where(jobs.c.state == "eligible").values(eligible_at=1),
        ),
        frozenset({K.QUEUE_FORGOTTEN}),
    ),
    "a class is parked for the future": (
        plus(
            tables.parked_classes,
            partition="default",
            requirement_class="sha256:x",
            generation=999,
            diagnosis="{}",
            since_at=1,
        ),
        frozenset({K.PARKING_AHEAD}),
    ),
    "a tenant was charged beyond all measure": (
        of(tables.scopes, lambda _: "tnt_default", finish_tag=2**60),
        frozenset({K.SHARE_AHEAD}),
    ),
    "an event is of no attempt": (
        plus(
            tables.outbox,
            event_id="evt_x",
            stream="att_none",
            sequence=1,
            kind="lease.granted",
            payload="{}",
            created_at=1,
        ),
        frozenset({K.EVENT_ORPHAN}),
    ),
}


def restore(engine: sa.Engine, rows: Mapping[str, list[tuple[object, ...]]]) -> None:
    """Write the rows of a dump into an empty store; its newest cycle was just now."""
    with write(engine) as connection, unguarded(connection):
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(sa.delete(table))
        for table in tables.metadata.sorted_tables:
            names = [column.name for column in table.columns]
            if rows[table.name]:
                values = [dict(zip(names, row, strict=True)) for row in rows[table.name]]
                connection.execute(sa.insert(table), values)
        cycles = tables.cycles
        connection.execute(sa.update(cycles).values(created_at=database_now(connection)))


def dump(engine: sa.Engine) -> dict[str, list[tuple[object, ...]]]:
    """Read every row of every table."""
    with read(engine) as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in tables.metadata.sorted_tables
        }
