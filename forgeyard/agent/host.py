"""How big this host is and how hard pressed, as the kernel and its control groups say.

A limit that cannot be read is no limit; a size that cannot be read is zero, so that nothing is
promised.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Bytes, MilliCpu, Resources

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_THERMAL = Path("/sys/class/thermal")
_NO_LIMIT = 2**60
SPARE_HEAT = 5_000
"""In thousandths of a degree: so close to its limit a part counts as hot."""
SCARCE_PERCENT = 5
STALLED_PERCENT = 40.0
"""Share of time in which all work waits for memory, from which on the host is short of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Something limited: all there is, and what is left of it."""

    total: int
    left: int

    @property
    def is_scarce(self) -> bool:
        """Tell whether hardly anything is left."""
        return self.total > 0 and self.left * 100 < self.total * SCARCE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What pressure is judged by."""

    memory: Amount
    disk: Amount
    disk_headroom: int
    memory_stall: float = 0.0
    is_hot: bool = False

    def pressure(self) -> ResourcePressure:
        """Name what is short, the worst first."""
        if self.memory.is_scarce or self.memory_stall >= STALLED_PERCENT:
            return ResourcePressure.MEMORY
        if self.disk.is_scarce or self.disk.left < self.disk_headroom:
            return ResourcePressure.DISK
        if self.is_hot:
            return ResourcePressure.THERMAL
        return ResourcePressure.NORMAL


def resources(work_dir: Path, *, slots: int) -> Resources:
    """Measure what this process may use of the host; of the disk, what is free."""
    return Resources(
        cpu=cpus(),
        memory=Bytes(memory().total),
        disk=Bytes(disk(work_dir).left),
        slots=slots,
    )


def load(work_dir: Path, *, disk_headroom: int) -> Load:
    """Look at the host as it is now."""
    return Load(
        memory=memory(),
        disk=disk(work_dir),
        disk_headroom=disk_headroom,
        memory_stall=parse_stall(_text(_PROC / "pressure/memory")),
        is_hot=is_hot(),
    )


def cpus() -> MilliCpu:
    """Count the processors this process may run on, less if a control group grants less."""
    whole = 1000 * (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    granted = [parse_cpu_max(_text(folder / "cpu.max")) for folder in _unified()]
    granted += [
        parse_cpu_max(f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}")
        for folder in _controller("cpu")
    ]
    return MilliCpu(min([whole, *(amount for amount in granted if amount)]))


def memory() -> Amount:
    """Measure the memory this process may use, and how much of it is available."""
    facts = parse_meminfo(_text(_PROC / "meminfo"))
    amounts = [Amount(total=facts.get("MemTotal", 0), left=facts.get("MemAvailable", 0))]
    for folder in _unified():
        amounts += _group_memory(folder, limit="memory.max", used="memory.current")
    for folder in _controller("memory"):
        amounts += _group_memory(
            folder, limit="memory.limit_in_bytes", used="memory.usage_in_bytes"
        )
    return Amount(
        total=min(amount.total for amount in amounts), left=min(amount.left for amount in amounts)
    )


def disk(work_dir: Path) -> Amount:
    """Measure the file system of the work directory: its size, and what is free for us."""
    try:
        usage = shutil.disk_usage(work_dir)
    except OSError:
        return Amount(total=0, left=0)
    return Amount(total=usage.used + usage.free, left=usage.free)


def is_hot(zones: Path = _THERMAL) -> bool:
    """Tell whether some part is close to a limit of its own, where the kernel knows (RUN-014)."""
    return any(_zone_is_hot(zone) for zone in zones.glob("thermal_zone*"))


def _zone_is_hot(zone: Path) -> bool:
    now = parse_limit(_text(zone / "temp"))
    limits = (
        parse_limit(_text(kind.with_name(kind.name.replace("_type", "_temp"))))
        for kind in zone.glob("trip_point_*_type")
        if _text(kind).strip() in ("hot", "critical")
    )
    return now is not None and any(limit and now >= limit - SPARE_HEAT for limit in limits)


def _group_memory(folder: Path, *, limit: str, used: str) -> list[Amount]:
    total, taken = parse_limit(_text(folder / limit)), parse_limit(_text(folder / used))
    if total is None or taken is None:
        return []
    # File pages that nobody used lately are given back before anything is refused.
    idle = parse_counters(_text(folder / "memory.stat")).get("inactive_file", 0)
    return [Amount(total=total, left=max(0, total - taken + idle))]


def _unified() -> Iterator[Path]:
    """Walk from this process's control group (version 2) up to the root."""
    return _upwards(_CGROUPS, parse_cgroup(_text(_PROC / "self/cgroup"), ""))


def _controller(name: str) -> Iterator[Path]:
    """Walk from this process's control group of a controller (version 1) up to the root."""
    return _upwards(_CGROUPS / name, parse_cgroup(_text(_PROC / "self/cgroup"), name))


def _upwards(root: Path, path: str | None) -> Iterator[Path]:
    if path is None:
        return
    folder = root / path.strip("/")
    while folder != root.parent:
        yield folder
        folder = folder.parent


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def parse_cgroup(text: str, controller: str) -> str | None:
    """Find the path of a controller in /proc/self/cgroup; version 2 has the empty name."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and ".." not in path:
            return path
    return None


def parse_cpu_max(text: str) -> MilliCpu | None:
    """Read `QUOTA PERIOD` in microseconds; `max` and -1 are no limit."""
    fields = text.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return MilliCpu(max(1, int(fields[0]) * 1000 // int(fields[1])))


def parse_limit(text: str) -> int | None:
    """Read a number; `max` and absurdly large ones are no limit."""
    word = text.strip()
    return int(word) if word.isdigit() and int(word) < _NO_LIMIT else None


def parse_meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo into bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            found[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return found


def parse_counters(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def parse_stall(text: str) -> float:
    """Read the share of the last ten seconds in which everything waited, from a pressure file."""
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["full"]:
            values = dict(field.split("=", 1) for field in fields[1:] if "=" in field)
            with suppress(ValueError):
                return float(values.get("avg10", "0"))
    return 0.0
