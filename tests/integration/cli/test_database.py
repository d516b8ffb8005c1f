"""`forgeyard database`, and processes that find a schema which is not theirs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forgeyard.config import StoreConfig
from forgeyard.store import migrate
from forgeyard.store.engine import open_engine

pytestmark = pytest.mark.integration


def forgeyard(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line on the database of a folder."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "FORGEYARD_DATA_DIR": str(folder),
        "FORGEYARD_STORE__URL": f"sqlite:///{folder / 'own.db'}",
        "FORGEYARD_TEMPORAL__ADDRESS": "127.0.0.1:1",
        "FORGEYARD_API__PORT": "0",
        "FORGEYARD_API__AGENT_PORT": "0",
    }
    command = (sys.executable, "-m", "forgeyard.cli.main", *words)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_schema_is_upgraded_once_and_every_process_refuses_an_older_one(
    tmp_path: Path,
) -> None:
    for words in (("database", "check"), ("worker",), ("api",)):
        refused = forgeyard(tmp_path, *words)
        assert refused.returncode == 2, refused.stderr
        assert "forgeyard database upgrade" in refused.stderr
    newest = str(migrate.newest())
    for command in ("upgrade", "upgrade", "check"):
        done = forgeyard(tmp_path, "database", command, "--json")
        assert json.loads(done.stdout) == {"revision": newest, "release": newest}
    engine = open_engine(f"sqlite:///{tmp_path / 'own.db'}", StoreConfig())
    migrate.downgrade(engine, "0004")
    engine.dispose()
    refused = forgeyard(tmp_path, "database", "check", "--json")
    assert (refused.returncode, json.loads(refused.stderr)["code"]) == (2, "schema.mismatch")
