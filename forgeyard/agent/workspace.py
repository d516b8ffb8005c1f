"""The directories of one attempt: fresh, private, and gone afterwards."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import structlog

from forgeyard.beneath import remove_tree
from forgeyard.model.ids import LeaseId

_PRIVATE = 0o700

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where an attempt may write; `transfer` is the agent's own."""

    root: Path

    @property
    def workspace(self) -> Path:
        """Hold the inputs; steps start here."""
        return self.root / "workspace"

    @property
    def home(self) -> Path:
        """Be the HOME of steps."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """Be the TMPDIR of steps."""
        return self.root / "tmp"

    @property
    def transfer(self) -> Path:
        """Hold archives on their way in or out."""
        return self.root / "transfer"

    @property
    def notice(self) -> Path:
        """Be there once this machine will be taken away; the agent's own, for steps to read."""
        return self.root / "notice"

    def give_notice(self, seconds: int) -> bool:
        """Tell the steps in how many seconds their machine goes; not before there is a root.

        Whole or not at all, and through no link that a step has put in the way.

        Raises:
            OSError: the file system refuses, or a step has put something in the way.
        """
        if not self.root.exists():
            return False
        draft = self.notice.with_suffix(".new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(f"{seconds}\n")
        draft.rename(self.notice)
        return True

    def make(self) -> None:
        """Make them all, empty.

        Raises:
            OSError: the file system refuses, or there is something already.
        """
        self.root.mkdir(mode=_PRIVATE)
        for folder in (self.workspace, self.home, self.tmp, self.transfer):
            folder.mkdir(mode=_PRIVATE)

    def remove(self) -> bool:
        """Remove everything, also what a job made read-only; tell whether nothing stays."""
        if not self.root.exists():
            return True
        is_gone = remove_tree(self.root)
        if not is_gone:
            _log.warning("workspace not removed", folder=str(self.root))
        return is_gone


def prepare_work_dir(configured: str, *, name: str) -> Path:
    """Make the agent's own directory, by default in the user's state directory.

    Raises:
        OSError: it cannot be made.
    """
    path = Path(configured) if configured else _default(name)
    path = path.absolute()
    path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    jobs_dir(path).mkdir(exist_ok=True, mode=_PRIVATE)
    return path


def _default(name: str) -> Path:
    return platformdirs.user_state_path("forgeyard") / "agents" / name.replace("/", "_")


def jobs_dir(work_dir: Path) -> Path:
    """Tell where the attempts' directories lie."""
    return work_dir / "jobs"


def folders_of(work_dir: Path, lease_id: LeaseId) -> Folders:
    """Name the directories of an attempt.

    Raises:
        ValueError: the id is not a plain name.
    """
    if not lease_id.replace("_", "").isalnum():
        raise ValueError(f"not a lease id: {lease_id!r}")
    return Folders(root=jobs_dir(work_dir) / lease_id)


def remove_all(work_dir: Path) -> list[Path]:
    """Remove whatever attempts of earlier agents left behind; return what stays."""
    stays: list[Path] = []
    for entry in jobs_dir(work_dir).iterdir():
        if not entry.is_dir() or entry.is_symlink():
            entry.unlink()
        elif not Folders(root=entry).remove():
            stays.append(entry)
    return stays
