"""What the API answers about pools, as far as the command line looks at it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When a pool is closed for maintenance."""

    window_id: str
    starts_at: int
    ends_at: int
    reason: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A group of runners."""

    pool_id: str
    name: str
    state: str = ""
    owner_id: str | None = None
    owner: str | None = None
    trust: str | None = None
    sharing: str = ""
    spillover: bool = False
    runners: tuple[str, ...] = ()
    wished_by: tuple[str, ...] = ()
    maintenance: tuple[Window, ...] = ()
