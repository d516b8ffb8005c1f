"""A running `forgeyard up` in an empty directory, and a way to type commands at it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FREE_PORTS = {
    "FORGEYARD_TEMPORAL__ADDRESS": "127.0.0.1:0",
    "FORGEYARD_TEMPORAL__UI_URL": "http://127.0.0.1:0",
    "FORGEYARD_API__PORT": "0",
    "FORGEYARD_API__AGENT_PORT": "0",
}


@dataclass(frozen=True)
class Forgeyard:
    """A data directory and what can be typed in it."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def type(self, *words: str, timeout: float = 120.0, **extra: str) -> "Answer":
        """Type one command in the home directory."""
        command = [sys.executable, "-m", "forgeyard.cli.main", *words]
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**self._clean(), **extra},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    def submit(self, project: Path, *words: str) -> "Answer":
        """Submit a project's run file together with the project."""
        file = str(project / "forgeyard.yaml")
        return self.type("run", "submit", file, "--source", str(project), *words)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Type a command that goes on; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "forgeyard.cli.main", *words],
            cwd=self.home,
            env=self._clean(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def project(self, name: str, run_file: str, **files: str) -> Path:
        """Write a small project; `run_file` becomes its forgeyard.yaml."""
        root = self.home / name
        root.mkdir()
        (root / "forgeyard.yaml").write_text(run_file)
        for path, text in files.items():
            (root / path.replace("__", ".")).write_text(text)
        return root

    def _clean(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return {
            **kept,
            **FREE_PORTS,
            "FORGEYARD_DATA_DIR": str(self.home / "data"),
            "COLUMNS": "200",
            **self.environment,
        }


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Read what `--json` printed."""
        return json.loads(self.out)

    def ok(self) -> "Answer":
        """Insist on success."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forgeyard]:
    """Run `forgeyard up -d` with one agent for all tests that only add runs to it."""
    forgeyard = Forgeyard(home=tmp_path_factory.mktemp("forgeyard"))
    forgeyard.type("up", "-d").ok()
    yield forgeyard
    forgeyard.type("down")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Forgeyard]:
    """Give an empty home for tests that start and stop the system themselves."""
    forgeyard = Forgeyard(home=tmp_path)
    yield forgeyard
    forgeyard.type("down")
    kill_what_is_left(tmp_path / "data")


def kill_what_is_left(data: Path) -> None:
    """Kill the recorded children of a system that did not end by itself."""
    record = data / "processes.json"
    if not record.exists():
        return
    for process in json.loads(record.read_text()).values():
        try:
            os.killpg(process["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue
