"""Starts the processes of Forgeyard: the only part of the command line that knows more than HTTP.

Each import stands inside its function, so that `forgeyard run list` loads no database and no agent.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forgeyard import clock, config
from forgeyard.cli.client import Client
from forgeyard.cli.demo import TOOLCHAIN, TOOLS, project_root, show
from forgeyard.cli.endpoint import Endpoint
from forgeyard.cli.listening import listening
from forgeyard.config import Config, Profile
from forgeyard.errors import Conflict, NotFound, Unavailable, UnfitForProduction
from forgeyard.machine_settings import ToolchainConfig
from forgeyard.redaction import redacted

if TYPE_CHECKING:
    from worker.standalone import Endpoints

DETACH_WITHIN_S = 90.0
DOWN_WITHIN_S = 60.0
OURS = ("forgeyard", "activities", "worker")


def up(*, config: Config, detach: bool, agents: int, listen: str | None) -> int:
    """Run the whole system until Ctrl-C, or in the background.

    Raises:
        UnfitForProduction: the profile is production, and this runs a development server.
    """
    if config.profile is Profile.PRODUCTION:
        raise UnfitForProduction(
            "`forgeyard up` runs Temporal's development server",
            field="profile",
            value=config.profile,
            allowed="development; in production, run `forgeyard worker` and `forgeyard api`",
        )
    settings = listening(config, listen, say=_say)
    return _up_detached(settings, agents, listen) if detach else _up(settings, agents)


def demo(config: Config, *, keep: bool, plain: bool) -> int:
    """Start a system of its own on free ports, let it build this project, and end it."""
    from worker.standalone import end_leftovers, running

    root = project_root(Path.cwd())
    settings = _demo_settings(config, root)
    if _endpoints(settings.data_dir) is not None:
        raise Conflict(f"a demo runs in {settings.data_dir} already; end it", field="data_dir")
    end_leftovers(settings.data_dir, say=_say)
    shutil.rmtree(settings.data_dir, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _say("starting Temporal, store, worker and API; a fleet will make runners when they are needed")
    with running(settings, agents=0, say=_say) as system:
        where = system.endpoints
        _say(f"Temporal Web UI: {where.ui_url}")
        endpoint = Endpoint(urls=(where.api_url,), token=settings.token_path().read_text().strip())
        ui = f"{where.ui_url}/namespaces/{settings.temporal.namespace}"
        with Client(endpoint) as client:
            code = show(client, root, ui=ui, config=settings, plain=plain)
        if keep:
            _say(f"still running; look around with --data-dir {settings.data_dir}, end with Ctrl-C")
            system.supervise(_on_signal())
    return code


def _demo_settings(settings: Config, root: Path) -> Config:
    """Use any free ports and a data directory apart, and offer the tool environment to jobs."""
    any_port = "127.0.0.1:0"
    tools = root / TOOLS
    python = subprocess.run(
        (tools / "python", "-c", "import platform; print(platform.python_version())"),
        capture_output=True,
        text=True,
        check=True,
    )
    toolchain = ToolchainConfig(name=TOOLCHAIN, version=python.stdout.strip(), bin=str(tools))
    return settings.model_copy(
        update={
            "data_dir": settings.data_dir.resolve() / "demo",
            "temporal": settings.temporal.model_copy(
                update={"address": any_port, "ui_url": f"http://{any_port}"}
            ),
            "api": settings.api.model_copy(update={"port": 0, "agent_port": 0}),
            "store": settings.store.model_copy(update={"url": ""}),
            "agent": settings.agent.model_copy(update={"toolchains": (toolchain,)}),
            "fleets": settings.fleets.model_copy(update={"look_s": 1.0, "observe_s": 5.0}),
        }
    )


def _on_signal() -> Callable[[], bool]:
    """Return a question that turns true once somebody asks this process to end."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    return lambda: bool(asked)


def down(config: Config) -> int:
    """Ask the running system to end and wait until it has.

    Raises:
        NotFound: nothing runs in this data directory.
        Unavailable: it did not end in time.
    """
    endpoints = _endpoints(config.data_dir)
    if endpoints is None:
        raise NotFound(f"nothing runs in {config.data_dir}", field="data_dir")
    os.kill(endpoints.pid, signal.SIGTERM)
    deadline = clock.monotonic() + DOWN_WITHIN_S
    while _endpoints(config.data_dir) is not None:
        if clock.monotonic() > deadline:
            raise Unavailable(f"forgeyard up (pid {endpoints.pid}) does not end")
        time.sleep(0.1)
    return 0


def status(config: Config) -> dict[str, object]:
    """Tell whether a system runs in this data directory, where, and which processes live."""
    endpoints = _endpoints(config.data_dir)
    if endpoints is None:
        return {"running": False, "data_dir": str(config.data_dir)}
    record = json.loads((config.data_dir / "processes.json").read_text())
    return {
        "running": True,
        "data_dir": str(config.data_dir),
        "pid": endpoints.pid,
        "api_url": endpoints.api_url,
        "agent_url": endpoints.agent_url,
        "ui_url": endpoints.ui_url,
        "temporal_address": endpoints.temporal_address,
        "processes": {name: process["pid"] for name, process in record.items()},
    }


def worker(config: Config) -> int:
    """Run a Temporal worker until asked to stop."""
    from worker.main import run_worker

    _log(config)
    return asyncio.run(_until_signalled(lambda stop: run_worker(config, stop)))


def api(config: Config) -> int:
    """Serve the public and the agent API until asked to stop."""
    from forgeyard.api.serve import serve

    _log(config)
    return asyncio.run(_until_signalled(lambda stop: serve(config, stop)))


def upgrade_database(config: Config) -> dict[str, str]:
    """Bring the database to this release's schema; tell at which it is then."""
    from forgeyard.store import migrate
    from forgeyard.store.engine import open_engine

    engine = open_engine(config.database_url(), config.store)
    migrate.upgrade(engine)
    return check_database(config)


def check_database(config: Config) -> dict[str, str]:
    """Insist that this release can work on the database; tell which schemas both have."""
    from forgeyard.store import migrate
    from forgeyard.store.engine import open_engine

    engine = open_engine(config.database_url(), config.store)
    migrate.demand_fit(engine)
    return {"revision": str(migrate.current(engine)), "release": str(migrate.newest())}


def agent(
    config: Config, end: Endpoint, invited: tuple[str, str] | None, private: tuple[Path, ...]
) -> int:
    """Run an agent until asked to stop: TERM drains, INT ends at once."""
    from forgeyard.agent.loop import AgentSettings, serve

    token, pin = invited or ("", "")
    return serve(
        AgentSettings(
            urls=end.urls,
            token=end.token,
            config=config.agent,
            limits=config.limits,
            enrol_token=token,
            ca_pin=pin,
            private=private,
        )
    )


class Redacting(logging.Formatter):
    """Writes lines, tracebacks included, without what looks like a credential."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        return redacted(super().format(record))


def _log(config: Config) -> None:
    """Let our own parts say on stderr what they do, and everybody else what goes wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    for part in OURS:
        logging.getLogger(part).setLevel(config.log_level)


async def _until_signalled(run: Callable[[asyncio.Event], Awaitable[object]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await run(stop)
    return 0


def _up(settings: Config, agents: int) -> int:
    from worker.standalone import running

    stopping = _on_signal()
    with running(settings, agents=agents, say=_say) as system:
        for line in _welcome(settings, system.endpoints.api_url, system.endpoints.agent_url):
            _say(line)
        _say(f"  Temporal Web UI  {system.endpoints.ui_url}")
        system.supervise(stopping)
        _say("stopping; unfinished runs go on at the next start")
    return 0


def _welcome(settings: Config, api_url: str, agent_url: str) -> tuple[str, ...]:
    token = settings.token_path()
    return (
        "Forgeyard is up.",
        f"  API              {api_url}   token in {token}",
        _joining(agent_url),
        "  try              forgeyard init && forgeyard run submit forgeyard.yaml --watch",
    )


def _joining(agent_url: str) -> str:
    if agent_url.startswith("https:"):
        return f"  agents join at   {agent_url}   see forgeyard runner invite --help"
    return f"  agents join at   {agent_url}   on this machine: forgeyard agent"


def _up_detached(settings: Config, agents: int, listen: str | None) -> int:
    if _endpoints(settings.data_dir) is not None:
        raise Conflict(f"forgeyard is up already in {settings.data_dir}", field="data_dir")
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = settings.data_dir / "up.log"
    command = [sys.executable, "-m", "forgeyard.cli.main", "up"]
    command += ["--data-dir", str(settings.data_dir), "--agents", str(agents)]
    command += ["--listen", listen] if listen else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=config.child_environment(),
            start_new_session=True,
        )
    deadline = clock.monotonic() + DETACH_WITHIN_S
    while "Web UI" not in log.read_text():
        if process.poll() is not None or clock.monotonic() > deadline:
            raise Unavailable(f"forgeyard did not come up:\n{log.read_text().strip()}")
        time.sleep(0.1)
    _say(log.read_text().rstrip())
    _say("It runs in the background; end it with `forgeyard down`.")
    return 0


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def _endpoints(data_dir: Path) -> "Endpoints | None":
    from worker.standalone import read_endpoints

    return read_endpoints(data_dir)
