"""The values that a host's operator grants to jobs: a 0600 file of NAME=value lines.

Refuses a file that others could read or replace, and values too short to hide in a log.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from forgeyard.agent.masking import SHORTEST
from forgeyard.errors import Forbidden, InvalidRequest, NotFound

LARGEST_FILE = 2**20
_FIELD = "agent.secrets_file"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load(path: Path) -> Mapping[str, str]:
    """Read the granted secrets.

    Raises:
        NotFound: there is no such file.
        Forbidden: it is no regular file of ours alone (0600).
        InvalidRequest: naming the line that is not NAME=value.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such secrets file", field=_FIELD, value=path) from None
    except OSError as error:
        raise _forbidden(path, f"cannot be opened ({error.strerror})") from error
    try:
        _check_owner(path, os.fstat(descriptor))
        content = _read(descriptor)
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE:
        raise InvalidRequest(f"{path}: larger than {LARGEST_FILE} bytes", field=_FIELD)
    try:
        return parse(content.decode(), name=str(path))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path}: is not UTF-8 text", field=_FIELD) from error


def _read(descriptor: int) -> bytes:
    """Read to the end, but no more than one byte past what is allowed."""
    content = b""
    while piece := os.read(descriptor, LARGEST_FILE + 1 - len(content)):
        content += piece
    return content


def _check_owner(path: Path, facts: os.stat_result) -> None:
    mode = stat.S_IMODE(facts.st_mode)
    if not stat.S_ISREG(facts.st_mode):
        raise _forbidden(path, "is not a regular file")
    if facts.st_uid != os.geteuid():
        raise _forbidden(path, "belongs to another user")
    if mode & 0o077:
        raise _forbidden(path, f"can be read or written by others (mode {mode:04o})")


def parse(text: str, *, name: str) -> Mapping[str, str]:
    """Read NAME=value lines; blank lines and lines that begin with # are skipped.

    Raises:
        InvalidRequest: naming the line; never showing what is on it.
    """
    found: dict[str, str] = {}
    for number, written in enumerate(text.split("\n"), start=1):
        line = written.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, separator, value = line.partition("=")
        key = key.strip()
        if not separator or not _NAME.fullmatch(key) or "\0" in value:
            raise _bad_line(name, number, "is not NAME=value")
        if key in found:
            raise _bad_line(name, number, f"names {key} a second time")
        if len(value.encode()) < SHORTEST:
            raise _bad_line(
                name, number, f"has a value of fewer than {SHORTEST} bytes, too short to hide"
            )
        found[key] = value
    return found


def _bad_line(name: str, number: int, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: line {number} {problem}",
        field=_FIELD,
        value=f"line {number}",
        allowed="NAME=value",
    )


def _forbidden(path: Path, problem: str) -> Forbidden:
    return Forbidden(
        f"{path}: {problem}", field=_FIELD, value=path, allowed="a regular file of yours, mode 0600"
    )
