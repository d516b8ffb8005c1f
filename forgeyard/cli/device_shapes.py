"""What the command line reads of devices: only the fields that it prints."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How many devices of one kind a runner has."""

    kind: str
    count: int
    id: str | None = None
    model: str | None = None
    os_version: str | None = None
    api_level: str | None = None
    abi: str | None = None
    form: str | None = None
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a runner."""

    id: str | None = None
    vendor: str | None = None
    model: str | None = None
    memory: int | None = None
    compute_capability: str | None = None
    sharing: str | None = None
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that is given to jobs; `free` in thousandths."""

    device_id: str
    kind: str
    free: int = 1_000
    leases: tuple[str, ...] = ()
