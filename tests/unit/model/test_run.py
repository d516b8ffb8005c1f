import pytest

from forgeyard.errors import InvalidRequirements
from forgeyard.model.job import JobSpec, Step
from forgeyard.model.run import check_graph


def a_job(name: str, *needs: str) -> JobSpec:
    return JobSpec(name=name, steps=(Step(name="run", run="true"),), needs=needs)


def refusal(*jobs: JobSpec) -> InvalidRequirements:
    with pytest.raises(InvalidRequirements) as refused:
        check_graph(jobs)
    return refused.value


def test_chains_diamonds_and_repeated_needs_are_fine() -> None:
    check_graph([])
    check_graph(
        [a_job("d", "b", "c"), a_job("b", "a"), a_job("c", "a", "a"), a_job("a"), a_job("alone")]
    )


def test_a_long_chain_needs_no_deep_stack() -> None:
    check_graph([a_job("0"), *(a_job(str(n), str(n - 1)) for n in range(1, 5_000))])


def test_a_name_may_be_written_once() -> None:
    error = refusal(a_job("a"), a_job("a"))
    assert "'a' is written twice" in error.message
    assert error.field == "jobs"


def test_a_missing_need_is_named_with_what_there_is() -> None:
    error = refusal(a_job("test", "biuld"), a_job("build"))
    assert error.message == "job 'test' needs 'biuld', which is not a job"
    assert (error.field, error.value, error.allowed) == ("jobs.test.needs", "biuld", "build")


def test_a_job_cannot_need_itself() -> None:
    error = refusal(a_job("a", "a"))
    assert error.message == "job 'a' needs itself"
    assert error.allowed == "no other job exists"


def test_a_circle_is_shown_whole_and_without_the_jobs_around_it() -> None:
    error = refusal(
        a_job("before"),
        a_job("a", "before", "c"),
        a_job("b", "a"),
        a_job("c", "b"),
        a_job("after", "c"),
    )
    assert error.value == "a → c → b → a"
    assert error.field == "jobs.a.needs"
    assert "circle" in error.message
