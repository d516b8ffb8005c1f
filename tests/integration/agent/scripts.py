"""Runs shell scripts as an agent does, and looks for what they leave behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from forgeyard import proctable
from forgeyard.agent.process import Command, Exit, ProcessGroup, start

PATH = "/usr/local/bin:/usr/bin:/bin"


def a_command(script: str, folder: Path, **env: str) -> Command:
    """Describe a shell script in an almost empty environment."""
    return Command(argv=("sh", "-c", script), cwd=folder, env={"PATH": PATH, **env})


@asynccontextmanager
async def running(script: str, folder: Path, **env: str) -> AsyncIterator[ProcessGroup]:
    """Start a script whose output goes to a file, and kill it afterwards whatever happens."""
    with (folder / "output").open("wb") as output:
        group = start(a_command(script, folder, **env), output=output.fileno())
    try:
        yield group
    finally:
        if (await asyncio.to_thread(proctable.find, group.id.pid)) is not None:
            await group.reap()


async def ended(script: str, folder: Path, **env: str) -> Exit:
    """Run a script to its end."""
    async with running(script, folder, **env) as group:
        await group.wait()
        return await group.reap()


async def number_in(path: Path) -> int:
    """Wait until a script has written a number to a file."""
    await eventually(lambda: text_of(path).endswith("\n"))
    return int(text_of(path))


def text_of(path: Path) -> str:
    """Read a file that may not be there yet."""
    return path.read_text() if path.exists() else ""


async def eventually(
    holds: Callable[[], bool], *, within: float = 20.0, every: float = 0.01
) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(every)


def is_alive(pid: int) -> bool:
    """Tell whether a process can still do anything."""
    process = proctable.find(pid)
    return process is not None and process.is_alive
