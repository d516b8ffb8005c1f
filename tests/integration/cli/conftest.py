"""One house for each test, with the person in an empty directory of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.integration.cli.house import House, open_house


@pytest.fixture
def house(
    sqlite_engine: sa.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[House]:
    """Open a system in a data directory and go to work in another."""
    for name in ("FORGEYARD_URL", "FORGEYARD_TOKEN", "FORGEYARD_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORGEYARD_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with open_house(sqlite_engine, tmp_path / "data", capsys) as opened:
        yield opened
