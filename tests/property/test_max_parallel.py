"""Random runs with matrices: never more cells at a time than allowed, and none is forgotten."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.model.job import JobSpec, MatrixCell
from forgeyard.model.transitions import FINAL_JOB_STATES, JobState
from forgeyard.store import changes, runs
from forgeyard.store.changes import RUN
from forgeyard.store.engine import open_engine, write
from tests.builders import LEASE_POLICY, a_job_spec, end_job, jobs_of, submit_run
from tests.conftest import CONFIG

ENDS = ("succeeded", "succeeded", "succeeded", "failed", "timed_out")


@st.composite
def runs_with_matrices(draw: st.DrawFn) -> tuple[JobSpec, ...]:
    """Draw one to three matrices, each of which may need earlier jobs."""
    jobs: list[JobSpec] = []
    for number in range(draw(st.integers(1, 3))):
        earlier = [job.name for job in jobs]
        cell = {
            "of": f"m{number}",
            "fail_fast": draw(st.sampled_from((False, False, False, True))),
            "max_parallel": draw(st.sampled_from((1, 1, 2, 3, None))),
        }
        forgiven = draw(st.booleans())
        for place in range(draw(st.integers(1, 6))):
            needs = draw(st.sets(st.sampled_from(earlier), max_size=2)) if earlier else set()
            jobs.append(
                a_job_spec(
                    f"m{number}-{place}",
                    needs=tuple(sorted(needs)),
                    continue_on_error=forgiven,
                    matrix=MatrixCell(**cell),
                )
            )
    return tuple(jobs)


@pytest.fixture(scope="module")
def store(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    path = tmp_path_factory.mktemp("parallel") / "forgeyard.db"
    shutil.copyfile(sqlite_template, path)
    engine = open_engine(f"sqlite:///{path}", CONFIG)
    yield engine
    engine.dispose()


def check(jobs: tuple[JobSpec, ...], states: dict[str, JobState], met: Counter[str]) -> None:
    """Check that no matrix has more than its number going, nor fewer while a cell could go."""
    final = {name for name, state in states.items() if state in FINAL_JOB_STATES}
    for of in {job.matrix.of for job in jobs if job.matrix}:
        cells = [job for job in jobs if job.matrix and job.matrix.of == of]
        most = cells[0].matrix.max_parallel if cells[0].matrix else None
        going = [c for c in cells if states[c.name] not in (JobState.PENDING, *FINAL_JOB_STATES)]
        ready = [c for c in cells if states[c.name] is JobState.PENDING and set(c.needs) <= final]
        if most is None:
            assert ready == []
            continue
        assert len(going) <= most
        assert not ready or len(going) == most, "a place is free and a cell waits for it"
        met["held back"] += len(ready)
        met["full"] += len(going) == most


def step(connection: sa.Connection, run_id: str, order: random.Random) -> bool:
    """Let one thing happen to a job that is going, or to one that waits; tell whether any could."""
    found = jobs_of(connection, run_id)
    open_jobs = sorted(n for n, row in found.items() if row["state"] not in FINAL_JOB_STATES)
    going = [name for name in open_jobs if found[name]["state"] != "pending"]
    if not going:
        assert open_jobs == [], "jobs are left, and nothing will ever move them"
        return False
    if order.random() < 0.2:
        runs.cancel_job(
            connection,
            run_id,
            order.choice(open_jobs),
            reason="test",
            actor="test",
            channel="test",
            policy=LEASE_POLICY,
        )
    else:
        end_job(connection, run_id, order.choice(going), JobState(order.choice(ENDS)))
    return True


def test_a_matrix_is_never_wider_than_allowed_and_never_stuck(store: sa.Engine) -> None:
    met: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(jobs=runs_with_matrices(), seed=st.integers(0, 2**16))
    def holds(jobs: tuple[JobSpec, ...], seed: int) -> None:
        order = random.Random(seed)
        with write(store) as connection:
            run_id = submit_run(connection, *jobs)
            more = True
            while more:
                states = {n: JobState(r["state"]) for n, r in jobs_of(connection, run_id).items()}
                check(jobs, states, met)
                more = step(connection, run_id, order)
            run = changes.find(connection, RUN, run_id)
        assert run["state"] in ("succeeded", "failed")
        assert set(states.values()) <= FINAL_JOB_STATES
        met["runs"] += 1
        met.update(state.value for state in states.values())

    holds()
    for what, least in (("held back", 100), ("full", 200), ("skipped", 20), ("cancelled", 50)):
        assert met[what] >= least, met
