"""Runs the user's own git, with the user's settings and credentials, and understands what it says.

No hooks and no transports but the usual ones; never longer than until a deadline. What git says
reaches the user in one typed error, without passwords.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from forgeyard import clock
from forgeyard.cli import output
from forgeyard.config import child_environment
from forgeyard.errors import (
    Forbidden,
    ForgeyardError,
    InvalidRequest,
    NotFound,
    Unavailable,
    shortened,
    without_credentials,
)
from forgeyard.model.run import GitRef
from forgeyard.runfile.source import REFS, REPOSITORIES
from forgeyard.selection import FOREIGN_GIT

MOST_SAID: Final = 64 * 2**10
MOST_LINES: Final = 5
POLL_S: Final = 0.2
TRANSPORTS: Final = "https:http:ssh:git:file"

_SETTINGS: Final = tuple(
    word
    for setting in (
        *(f"core.hooksPath={os.devnull}", "core.fsmonitor=false", "submodule.recurse=false"),
        # The same commit gives the same bytes, whoever fetches it.
        *("core.autocrlf=false", "core.eol=lf"),
        *("gc.auto=0", "maintenance.auto=false"),
        *("http.lowSpeedLimit=1", "http.lowSpeedTime=60"),
    )
    for word in ("-c", setting)
)
_PROGRESS: Final = re.compile(r"(remote: )?[A-Z][A-Za-z ]+: +\d+%")
_SAID: Final[tuple[tuple[type[ForgeyardError], str, str], ...]] = (
    (InvalidRequest, r"transport '.*' not allowed|is not a commit|expected commit type", ""),
    (NotFound, r"find remote ref|not our ref|unadvertised object|no such commit", "ref"),
    (
        Forbidden,
        r"authentication failed|permission denied|access denied|could not read (username|password)"
        r"|returned error: 40[13]|dubious ownership|host key verification failed",
        "git",
    ),
    (
        NotFound,
        r"repository .*not found|repository .*does not exist|not appear to be a git repository"
        r"|could not be found|returned error: 404",
        "git",
    ),
)
"""What git says, in its own English, and what that means to the user; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How git ended, what it said to people, and what it printed."""

    code: int
    said: str
    printed: str


class Git:
    """Runs git in one directory until a deadline, and understands what it says."""

    def __init__(self, directory: Path, wanted: GitRef, *, quiet: bool, until: float) -> None:
        self.directory = directory
        self._wanted = wanted
        self._until = until
        self._asks = sys.stdin is not None and sys.stdin.isatty()
        """Somebody is there whom git or ssh may ask for a password."""
        self._shows = not quiet and output.console(to_stderr=True).is_terminal
        self._environment = _environment(asks=self._asks)

    @property
    def quietly(self) -> tuple[str, ...]:
        """Give the options of every fetch."""
        shown = "--progress" if self._shows else "--no-progress"
        return (shown, "--no-tags", "--no-recurse-submodules")

    def run(self, *words: str) -> str:
        """Run git and return what it printed.

        Raises:
            ForgeyardError: it failed, with the kind that fits what it said.
        """
        ended = self.attempt(*words)
        if ended.code != 0:
            raise self.failure(ended.said)
        return ended.printed.strip()

    def attempt(self, *words: str) -> Ended:
        """Run git, whether it fails or not.

        Raises:
            NotFound: there is no git.
            Unavailable: the time is up.
        """
        found = shutil.which("git")
        if found is None:
            raise NotFound("there is no git on the PATH", field="git", allowed="install git")
        # For the user's filters: it is where Git LFS fetches from.
        remote = ("-c", f"remote.origin.url={self._wanted.repository}")
        with (
            tempfile.TemporaryFile() as printed,
            subprocess.Popen(
                (found, *_SETTINGS, *remote, "-C", str(self.directory), *words),
                stdin=None if self._asks else subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.PIPE,
                env=self._environment,
                # Who is asked for a password must stay on our terminal.
                start_new_session=not self._asks,
            ) as process,
        ):
            try:
                said = self._listen(process)
            except BaseException:
                self._kill(process)
                raise
            printed.seek(0)
            text = printed.read(MOST_SAID).decode(errors="replace")
        return Ended(code=process.returncode, said=said, printed=text)

    def failure(self, said: str) -> ForgeyardError:
        """Make the error that fits what git said."""
        wanted = self._wanted
        name, ref = without_credentials(wanted.repository), wanted.commit or wanted.ref
        text = _without(_secrets(wanted.repository), _telling(said))
        kind, about = _kind(said)
        return kind(
            f"cannot fetch {ref} of {name}: {text}",
            field=about or "git",
            value=ref if about == "ref" else name,
            allowed={"ref": REFS, "git": REPOSITORIES}.get(about) if kind is NotFound else None,
        )

    def _listen(self, process: "subprocess.Popen[bytes]") -> str:
        """Hear git out; what it started in the background may hold the pipe open for ever."""
        assert process.stderr is not None
        heard, descriptor = b"", process.stderr.fileno()
        while True:
            gone = process.poll() is not None
            readable = select.select([descriptor], [], [], 0 if gone else POLL_S)[0]
            data = os.read(descriptor, MOST_SAID) if readable else b""
            heard = (heard + data)[-MOST_SAID:]
            self._show(data)
            if gone and not data:
                return self._heard(heard)
            left = self._until - clock.monotonic()
            if left <= 0:
                raise self.failure("it takes too long")
            if readable and not data:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(left)

    def _heard(self, heard: bytes) -> str:
        if self._shows:
            sys.stderr.write("\r\x1b[K")
        return heard.decode(errors="replace")

    def _show(self, data: bytes) -> None:
        """Pass progress on to a person; everything else is told once, at the end."""
        lines = re.split(r"[\r\n]+", data.decode(errors="replace"))
        shown = [line for line in lines if _PROGRESS.match(line)]
        if self._shows and shown:
            sys.stderr.write(f"\r{output.plain(shown[-1])}\x1b[K")
            sys.stderr.flush()

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        if self._asks:
            process.kill()
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _environment(*, asks: bool) -> dict[str, str]:
    """Give git the user's environment without what is about another repository."""
    ours = child_environment(
        LC_ALL="C",
        LANGUAGE="",
        GIT_ALLOW_PROTOCOL=TRANSPORTS,
        **({} if asks else {"GIT_TERMINAL_PROMPT": "0"}),
    )
    return {name: value for name, value in ours.items() if name not in FOREIGN_GIT}


def _telling(said: str) -> str:
    """Keep the last lines that tell what went wrong."""
    lines = (line.strip() for line in re.split(r"[\r\n]+", said))
    telling = [line for line in lines if line and not line.startswith("hint:")]
    last = [line for line in telling if not _PROGRESS.match(line)][-MOST_LINES:]
    return "; ".join(last) or "git does not say why"


def _secrets(repository: str) -> set[str]:
    """List what a URL holds that nobody may see, as written and as meant."""
    user = re.match(r"[a-z]+://([^/\s]*)@", repository)
    if user is None:
        return set()
    name, _, password = user.group(1).partition(":")
    hidden = {password, name} if repository.startswith("http") else {password}
    return {form for one in hidden for form in (one, unquote(one)) if form}


def _without(secrets: Iterable[str], text: str) -> str:
    """Hide secrets, and shorten only then: a half one must not stay."""
    text = without_credentials(text)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return shortened(text, 600)


def _kind(said: str) -> tuple[type[ForgeyardError], str]:
    found = ((kind, about) for kind, words, about in _SAID if re.search(words, said, re.IGNORECASE))
    return next(found, (Unavailable, "git"))
