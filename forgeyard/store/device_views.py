"""A runner's devices as people are shown them: each with what is held of it, and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import sqlalchemy as sa

from forgeyard.model.devices import named_devices, named_gpus
from forgeyard.model.equipment import WHOLE, Equipment
from forgeyard.store import tables

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
