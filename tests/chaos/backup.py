"""A backup of a plant's database, and putting it back while agents and Temporal go on."""

import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from tests import backups
from tests.chaos.plant import Plant, until
from tests.chaos.process import Process
from tests.chaos.standin import STANDS_BY


@dataclass(frozen=True, kw_only=True)
class Backup:
    """What a database held: a file of SQLite, or the rows of PostgreSQL with its sequences."""

    file: Path | None = None
    rows: backups.Copy | None = None


def take(plant: Plant, name: str) -> Backup:
    """Copy the database as it is, while everything runs."""
    source = _file(plant)
    if source is None:
        return Backup(rows=backups.take(plant.engine))
    target = plant.folder / f"{name}.backup"
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)
    return Backup(file=target)


def put_back(plant: Plant, backup: Backup) -> Backup:
    """Stop worker and API, replace the database, and start others, which stood by.

    Returns what was replaced, with all that had happened.
    """
    worker, api = partial(plant.start_worker, standby=True), partial(plant.start_api, standby=True)
    new = successors(plant, worker, api)
    for process in new:
        plant.processes[f"old-{process.name}"].kill()
    replaced = take(plant, f"replaced-{plant.processes['api'].pid}")
    plant.engine.dispose()
    _replace(plant, backup)
    begin(new)
    plant.until_ready()
    return replaced


def successors(plant: Plant, *starts: Callable[[], Process]) -> Sequence[Process]:
    """Start processes that stand by, beside the `old-` ones: no outage lasts for their start."""
    old = dict(plant.processes)
    before = {process.log: _standing_by(process.log) for process in old.values()}
    new = [start() for start in starts]
    plant.processes.update((f"old-{one.name}", old[one.name]) for one in new)
    until(lambda: all(_standing_by(one.log) > before[one.log] for one in new), within_s=300)
    return new


def begin(processes: Sequence[Process]) -> None:
    """Let those begin that stand by."""
    for process in processes:
        process.popen.send_signal(signal.SIGUSR1)


def _standing_by(log: Path) -> int:
    return log.read_text().count(STANDS_BY)


def _replace(plant: Plant, backup: Backup) -> None:
    target = _file(plant)
    if target is None:
        assert backup.rows is not None
        backups.put_back(plant.engine, backup.rows)
    else:
        assert backup.file is not None
        for suffix in ("-wal", "-shm"):
            Path(f"{target}{suffix}").unlink(missing_ok=True)
        target.write_bytes(backup.file.read_bytes())


def _file(plant: Plant) -> Path | None:
    url = sa.make_url(plant.url)
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
