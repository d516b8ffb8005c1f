"""Finds out what this host can do: its system, its size and the tools on the jobs' PATH.

What cannot be found out stays unknown, and the scheduler never takes unknown for yes.
"""

import asyncio
import platform
import socket
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from forgeyard.agent import host
from forgeyard.agent.asking import ask, parse_version
from forgeyard.agent.equipment import equipment
from forgeyard.config import AgentConfig
from forgeyard.model.capability import (
    REPORT_VERSION,
    Architecture,
    Capabilities,
    Platform,
    Toolchain,
)
from forgeyard.model.equipment import Provenance
from forgeyard.model.location import Location
from forgeyard.model.protocol import Register
from forgeyard.model.units import Resources, Rounding, parse_bytes, parse_cpu

TOOLS: dict[str, tuple[str, ...]] = {
    "python": ("python3", "--version"),
    "git": ("git", "--version"),
    "gcc": ("gcc", "-dumpfullversion"),
    "clang": ("clang", "--version"),
    "make": ("make", "--version"),
    "cmake": ("cmake", "--version"),
    "node": ("node", "--version"),
    "go": ("go", "version"),
    "rust": ("rustc", "--version"),
    "cargo": ("cargo", "--version"),
    "java": ("java", "-version"),
    "ruby": ("ruby", "--version"),
    "perl": ("perl", "-e", "printf '%vd', $^V"),
    "bash": ("bash", "--version"),
    "uv": ("uv", "--version"),
}
"""What to ask for each tool; the first version number in the answer counts."""
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


async def registration(config: AgentConfig, work_dir: Path) -> Register:
    """Describe this host to the server.

    Raises:
        InvalidQuantity: naming the setting, when an amount in it cannot be read.
    """
    return Register(
        runner_name=config.name or socket.gethostname(),
        capabilities=await capabilities(config),
        total=await asyncio.to_thread(host.resources, work_dir, slots=config.jobs),
        headroom=headroom(config),
        location=location(config),
    )


def headroom(config: AgentConfig) -> Resources:
    """Read how much is kept back for the system and the agent."""
    up = Rounding.REQUEST
    return Resources(
        cpu=parse_cpu(config.headroom_cpu, field="agent.headroom_cpu", rounding=up),
        memory=parse_bytes(config.headroom_memory, field="agent.headroom_memory", rounding=up),
        disk=parse_bytes(config.headroom_disk, field="agent.headroom_disk", rounding=up),
    )


async def capabilities(config: AgentConfig) -> Capabilities:
    """Find out what this host offers to jobs."""
    offered = tuple(toolchain.toolchain() for toolchain in config.toolchains)
    found, has = await asyncio.gather(tools(config.path), equipment(config))
    return Capabilities(
        platform=_PLATFORMS.get(platform.system()),
        os_version=os_version(),
        architecture=_ARCHITECTURES.get(platform.machine().lower()),
        toolchains=(*offered, *(tool for tool in found if tool not in offered)),
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


async def tools(path: str) -> tuple[Toolchain, ...]:
    """Ask every known tool on a PATH for its version, all at once and each for two seconds."""
    answers = await asyncio.gather(*(_ask(name, path) for name in TOOLS))
    return tuple(tool for tool in answers if tool is not None)


async def _ask(name: str, path: str) -> Toolchain | None:
    answer = await ask(TOOLS[name], path)
    if answer is None:
        return None
    return Toolchain(name=name, version=parse_version(answer), provenance=Provenance.PROBED)
