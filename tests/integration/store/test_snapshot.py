from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from forgeyard.errors import NotFound
from forgeyard.model.capability import Platform, Requirements, TrustClass
from forgeyard.model.job import Priority
from forgeyard.model.policy import ClassPolicy, SchedulingPolicy
from forgeyard.model.runner import ResourcePressure, RunnerState
from forgeyard.model.transitions import JobState
from forgeyard.model.units import GIB
from forgeyard.model.wishes import SchedulingClass, SpotWish, Wishes
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob
from forgeyard.store import snapshot, tables
from forgeyard.store.engine import database_now, read, write
from tests.builders import (
    PARTITION,
    POLICY,
    a_job_spec,
    grant,
    job_states,
    jobs_of,
    register_runner,
    some_capabilities,
    some_resources,
    submit_run,
)
from tests.leasing import Desk
from tests.sharing import declare, submit_to

pytestmark = pytest.mark.integration
MINUTE = 60_000
BY_CLASS = replace(POLICY, classes=ClassPolicy(interactive=37, batch=-45, normal=5))


def names(jobs: tuple[SchedulingJob, ...]) -> list[str]:
    return [job.name for job in jobs]


def shift(connection: sa.Connection, name: str, **values: object) -> None:
    """Change columns of a job as if time had passed."""
    jobs = tables.jobs
    connection.execute(sa.update(jobs).where(jobs.c.name == name).values(**values))


def test_an_empty_store_gives_an_empty_snapshot(engine: sa.Engine) -> None:
    with read(engine) as connection:
        seen = snapshot.load(connection, PARTITION, POLICY)
    assert (seen.jobs, seen.runners, seen.waiting) == ((), (), 0)
    assert seen.taken_at > 1_700_000_000_000


@pytest.mark.requirement("RCN-002", "INV-001", "INV-020", "PRI-004")
def test_only_eligible_jobs_of_the_partition_are_loaded(engine: sa.Engine) -> None:
    with write(engine) as connection:
        submit_run(
            connection,
            a_job_spec("ready"),
            a_job_spec("pending", needs=("ready",)),
            a_job_spec("doomed"),
            name="one",
        )
        shift(connection, "doomed", cancel_reason="the user said so")
        submit_run(connection, a_job_spec("elsewhere"), partition="other")
        seen = snapshot.load(connection, PARTITION, POLICY)
    assert names(seen.jobs) == ["ready"]
    assert seen.waiting == 1


@pytest.mark.requirement("MOD-001")
def test_a_job_comes_with_everything_the_rules_ask_for(engine: sa.Engine) -> None:
    wanted = Requirements(
        platform=Platform.LINUX, labels={"zone": "a"}, trust=TrustClass.TRUSTED_INTERNAL
    )
    amounts = some_resources(cpu=1_500, memory=2 * GIB, disk=3 * GIB, slots=2)
    with write(engine) as connection:
        run_id = submit_run(
            connection,
            a_job_spec("build", requires=wanted, resources=amounts, priority=Priority.HIGH),
        )
        row = jobs_of(connection, run_id)["build"]
        (job,) = snapshot.load(connection, PARTITION, POLICY).jobs
    assert job == SchedulingJob(
        job_id=row["job_id"],
        run_id=run_id,
        name="build",
        tenant_id="tnt_default",
        queue_id="que_default",
        requirements=wanted,
        resources=amounts,
        priority=Priority.HIGH,
        requirement_class=row["requirement_class"],
        eligible_at=row["eligible_at"],
        created_at=row["created_at"],
        attempts_made=0,
        spot=SpotWish.AVOIDED,
        lasts=4_875_000,
        has_inputs=False,
    )


@pytest.mark.requirement("RES-002", "MOD-002")
def test_a_runner_comes_with_its_room_and_its_registered_trust(engine: sa.Engine) -> None:
    offered = some_capabilities(labels={"zone": "b"})
    with write(engine) as connection:
        runner = register_runner(
            connection,
            "big-1",
            total=some_resources(cpu=8_000, memory=16 * GIB, disk=50 * GIB, slots=4),
            headroom=some_resources(cpu=500, memory=GIB, disk=GIB, slots=0),
            capabilities=offered,
        )
        run_id = submit_run(connection, a_job_spec("taken"))
        grant(connection, jobs_of(connection, run_id)["taken"]["job_id"], runner)
        table = tables.runners
        connection.execute(
            sa.update(table).values(
                trust=TrustClass.CONFIDENTIAL.value,
                suspect=1,
                state=RunnerState.SATURATED.value,
                pressure=ResourcePressure.MEMORY.value,
            )
        )
        (seen,) = snapshot.load(connection, PARTITION, POLICY).runners
    assert (seen.runner_id, seen.name, seen.session_id) == (
        runner.runner_id,
        "big-1",
        runner.session_id,
    )
    assert (seen.state, seen.suspect, seen.pressure) == (
        RunnerState.SATURATED,
        True,
        ResourcePressure.MEMORY,
    )
    assert seen.trust is TrustClass.CONFIDENTIAL
    assert seen.capabilities == offered
    assert seen.reserved == some_resources()
    assert seen.free == seen.total.minus(seen.headroom).minus(some_resources())


