"""Runs that people submit, and what operators do to runs, runners, queues and the policy."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.errors import Conflict, ForgeyardError, Rejected, StoreUnavailable
from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import DeviceRequirement, EquipmentRequirement
from forgeyard.model.job import (
    AUTOMATIC_RETRY,
    Condition,
    FailureClass,
    JobSpec,
    MatrixCell,
    Priority,
    RetryPolicy,
    Timeouts,
)
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.run import Concurrency, RunSpec
from forgeyard.model.runner import RunnerState
from forgeyard.model.units import GIB, Millis
from forgeyard.model.wishes import Preemptibility, Wishes
from forgeyard.store import draining, policies, reordering, runners, runs, shares, tables
from forgeyard.store.engine import read
from forgeyard.store.reordering import Reordering
from forgeyard.store.shares import Intent, Shares
from tests.builders import a_job_spec, a_submission, some_resources
from tests.simulation.plane import PARTITIONS
from tests.simulation.weather import Fault
from tests.simulation.world import Violated, World

SAID = {"actor": "operator", "channel": "test", "reason": "by the simulation"}
INTENT = Intent(**SAID)
QUEUES = ("default/default/default/default", "default/default/other/night")
LONG = 3_600_000
MOST_WAITING = 8
"""Nobody submits more while so many jobs wait for a runner."""
_WAITING = (
    sa.select(sa.func.count()).select_from(tables.jobs).where(tables.jobs.c.state == "eligible")
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run as somebody asked for it, and the id it was given."""

    submission: runs.Submission
    run_id: str


