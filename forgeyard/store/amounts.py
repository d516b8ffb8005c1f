"""Amounts of resources as rows hold them: the same four columns everywhere, perhaps prefixed."""

from functools import lru_cache

from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.store.changes import Row

DIMENSIONS = ("cpu_milli", "memory_bytes", "disk_bytes", "slots")


def resources_of(row: Row, prefix: str = "") -> Resources:
    """Read an amount from the columns of a row, such as those that begin with `reserved_`."""
    cpu, memory, disk, slots = _names(prefix)
    return amount_of(row[cpu], row[memory], row[disk], row[slots])


@lru_cache(maxsize=16)
def _names(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in DIMENSIONS)


@lru_cache(maxsize=2**16)
def amount_of(cpu: int, memory: int, disk: int, slots: int) -> Resources:
    """Make an amount once; runners and jobs share few different ones."""
    return Resources(cpu=MilliCpu(cpu), memory=Bytes(memory), disk=Bytes(disk), slots=slots)
