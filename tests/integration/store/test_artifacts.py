"""Artifacts belong to the attempt that succeeded, and to runs that took over its success."""

from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.model.job import OutputSpec
from forgeyard.model.protocol import Complete, CompletionVerdict, Outcome
from forgeyard.model.transitions import JobState
from forgeyard.store import artifacts, blobs, changes, leases, runs, tables
from forgeyard.store.changes import LEASE, Row
from forgeyard.store.engine import read, write
from tests.builders import (
    LEASE_POLICY,
    RNG,
    Granted,
    a_job_spec,
    end_job,
    grant,
    jobs_of,
    register_runner,
    submit_run,
)

pytestmark = pytest.mark.integration

WHEEL, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
BUILD = a_job_spec("build", outputs=(OutputSpec(name="wheel", path="dist/*.whl"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """A run that builds a wheel, with the job offered to a runner."""

    run_id: str
    granted: Granted
    lease: Row

    def record(self, connection: sa.Connection, digest: str = WHEEL) -> None:
        """Do what the API does with an uploaded output."""
        blobs.record(connection, digest, 5)
        path = artifacts.declared_path(connection, self.lease, "wheel")
        artifacts.record(connection, self.lease, "wheel", path, digest, 5)

    def succeed(self, connection: sa.Connection) -> CompletionVerdict:
        """Do what the API does when the agent has finished."""
        holder = self.granted.holder
        leases.accept(connection, self.granted.lease_id, holder, policy=LEASE_POLICY)
        report = Complete(
            session_id=holder.session_id, epoch=holder.epoch, outcome=Outcome.SUCCEEDED
        )
        return leases.complete(connection, self.granted.lease_id, report, policy=LEASE_POLICY)


def start(connection: sa.Connection) -> Building:
    run_id = submit_run(connection, BUILD, a_job_spec("test"))
    runner = register_runner(connection)
    granted = grant(connection, jobs_of(connection, run_id)["build"]["job_id"], runner)
    return Building(
        run_id=run_id, granted=granted, lease=changes.find(connection, LEASE, granted.lease_id)
    )


def test_an_output_counts_once_its_attempt_succeeded(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        building.record(connection)
        building.record(connection)
        assert artifacts.of_run(connection, building.run_id) == ()
        assert building.succeed(connection) is CompletionVerdict.ACCEPTED
        (artifact,) = artifacts.of_run(connection, building.run_id)
        assert (artifact.job, artifact.name, artifact.path) == ("build", "wheel", "dist/*.whl")
        assert (artifact.digest, artifact.size_bytes) == (WHEEL, 5)
        assert artifacts.find(connection, building.run_id, "build", "wheel") == artifact


def test_an_undeclared_output_is_refused(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        with pytest.raises(InvalidRequest) as caught:
            artifacts.declared_path(connection, building.lease, "../wheel")
    assert (caught.value.field, caught.value.allowed) == ("name", "wheel")


def test_success_without_a_required_output_is_invalid(engine: sa.Engine) -> None:
    with write(engine) as connection:
        assert start(connection).succeed(connection) is CompletionVerdict.INVALID_REJECTED


def test_an_output_without_its_bytes_is_refused(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        with pytest.raises(NotFound):
            artifacts.record(connection, building.lease, "wheel", "dist/*.whl", WHEEL, 5)
    with read(engine) as connection:
        assert connection.execute(sa.select(tables.artifacts)).all() == []


def test_an_attempt_cannot_replace_its_output(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        building.record(connection)
        with pytest.raises(Conflict):
            building.record(connection, OTHER)
        kept = connection.execute(sa.select(tables.artifacts.c.digest)).scalar_one()
    assert kept == WHEEL


def test_a_run_that_took_over_a_success_shows_its_artifacts(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        building.record(connection)
        building.succeed(connection)
        end_job(connection, building.run_id, "test", JobState.FAILED)
        again = runs.rerun_failed(
            connection, building.run_id, actor="tester", policy=LEASE_POLICY, rng=RNG
        ).run_id
        (artifact,) = artifacts.of_run(connection, again)
        assert artifact.digest == WHEEL
        assert artifact.job_id == jobs_of(connection, again)["build"]["job_id"]


def test_an_artifact_that_does_not_exist_is_not_found(engine: sa.Engine) -> None:
    with write(engine) as connection:
        building = start(connection)
        with pytest.raises(NotFound):
            artifacts.find(connection, building.run_id, "build", "wheel")
