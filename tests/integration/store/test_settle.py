from collections.abc import Callable
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.job import Condition, FailureClass, JobSpec, RetryPolicy
from forgeyard.model.protocol import Complete, Outcome, Reject
from forgeyard.model.runner import RejectReason
from forgeyard.model.transitions import AttemptState, JobState, LeaseState
from forgeyard.model.units import Millis
from forgeyard.store import changes, jobs, leases, release, runs, settle, tables
from forgeyard.store.changes import ATTEMPT, JOB, RUN, DeadlineKind, Row
from forgeyard.store.engine import database_now, write
from tests.builders import (
    LEASE_POLICY,
    Granted,
    a_job_spec,
    deadlines_of,
    grant,
    job_states,
    jobs_of,
    register_runner,
    submit_run,
)

pytestmark = pytest.mark.integration

INFRASTRUCTURE = FailureClass.INFRASTRUCTURE


@dataclass(frozen=True)
class Scene:
    """One job of a run, on its way through attempts on ever new runners."""

    connection: sa.Connection
    run_id: str
    name: str = "build"

    @property
    def job(self) -> Row:
        return jobs_of(self.connection, self.run_id)[self.name]

    @property
    def run_state(self) -> str:
        return str(changes.find(self.connection, RUN, self.run_id)["state"])

    def offered(self) -> Granted:
        name = f"runner-{self.job['attempts_made']}"
        return grant(self.connection, self.job["job_id"], register_runner(self.connection, name))

    def accepted(self) -> Granted:
        granted = self.offered()
        leases.accept(self.connection, granted.lease_id, granted.holder, policy=LEASE_POLICY)
        return granted

    def reported(
        self, outcome: Outcome = Outcome.FAILED, blame: FailureClass | None = INFRASTRUCTURE
    ) -> Granted:
        granted = self.accepted()
        message = Complete(
            session_id=granted.holder.session_id,
            epoch=granted.epoch,
            outcome=outcome,
            failure_class=blame,
            message="it broke",
        )
        leases.complete(self.connection, granted.lease_id, message, policy=LEASE_POLICY)
        return granted

    def lost(self) -> Granted:
        granted = self.accepted()
        held = release.lock_lease(self.connection, granted.lease_id)
        now = database_now(self.connection)
        release.end_attempt(
            self.connection,
            held,
            AttemptState.LOST,
            lease=LeaseState.EXPIRED,
            reason="the runner stopped renewing",
            now=now,
            policy=LEASE_POLICY,
            failure_class="runner_lost",
        )
        changes.move(self.connection, JOB, held.job, JobState.LOST, reason="lost", now=now)
        return granted

    def settle(self, granted: Granted) -> settle.Settlement:
        return settle.settle(self.connection, granted.attempt_id, policy=LEASE_POLICY)


def a_scene(connection: sa.Connection, *others: JobSpec, **retry: object) -> Scene:
    spec = a_job_spec("build", retry=RetryPolicy(**retry))
    return Scene(connection, submit_run(connection, spec, *others))


