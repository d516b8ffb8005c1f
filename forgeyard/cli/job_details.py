"""What `run show` says beyond states: the tests of a run, and the steps and timings of one job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from forgeyard.cli import output
from forgeyard.cli.client import Client, missing, path_of, shaped
from forgeyard.cli.shapes import Attempt, Counts, Job, Run, Step, Suggestion

NAMED: Final = 20
"""How many failing tests of a whole run are named."""
STEP_COLUMNS: Final = ("step", "exit", "began", "took")


def only(run: Run, name: str) -> Run:
    """Leave out every job but one.

    Raises:
        NotFound: the run has no such job.
    """
    jobs = tuple(job for job in run.jobs if job.name == name)
    if not jobs:
        raise missing("job", name, [job.name for job in run.jobs])
    return replace(run, jobs=jobs)


def as_sent(answer: object, name: str) -> object:
    """Find a job in a run as the server sent it."""
    jobs = cast("list[Mapping[str, object]]", cast("Mapping[str, object]", answer)["jobs"])
    return next(job for job in jobs if job["name"] == name)


def suggestion(client: Client, job: Job) -> str:
    """Ask what a job might request, by what its recent attempts used."""
    return shaped(Suggestion, client.get(path_of("v1", "jobs", job.job_id, "suggestion"))).text


def put_estimates(run: Run) -> None:
    """Print when jobs may start that wait for a runner."""
    for job in run.jobs:
        if job.starts:
            output.put(f"{job.name} starts {job.starts}")


def put_tests(run: Run) -> None:
    """Print what a run's tests add up to, and the names of those that did not pass."""
    if run.tests is None:
        return
    output.put()
    output.put(counted(run.tests), style="bold")
    lines = [
        f"{job.name}: {line}"
        for job in run.jobs
        if job.attempts and (tests := job.attempts[-1].tests)
        for line in failing(tests)
    ]
    for line in lines[:NAMED]:
        output.put(f"  {line}")
    if len(lines) > NAMED:
        output.put(f"  and {len(lines) - NAMED} more")


def put_attempts(job: Job) -> None:
    """Print every try of a job: how long each phase and each step took, and its tests."""
    for attempt in job.attempts:
        output.put()
        title = f"try {attempt.number} on {attempt.runner}: {output.words(attempt.state)}"
        output.put(title, style="bold")
        output.put(f"  {', '.join(f'{name} {took}' for name, took in phases(job, attempt))}")
        if attempt.wall_ms is not None:
            output.put(f"  {used(attempt)}")
        if attempt.trust:
            output.put(f"  {judged(attempt)}")
        if attempt.steps:
            rows = [_step_row(step) for step in attempt.steps]
            output.put_table(STEP_COLUMNS, rows, empty="")
        if attempt.tests is not None:
            output.put(f"  {counted(attempt.tests)}")
            for line in failing(attempt.tests):
                output.put(f"    {line}")


def _step_row(step: Step) -> tuple[str, ...]:
    code = "never ran" if step.exit_code is None else str(step.exit_code)
    return (step.name, code, f"+{output.duration(step.began)}", output.duration(step.wall))


def phases(job: Job, attempt: Attempt) -> list[tuple[str, str]]:
    """Tell how long each phase took that has ended; only the latest try knows how long it waited.

    The job remembers only since when it has last been waiting.
    """
    is_latest = attempt == job.attempts[-1]
    instants = (
        ("queued", job.eligible_at if is_latest else None),
        ("offered", attempt.created_at),
        ("prepared", attempt.accepted_at),
        ("ran", attempt.started_at),
        ("uploaded", attempt.uploading_at),
        ("", attempt.finished_at),
    )
    reached = [(name, at) for name, at in instants if at is not None]
    following = [at for _, at in reached[1:]]
    return [
        (name, output.duration(end - at))
        for (name, at), end in zip(reached, following, strict=False)
    ]


def judged(attempt: Attempt) -> str:
    """Say in one line by what the runner of a try was judged."""
    return (
        f"pool {attempt.pool}, trust {attempt.trust},"
        f" capabilities {attempt.capability_digest}, policy {attempt.policy_digest}"
    )


def used(attempt: Attempt) -> str:
    """Say in one line what a try cost its runner."""
    amounts = (
        (output.duration(attempt.cpu_ms), "of CPU"),
        (output.size(attempt.peak_memory_bytes), "of memory at most"),
        (output.size(attempt.bytes_fetched), "fetched"),
        (output.size(attempt.bytes_uploaded), "uploaded"),
    )
    return ", ".join(f"{amount} {what}" for amount, what in amounts if amount)


def counted(tests: Counts) -> str:
    """Say in one line how many tests there were and what became of them."""
    said = [_amount(tests.tests, "test")]
    said += [f"{tests.failures} failed"] if tests.failures else []
    said += [_amount(tests.errors, "error")] if tests.errors else []
    said += [f"{tests.skipped} skipped"] if tests.skipped else []
    said += [f"{_amount(tests.unreadable, 'report')} unreadable"] if tests.unreadable else []
    return ", ".join(said)


def failing(tests: Counts) -> list[str]:
    """Name the tests that did not pass, a line each, as far as they were kept."""
    lines = [f"{one.name}: {one.message}" if one.message else one.name for one in tests.failing]
    more = tests.failures + tests.errors - len(lines)
    return [*lines, f"and {more} more"] if more > 0 else lines


def _amount(amount: int, noun: str) -> str:
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"
