"""What a run file says about where jobs run in view of each other."""

import pytest

from forgeyard.errors import InvalidRunFile
from forgeyard.model.job import JobSpec
from forgeyard.model.wishes import Distinct, Domain, SpotWish, Spread
from forgeyard.runfile.compile import compile_run

STEPS = [{"run": "true"}]


def compiled(**jobs: dict[str, object]) -> dict[str, JobSpec]:
    """Compile jobs of one step."""
    document = {"jobs": {name: {"steps": STEPS, **job} for name, job in jobs.items()}}
    return {job.name: job for job in compile_run(document, fallback_name="demo").jobs}


@pytest.mark.requirement("SPT-005")
def test_a_job_says_what_it_thinks_of_machines_that_may_go() -> None:
    jobs = compiled(build={"spot": "forbidden"}, test={})
    assert jobs["build"].wishes.spot is SpotWish.FORBIDDEN
    assert jobs["test"].wishes.spot is None


@pytest.mark.requirement("RTY-006")
def test_being_apart_holds_for_both_whoever_wrote_it() -> None:
    jobs = compiled(build={}, again={"distinct": [{"jobs": ["build"], "by": "site"}]})
    assert jobs["again"].wishes.distinct == (Distinct(jobs=("build",), by=Domain.SITE),)
    assert jobs["build"].wishes.distinct == (Distinct(jobs=("again",), by=Domain.SITE),)


def test_a_matrix_that_is_named_stands_for_its_cells() -> None:
    matrix = {"strategy": {"matrix": {"n": ["1", "2"]}}}
    jobs = compiled(test=matrix, again={"distinct": [{"jobs": ["test"]}]})
    cells = tuple(name for name in jobs if name != "again")
    assert jobs["again"].wishes.distinct == (Distinct(jobs=cells, by=Domain.HOST),)


@pytest.mark.requirement("SCO-018")
def test_the_cells_of_a_matrix_are_spread_and_must_be_if_that_is_said() -> None:
    cells = {"matrix": {"n": ["1", "2"]}}
    strict = {**cells, "spread": {"over": "region", "required": True}}
    for strategy, spread in (
        (cells, Spread(group="test")),
        (strict, Spread(group="test", over=Domain.REGION, required=True)),
    ):
        jobs = compiled(test={"strategy": strategy})
        assert [job.wishes.spread for job in jobs.values()] == [spread, spread]


@pytest.mark.requirement("FAR-029")
def test_a_neighbour_is_named_with_with() -> None:
    jobs = compiled(service={}, client={"with": "service"})
    assert jobs["client"].wishes.beside == "service"


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"with": "nobody"}, "jobs.build.with"),
        ({"with": "build"}, "jobs.build.with"),
        ({"distinct": [{"jobs": ["nobody"]}]}, "jobs.build.distinct.0.jobs"),
        ({"distinct": [{"jobs": ["build"]}]}, "jobs.build.distinct.0.jobs"),
    ],
)
def test_a_job_that_is_not_there_is_named_with_its_field(
    job: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRunFile) as caught:
        compiled(build=job, other={})
    assert caught.value.field == field
