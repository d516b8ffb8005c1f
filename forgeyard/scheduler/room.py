"""What jobs may hold of a runner: the one reckoning behind plan, commit and views.

CPU alone may be promised more than once, as far as the policy bounds it; memory and disk never are,
for a host that runs out of them breaks jobs instead of slowing them down (RES-016, RES-017).
"""

from forgeyard.model.units import Bytes, MilliCpu, Resources, cpu_text

PLAIN = 100
"""Per cent of its CPU that a runner gives away when nothing is promised twice."""


def allocatable(total: Resources, headroom: Resources, *, cpu_percent: int) -> Resources:
    """Tell what jobs may ever hold: what the headroom leaves, and CPU as often as allowed.

    A host that keeps back more than it has offers nothing of it, never less than nothing.
    """
    left = total.minus(headroom)
    return Resources(
        cpu=MilliCpu(max(left.cpu, 0) * cpu_percent // PLAIN),
        memory=Bytes(max(left.memory, 0)),
        disk=Bytes(max(left.disk, 0)),
        slots=max(left.slots, 0),
    )


def mismatches(total: Resources, headroom: Resources, free: Resources) -> tuple[str, ...]:
    """Say where the accounts of a runner cannot be as they should: each a whole sentence."""
    kept = headroom.shortfalls(total)
    owed = Resources().shortfalls(free)
    return (
        *(f"It keeps back more {name} than it has, and offers none." for name in kept),
        *(f"Its jobs hold more {name} than it may give away{_by(name, free)}." for name in owed),
    )


def _by(name: str, free: Resources) -> str:
    return f", by {cpu_text(-free.cpu)}" if name == "cpu" else ""
