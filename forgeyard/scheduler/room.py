"""What jobs may hold of a runner: the one reckoning behind plan, commit and views.

CPU alone may be promised more than once, as far as the policy bounds it; memory and disk never are,
for a host that runs out of them breaks jobs instead of slowing them down (RES-016, RES-017).
"""

from functools import lru_cache

from forgeyard.model.units import Bytes, MilliCpu, Resources, cpu_text

PLAIN = 100
"""Per cent of its CPU that a runner gives away when nothing is promised twice."""


@lru_cache(maxsize=2**16)
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


def overdrawn(free: Resources) -> tuple[str, ...]:
    """Say of what a runner's jobs hold more than it may give away: its accounts do not match.

    That comes of a host that shrank, or of a policy that was tightened while jobs ran (SP-059).
    """
    owed = Resources().minus(free)
    return tuple(
        f"resource accounting mismatch: jobs hold {_more(name, owed)} than may be given away"
        for name in Resources().shortfalls(free)
    )


def _more(name: str, owed: Resources) -> str:
    if name == "cpu":
        return f"{cpu_text(owed.cpu)} more"
    return f"{owed.slots} slots more" if name == "slots" else f"more {name}"
