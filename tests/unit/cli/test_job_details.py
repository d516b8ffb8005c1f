"""What is said of tests, phases and steps."""

import pytest

from forgeyard.cli import shapes
from forgeyard.cli.job_details import as_sent, counted, failing, only, phases, put_tests, used
from forgeyard.cli.shapes import Attempt, FailingTest, Job, Run
from forgeyard.errors import NotFound


def some(**changed: int) -> shapes.Counts:
    """Count tests."""
    return shapes.Counts(**{"tests": 124, **changed})


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (some(), "124 tests"),
        (some(tests=1), "1 test"),
        (some(failures=2, skipped=1), "124 tests, 2 failed, 1 skipped"),
        (some(errors=1), "124 tests, 1 error"),
        (
            some(failures=1, errors=2, skipped=3, unreadable=1),
            "124 tests, 1 failed, 2 errors, 3 skipped, 1 report unreadable",
        ),
    ],
)
def test_counts_are_said_in_one_line(counts: shapes.Counts, said: str) -> None:
    assert counted(counts) == said


def test_failing_tests_are_named_and_the_rest_is_counted() -> None:
    named = (FailingTest(name="a", message="no"), FailingTest(name="b"))
    assert failing(shapes.Counts(failures=2, failing=named)) == ["a: no", "b"]
    assert failing(shapes.Counts(failures=2, errors=3, failing=named)) == [
        "a: no",
        "b",
        "and 3 more",
    ]


def an_attempt(**changed: int) -> Attempt:
    """Describe a try; instants in milliseconds."""
    return Attempt(number=1, state="running", runner="linux-1", **changed)


def a_job(*attempts: Attempt, name: str = "test") -> Job:
    """Describe a job that could run from 1,000 on."""
    return Job(job_id="job_1", name=name, state="running", eligible_at=1_000, attempts=attempts)


def test_every_phase_that_has_ended_is_timed() -> None:
    whole = an_attempt(
        created_at=2_000,
        accepted_at=2_500,
        started_at=3_000,
        uploading_at=63_000,
        finished_at=64_000,
    )
    assert phases(a_job(whole), whole) == [
        ("queued", "1.0s"),
        ("offered", "0.5s"),
        ("prepared", "0.5s"),
        ("ran", "1m 0s"),
        ("uploaded", "1.0s"),
    ]


def test_a_try_that_ended_early_or_goes_on_has_fewer_phases() -> None:
    failed = an_attempt(created_at=2_000, accepted_at=2_500, started_at=3_000, finished_at=4_000)
    assert phases(a_job(failed), failed)[-1] == ("ran", "1.0s")
    running = an_attempt(created_at=2_000, accepted_at=2_500, started_at=3_000)
    assert phases(a_job(running), running)[-1] == ("prepared", "0.5s")
    assert phases(a_job(running, failed), running)[0] == ("offered", "0.5s"), "not the latest"


def test_what_a_try_used_is_said_in_one_line() -> None:
    said = "1.5s of CPU, 2.0 MiB of memory at most, 10 B fetched, 0 B uploaded"
    assert (
        used(an_attempt(cpu_ms=1_500, peak_memory_bytes=2**21, bytes_fetched=10, bytes_uploaded=0))
        == said
    )


def test_one_job_of_a_run_is_found_or_the_others_are_named() -> None:
    run = Run(
        run_id="run_1", name="ci", state="running", created_at=0, jobs=(a_job(), a_job(name="lint"))
    )
    assert [job.name for job in only(run, "lint").jobs] == ["lint"]
    assert as_sent({"jobs": [{"name": "test"}, {"name": "lint", "x": 1}]}, "lint") == {
        "name": "lint",
        "x": 1,
    }
    with pytest.raises(NotFound) as caught:
        only(run, "absent")
    assert caught.value.allowed == "test, lint"


def test_a_run_of_many_failing_tests_names_only_so_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = shapes.Counts(
        tests=30, failures=15, failing=tuple(FailingTest(name=f"t{n}\x1b[2J") for n in range(15))
    )
    attempt = Attempt(number=1, state="failed", runner="linux-1", tests=counts)
    jobs = (a_job(attempt), a_job(attempt, name="lint"), a_job(name="waiting"))
    total = shapes.Counts(tests=60, failures=30)
    run = Run(run_id="run_1", name="ci", state="failed", created_at=0, jobs=jobs, tests=total)
    put_tests(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "60 tests, 30 failed"
    assert lines[2] == "  test: t0\\x1b[2J"
    assert lines[-1] == "  and 10 more"
    assert len(lines) == 1 + 1 + 20 + 1
