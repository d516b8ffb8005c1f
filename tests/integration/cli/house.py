"""A real API in a thread, a data directory that says where it is, and a command line to use it.

Temporal is away, as the API allows; the desk plays scheduler and agent on the same database.
"""

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard import archive
from forgeyard.api.serve import Listening, serve
from forgeyard.cli.main import main
from forgeyard.config import ApiConfig, Config, OidcConfig, StoreConfig, TemporalConfig
from forgeyard.machine_settings import FleetsConfig
from forgeyard.model.protocol import Phase
from forgeyard.store import artifacts, blobs, changes, logs
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.changes import LEASE
from tests.leasing import Desk, Lease

UI = "http://127.0.0.1:8233"
NO_ISSUER = OidcConfig()
USUAL_FLEETS = FleetsConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one command printed, and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict:
        """Read what it printed for programs."""
        return json.loads(self.out)

    def problem(self) -> dict:
        """Read the error that it printed for programs."""
        return json.loads(self.err)


@dataclass(frozen=True, kw_only=True)
class House:
    """A system without agents, and a person at its command line."""

    desk: Desk
    config: Config
    api_url: str
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> Said:
        """Run one command to its end."""
        self.capsys.readouterr()
        code = 0
        try:
            main(list(arguments))
        except SystemExit as ending:
            code = int(ending.code or 0)
        printed = self.capsys.readouterr()
        return Said(code=code, out=printed.out, err=printed.err)

    def submit(self, text: str, *arguments: str) -> str:
        """Submit a run file without a source; return the run's id."""
        Path("ci.yaml").write_text(text)
        said = self.run("run", "submit", "ci.yaml", "--no-source", "--json", *arguments)
        assert said.code == 0, said.err
        return str(said.json()["run_id"])

    def lease(self, runner: str = "linux-1") -> Lease:
        """Register a runner, run one cycle, and accept the one offer."""
        self.desk.register(runner)
        assert self.desk.cycle().granted == 1
        (lease,) = self.desk.leases(state="offered")
        self.desk.accept(lease)
        self.desk.progress(lease, Phase.RUNNING)
        return lease

    def log(self, lease: Lease, sequence: int, text: str) -> None:
        """Print something as the job of a lease."""
        data = text.encode()
        self.desk.change(logs.append, lease.attempt_id, sequence, "step 1", data, limit=2**20)

    def leave(self, lease: Lease, name: str, files: dict[str, str]) -> bytes:
        """Upload an output as the agent of a lease; return its archive."""
        folder = self.config.data_dir / "made"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        packed = io.BytesIO()
        made = archive.pack(folder, packed, limit=2**20)
        FileBlobStore(self.config.blob_dir()).put(
            [packed.getvalue()], digest=made.digest, limit=2**20
        )
        self.desk.change(blobs.record, made.digest, made.size)
        row = self.desk.change(changes.find, LEASE, lease.lease_id)
        self.desk.change(artifacts.record, row, name, "dist", made.digest, made.size)
        return packed.getvalue()


@contextmanager
def open_house(
    engine: sa.Engine,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    oidc: OidcConfig = NO_ISSUER,
    fleets: FleetsConfig = USUAL_FLEETS,
) -> Iterator[House]:
    """Serve the API on any free port for as long as the block runs."""
    config = Config(
        data_dir=directory,
        oidc=oidc,
        fleets=fleets,
        store=StoreConfig(url=engine.url.render_as_string(hide_password=False)),
        api=ApiConfig(port=0, agent_port=0),
        temporal=TemporalConfig(address="127.0.0.1:1"),
    )
    directory.mkdir(mode=0o700)
    serving = _Serving(config)
    serving.start()
    try:
        listening = serving.wait()
        endpoints = {"api_url": listening.api_url, "agent_url": listening.agent_url, "ui_url": UI}
        (directory / "endpoints.json").write_text(json.dumps(endpoints))
        yield House(desk=Desk(engine), config=config, api_url=listening.api_url, capsys=capsys)
    finally:
        serving.stop()


class _Serving(threading.Thread):
    """The API in an event loop of its own."""

    def __init__(self, config: Config) -> None:
        super().__init__(daemon=True)
        self._config = config
        self._ready = threading.Event()
        self._listening: list[Listening] = []
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()

    def run(self) -> None:
        try:
            self._loop.run_until_complete(serve(self._config, self._ending, listening=self._heard))
        finally:
            self._ready.set()
            self._loop.close()

    def _heard(self, listening: Listening) -> None:
        self._listening.append(listening)
        self._ready.set()

    def wait(self) -> Listening:
        assert self._ready.wait(20)
        return self._listening[0]

    def stop(self) -> None:
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
        self.join(20)
        assert not self.is_alive()
