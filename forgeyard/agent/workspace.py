"""The directories of one attempt: fresh, private, and gone afterwards."""

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
