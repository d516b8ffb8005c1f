"""What a run is: jobs that belong together, and the graph between them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from forgeyard.errors import InvalidRequirements
from forgeyard.model.job import JobSpec
from forgeyard.model.units import Millis

HEAD = "HEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRef:
    """A repository and what to take from it, as people write it; `commit`, if given, decides."""

    repository: str = field(repr=False)
    """May carry credentials, so it goes nowhere but to git."""
    ref: str = HEAD
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """The commit whose files are a run's source, and how it was found; carries no credentials."""

    repository: str
    ref: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The group of runs of which one goes on and one waits, and what a new one does to it."""

    group: str
    cancel_in_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run as its author wrote it; `check_graph` has accepted its jobs."""

    name: str
    jobs: tuple[JobSpec, ...]
    timeout: Millis = Millis(86_400_000)
    concurrency: Concurrency | None = None
    git: GitRef | None = None
    queue: str | None = None
    """The path of the queue that its jobs wait in; the default one if it names none."""


def check_graph(jobs: Iterable[JobSpec]) -> None:
    """Refuse duplicate names, needs that do not exist and cycles.

    Raises:
        InvalidRequirements: with `field` = `jobs.NAME.needs`, naming the missing job or the cycle.
    """
    needs: dict[str, tuple[str, ...]] = {}
    for job in jobs:
        if job.name in needs:
            raise InvalidRequirements(f"job {job.name!r} is written twice", field="jobs")
        needs[job.name] = job.needs
    _check_needs_exist(needs)
    _check_no_cycle(needs)


def _check_needs_exist(needs: dict[str, tuple[str, ...]]) -> None:
    for name, wanted in needs.items():
        for need in wanted:
            if need not in needs or need == name:
                problem = "itself" if need == name else f"{need!r}, which is not a job"
                raise InvalidRequirements(
                    f"job {name!r} needs {problem}",
                    field=f"jobs.{name}.needs",
                    value=need,
                    allowed=", ".join(sorted(set(needs) - {name})) or "no other job exists",
                )


def _check_no_cycle(needs: dict[str, tuple[str, ...]]) -> None:
    """Take away jobs whose needs are all gone until none is left, or a cycle is."""
    left = {name: set(wanted) for name, wanted in needs.items()}
    dependents: dict[str, list[str]] = {name: [] for name in needs}
    for name, wanted in needs.items():
        for need in set(wanted):
            dependents[need].append(name)
    ready = [name for name, wanted in left.items() if not wanted]
    while ready:
        done = ready.pop()
        del left[done]
        for name in dependents[done]:
            left[name].discard(done)
            if not left[name]:
                ready.append(name)
    if left:
        cycle = _one_cycle(left)
        raise InvalidRequirements(
            f"jobs need each other in a circle: {' → '.join(cycle)}",
            field=f"jobs.{cycle[0]}.needs",
            value=" → ".join(cycle),
            allowed="needs without a circle",
        )


def _one_cycle(left: dict[str, set[str]]) -> list[str]:
    """Follow needs from the first job left until a job comes twice."""
    path = [min(left)]
    while True:
        following = min(left[path[-1]] & left.keys())
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
