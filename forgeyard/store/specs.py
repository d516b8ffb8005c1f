"""What transitions need of a job's stored specification, even if that is damaged.

Nobody may get stuck on one damaged row: not the job's runner, its run, or the whole partition. Such
a job finishes what it does with default timeouts, is never tried again, and is parked with an
error as soon as it would wait for a runner.
"""

from forgeyard.errors import Corrupt
from forgeyard.model.job import FailureClass, JobSpec, RetryPolicy, Timeouts
from forgeyard.model.run import GitSource
from forgeyard.store import codec
from forgeyard.store.changes import Row

PARKED = FailureClass.INTERNAL
PARKED_MESSAGE = "parked: its stored specification cannot be read"


def find(job: Row) -> JobSpec | None:
    """Read a job's specification, or return None if it is damaged."""
    try:
        return codec.decode(JobSpec, job["spec"])
    except Corrupt:
        return None


def git(run: Row) -> GitSource | None:
    """Tell which commit a run's source is, if it is one; a damaged record tells nothing."""
    try:
        return codec.decode(GitSource, run["git"]) if run["git"] else None
    except Corrupt:
        return None


def timeouts(job: Row) -> Timeouts:
    """Tell a job's timeouts; a damaged one gets the defaults, so that it ends all the same."""
    try:
        return codec.decode_part(Timeouts, job["spec"], "timeouts")
    except Corrupt:
        return Timeouts()


def retry(job: Row) -> RetryPolicy:
    """Tell a job's retry policy; a damaged one cannot be offered again, so it gets no retry."""
    spec = find(job)
    return RetryPolicy(max_attempts=1) if spec is None else spec.retry
