"""Who takes jobs in the benchmark of the commit: our own commit, and the queues of others.

Others run in processes of their own, from an environment that is made in the temporary folder of
the machine and kept there until somebody tidies up, so that only the first run has to fetch them.
"""

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Protocol

import sqlalchemy as sa

from benchmarks.stock import POLICY, Yard
from forgeyard.scheduler import place
from forgeyard.store.plans import PlanSaved

INSTALL_SECONDS, ANSWER_SECONDS = 300, 120
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How many jobs were taken, how long that lasted, and what it cost in CPU seconds."""

    jobs: int
    wall_s: float
    client_s: float
    server_s: float
    """Of the process of PostgreSQL that served it; zero where the system does not tell."""


class Contender(Protocol):
    """Somebody who takes a batch of jobs at a time."""

    def take(self, count: int) -> Taken:
        """Take so many jobs."""
        ...


class PeerUnavailable(Exception):
    """A peer could not be installed or started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to install for a peer, and which program drives it."""

    name: str
    packages: tuple[str, ...]


PGQUEUER = Recipe(name="pgqueuer", packages=("pgqueuer", "asyncpg"))
PROCRASTINATE = Recipe(name="procrastinate", packages=("procrastinate>=3,<4", "psycopg[binary]"))
BUILDGRID = Recipe(name="buildgrid", packages=("buildgrid==0.4.4", "psycopg2-binary"))


@dataclass(kw_only=True)
class Committer:
    """Our commit: plans are made and saved beforehand, and only what the cycle calls is timed."""

    yard: Yard
    backend: int
    saving_s: list[float] = field(default_factory=list[float])
    """What saving each plan took, beside the commits."""
    _plan: place.Plan | None = None
    _digest: str = ""

    @classmethod
    def of(cls, yard: Yard) -> "Committer":
        """Commit in a yard."""
        with yard.engine.connect() as connection:
            backend = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        return cls(yard=yard, backend=backend)

    def take(self, count: int) -> Taken:
        """Commit a plan of so many decisions."""
        saved = self._saved(count)
        server, client, wall = server_seconds(self.backend), process_time(), perf_counter()
        outcome = self.yard.commit(saved.cycle_id)
        return Taken(
            jobs=outcome.granted,
            wall_s=perf_counter() - wall,
            client_s=process_time() - client,
            server_s=server_seconds(self.backend) - server,
        )

    def _saved(self, count: int) -> PlanSaved:
        """Save the next decisions of a large plan; make another one when they run out."""
        plan = self._plan
        if plan is None or len(plan.decisions) < count:
            seen = self.yard.look()
            plan, self._digest = place.plan(seen, POLICY), seen.digest()
        self._plan = replace(plan, decisions=plan.decisions[count:], diagnoses=())
        part = replace(self._plan, decisions=plan.decisions[:count])
        started = perf_counter()
        saved = self.yard.save(part, self._digest)
        self.saving_s.append(perf_counter() - started)
        return saved


@dataclass(kw_only=True)
class Peer:
    """Another one's queue, driven by a program of `benchmarks.peers`."""

    process: "subprocess.Popen[str]"
    backend: int

    def take(self, count: int) -> Taken:
        """Let it take so many jobs; its program measures itself."""
        before = server_seconds(self.backend)
        assert self.process.stdin is not None
        print(count, file=self.process.stdin, flush=True)
        said = _said(self.process)
        return Taken(
            jobs=said["taken"],
            wall_s=said["wall_s"],
            client_s=said["cpu_s"],
            server_s=server_seconds(self.backend) - before,
        )


def server_seconds(process_id: int) -> float:
    """Read how long a process has had a CPU."""
    path = Path(f"/proc/{process_id}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else 0.0


@contextmanager
def a_peer(python: Path, recipe: Recipe, database: sa.URL, *, jobs: int) -> Iterator[Peer]:
    """Start the program of a peer on an empty database, and end it afterwards.

    Raises:
        PeerUnavailable: it does not start.
    """
    address = database.set(drivername="postgresql").render_as_string(hide_password=False)
    module = f"benchmarks.peers.{recipe.name}"
    process = subprocess.Popen(
        [str(python), "-m", module, address, str(jobs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield Peer(process=process, backend=_said(process)["backend"])
    finally:
        process.kill()
        process.communicate()


def found(recipe: Recipe) -> Path:
    """Find the environment of a peer that was installed before.

    Raises:
        PeerUnavailable: it was not.
    """
    folder = _folder(recipe)
    complete = folder / "installed.txt"
    if complete.exists() and complete.read_text() == " ".join(recipe.packages):
        return _python(folder)
    raise PeerUnavailable(f"{recipe.name} is not installed yet")


def installed(recipe: Recipe) -> Path:
    """Find its environment, or make it from the package index that pip is configured for.

    Raises:
        PeerUnavailable: it cannot be installed.
    """
    with suppress(PeerUnavailable):
        return found(recipe)
    folder = _folder(recipe)
    try:
        venv.create(folder, with_pip=True, clear=True)
        command = [_python(folder), "-m", "pip", "install", "--quiet", *recipe.packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(f"{recipe.name} cannot be installed: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise PeerUnavailable(f"{recipe.name} cannot be installed: {last}")
    (folder / "installed.txt").write_text(" ".join(recipe.packages))
    return found(recipe)


def _folder(recipe: Recipe) -> Path:
    return Path(tempfile.gettempdir()) / f"forgeyard-peer-{recipe.name}"


def _python(folder: Path) -> Path:
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def _said(process: "subprocess.Popen[str]") -> dict[str, float | int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise PeerUnavailable(f"{process.args} ended by itself")
    return json.loads(line)
