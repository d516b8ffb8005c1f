"""The tools that this host offers to jobs, and whether they are still what was said of them.

A tool is known by its version and by a digest of its program; one that the operator configured, by
a digest of its whole directory. A job that was placed by what a tool was gets no other (ELG-045).
"""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forgeyard.agent.asking import ask, parse_version
from forgeyard.agent.identity import folder_digest, program_digest
from forgeyard.agent.offers import satisfies
from forgeyard.machine_settings import AgentConfig, ToolchainConfig
from forgeyard.model.capability import Toolchain, ToolchainRequirement
from forgeyard.model.equipment import Provenance

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


async def offered(config: AgentConfig) -> tuple[Toolchain, ...]:
    """List what the operator configured, in that order, and then what is found on the PATH."""
    configured, found = await asyncio.gather(
        asyncio.gather(*(_configured(tool) for tool in config.toolchains)), probed(config.path)
    )
    return (*configured, *(tool for tool in found if tool not in configured))


async def probed(path: str) -> tuple[Toolchain, ...]:
    """Ask every known tool on a PATH for its version, all at once and each for two seconds."""
    answers = await asyncio.gather(*(_probed(name, path) for name in TOOLS))
    return tuple(tool for tool in answers if tool is not None)


async def altered(
    wanted: Sequence[ToolchainRequirement], known: Sequence[Toolchain], config: AgentConfig
) -> str:
    """Say which tool of a job is not what was reported; nothing if all are.

    `known` is what `offered` has found at the time. A tool that merely does not answer now is
    taken to be the same as long as its program is.
    """
    for want in wanted:
        place = next((n for n, tool in enumerate(known) if satisfies(tool, want)), None)
        if place is None:
            return f"{want.name}: not offered here any more"
        was, now = known[place], await _now(place, known[place], config)
        if now != was:
            return f"{want.name}: reported as {_text(was)}, now {_text(now)}"
    return ""


async def _now(place: int, was: Toolchain, config: AgentConfig) -> Toolchain | None:
    """Look at one tool anew."""
    if place < len(config.toolchains):
        return await _configured(config.toolchains[place])
    now = await _probed(was.name, config.path)
    if now is None and was.digest is not None:
        return was if await _program(was.name, config.path) == was.digest else None
    return now


async def _configured(tool: ToolchainConfig) -> Toolchain:
    digest = await asyncio.to_thread(folder_digest, Path(tool.bin))
    return replace(tool.toolchain(), digest=digest)


async def _probed(name: str, path: str) -> Toolchain | None:
    answer, digest = await asyncio.gather(ask(TOOLS[name], path), _program(name, path))
    if answer is None:
        return None
    return Toolchain(
        name=name,
        version=parse_version(answer),
        digest=digest,
        provenance=Provenance.PROBED,
    )


async def _program(name: str, path: str) -> str | None:
    found = shutil.which(TOOLS[name][0], path=path)
    return None if found is None else await asyncio.to_thread(program_digest, Path(found))


def _text(tool: Toolchain | None) -> str:
    if tool is None:
        return "not there"
    return f"{tool.version or 'unknown'} ({(tool.digest or 'no digest')[:19]})"
