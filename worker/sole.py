"""Files that one process holds alone, for as long as it lives, however it dies."""

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import sqlalchemy as sa

from forgeyard.errors import Conflict


@contextmanager
def held(path: Path, taken: Callable[[str], Conflict]) -> Generator[None]:
    """Hold a lock that the system frees when this process dies; the file names its holder.

    Raises:
        Conflict: another process holds it; `taken` makes it of that process's id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise taken(lock.read(20).strip() or "unknown") from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def sole_scheduler(url: str) -> AbstractContextManager[None]:
    """Be the only worker of a SQLite file; a server of PostgreSQL bears many.

    Raises:
        Conflict: another worker uses the file.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return nullcontext()
    file = Path(parsed.database)
    return held(
        file.with_name(f"{file.name}.worker.lock"),
        lambda pid: Conflict(
            f"another worker (pid {pid}) uses {file}: a SQLite file has one scheduler. "
            "End that worker, or use PostgreSQL for several",
            field="store.url",
            value=url,
            allowed="a file that no other worker uses, or a PostgreSQL database",
        ),
    )
