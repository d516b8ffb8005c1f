"""An API process seals the audit trail and keeps its head where the database cannot reach it."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.api.heads import HeadKeeper
from forgeyard.store import chain
from forgeyard.store.engine import read, write
from tests.integration.store.test_chain import note

pytestmark = pytest.mark.integration


def heads(path: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


def test_what_was_written_is_sealed_and_the_head_is_kept_from_time_to_time(
    engine: sa.Engine, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "audit-heads.jsonl"
    keeper = HeadKeeper(engine, path)
    note(engine, "one", "two")
    keeper.work()
    assert heads(path) == [2]
    note(engine, "three")
    keeper.work()
    assert heads(path) == [2], "an hour has not passed"
    with read(engine) as connection:
        assert chain.head(connection).seq == 3
    keeper.keep()
    keeper.keep()
    assert heads(path) == [2, 3], "the same head is kept once"


INSERT = sa.text(
    "INSERT INTO audit (audit_id, at, actor, channel, action, target, detail)"
    " VALUES (:audit_id, 1, 'a', 'api', 'b', 'c', 'd')"
)


def test_what_an_earlier_process_left_behind_is_sealed_however_old(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    for audit_id in (50_000, 3):
        with write(sqlite_engine) as connection:
            connection.execute(INSERT, {"audit_id": audit_id})
            assert chain.seal_recent(connection) == (audit_id > 3)
    HeadKeeper(sqlite_engine, tmp_path / "heads").work()
    with read(sqlite_engine) as connection:
        assert chain.head(connection).seq == 2