class People:
    """Everybody who uses the system."""

    def __init__(self, world: World, runner_names: tuple[str, ...]) -> None:
        self._world = world
        self._runners = runner_names
        self.asked: list[Asked] = []
        self._number = 0
        path, intent = QUEUES[1], INTENT
        most = world.rng.choice((None, 1, 3))
        wanted = Shares(max_jobs=most)
        world.change(shares.create_with_parents, path, wanted, intent=intent, rng=world.ids)

    def begin(self) -> None:
        """Submit now and then, and operate now and then, until the weather has cleared up."""
        self._world.after(0, "people", self._submitting)
        self._world.after(self._world.between(2_000, 8_000), "operator", self._operating)

    def _submitting(self) -> None:
        world = self._world
        if world.weather.is_calm:
            return
        world.after(world.between(1_000, 7_000), "people", self._submitting)
        with read(world.engine) as connection:
            if connection.execute(_WAITING).scalar_one() > MOST_WAITING:
                return
        self._number += 1
        spec = a_run(world.rng, self._number)
        submission = a_submission(
            spec,
            idempotency_key=f"key-{self._number}",
            body_digest=f"sha256:{self._number}",
            queue=world.rng.choice(QUEUES),
            partition=world.rng.choice(PARTITIONS),
            elevation="by the simulation",
        )
        world.insist("people", lambda: self._submit(submission))

    def _submit(self, submission: runs.Submission) -> None:
        """Submit a run; whoever did not hear whether it worked asks again with the same key."""
        world = self._world
        made = world.change(runs.submit, submission, policy=world.built_in.lease, rng=world.ids)
        names = ", ".join(job.name for job in submission.spec.jobs)
        told = "submitted" if made.created else "was there already"
        world.tell("people", f"run {made.run_id[-6:]} {told}: {names}")
        self.asked.append(Asked(submission=submission, run_id=made.run_id))

    def _operating(self) -> None:
        world = self._world
        if world.weather.is_calm:
            return
        world.after(world.between(1_000, 7_000), "operator", self._operating)
        fault = world.rng.choice(tuple(_ACTS))
        try:
            said = _ACTS[fault](self, world)
        except (Conflict, Rejected, StoreUnavailable) as error:
            world.tell("operator", f"{fault.value}: {type(error).__name__}: {error.message}")
            return
        if said is not None:
            world.weather.note(fault)
            world.tell("operator", f"{fault.value}: {said}")

    def put_right(self) -> None:
        """Undo whatever keeps jobs from running, when everything is to come to rest."""
        world = self._world
        for name in self._runners:
            self._surely(lambda name=name: self._release(name))
        for path in QUEUES:
            self._surely(lambda path=path: world.change(shares.resume, path, intent=INTENT))
            self._surely(lambda path=path: self._share(path, Shares()))

    def _surely(self, act: Callable[[], object]) -> None:
        def once() -> None:
            try:
                act()
            except StoreUnavailable:
                raise
            except ForgeyardError as error:
                self._world.tell("operator", f"not needed: {error.message}")

        self._world.insist("operator", once)

    def _release(self, name: str) -> None:
        world = self._world
        world.change(runners.undrain, name, **SAID)
        world.change(runners.declare, name, RunnerState.ONLINE, **SAID)

    def _share(self, path: str, wanted: Shares) -> None:
        with read(self._world.engine) as connection:
            version = shares.show(connection, path).version
        self._world.change(shares.change, path, wanted, expected_version=version, intent=INTENT)

    # What operators do; each tells what it did, or nothing if there was nothing to do.

    def some_run(self, *states: str) -> str | None:
        """Draw a run that is in one of these states."""
        table = tables.runs
        query = sa.select(table.c.run_id).where(table.c.state.in_(states)).order_by(table.c.run_id)
        with read(self._world.engine) as connection:
            found = connection.execute(query).scalars().all()
        return self._world.rng.choice(found) if found else None

    def cancel_run(self, world: World) -> str | None:
        """Cancel a run."""
        run_id = self.some_run("queued", "running")
        if run_id is None:
            return None
        policy = world.built_in.lease
        return run_id + " " + world.change(runs.cancel_run, run_id, policy=policy, **SAID)

    def cancel_job(self, world: World) -> str | None:
        """Cancel one job of a run."""
        run_id = self.some_run("queued", "running")
        if run_id is None:
            return None
        table = tables.jobs
        query = sa.select(table.c.name).where(table.c.run_id == run_id).order_by(table.c.name)
        with read(world.engine) as connection:
            name = world.rng.choice(connection.execute(query).scalars().all())
        policy = world.built_in.lease
        state = world.change(runs.cancel_job, run_id, name, policy=policy, **SAID)
        return f"{name} of {run_id} {state}"

    def rerun(self, world: World) -> str | None:
        """Start the failed jobs of a run again."""
        run_id = self.some_run("failed", "cancelled", "timed_out")
        if run_id is None:
            return None
        again = world.change(
            runs.rerun_failed,
            run_id,
            actor=SAID["actor"],
            elevation="by the simulation",
            policy=world.built_in.lease,
            rng=world.ids,
        )
        return f"{run_id} as {again.run_id}"

    def ask_twice(self, world: World) -> str | None:
        """Submit a run a second time under its key; it must be the same."""
        if not self.asked:
            return None
        before = world.rng.choice(self.asked)
        again = world.change(
            runs.submit, before.submission, policy=world.built_in.lease, rng=world.ids
        )
        if again.run_id != before.run_id or again.created:
            raise Violated(f"the key of run {before.run_id} made run {again.run_id}")
        return before.run_id

    def drain_runner(self, world: World) -> str:
        """Drain a runner for a while."""
        name = world.rng.choice(self._runners)
        world.change(runners.drain, name, **SAID)
        self._relent(lambda: world.change(runners.undrain, name, **SAID))
        return name

    def empty_runner(self, world: World) -> str:
        """Drain a runner for a while and cancel its jobs."""
        name = world.rng.choice(self._runners)
        count = world.change(draining.drain_now, name, policy=world.built_in.lease, **SAID)
        self._relent(lambda: world.change(runners.undrain, name, **SAID))
        return f"{name}, {count} jobs cancelled"

    def declare_runner(self, world: World) -> str:
        """Declare a runner unhealthy for a while."""
        name = world.rng.choice(self._runners)
        world.change(runners.declare, name, RunnerState.UNHEALTHY, **SAID)
        self._relent(lambda: world.change(runners.declare, name, RunnerState.ONLINE, **SAID))
        return name

    def pause_queue(self, world: World) -> str:
        """Pause a queue for a while."""
        path = world.rng.choice(QUEUES)
        world.change(shares.pause, path, note="for a while", intent=INTENT)
        self._relent(lambda: world.change(shares.resume, path, intent=INTENT))
        return path

    def set_quota(self, world: World) -> str:
        """Limit a queue, or set it free."""
        path, most = world.rng.choice(QUEUES), world.rng.choice((1, 2, 3, None))
        cpu = world.rng.choice((1_000, 2_500, None))
        self._share(path, Shares(weight=world.rng.choice((1, 3)), max_jobs=most, max_cpu_milli=cpu))
        return f"{path}: {most} jobs, {cpu} milli-cores"

    def set_policy(self, world: World) -> str:
        """Put another policy in force."""
        wanted = variant(world.built_in, world.rng)
        with read(world.engine) as connection:
            before = policies.current(connection, world.built_in)
        after = world.change(
            policies.set_policy,
            wanted,
            expected_version=before.version,
            built_in=world.built_in,
            **SAID,
        )
        return f"version {after.version}"

    def reorder(self, world: World) -> str | None:
        """Give a run another priority."""
        run_id = self.some_run("queued", "running")
        if run_id is None:
            return None
        wanted = Reordering(priority=world.rng.choice(tuple(Priority)))
        policy = world.built_in.priorities
        world.change(reordering.reprioritise_run, run_id, wanted, policy=policy, intent=INTENT)
        return f"{run_id}: {wanted.priority}"

    def _relent(self, act: Callable[[], object]) -> None:
        delay = self._world.between(3_000, 25_000)
        self._world.after(delay, "operator", lambda: self._surely(act))


