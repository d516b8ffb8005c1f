"""What watching a run says, and how it ends."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from forgeyard.cli.following import Patience
from forgeyard.cli.run_outputs import LinePrinter
from forgeyard.cli.shapes import Attempt, Job, LogChunk, Run
from forgeyard.cli.watching import changes, exit_code, headline, job_row, jobs_shown
from forgeyard.errors import Unavailable
from forgeyard.model.transitions import FINAL_RUN_STATES, RunState


def a_run(*jobs: Job, state: str = "running") -> Run:
    """Make a run."""
    return Run(run_id="run_1", name="ci", state=state, created_at=0, jobs=jobs)


def a_job(state: str = "pending", **changed: object) -> Job:
    """Make a job."""
    return replace(Job(job_id="job_1", name="lint", state=state), **changed)


def an_attempt(**changed: object) -> Attempt:
    """Make a try that began at 1 s."""
    return replace(
        Attempt(number=1, state="running", runner="linux-1", started_at=1_000), **changed
    )


def test_the_first_look_tells_what_is_no_longer_pending() -> None:
    told: dict[str, str] = {}
    lines = changes(a_run(a_job("eligible", waiting="waits for room"), a_job(name="x")), told)
    assert lines == ["lint: eligible (waits for room)", "run run_1 (ci): running"]


def test_only_what_changed_is_told_again() -> None:
    told: dict[str, str] = {}
    changes(a_run(a_job("eligible")), told)
    assert changes(a_run(a_job("eligible", waiting="another reason")), told) == []
    running = a_job("running", attempts=(an_attempt(),))
    assert changes(a_run(running), told) == ["lint: running on linux-1"]
    done = a_job("succeeded", attempts=(an_attempt(finished_at=3_500),), finished_at=3_600)
    assert changes(a_run(done, state="succeeded"), told) == [
        "lint: succeeded on linux-1 after 2.5s",
        "run run_1 (ci): succeeded",
    ]


def test_a_retry_on_another_runner_is_news() -> None:
    told: dict[str, str] = {}
    changes(a_run(a_job("running", attempts=(an_attempt(),))), told)
    again = a_job("running", attempts=(an_attempt(), an_attempt(runner="linux-2")))
    assert changes(a_run(again), told) == ["lint: running on linux-2"]


def test_a_failure_says_why() -> None:
    failed = a_job(
        "failed", failure_class="user_command", message="make lint exited 2", finished_at=9
    )
    (line, _) = changes(a_run(failed), {})
    assert line == "lint: failed (user_command: make lint exited 2)"


def test_a_success_taken_over_from_an_earlier_run_says_so() -> None:
    assert "earlier run" in a_job("succeeded", reused_from="job_0").why


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", 0), ("failed", 1), ("cancelled", 1), ("superseded", 1), ("timed_out", 6)],
)
def test_the_command_ends_as_the_run_does(state: str, code: int) -> None:
    run = a_run(state=state)
    assert run.is_over
    assert exit_code(run) == code


def test_every_final_state_has_an_exit_code_and_no_other_is_over() -> None:
    for state in RunState:
        assert a_run(state=state).is_over == (state in FINAL_RUN_STATES)


def test_a_row_shows_the_time_of_the_latest_try() -> None:
    job = a_job("running", attempts=(an_attempt(finished_at=2_000), an_attempt(runner="linux-2")))
    assert job_row(job, 5_000) == ("lint", "running", "2", "linux-2", "4.0s", "")


def test_the_headline_says_how_far_the_run_is() -> None:
    line = headline(a_run(a_job("succeeded", finished_at=5), a_job())).plain
    assert "1/2 jobs over" in line


def a_chunk(text: str, job: str = "lint", attempt: int = 1) -> LogChunk:
    """Make a chunk of log."""
    return LogChunk(job=job, attempt=attempt, text=text)


def test_chunks_of_two_jobs_become_whole_lines() -> None:
    printer = LinePrinter(prefix=True)
    assert printer.add(a_chunk("one\ntw")) == "lint | one\n"
    assert printer.add(a_chunk("other\n", job="test")) == "test | other\n"
    assert printer.add(a_chunk("o\n\nend")) == "lint | two\nlint | \n"
    assert printer.rest() == "lint | end\n"
    assert printer.rest() == ""


def test_one_job_needs_no_name_before_its_lines() -> None:
    assert LinePrinter(prefix=False).add(a_chunk("one\n")) == "one\n"


def test_patience_outlasts_a_short_outage() -> None:
    failures = [Unavailable("away"), Unavailable("away")]
    slept: list[float] = []

    def question() -> str:
        if failures:
            raise failures.pop()
        return "here"

    assert Patience(pause_s=0.5, sleep=slept.append).ask(question) == "here"
    assert slept == [0.5, 0.5]


def test_patience_ends() -> None:
    def question() -> str:
        raise Unavailable("gone for good")

    with pytest.raises(Unavailable):
        Patience(patience_s=0, sleep=lambda _: None).ask(question)


def test_a_small_screen_has_the_reasons_below_and_names_whole() -> None:
    run = a_run(
        a_job(name="unit-tests-shard-3-of-12", waiting="waits for lint, types and docs" * 3)
    )
    for width in (80, 200):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            console.print(jobs_shown(run, width=width))
        lines = captured.get().splitlines()
        assert "unit-tests-shard-3-of-12" in lines[1]
        assert ("WHY" in lines[0]) is (width == 200)
        assert "waits for lint" in captured.get()


def test_what_another_run_of_its_group_has_to_do_with_a_run_is_told() -> None:
    told: dict[str, str] = {}
    waiting = replace(a_run(state="queued"), waits_for="run_0")
    assert changes(waiting, told) == ["run run_1 (ci): queued (waits for run_0)"]
    assert changes(a_run(state="queued"), told) == ["run run_1 (ci): queued"]
    gone = replace(a_run(state="superseded"), note="superseded by run_2", ending="superseded")
    assert changes(gone, told) == ["run run_1 (ci): superseded (superseded by run_2)"]
    assert "superseded by run_2" in headline(gone).plain
    assert exit_code(gone) == 1
    noted = replace(a_run(state="cancelled"), note="wrong branch")
    assert noted.aside == ""