def test_absent_runners_are_loaded_too(engine: sa.Engine) -> None:
    with write(engine) as connection:
        register_runner(connection, "gone")
        connection.execute(sa.update(tables.runners).values(state="offline", session_id=None))
        (seen,) = snapshot.load(connection, PARTITION, POLICY).runners
    assert (seen.state, seen.session_id) == (RunnerState.OFFLINE, None)


def test_a_refusal_counts_until_it_is_forgotten(engine: sa.Engine) -> None:
    with write(engine) as connection:
        job_id = jobs_of(connection, submit_run(connection))["build"]["job_id"]
        now = database_now(connection)
        connection.execute(
            sa.insert(tables.refusals),
            [
                {"job_id": job_id, "runner_id": "rnr_1", "reason": "draining", "until_at": now - 1},
                {
                    "job_id": job_id,
                    "runner_id": "rnr_2",
                    "reason": "local_policy",
                    "until_at": now + 30_000,
                },
            ],
        )
        (job,) = snapshot.load(connection, PARTITION, POLICY).jobs
    assert job.refused_by == {"rnr_2": "local_policy"}


@pytest.mark.requirement("FAR-017", "FAR-022", "FAR-023", "FAR-024")
@pytest.mark.parametrize("policy", [POLICY, BY_CLASS])
def test_the_jobs_loaded_first_are_those_the_rules_serve_first(
    engine: sa.Engine, policy: SchedulingPolicy
) -> None:
    waits = [-5, 0, 1, 59, 99, 100, 101, 199, 299, 300, 398, 399, 400, 500]
    classes = (None, SchedulingClass.INTERACTIVE, SchedulingClass.BATCH)
    specs = [
        a_job_spec(
            f"{priority}-{place}",
            priority=priority,
            wishes=Wishes(scheduling_class=classes[place % 3]),
        )
        for priority in Priority
        for place in range(len(waits))
    ]
    with write(engine) as connection:
        submit_run(connection, *specs, elevation="to see them all")
        now = database_now(connection)
        for priority in Priority:
            for place, minutes in enumerate(waits):
                # off the full minute, so that time passing meanwhile changes no order
                shift(
                    connection,
                    f"{priority}-{place}",
                    eligible_at=now - minutes * MINUTE - 20_000,
                    adjustment=(0, 0, 30, -170, 900)[place % 5],
                )
        whole = snapshot.load(connection, PARTITION, policy)
        first = snapshot.load(connection, PARTITION, policy, limit=7)
    assert whole.jobs == tuple(in_order(whole.jobs, policy, whole.taken_at))
    assert names(first.jobs) == names(whole.jobs)[:7]
    assert first.waiting == whole.waiting == len(specs)


def test_a_snapshot_takes_fifteen_queries_whatever_its_size(engine: sa.Engine) -> None:
    asked: list[str] = []
    with write(engine) as connection:
        for number in range(3):
            submit_run(connection, *(a_job_spec(f"job-{place}") for place in range(20)))
            register_runner(connection, f"runner-{number}")

    def note(*arguments: object) -> None:
        asked.append(str(arguments[2]))

    with read(engine) as connection:
        event.listen(connection, "before_cursor_execute", note)
        seen = snapshot.load(connection, PARTITION, POLICY)
    assert (len(seen.jobs), len(seen.runners)) == (60, 3)
    assert len(asked) == 15


