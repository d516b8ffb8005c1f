"""Record a history of every case from a real dev server into tests/histories/.

    python -m tests.integration.replay.record [--accept] [Type/case ...]

Ends with 1, if the commands of a case differ from tests/histories/commands.json and are not to be
accepted. Nothing of the machine that records stays in a file.
"""

import argparse
import asyncio
import json
import logging
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from temporalio.client import Client

from activities.connection import connect
from forgeyard.config import StoreConfig, TemporalConfig
from forgeyard.store import migrate
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import open_engine
from tests.integration.replay import rollout_cases  # noqa: F401  (keeps its cases)
from tests.integration.replay.cases import Case
from tests.integration.replay.fleet_cases import CASES
from tests.integration.replay.histories import BASELINE, REFRESH, ROOT, baseline, commands, load
from tests.integration.temporal.house import QUICK, House
from tests.integration.temporal.server import Server
from worker.wiring import Parts, register_search_attributes

NOT_OURS = {"identity": "recorder", "stackTrace": "", "buildId": "recorded", "requestId": "request"}
"""Fields that tell of the recording machine or of chance, and what stands there instead."""


def main() -> int:
    """Record, compare, accept if told to."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.replay.record")
    parser.add_argument("--accept", action="store_true", help="renew commands.json as well")
    parser.add_argument("cases", nargs="*", metavar="Type/case", help="only these")
    given = parser.parse_args()
    everything = {
        f"{kind}/{name}": function
        for kind, cases in CASES.items()
        for name, function in cases.items()
    }
    chosen = {name: everything[name] for name in given.cases or everything}
    logging.disable(logging.CRITICAL)  # failures are what some cases are about
    asyncio.run(_record(chosen))
    if not given.cases:
        _forget_all_but(everything)
    return _compare(list(chosen), accept=given.accept)


async def _record(cases: dict[str, Case]) -> None:
    server = Server()
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder) / "template.db"
            engine = open_engine(f"sqlite:///{template}", StoreConfig())
            migrate.upgrade(engine)
            engine.dispose()
            client = await connect(TemporalConfig(address=server.address))
            await register_search_attributes(client)
            for name, case in cases.items():
                await _record_one(client, template, name, case)
    finally:
        server.kill()


async def _record_one(client: Client, template: Path, name: str, case: Case) -> None:
    folder = template.with_name(name.replace("/", "-"))
    folder.mkdir()
    shutil.copyfile(template, folder / "forgeyard.db")
    engine = open_engine(f"sqlite:///{folder / 'forgeyard.db'}", StoreConfig())
    partition = name.partition("/")[2].replace("_", "-")
    queue = f"{name.partition('/')[0]}-{partition}"
    blobs = FileBlobStore(folder / "blobs")
    parts = Parts(engine=engine, policy=QUICK, blobs=blobs, task_queue=queue)
    # The partition carries the type, for two types may know a case of the same name.
    house = House(client=client, engine=engine, parts=parts, partition=queue)
    try:
        handle = await case(house)
        history = await handle.fetch_history()
    finally:
        engine.dispose()
    text = scrubbed(history.to_json(), str(folder))
    path = ROOT / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{name}: {len(history.events)} events, {len(text) / 1000:.1f} kB", file=sys.stderr)


def scrubbed(text: str, folder: str) -> str:
    """Replace what tells of this machine.

    Raises:
        ValueError: something is left that does.
    """
    clean = json.dumps(_clean(json.loads(text)), indent=1, sort_keys=True) + "\n"
    for trace in (socket.gethostname(), folder, str(Path.cwd()), str(Path.home()) + "/"):
        if trace in clean:
            raise ValueError(f"{trace} is left in the history: {clean[clean.index(trace) - 200 :]}")
    return clean


def _clean(value: object, key: str = "") -> object:
    if isinstance(value, dict):
        # Sticky queues are named after the process.
        sticky = value.get("kind") == "TASK_QUEUE_KIND_STICKY"
        return {
            each: "sticky" if sticky and each == "name" else _clean(inner, each)
            for each, inner in value.items()
        }
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return NOT_OURS.get(key, value)


def _forget_all_but(known: dict[str, Case]) -> None:
    for path in ROOT.glob("*/*.json"):
        if f"{path.parent.name}/{path.stem}" not in known:
            path.unlink()


def _compare(names: list[str], *, accept: bool) -> int:
    found = {name: commands(load(name)) for name in names}
    before = baseline()
    changed = sorted(name for name in names if before.get(name) != found[name])
    if accept:
        kept = {name: told for name, told in before.items() if (ROOT / f"{name}.json").exists()}
        BASELINE.write_text(json.dumps({**kept, **found}, indent=1, sort_keys=True) + "\n")
    for name in changed:
        print(
            f"{name}: {'accepted' if accept else 'other commands'}: {found[name]}", file=sys.stderr
        )
    if changed and not accept:
        print(REFRESH, file=sys.stderr)
    return 1 if changed and not accept else 0


if __name__ == "__main__":
    sys.exit(main())
