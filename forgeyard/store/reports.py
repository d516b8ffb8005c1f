"""What agents say about their hosts, on its way into the row of a runner.

A report that cannot be is refused whole. One that is merely odd, such as a headroom larger than the
host, is taken and cut down, for a runner that goes silent over it would help nobody (SP-060).
"""

import re
from collections import Counter
from dataclasses import replace

from forgeyard.errors import InvalidRequest
from forgeyard.model.capability import normal_labels, report_digest
from forgeyard.model.devices import device_ids
from forgeyard.model.equipment import RESERVED_PROVENANCE, Equipment, Provenance
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.protocol import Report
from forgeyard.model.units import LARGEST, Bytes, MilliCpu, Resources
from forgeyard.store import codec
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row

_TOLD = {"reported_at", "health_reason", "last_seen_at"}
"""For people, and for a look at how old a report is; no runner gets more or less by it."""
_DEVICE = re.compile(r"[^,\x00-\x1f\x7f]{1,160}")
_NONE = Resources()
_LARGEST = Resources(
    cpu=MilliCpu(LARGEST), memory=Bytes(LARGEST), disk=Bytes(LARGEST), slots=LARGEST
)


def check(report: Report) -> None:
    """Refuse a report that cannot be.

    Raises:
        InvalidRequest: an amount is out of range, two devices have one name, or the agent vouches
            for itself.
    """
    claimed = sorted(report.capabilities.provenances() & RESERVED_PROVENANCE)
    if claimed:
        raise InvalidRequest(
            "an agent cannot vouch for its own report",
            field="capabilities.provenance",
            value=claimed[0],
            allowed=", ".join(sorted(set(Provenance) - RESERVED_PROVENANCE)),
        )
    _check_devices(report.capabilities.equipment)
    for field, amount in (("total", report.total), ("headroom", report.headroom)):
        wrong = _NONE.shortfalls(amount) or amount.shortfalls(_LARGEST)
        if wrong:
            raise InvalidRequest(
                f"{field} {wrong[0]} cannot be",
                field=f"{field}.{wrong[0]}",
                value=getattr(amount, wrong[0]),
                allowed=f"0 to {LARGEST}",
            )


def _check_devices(equipment: Equipment) -> None:
    """Demand that everything which is given out one by one has a plain name of its own."""
    counts = Counter(device_ids(equipment))
    wrong = [name for name, count in counts.items() if count > 1 or not _DEVICE.fullmatch(name)]
    if wrong:
        raise InvalidRequest(
            f"device {wrong[0]!a} needs a plain name of its own",
            field="capabilities.equipment",
            value=wrong[0],
            allowed="1 to 160 characters without commas, each name once",
        )


def described(report: Report, *, now: int) -> dict[str, object]:
    """Write down what a report says, but for the trust that it claims.

    A host never keeps back more than it has, so that nothing allocatable is ever below zero.
    """
    said = report.capabilities
    capabilities = codec.encode(replace(said, labels=normal_labels(said.labels)))
    return {
        "capabilities": capabilities,
        "capability_digest": report_digest(capabilities),
        "reported_at": now,
        **_amounts("total", report.total),
        **_amounts("headroom", report.headroom.within(report.total)),
    }


def bounded(runner: Row, said: dict[str, object]) -> dict[str, object]:
    """Count no more slots than a runner may still have jobs, however many its agent has (FOP-008).

    A job that it has under way counts among those that it may still have, and holds a slot.
    """
    left, total, kept = runner["jobs_left"], said.get("total_slots"), said.get("headroom_slots")
    if left is None or not isinstance(total, int) or not isinstance(kept, int):
        return said
    return {**said, "total_slots": min(total, kept + left)}


def held(holdings: Holdings | None) -> dict[str, object]:
    """Write down what a runner need not fetch; unsaid is unchanged."""
    if holdings is None:
        return {}
    return {"holdings": None if holdings == NOTHING_HELD else codec.encode(holdings)}


def differs(runner: Row, values: dict[str, object]) -> bool:
    """Tell whether something that decides about placement would change."""
    return any(runner[name] != values[name] for name in values.keys() - _TOLD)


def _amounts(prefix: str, amount: Resources) -> dict[str, object]:
    values = (amount.cpu, amount.memory, amount.disk, amount.slots)
    return {f"{prefix}_{name}": value for name, value in zip(DIMENSIONS, values, strict=True)}