_ACTS: dict[Fault, Callable[[People, World], str | None]] = {
    Fault.RUN_CANCELLED: People.cancel_run,
    Fault.JOB_CANCELLED: People.cancel_job,
    Fault.RERUN: People.rerun,
    Fault.ASKED_TWICE: People.ask_twice,
    Fault.RUNNER_DRAINED: People.drain_runner,
    Fault.RUNNER_EMPTIED: People.empty_runner,
    Fault.RUNNER_DECLARED: People.declare_runner,
    Fault.QUEUE_PAUSED: People.pause_queue,
    Fault.QUOTA_SET: People.set_quota,
    Fault.POLICY_SET: People.set_policy,
    Fault.REORDERED: People.reorder,
}


def variant(policy: SchedulingPolicy, rng: random.Random) -> SchedulingPolicy:
    """Draw a policy near another one: with or without preemption, a small batch, another grace."""
    preemption = replace(policy.preemption, enabled=rng.choice((0, 1)), rest=Millis(5_000))
    lease = replace(policy.lease, connectivity_grace=Millis(rng.choice((2_000, 4_000, 6_000))))
    batch = rng.choice((2, 200))
    return replace(policy, preemption=preemption, lease=lease, batch=batch)


def a_run(rng: random.Random, number: int) -> RunSpec:
    """Draw a run: a chain, a diamond or a matrix, with every wish that a job can have."""
    shape = rng.choice((_single, _chain, _diamond, _matrix))
    grouped = rng.random() < 0.2
    return RunSpec(
        name=f"run-{number}",
        jobs=tuple(shape(rng)),
        timeout=Millis(rng.choice((LONG, LONG, LONG, 30_000))),
        concurrency=Concurrency(group=f"group-{number % 2}", cancel_in_progress=rng.random() < 0.3)
        if grouped
        else None,
    )


def _single(rng: random.Random) -> list[JobSpec]:
    return [_job(rng, "only")]


def _chain(rng: random.Random) -> list[JobSpec]:
    return [
        _job(rng, "first"),
        _job(rng, "second", needs=("first",)),
        _job(rng, "after", needs=("second",), condition=rng.choice(tuple(Condition))),
    ]


def _diamond(rng: random.Random) -> list[JobSpec]:
    return [
        _job(rng, "top"),
        _job(rng, "left", needs=("top",), continue_on_error=True),
        _job(rng, "right", needs=("top",)),
        _job(rng, "bottom", needs=("left", "right")),
    ]


def _matrix(rng: random.Random) -> list[JobSpec]:
    most, fast = rng.choice((None, 2)), rng.random() < 0.5
    cells = [
        _job(
            rng,
            f"cell-{n}",
            matrix=MatrixCell(of="cell", values={"n": str(n)}, fail_fast=fast, max_parallel=most),
        )
        for n in range(rng.randint(2, 4))
    ]
    return [*cells, _job(rng, "sum", needs=tuple(cell.name for cell in cells))]


def _job(rng: random.Random, name: str, **changed: object) -> JobSpec:
    """Draw a job."""
    keys = rng.choice(((), (), (), ("port",), ("port", "lamp")))
    boards = rng.choice((0, 0, 0, 1))
    equipment = EquipmentRequirement(devices=(DeviceRequirement(kind="board"),) if boards else ())
    zone = rng.choices((None, "a", "b", "nowhere"), (60, 20, 20, 3))[0]
    queue = LONG if zone != "nowhere" and rng.random() < 0.7 else rng.choice((10_000, 25_000))
    return a_job_spec(
        name,
        resources=some_resources(
            cpu=rng.choice((300, 700, 1_500)),
            memory=GIB // 2,
            disk=GIB // 2,
            slots=rng.choice((1, 1, 2)),
        ),
        requires=Requirements(labels={"zone": zone} if zone else {}, equipment=equipment),
        priority=rng.choice(tuple(Priority)),
        timeouts=Timeouts(
            queue=Millis(queue),
            preparation=Millis(rng.choice((1_000, 6_000))),
            execution=Millis(rng.choice((4_000, 9_000))),
            upload=Millis(4_000),
        ),
        retry=RetryPolicy(
            max_attempts=rng.randint(1, 4),
            on=(*AUTOMATIC_RETRY, *rng.choice(((), (FailureClass.TIMEOUT,)))),
            delay=Millis(rng.choice((0, 2_000))),
        ),
        wishes=Wishes(
            keys=keys,
            preemption=rng.choice((Preemptibility.NEVER, Preemptibility.RESTARTABLE)),
        ),
        **changed,
    )
