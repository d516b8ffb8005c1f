"""A runner's devices as people are shown them: each with what is held of it, and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities
from forgeyard.model.devices import named_devices, named_gpus
from forgeyard.model.equipment import WHOLE, Equipment
from forgeyard.store import bulk, tables
from forgeyard.store.codec import decode

SHOWN = 256
"""Devices of one runner that are listed."""
Holders = Mapping[str, tuple[int, tuple[str, ...]]]
"""By device: how much of it is held, and by which leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A GPU or another device, and how much of it is free in thousandths."""

    device_id: str
    kind: str
    model: str | None
    free: int
    leases: tuple[str, ...]


def holders(connection: sa.Connection) -> dict[str, dict[str, tuple[int, tuple[str, ...]]]]:
    """Tell by runner what is held of its devices."""
    holds = tables.device_holds
    query = sa.select(holds).order_by(holds.c.runner_id, holds.c.device_id, holds.c.lease_id)
    found: dict[str, dict[str, tuple[int, tuple[str, ...]]]] = {}
    for row in connection.execute(query).mappings():
        held = found.setdefault(row["runner_id"], {})
        share, leases = held.get(row["device_id"], (0, ()))
        held[row["device_id"]] = (share + row["share"], (*leases, row["lease_id"]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """How much leases hold of all GPUs, and of all other devices, in thousandths."""

    gpus: int = 0
    devices: int = 0


def in_use(connection: sa.Connection) -> InUse:
    """Add up what is held; the reports of runners that hold something tell what it is."""
    runners, held = tables.runners, holders(connection)
    reports = sa.select(runners.c.runner_id, runners.c.capabilities).where(
        bulk.among(connection, runners.c.runner_id, sorted(held))
    )
    gpus = total = 0
    for runner_id, report in connection.execute(reports):
        names = _gpu_names(report)
        for device_id, (share, _) in held[runner_id].items():
            total += share
            gpus += share if device_id in names else 0
    return InUse(gpus=gpus, devices=total - gpus)


@lru_cache(maxsize=4096)
def _gpu_names(report: str) -> frozenset[str]:
    """Tell what the GPUs of a report are called; a report that cannot be read has none."""
    try:
        found = decode(Capabilities, report).equipment.gpus or ()
    except Corrupt:
        return frozenset()
    return frozenset(name for name, _ in named_gpus(found))


def views(equipment: Equipment, held: Holders) -> tuple[DeviceView, ...]:
    """Show the GPUs and the first of the other devices."""
    gpus = [(name, "gpu", gpu.model) for name, gpu in named_gpus(equipment.gpus or ())]
    others = islice(named_devices(equipment.devices or ()), SHOWN)
    devices = [(name, device.kind, device.model) for name, device in others]
    return tuple(
        DeviceView(device_id=name, kind=kind, model=model, free=WHOLE - share, leases=leases)
        for name, kind, model in (*gpus, *devices)
        for share, leases in (held.get(name, (0, ())),)
    )
