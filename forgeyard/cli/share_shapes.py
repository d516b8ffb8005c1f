"""What `scope` and `job` read out of the API's answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What an operator may set of a scope; a limit of `None` is none."""

    weight: int = 1
    max_jobs: int | None = None
    max_cpu_milli: int | None = None
    max_memory_bytes: int | None = None
    burst_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the jobs of a scope hold."""

    jobs: int = 0
    cpu: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A tenant, organization, project, queue or pool."""

    path: str
    kind: str = ""
    version: int
    shares: Shares = Shares()
    paused: bool = False
    note: str = ""
    used: Used = Used()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered:
    """A job and its priority from now on."""

    job_id: str
    name: str
    state: str
    priority: str
    adjustment: int = 0
