import pytest

from forgeyard.scheduler.gates import Gates
from forgeyard.scheduler.grant import (
    Granted,
    GrantRequest,
    JobStanding,
    RunnerStanding,
    Verdict,
    grant,
)
from tests.scheduling import amounts
from tests.tree import open_gates

ROOM_FOR_ONE = RunnerStanding(schedulable=True, free=amounts())
ROOM_FOR_TWO = RunnerStanding(schedulable=True, free=amounts().plus(amounts()))
CLOSED = RunnerStanding(schedulable=False, free=ROOM_FOR_TWO.free)


def request(job_id: str, *candidates: str) -> GrantRequest:
    return GrantRequest(
        job_id=job_id,
        resources=amounts(),
        candidates=tuple((name, 900 - place) for place, name in enumerate(candidates)),
    )


def granted_by(
    requests: list[GrantRequest],
    jobs: dict[str, JobStanding],
    runners: dict[str, RunnerStanding],
    gates: Gates | None = None,
) -> tuple[Granted, ...]:
    return grant(requests, jobs, runners, gates=gates or open_gates())


def eligible(*job_ids: str) -> dict[str, JobStanding]:
    return dict.fromkeys(job_ids, JobStanding.ELIGIBLE)


def test_the_first_candidate_with_room_gets_the_job_with_its_score() -> None:
    (answer,) = granted_by([request("a", "one", "two")], eligible("a"), {"one": ROOM_FOR_ONE})
    assert answer == Granted(job_id="a", verdict=Verdict.GRANTED, runner_id="one", score=900)


@pytest.mark.requirement("RES-014")
def test_as_many_as_fit_are_granted_in_the_order_asked() -> None:
    requests = [request(name, "one") for name in "abc"]
    answers = granted_by(requests, eligible("a", "b", "c"), {"one": ROOM_FOR_TWO})
    assert [answer.verdict for answer in answers] == [
        Verdict.GRANTED,
        Verdict.GRANTED,
        Verdict.NO_CAPACITY,
    ]


def test_a_full_runner_gives_way_to_the_next_candidate() -> None:
    requests = [request("a", "one"), request("b", "one", "two")]
    runners = {"one": ROOM_FOR_ONE, "two": ROOM_FOR_ONE}
    answers = granted_by(requests, eligible("a", "b"), runners)
    assert [(answer.runner_id, answer.score) for answer in answers] == [("one", 900), ("two", 899)]


def test_a_job_asked_for_twice_is_granted_once() -> None:
    answers = granted_by([request("a", "one")] * 2, eligible("a"), {"one": ROOM_FOR_TWO})
    assert [answer.verdict for answer in answers] == [Verdict.GRANTED, Verdict.JOB_GONE]


@pytest.mark.parametrize(
    ("standing", "verdict"),
    [
        ({}, Verdict.JOB_GONE),
        ({"a": JobStanding.GONE}, Verdict.JOB_GONE),
        ({"a": JobStanding.CANCELLED}, Verdict.CANCELLED),
    ],
)
def test_a_job_that_is_not_eligible_any_more_takes_nothing(
    standing: dict[str, JobStanding], verdict: Verdict
) -> None:
    answers = granted_by(
        [request("a", "one"), request("b", "one")],
        {**standing, **eligible("b")},
        {"one": ROOM_FOR_ONE},
    )
    assert answers[0] == Granted(job_id="a", verdict=verdict)
    assert answers[1].verdict is Verdict.GRANTED


def test_a_closed_or_unknown_runner_is_told_from_a_full_one() -> None:
    requests = [request("a", "closed", "gone"), request("b", "closed", "full")]
    full = RunnerStanding(schedulable=True, free=amounts(cpu=0))
    answers = granted_by(requests, eligible("a", "b"), {"closed": CLOSED, "full": full})
    assert [answer.verdict for answer in answers] == [
        Verdict.RUNNER_UNAVAILABLE,
        Verdict.NO_CAPACITY,
    ]


def test_a_runner_that_holds_more_than_it_has_gets_nothing() -> None:
    over = RunnerStanding(schedulable=True, free=amounts().minus(amounts(cpu=2_000)))
    (answer,) = granted_by([request("a", "one")], eligible("a"), {"one": over})
    assert answer.verdict is Verdict.NO_CAPACITY