def test_a_failed_attempt_leaves_the_job_as_it_is_until_it_is_settled(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.reported()
        assert scene.job["state"] not in ("eligible", "retry_waiting", "failed")
        assert DeadlineKind.SETTLE in deadlines_of(connection, granted.attempt_id)


@pytest.mark.parametrize("end", [Scene.reported, Scene.lost])
def test_a_fault_of_the_infrastructure_is_tried_again_at_once(
    engine: sa.Engine, end: Callable[[Scene], Granted]
) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = end(scene)
        settlement = scene.settle(granted)
        assert settlement.job_state == scene.job["state"] == "eligible"
        assert settlement.decision.startswith("try again at once")
        assert scene.job["attempts_charged"] == 1
        assert set(deadlines_of(connection, scene.job["job_id"])) == {DeadlineKind.QUEUE}
        assert deadlines_of(connection, granted.attempt_id) == {}
        attempt = changes.find(connection, ATTEMPT, granted.attempt_id)
        assert attempt["settled_at"] is not None


def test_a_retry_wakes_the_loop(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.reported()
        generation = sa.select(tables.wakes.c.generation)
        before = connection.execute(generation).scalar_one()
        scene.settle(granted)
        assert connection.execute(generation).scalar_one() == before + 1


def test_a_retry_with_a_delay_waits_and_the_delay_doubles(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection, delay=Millis(1_000), max_attempts=9)
        for delay in (1_000, 2_000, 4_000):
            scene.settle(scene.reported())
            job = scene.job
            assert job["state"] == "retry_waiting"
            due = deadlines_of(connection, job["job_id"])[DeadlineKind.RETRY]
            assert due == _settled_at(connection) + delay
            run = changes.find(connection, RUN, scene.run_id)
            jobs.make_eligible(connection, run, job, reason="the delay is over", now=due)


def _settled_at(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(tables.attempts.c.settled_at))).scalar_one()


def test_the_users_own_failure_ends_the_job_and_its_dependents(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(
            connection,
            a_job_spec("next", needs=("build",)),
            a_job_spec("tidy", needs=("build",), condition=Condition.FAILURE),
        )
        settlement = scene.settle(scene.reported(blame=FailureClass.USER_COMMAND))
        assert settlement.job_state == "failed"
        expected = {"build": "failed", "next": "skipped", "tidy": "eligible"}
        assert job_states(connection, scene.run_id) == expected
        job = scene.job
        assert (job["failure_class"], job["message"]) == ("user_command", "it broke")


def test_the_last_attempt_ends_the_job(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection, max_attempts=2)
        assert scene.settle(scene.reported()).job_state == "eligible"
        assert scene.settle(scene.reported()).job_state == "failed"
        assert scene.job["attempts_charged"] == 2
        assert scene.run_state == "failed"


def test_a_lost_job_that_is_not_tried_again_fails_with_its_runner_to_blame(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        scene = a_scene(connection, max_attempts=1)
        assert scene.settle(scene.lost()).job_state == "failed"
        assert scene.job["failure_class"] == "runner_lost"


def test_an_attempt_out_of_time_makes_its_job_timed_out(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.reported(Outcome.TIMED_OUT, None)
        assert scene.settle(granted).job_state == "timed_out"
        assert scene.job["failure_class"] == "timeout"


def test_a_timeout_is_tried_again_if_the_author_says_so(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection, on=(FailureClass.TIMEOUT,))
        granted = scene.reported(Outcome.TIMED_OUT, None)
        assert scene.settle(granted).job_state == "eligible"


@pytest.mark.parametrize("end", [Scene.reported, Scene.lost])
def test_a_cancelled_job_is_not_tried_again(
    engine: sa.Engine, end: Callable[[Scene], Granted]
) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = end(scene)
        connection.execute(sa.update(tables.jobs).values(cancel_reason="ann stopped it"))
        assert scene.settle(granted).job_state == "cancelled"
        assert scene.job["message"] == "ann stopped it"


def test_a_cancelled_run_ends_when_its_last_attempt_is_settled(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.accepted()
        runs.cancel_run(
            connection,
            scene.run_id,
            reason="no",
            actor="ann",
            channel="cli",
            policy=LEASE_POLICY,
        )
        message = Complete(
            session_id=granted.holder.session_id, epoch=granted.epoch, outcome=Outcome.CANCELLED
        )
        leases.complete(connection, granted.lease_id, message, policy=LEASE_POLICY)
        assert scene.run_state == "cancelling"
        assert scene.settle(granted).job_state == "cancelled"
        assert scene.run_state == "cancelled"


def test_settling_twice_decides_once(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.reported()
        scene.settle(granted)
        again = scene.settle(granted)
        assert (again.attempt_state, again.job_state) == ("failed", "eligible")
        assert scene.job["attempts_charged"] == 1


def test_settling_an_older_attempt_leaves_the_newer_one_alone(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        older = scene.reported()
        scene.settle(older)
        scene.accepted()
        connection.execute(
            sa.update(tables.attempts)
            .where(tables.attempts.c.attempt_id == older.attempt_id)
            .values(settled_at=None)
        )
        assert scene.settle(older).job_state == "preparing"
        assert scene.job["attempts_charged"] == 1


def test_an_attempt_that_has_not_ended_is_not_settled(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.accepted()
        settlement = scene.settle(granted)
        assert (settlement.attempt_state, settlement.job_state) == ("preparing", "preparing")
        attempt = changes.find(connection, ATTEMPT, granted.attempt_id)
        assert attempt["settled_at"] is None


def test_a_success_is_only_confirmed(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection)
        granted = scene.reported(Outcome.SUCCEEDED, None)
        assert scene.run_state == "succeeded"
        settlement = scene.settle(granted)
        assert (settlement.attempt_state, settlement.job_state) == ("succeeded", "succeeded")
        assert deadlines_of(connection, granted.attempt_id) == {}


def test_a_rejected_offer_uses_up_no_attempt(engine: sa.Engine) -> None:
    with write(engine) as connection:
        scene = a_scene(connection, max_attempts=1)
        granted = scene.offered()
        no = Reject(
            session_id=granted.holder.session_id,
            epoch=granted.epoch,
            reason=RejectReason.DISK_INSUFFICIENT,
        )
        leases.reject(connection, granted.lease_id, no, policy=LEASE_POLICY)
        settlement = scene.settle(granted)
        assert (settlement.attempt_state, settlement.job_state) == ("rejected", "eligible")
        assert scene.job["attempts_charged"] == 0


def test_an_unknown_attempt_cannot_be_settled(sqlite_engine: sa.Engine) -> None:
    with pytest.raises(NotFound), write(sqlite_engine) as connection:
        settle.settle(connection, "att_none", policy=LEASE_POLICY)
