"""The user that the steps of jobs run as, where that is not the agent's own."""

import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forgeyard.errors import InvalidRequest
from forgeyard.model.equipment import Word

SETTING = "agent.job_user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and the group that it belongs to first."""

    name: Word
    uid: int
    gid: int


def job_account(name: str, *, uid: Callable[[], int] = os.geteuid) -> Account | None:
    """Find the user that jobs run as; `None` if none is named.

    Raises:
        InvalidRequest: this agent cannot start anything as that user, or there is none.
    """
    if not name:
        return None
    if uid() != 0:
        raise InvalidRequest(
            f"jobs cannot run as {name!r}: only an agent that runs as root may change users",
            field=SETTING,
            value=name,
            allowed="nothing, unless the agent runs as root",
        )
    with suppress(KeyError):
        found = pwd.getpwnam(name)
        if found.pw_uid != 0:
            return Account(name=name, uid=found.pw_uid, gid=found.pw_gid)
    raise InvalidRequest(
        f"jobs cannot run as {name!r}: there is no such user, or it is root",
        field=SETTING,
        value=name,
        allowed="the name of a user of this host that is not root",
    )


def give(folder: Path, account: Account) -> None:
    """Make a directory and everything in it an account's own; follows no link."""
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    for _, folders, files, opened in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=opened, follow_symlinks=False)
