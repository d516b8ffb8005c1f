"""Promotion of dependents against a reference that looks at the whole graph every time."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.model.job import Condition
from forgeyard.model.transitions import FINAL_JOB_STATES, JobState
from forgeyard.store import changes
from forgeyard.store.changes import RUN, Row
from forgeyard.store.engine import open_engine, write
from tests.builders import a_job_spec, end_job, jobs_of, submit_run
from tests.conftest import CONFIG

BAD = ("failed", "cancelled", "timed_out")


@dataclass(frozen=True)
class Job:
    """A job of a random graph, and how it will end if it ever runs."""

    name: str
    needs: tuple[str, ...]
    condition: Condition
    forgiven: bool
    end: str


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Job, ...]:
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 10))):
        earlier = [job.name for job in jobs]
        most = draw(st.integers(0, 3)) if earlier else 0
        names = st.sampled_from(earlier or [""])
        needs = draw(st.sets(names, min_size=min(most, 1), max_size=most))
        jobs.append(
            Job(
                name=f"j{number}",
                needs=tuple(sorted(needs)),
                condition=draw(st.sampled_from(Condition)),
                forgiven=draw(st.booleans()),
                end=draw(st.sampled_from((*["succeeded"] * 6, *BAD))),
            )
        )
    return tuple(jobs)


def runs_after(job: Job, graph: Mapping[str, Job], states: Mapping[str, str]) -> bool:
    """Judge a job all of whose needs have ended, in the words of the run file's manual."""
    ended_badly = [need for need in job.needs if states[need] in BAD]
    if job.condition is Condition.ALWAYS:
        return True
    if job.condition is Condition.FAILURE:
        return bool(ended_badly)
    unforgiven = [need for need in ended_badly if not graph[need].forgiven]
    return not unforgiven and all(states[need] != "skipped" for need in job.needs)


def reference(jobs: tuple[Job, ...], ended: Mapping[str, str]) -> dict[str, str]:
    """Say where every job must stand, given how those that ran ended. Jobs come after needs."""
    graph, states = {job.name: job for job in jobs}, {}
    for job in jobs:
        if any(states[need] in ("pending", "eligible") for need in job.needs):
            states[job.name] = "pending"
        elif not runs_after(job, graph, states):
            states[job.name] = "skipped"
        else:
            states[job.name] = ended.get(job.name, "eligible")
    return states


@pytest.fixture(scope="module")
def store(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    path = tmp_path_factory.mktemp("promotion") / "forgeyard.db"
    shutil.copyfile(sqlite_template, path)
    engine = open_engine(f"sqlite:///{path}", CONFIG)
    yield engine
    engine.dispose()


def check_counters(jobs: tuple[Job, ...], found: Mapping[str, Row], run: Row) -> None:
    """Compare the counters that promotion relies on with what they count."""
    final = {name for name, row in found.items() if JobState(row["state"]) in FINAL_JOB_STATES}
    for job in jobs:
        assert found[job.name]["waiting_needs"] == len(set(job.needs) - final)
    assert run["open_jobs"] == len(found) - len(final)


def test_every_job_stands_where_its_needs_put_it(store: sa.Engine) -> None:
    met: Counter[str] = Counter()

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(jobs=graphs(), order=st.randoms(use_true_random=False))
    def holds(jobs: tuple[Job, ...], order: random.Random) -> None:
        by_name = {job.name: job for job in jobs}
        specs = [
            a_job_spec(
                job.name,
                needs=job.needs,
                condition=job.condition,
                continue_on_error=job.forgiven,
            )
            for job in jobs
        ]
        ended: dict[str, str] = {}
        with write(store) as connection:
            run_id = submit_run(connection, *specs)
            while True:
                found, run = jobs_of(connection, run_id), changes.find(connection, RUN, run_id)
                states = {name: row["state"] for name, row in found.items()}
                assert states == reference(jobs, ended)
                check_counters(jobs, found, run)
                ready = sorted(name for name, state in states.items() if state == "eligible")
                if not ready:
                    break
                name = order.choice(ready)
                ended[name] = by_name[name].end
                end_job(connection, run_id, name, JobState(ended[name]))
        blamed = [n for n, state in states.items() if state in BAD and not by_name[n].forgiven]
        assert run["state"] == ("failed" if blamed else "succeeded")
        met["promoted"] += sum(bool(by_name[name].needs) for name in ended)
        met["skipped"] += sum(state == "skipped" for state in states.values())

    holds()
    assert met["promoted"] >= 100, met
    assert met["skipped"] >= 100, met
