"""Finds out what this host can do: its system, its size and the tools on the jobs' PATH.

What cannot be found out stays unknown, and the scheduler never takes unknown for yes.
"""

import asyncio
import platform
import socket
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from forgeyard.agent import host, toolchains
from forgeyard.agent.equipment import equipment
from forgeyard.agent.isolation import NOTHING, Isolation
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.capability import (
    REPORT_VERSION,
    Architecture,
    Capabilities,
    Platform,
)
from forgeyard.model.equipment import Provenance
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.location import Location
from forgeyard.model.protocol import Register, Report
from forgeyard.model.units import Bytes, Resources, Rounding, parse_bytes, parse_cpu

_ARCHITECTURES = {
    "x86_64": Architecture.X86_64,
    "amd64": Architecture.X86_64,
    "aarch64": Architecture.AARCH64,
    "arm64": Architecture.AARCH64,
}
_PLATFORMS = {
    "Linux": Platform.LINUX,
    "Darwin": Platform.MACOS,
    "Windows": Platform.WINDOWS,
}
_PROVENANCE = {
    **dict.fromkeys(("platform", "os_version", "architecture", "cpu_features"), Provenance.PROBED),
    **dict.fromkeys(
        ("labels", "trust", "reliability", "cost_micros_per_hour"), Provenance.CONFIGURED
    ),
}
"""How the fields of a report are known that do not say so themselves."""


async def registration(
    config: AgentConfig,
    work_dir: Path,
    held: Holdings = NOTHING_HELD,
    *,
    isolation: Isolation = NOTHING,
) -> Register:
    """Describe this host to the server, and what it has at hand.

    Raises:
        InvalidQuantity: naming the setting, when an amount in it cannot be read.
    """
    found = await report(config, work_dir, kept=sum(held.objects.values()), isolation=isolation)
    return Register(
        runner_name=config.name or socket.gethostname(),
        capabilities=found.capabilities,
        total=found.total,
        headroom=found.headroom,
        location=location(config),
        holdings=held,
        pool=config.pool,
    )


async def report(
    config: AgentConfig, work_dir: Path, *, kept: int = 0, isolation: Isolation = NOTHING
) -> Report:
    """Look at this host; `kept` are the bytes that the local cache takes of its disk already.

    The whole local cache counts as kept back, so that what jobs may have does not hang on how full
    it is.

    Raises:
        InvalidQuantity: naming the setting, when an amount in it cannot be read.
    """
    back = headroom(config).plus(Resources(disk=local_cache(config)))
    total = await asyncio.to_thread(host.resources, work_dir, slots=config.jobs)
    return Report(
        capabilities=await capabilities(config, isolation),
        total=share(config, total.plus(Resources(disk=Bytes(kept))), back),
        headroom=back,
    )


def share(config: AgentConfig, total: Resources, back: Resources) -> Resources:
    """Cut a host down to what this agent may offer of it beside what it keeps back."""
    down = Rounding.CAPACITY
    cpu, memory, disk = total.cpu, total.memory, total.disk
    if config.cpu:
        cpu = parse_cpu(config.cpu, field="agent.cpu", rounding=down)
    if config.memory:
        memory = parse_bytes(config.memory, field="agent.memory", rounding=down)
    if config.disk:
        disk = parse_bytes(config.disk, field="agent.disk", rounding=down)
    offered = Resources(cpu=cpu, memory=memory, disk=disk, slots=total.slots)
    return offered.plus(back).within(total)


def headroom(config: AgentConfig) -> Resources:
    """Read how much is kept back for the system and the agent."""
    up = Rounding.REQUEST
    return Resources(
        cpu=parse_cpu(config.headroom_cpu, field="agent.headroom_cpu", rounding=up),
        memory=parse_bytes(config.headroom_memory, field="agent.headroom_memory", rounding=up),
        disk=parse_bytes(config.headroom_disk, field="agent.headroom_disk", rounding=up),
    )


def local_cache(config: AgentConfig) -> Bytes:
    """Read how much disk the local cache may take."""
    return parse_bytes(config.local_cache, field="agent.local_cache", rounding=Rounding.CAPACITY)


async def capabilities(config: AgentConfig, isolation: Isolation = NOTHING) -> Capabilities:
    """Find out what this host offers to jobs."""
    offered, has = await asyncio.gather(toolchains.offered(config), equipment(config, isolation))
    return Capabilities(
        platform=_PLATFORMS.get(platform.system()),
        os_version=os_version(),
        architecture=_ARCHITECTURES.get(platform.machine().lower()),
        toolchains=offered,
        labels=dict(config.labels),
        trust=config.trust,
        agent_version=agent_version(),
        equipment=has,
        reliability=config.reliability,
        cost_micros_per_hour=config.cost_micros_per_hour,
        provenance=_PROVENANCE,
        schema_version=REPORT_VERSION,
    )


def location(config: AgentConfig) -> Location:
    """Tell where this host is; by itself it only knows its name."""
    return Location(
        host=config.host or socket.gethostname()[:128] or None,
        site=config.site or None,
        region=config.region or None,
    )


def os_version() -> str | None:
    """Tell the distribution's or the system's version, such as 12 or 14.5."""
    if platform.system() == "Darwin":
        return platform.mac_ver()[0] or None
    with suppress(OSError):
        return platform.freedesktop_os_release().get("VERSION_ID")
    return None


def agent_version() -> str:
    """Tell which Forgeyard this is."""
    with suppress(PackageNotFoundError):
        return version("forgeyard")
    return ""
