"""What a job says about where it runs in view of other jobs of its run, and about spot machines.

Being apart holds for both sides, whoever of them wrote it: the one that is placed second must know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from forgeyard.errors import InvalidRunFile
from forgeyard.model.job import JobSpec, MatrixCell
from forgeyard.model.wishes import MAX_NAMED, Distinct, Domain, Spread, Wishes
from forgeyard.runfile.schema import JobPart

Groups = Mapping[str, tuple[str, ...]]


def compile_ties(
    part: JobPart, wishes: Wishes, *, cell: MatrixCell | None, groups: Groups
) -> Wishes:
    """Add what a job says of others; one with a matrix stands for all its cells."""
    spread = None
    if cell is not None:
        spread = Spread(group=cell.of, over=cell.spread_over, required=cell.spread_required)
    distinct = tuple(
        Distinct(jobs=tuple(it for name in one.jobs for it in groups.get(name, (name,))), by=one.by)
        for one in part.distinct
    )
    return replace(wishes, spread=spread, distinct=distinct, beside=part.beside)


def check_ties(jobs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Insist that named jobs exist, and tell both sides of being apart.

    Raises:
        InvalidRunFile: a job names one that is not there, or itself, or too many name one.
    """
    names = {job.name for job in jobs}
    for job in jobs:
        at = f"jobs.{job.matrix.of if job.matrix else job.name}"
        if job.wishes.beside is not None:
            _check_named(job.wishes.beside, job.name, names, f"{at}.with")
        for number, distinct in enumerate(job.wishes.distinct):
            for name in distinct.jobs:
                _check_named(name, job.name, names, f"{at}.distinct.{number}.jobs")
    return tuple(_both_sides(job, jobs) for job in jobs)


def _check_named(name: str, of: str, names: set[str], at: str) -> None:
    if name not in names or name == of:
        problem = "is this job itself" if name == of else "is no job of this run"
        others = ", ".join(sorted(names - {of})[:20]) or "no other job exists"
        raise InvalidRunFile(f"{at}: {name!r} {problem}", field=at, value=name, allowed=others)


def _both_sides(job: JobSpec, jobs: Sequence[JobSpec]) -> JobSpec:
    """Add to a job from whom others want to be apart that it must be apart from them."""
    said: dict[Domain, list[str]] = {}
    for distinct in job.wishes.distinct:
        said.setdefault(distinct.by, []).extend(distinct.jobs)
    for other in jobs:
        for distinct in other.wishes.distinct:
            if job.name in distinct.jobs:
                said.setdefault(distinct.by, []).append(other.name)
    if not said:
        return job
    both = tuple(
        Distinct(jobs=tuple(dict.fromkeys(names)), by=domain) for domain, names in said.items()
    )
    if any(len(one.jobs) > MAX_NAMED for one in both):
        at = f"jobs.{job.matrix.of if job.matrix else job.name}.distinct"
        raise InvalidRunFile(
            f"{at}: too many jobs to be apart from",
            field=at,
            allowed=f"at most {MAX_NAMED} jobs in one way",
        )
    return replace(job, wishes=replace(job.wishes, distinct=both))
