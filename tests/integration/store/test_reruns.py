import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound
from forgeyard.model.job import OutputSpec
from forgeyard.store import changes, jobs, runs
from forgeyard.store.changes import RUN, Row
from forgeyard.store.engine import write
from tests.builders import LEASE_POLICY, RNG, a_job_spec, end_job, job_states, jobs_of, submit_run

pytestmark = pytest.mark.integration


def run_of(connection: sa.Connection, run_id: str) -> Row:
    return changes.find(connection, RUN, run_id)


def test_a_rerun_takes_over_successes_and_starts_the_rest_anew(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = submit_run(
            connection,
            a_job_spec("a"),
            a_job_spec("b", needs=("a",)),
            a_job_spec("c", needs=("b",)),
        )
        end_job(connection, first, "a")
        end_job(connection, first, "b", jobs.JobState.FAILED)
        second = runs.rerun_failed(connection, first, actor="ann", policy=LEASE_POLICY, rng=RNG)
        assert second.created
        found = jobs_of(connection, second.run_id)
        assert job_states(connection, second.run_id) == {
            "a": "succeeded",
            "b": "eligible",
            "c": "pending",
        }
        assert found["a"]["reused_from"] == jobs_of(connection, first)["a"]["job_id"]
        run = run_of(connection, second.run_id)
        assert (run["rerun_of"], run["submitted_by"], run["open_jobs"]) == (first, "ann", 2)


def test_a_rerun_runs_to_its_own_end(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = submit_run(connection, a_job_spec("a"), a_job_spec("b"))
        end_job(connection, first, "a")
        end_job(connection, first, "b", jobs.JobState.FAILED)
        second = runs.rerun_failed(
            connection, first, actor="ann", policy=LEASE_POLICY, rng=RNG
        ).run_id
        end_job(connection, second, "b")
        assert run_of(connection, second)["state"] == "succeeded"
        assert run_of(connection, first)["state"] == "failed"


def test_a_rerun_of_a_rerun_points_to_the_job_that_really_ran(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = submit_run(connection, a_job_spec("a"), a_job_spec("b"))
        end_job(connection, first, "a")
        original, again = jobs_of(connection, first)["a"]["job_id"], first
        for _ in range(2):
            end_job(connection, again, "b", jobs.JobState.FAILED)
            again = runs.rerun_failed(
                connection, again, actor="ann", policy=LEASE_POLICY, rng=RNG
            ).run_id
            assert jobs_of(connection, again)["a"]["reused_from"] == original


def test_a_success_whose_artifacts_are_gone_is_made_again(engine: sa.Engine) -> None:
    wheel = OutputSpec(name="wheel", path="dist/*.whl")
    with write(engine) as connection:
        first = submit_run(connection, a_job_spec("a", outputs=(wheel,)), a_job_spec("b"))
        end_job(connection, first, "a")
        end_job(connection, first, "b", jobs.JobState.FAILED)
        second = runs.rerun_failed(
            connection, first, actor="ann", policy=LEASE_POLICY, rng=RNG
        ).run_id
        assert job_states(connection, second) == {"a": "eligible", "b": "eligible"}


def test_only_a_run_that_ended_with_a_failure_can_be_rerun(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        with pytest.raises(Conflict, match="not ended"):
            runs.rerun_failed(connection, run_id, actor="ann", policy=LEASE_POLICY, rng=RNG)
        end_job(connection, run_id, "build")
        with pytest.raises(Conflict, match="no job"):
            runs.rerun_failed(connection, run_id, actor="ann", policy=LEASE_POLICY, rng=RNG)
        with pytest.raises(NotFound):
            runs.rerun_failed(connection, "run_none", actor="ann", policy=LEASE_POLICY, rng=RNG)