@pytest.mark.requirement("INV-011", "INV-037")
def test_a_stored_snapshot_plans_and_explains(engine: sa.Engine) -> None:
    with write(engine) as connection:
        register_runner(connection, "linux-1")
        run_id = submit_run(
            connection,
            a_job_spec("small"),
            a_job_spec("huge", resources=some_resources(memory=16 * GIB)),
        )
        rows = jobs_of(connection, run_id)
        seen = snapshot.load(connection, PARTITION, POLICY)
    made = plan(seen, POLICY)
    assert [decision.job_id for decision in made.decisions] == [rows["small"]["job_id"]]
    assert [diagnosis.code for diagnosis in made.diagnoses] == ["INSUFFICIENT_MEMORY"]
    with read(engine) as connection:
        job, again = snapshot.load_with(connection, rows["huge"]["job_id"], POLICY)
    told = explain(job, again, POLICY)
    assert told.sentence == (
        "The only registered runner can never run this job:"
        " it needs 16 GiB of memory, but linux-1 has 8 GiB."
    )
    assert (told.position, told.waiting) == (2, 2)


def test_a_job_that_does_not_wait_is_explained_as_if_it_began_to_wait_now(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        runner = register_runner(connection)
        run_id = submit_run(connection)
        job_id = jobs_of(connection, run_id)["build"]["job_id"]
        grant(connection, job_id, runner)
        shift(connection, "build", eligible_at=1)
        assert job_states(connection, run_id) == {"build": JobState.LEASED}
        job, seen = snapshot.load_with(connection, job_id, POLICY)
    assert seen.jobs == ()
    assert job.eligible_at == seen.taken_at
    assert explain(job, seen, POLICY).priority.waited_ms == 0


def test_a_job_beyond_the_loaded_ones_keeps_its_wait_and_its_refusals(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(
            connection, a_job_spec("first", priority=Priority.HIGH), a_job_spec("second")
        )
        row = jobs_of(connection, run_id)["second"]
        connection.execute(
            sa.insert(tables.refusals).values(
                job_id=row["job_id"], runner_id="rnr_1", reason="draining", until_at=2**52
            )
        )
        job, seen = snapshot.load_with(connection, row["job_id"], POLICY, limit=1)
    assert names(seen.jobs) == ["first"]
    assert (job.eligible_at, job.refused_by) == (row["eligible_at"], {"rnr_1": "draining"})


def test_an_unknown_job_is_not_found(engine: sa.Engine) -> None:
    with read(engine) as connection, pytest.raises(NotFound):
        snapshot.load_with(connection, "job_none", POLICY)


@pytest.mark.requirement("FAR-001", "FAR-022")
def test_a_queue_of_three_thousand_jobs_does_not_push_the_one_job_of_another_out(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    with write(engine) as connection:
        for number in range(3):
            specs = (a_job_spec(f"job-{place}") for place in range(1_000))
            submit_run(connection, *specs, name=f"flood-{number}")
        # Each of its own class, so that no class of them is cut short.
        jobs = tables.jobs
        connection.execute(sa.update(jobs).values(requirement_class=jobs.c.job_id))
    submit_to(desk, declare(desk, "acme"), a_job_spec("lonely"))
    with read(engine) as connection:
        seen = snapshot.load(connection, PARTITION, POLICY, limit=100)
    assert (len(seen.jobs), seen.waiting) == (100, 3_001)
    assert "lonely" in names(seen.jobs)[:2]
    desk.register(total=some_resources(cpu=1_000, memory=2**40, disk=2**40, slots=9))
    assert desk.cycle().granted == 2
    placed = {desk.row(tables.jobs, lease.job_id)["name"] for lease in desk.leases()}
    assert "lonely" in placed


def test_twenty_thousand_waiting_jobs_are_read_in_the_same_few_statements_and_one_sort(
    postgresql_engine: sa.Engine,
) -> None:
    with write(postgresql_engine) as connection:
        submit_run(connection)
        columns = ", ".join(c.name for c in tables.jobs.c if c.name not in ("job_id", "name"))
        connection.execute(
            sa.text(
                f"INSERT INTO jobs (job_id, name, {columns})"
                f" SELECT 'job_' || n, 'job-' || n, {columns}"
                " FROM jobs, generate_series(1, 20000) n"
            )
        )
    asked: list[tuple[str, object]] = []

    def note(*arguments: object) -> None:
        asked.append((str(arguments[2]), arguments[3]))

    with read(postgresql_engine) as connection:
        event.listen(connection, "before_cursor_execute", note)
        seen = snapshot.load(connection, PARTITION, POLICY)
        few = len(asked)
        waiting, given = next(one for one in asked if "row_number" in one[0])
        explained = connection.exec_driver_sql(f"EXPLAIN {waiting}", given).scalars().all()
    assert (len(seen.jobs), seen.waiting) == (POLICY.batch, 20_001)
    assert few == 15
    scans = [line for line in explained if " Scan" in line and " on jobs" in line]
    assert len(scans) == 1, "\n".join(explained)
    assert not any("Nested Loop" in line for line in explained)
