"""The binding look at locked rows: it grants as many as fit, and never more."""

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.model.units import Resources
from forgeyard.scheduler.grant import (
    GrantRequest,
    JobStanding,
    RunnerStanding,
    Verdict,
    grant,
)
from tests.tree import open_gates
from tests.worlds import (
    demand_hits,
    fixed,
    naive_fit,
    naive_minus,
    seeds,
    some_amounts,
    some_capacity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a commit asks."""

    requests: list[GrantRequest]
    jobs: dict[str, JobStanding]
    runners: dict[str, RunnerStanding]


def a_question(seed: int) -> Question:
    """Make requests of which some compete, some repeat and some come too late."""
    rng = Random(seed)
    fleet = [f"rnr_{place}" for place in range(4)]
    requests = [
        GrantRequest(
            job_id=f"job_{rng.randint(0, 12)}",
            resources=some_amounts(rng),
            candidates=tuple(
                (runner_id, rng.randint(0, 1000))
                for runner_id in rng.sample(fleet, rng.randint(0, 3))
            ),
        )
        for _ in range(rng.randint(0, 15))
    ]
    standing = [JobStanding.ELIGIBLE] * 8 + list(JobStanding)
    return Question(
        requests=requests,
        jobs={f"job_{n}": rng.choice(standing) for n in range(12) if rng.random() < 0.9},
        runners={
            runner_id: RunnerStanding(
                schedulable=rng.random() < 0.7,
                free=naive_minus(some_capacity(rng), some_amounts(rng)),
            )
            for runner_id in fleet
            if rng.random() < 0.9
        },
    )


questions = st.builds(a_question, seeds)


@pytest.mark.requirement("RES-001", "RES-014", "INV-003")
def test_grants_never_exceed_what_is_free_and_leave_nothing_that_would_fit() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(question=questions)
    def check(question: Question) -> None:
        asked, jobs, runners = question.requests, question.jobs, question.runners
        answers = grant(asked, jobs, runners, gates=open_gates())
        assert [answer.job_id for answer in answers] == [request.job_id for request in asked]
        left: dict[str, Resources] = {name: room.free for name, room in runners.items()}
        won: set[str] = set()
        for request, answer in zip(asked, answers, strict=True):
            hits[answer.verdict] += 1
            assert (answer.verdict is Verdict.GRANTED) is (answer.runner_id is not None)
            if answer.runner_id is None:
                continue
            assert jobs[request.job_id] is JobStanding.ELIGIBLE
            assert request.job_id not in won
            won.add(request.job_id)
            assert (answer.runner_id, answer.score) in request.candidates
            assert runners[answer.runner_id].schedulable
            assert naive_fit(request.resources, left[answer.runner_id])
            left[answer.runner_id] = naive_minus(left[answer.runner_id], request.resources)
        for request, answer in zip(asked, answers, strict=True):
            if answer.verdict in (Verdict.NO_CAPACITY, Verdict.RUNNER_UNAVAILABLE):
                assert not any(
                    runners[name].schedulable and naive_fit(request.resources, left[name])
                    for name, _ in request.candidates
                    if name in runners
                )

    check()
    demand_hits(hits, Verdict.GRANTED, Verdict.NO_CAPACITY, Verdict.JOB_GONE)
    demand_hits(hits, Verdict.CANCELLED, Verdict.RUNNER_UNAVAILABLE)


@given(seed=seeds)
@fixed
def test_a_grant_is_a_pure_function_of_its_arguments(seed: int) -> None:
    one, same = a_question(seed), a_question(seed)
    answers = grant(one.requests, one.jobs, one.runners, gates=open_gates())
    assert one == same
    runners = dict(reversed(same.runners.items()))
    assert answers == grant(same.requests, same.jobs, runners, gates=open_gates())
