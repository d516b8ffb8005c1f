"""Tells the steps of a job which devices are its own, and hides the GPUs that are not.

A variable is no wall: it keeps honest programs apart, which is all that an agent without a sandbox
can do.
"""

from collections import Counter
from collections.abc import Sequence

from forgeyard.model.devices import device_ids, named_gpus
from forgeyard.model.equipment import DeviceShare, Equipment, GpuVendor

DEVICES = "FORGEYARD_DEVICES"
"""The ids of everything that the job holds, with commas between."""
BY_VENDOR = {GpuVendor.NVIDIA: "CUDA_VISIBLE_DEVICES", GpuVendor.AMD: "HIP_VISIBLE_DEVICES"}
"""What the libraries of each vendor look at; empty, they see no GPU at all."""


def environment(shares: Sequence[DeviceShare], equipment: Equipment) -> dict[str, str]:
    """Name a job's devices; it gets every variable, so that what is not its own stays hidden."""
    mine = {one.device_id for one in shares}
    seen: dict[GpuVendor, list[str]] = {vendor: [] for vendor in BY_VENDOR}
    counted: Counter[GpuVendor] = Counter()
    for name, gpu in named_gpus(equipment.gpus or ()):
        if gpu.vendor is None or gpu.vendor not in seen:
            continue
        if name in mine:
            # The libraries know a GPU by what its driver calls it, else by its number.
            seen[gpu.vendor].append(gpu.id or str(counted[gpu.vendor]))
        counted[gpu.vendor] += 1
    return {
        DEVICES: ",".join(one.device_id for one in shares),
        **{variable: ",".join(seen[vendor]) for vendor, variable in BY_VENDOR.items()},
    }


def missing(shares: Sequence[DeviceShare], equipment: Equipment) -> list[str]:
    """List the devices of an offer that this host has not reported."""
    known = set(device_ids(equipment))
    return [one.device_id for one in shares if one.device_id not in known]
