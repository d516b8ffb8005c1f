"""Why a job does not run yet, in one sentence.

Reads what others have decided and wrote down; decides nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forgeyard.model.transitions import FINAL_JOB_STATES, JobState
from forgeyard.store import specs
from forgeyard.store.changes import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run's jobs are judged by, each by the job's id; attempts carry their runner's name."""

    now: int
    jobs: Mapping[str, Row]
    needs: Mapping[str, Sequence[str]]
    attempts: Mapping[str, Sequence[Row]]
    retries: Mapping[str, int]
    held: str | None = None
    """What the whole run waits for."""
    parked: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why jobs wait of which no runner can ever take a single one, by their class."""


def sentence(job: Row, around: Surroundings) -> str | None:
    """Say why a job does not run, or None if it does or has ended."""
    state = JobState(job["state"])
    if state in FINAL_JOB_STATES:
        return None
    if job["cancel_reason"]:
        return f"is being cancelled: {job['cancel_reason']}"
    if state is JobState.PENDING:
        return _waiting_for_needs(job, around)
    if state is JobState.ELIGIBLE:
        hopeless = around.parked.get(job["requirement_class"])
        return hopeless or diagnosis_of(job) or "waits for the next scheduling cycle"
    if state is JobState.LEASED:
        return f"is offered to {_last_runner(job, around)}, which has not accepted yet"
    if state is JobState.LOST:
        return f"lost {_last_runner(job, around)}; another attempt is being decided"
    if state is JobState.RETRY_WAITING:
        return _waiting_for_retry(job, around)
    last = around.attempts.get(job["job_id"], ())
    if last and last[-1]["finished_at"] is not None:
        return f"attempt {last[-1]['number']} {last[-1]['state']}; another is being decided"
    return None


def _waiting_for_needs(job: Row, around: Surroundings) -> str:
    if around.held is not None:
        return around.held
    needs = [around.jobs[need] for need in around.needs.get(job["job_id"], ())]
    names = [need["name"] for need in needs if JobState(need["state"]) not in FINAL_JOB_STATES]
    if names:
        return f"waits for {', '.join(names)}"
    if job["max_parallel"] is not None:
        places = f"the {job['max_parallel']} of matrix {job['matrix']}"
        return f"waits for a free place among {places}"
    return "waits to be judged"


def _waiting_for_retry(job: Row, around: Surroundings) -> str:
    most = specs.retry(job).max_attempts
    due_at = around.retries.get(job["job_id"], around.now)
    seconds = max(0, -(-(due_at - around.now) // 1_000))
    return f"tries again in {seconds} s; {job['attempts_charged']} of {most} attempts used"


def _last_runner(job: Row, around: Surroundings) -> str:
    attempts = around.attempts.get(job["job_id"], ())
    return str(attempts[-1]["runner"] or attempts[-1]["runner_id"]) if attempts else "a runner"


def diagnosis_of(row: Row) -> str | None:
    """Read the sentence of the diagnosis of a job or a class; the rest belongs to the scheduler."""
    try:
        return str(json.loads(row["diagnosis"])["sentence"]) if row["diagnosis"] else None
    except (ValueError, KeyError, TypeError):
        return None
