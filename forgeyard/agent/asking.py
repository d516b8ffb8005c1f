"""Asks programs on the jobs' PATH about themselves, briefly and without the agent's environment."""

import asyncio
import re
import shutil
import signal
from collections.abc import Sequence

from forgeyard.agent.process import send

TIMEOUT_S = 2.0
_VERSION = re.compile(r"\d+(?:\.\d+)+|(?<![\w.])\d+(?![\w.])")


async def ask(command: Sequence[str], path: str) -> str | None:
    """Run a program and return what it prints; `None` if it is missing, fails or takes too long."""
    program, *arguments = command
    found = shutil.which(program, path=path)
    if found is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            found,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": path, "LC_ALL": "C", "HOME": "/nonexistent"},
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return None  # executable in name only, such as a script without its first line
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer, _ = await process.communicate()
    except TimeoutError:
        send(process.pid, signal.SIGKILL)
        await process.communicate()
        return None
    return answer.decode(errors="replace") if process.returncode == 0 else None


def parse_version(answer: str) -> str | None:
    """Find the first version number in what a tool says about itself."""
    found = _VERSION.search(answer[:10_000])
    return found.group()[:128] if found else None
