"""A store with something of everything that people's routes are about, and what to ask of it."""

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from activities.connection import payload_codec
from activities.encryption import EncryptionCodec
from forgeyard.config import TemporalConfig
from forgeyard.fleet.view import Allocation, FleetDecision, FleetView, Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.permission import Permission
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.demand import Demand
from forgeyard.store import fleet_decisions, fleet_tables, fleets
from forgeyard.store.engine import database_now, write
from forgeyard.store.settle import settle
from forgeyard.trust.sealing import add_key
from tests.builders import RNG
from tests.callers import a_queue, a_token, id_of
from tests.integration.api.fuzzing import BODY, Known
from tests.integration.api.house import Held, House, a_document, digest_of
from tests.serving import now_ms
from tests.trusting import invite, redeem

BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
DATA: Final = b"some bytes"
DIGEST: Final = digest_of(DATA)
QUEUE: Final = "acme/core/web/main"
DAY: Final = 24 * 3_600_000
WORK: Final = {
    "outputs": [{"name": "wheel", "path": "dist/*.whl"}],
    "caches": {"pip": {"path": ".cache", "key": "a.lock"}},
}
WHY: Final = {"actor": "ann", "reason": "a test"}
FLEET: Final = {
    "name": "builders",
    "capacity": {
        "resources": {"cpu": 4, "memory": "8Gi", "disk": "20Gi", "slots": 4},
        "image": f"sha256:{'a' * 64}",
    },
    "offerings": [{"name": "only", "cost": 0.25}],
    "scaling": {"max": 10},
}
ROLLOUT: Final = "/v1/fleets/builders/rollout"
NAMES: Final = {
    "/v1/pools/": "default",
    "/v1/runners/{name}:admit": "shut-out",
    "/v1/runners/": "runner-1",
    "/v1/fleets/": "builders",
    "/v1/runs/{run_id}/artifacts/": "wheel",
    "/v1/pools": "mac",
    "/": "build",
}
"""What is called by a name there, by the beginning of the path; the first that fits."""
DOCUMENTS: Final[Mapping[str, tuple[object, int]]] = {
    "/v1/policy": ({"batch": 5}, 0),
    "/v1/fleets": (FLEET, 1),
    "/": (a_document(), 1),
}
"""The document that is sent there, and which version of it there is."""
BODIES: Final[Mapping[str, Mapping[str, object]]] = {
    "/v1/fleets/{name}:scale": {"min": 1, "max": 3, **WHY},
    "/v1/fleets/{name}:simulate": {"min": 1, "max": 3, "jobs": 5, "for_ms": 60_000},
    "/v1/fleets/{name}/reservations": {"quantity": 2, "lead": 60_000, **WHY},
    "/v1/jobs/{job_id}:reprioritise": {"priority": "high", "adjustment": 5, **WHY},
    "/v1/runs/{run_id}:reprioritise": {"priority": "low", **WHY},
    "/v1/tokens": {"principal": "bob", "permissions": ["run.read"], "lifetime_ms": DAY, **WHY},
}
"""What is rarely drawn: bodies whose parts have to suit each other."""


def copy(store: Path, to: Path) -> None:
    """Copy a SQLite file that may be open."""
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def put_back(engine: sa.Engine, kept: Path) -> None:
    """Put a copy in the place of the store; nobody may be at work then."""
    path = Path(str(engine.url.database))
    engine.dispose()
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.copyfile(kept, path)


def a_codec(folder: Path) -> EncryptionCodec | None:
    """Make a codec with one key."""
    file = folder / "codec.keys"
    add_key(file)
    return payload_codec(TemporalConfig(codec_keys_file=str(file)))


def job_of(held: Held) -> str:
    """Name the job of a lease."""
    spec = held.offer["spec"]
    assert isinstance(spec, dict)
    return str(spec["name"])


async def asked(house: House, path: str, **said: object) -> Any:
    """Ask something of people's API with a reason; return what is answered."""
    answer = await house.people.post(path, json={**WHY, **said})
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def furnish(house: House) -> dict[str, Any]:
    """Let there be something of everything; say by which names it goes."""
    assert (await house.people.put(f"/v1/blobs/{DIGEST}", content=DATA)).status_code == 201
    a_queue(house.engine, QUEUE)
    runs = await _runs(house)
    await _images(house)
    await house.register("shut-out")
    await asked(house, "/v1/runners/shut-out:revoke")
    with write(house.engine) as connection:
        enrolment = invite(connection, "machine-1", needs_approval=True)
        redeem(connection, enrolment, "sha256/one")
        healthy, quarantined = _fleet(connection)
    begin = now_ms() + DAY
    when = {"starts_at": begin, "ends_at": begin + DAY // 24}
    window = await asked(house, "/v1/pools/default/maintenance", **when)
    wanted = await asked(house, "/v1/fleets/builders/reservations", quantity=1, **when)
    await asked(house, ROLLOUT, image="next")
    return {
        **runs,
        **when,
        **WHY,
        "instance_id": healthy,
        "quarantined": quarantined,
        "reservation_id": wanted["reservation"]["reservation_id"],
        "window_id": window["window_id"],
        "enrolment_id": enrolment.enrolment_id,
        "token_id": id_of(a_token(house.engine, Permission.RUN_READ)),
        "digest": DIGEST,
        "source_digest": DIGEST,
        "path": QUEUE,
        "queue": QUEUE,
        "key": "sha256/one",
        "grouping": "tenant",
        "job": "build",
        "like": runs["waiting_job"],
        "runner": "runner-1",
        "runner_name": "machine-2",
        "fleet": "builders",
        "image": DIGEST,
        "alias": "next",
        "provider": "local",
        "partition": "default",
        "permissions": ["run.read"],
        "principal": "bob",
        "payloads": [{"metadata": {}, "data": "c29tZQ=="}],
        "state": "running",
        "before": None,
        "owner": None,
        "tenant": None,
        "sharing": "shared",
        "spillover": False,
        "Idempotency-Key": "once",
    }


async def _runs(house: House) -> dict[str, str]:
    """Let one run be under way, one have failed and left an output, and one wait."""
    held = await house.accepted(a_document(build=WORK))
    assert await house.log(held, 1, DATA) == 204
    assert (await house.upload(held, "wheel", DATA)).status_code == 204
    failed = await house.submit(a_document(build=WORK, test={}), source_digest=DIGEST)
    while offers := await house.offered(held.session_id):
        for each in offers:
            await _served(house, each)
    waiting = await house.submit()
    return {
        "run_id": str(held.offer["run_id"]),
        "job_id": str(held.offer["job_id"]),
        "ended": failed["run_id"],
        "waiting": waiting["run_id"],
        "waiting_job": waiting["jobs"][0]["job_id"],
    }


async def _served(house: House, offered: Held) -> None:
    """Let a job called `build` leave its output, and any other one fail."""
    assert (await house.tell(offered, "accept")).status_code == 200
    end: dict[str, object] = {"outcome": "failed", "failure_class": "user_command"}
    if job_of(offered) == "build":
        assert (await house.upload(offered, "wheel", DATA)).status_code == 204
        end = {"outcome": "succeeded"}
    answer = await house.tell(offered, "complete", **end)
    assert answer.json() == {"verdict": "accepted"}, answer.text
    with write(house.engine) as connection:
        settle(connection, str(offered.offer["attempt_id"]), policy=SchedulingPolicy().lease)


async def _images(house: House) -> None:
    """Let there be a fleet, its image, and another one that is called the next."""
    for digest in (f"sha256:{'a' * 64}", DIGEST):
        await asked(house, "/v1/images", digest=digest)
    said = {"image": DIGEST, **WHY}, {"document": FLEET, **WHY}
    for path, body in zip(("/v1/images/aliases/next", "/v1/fleets/builders"), said, strict=True):
        answer = await house.people.put(path, json=body)
        assert answer.is_success, answer.text


def _fleet(connection: sa.Connection) -> tuple[str, str]:
    """Let a fleet have decided on two machines: one that is well, one that is in quarantine."""
    found = fleets.view(fleets.find(connection, "builders"))
    done = fleet_decisions.commit(
        connection,
        FleetView(fleet_id=found.fleet_id, spec=found.spec, state=found.state),
        FleetDecision(
            needed=2,
            wanted=2,
            usable=0,
            launch=(Launch(offering="only", reason=ScaleReason.QUEUED_DEMAND),) * 2,
        ),
        partition="default",
        demand=Demand(demand_id="sha256:one", taken_at=1, classes=()),
        allocation=Allocation(),
        version=0,
        rng=RNG,
    )
    machines, now = fleet_tables.capacity_instances, database_now(connection)
    for instance_id, state in zip(done.launched, _STATES, strict=True):
        moved = sa.update(machines).where(machines.c.instance_id == instance_id)
        connection.execute(moved.values(state=state.value, healthy_at=now))
    healthy, quarantined = done.launched
    return healthy, quarantined


_STATES: Final = (CapacityInstanceState.HEALTHY, CapacityInstanceState.QUARANTINED)


async def open_up(house: House, path: str) -> None:
    """Bring about the state of the whole store that a route is about."""
    if path == "/v1/store/confirm":
        await asked(house, "/v1/store/hold")
    elif path == "/v1/fleets/{name}/rollout":
        await asked(house, f"{ROLLOUT}:rollback")


def known_at(path: str, known: Mapping[str, Any]) -> Known:
    """Say which of what there is a route will do something with."""
    document, version = _first(DOCUMENTS, path)
    here = {"name": _first(NAMES, path), "document": document, "expected_version": version}
    if path.endswith(":reprioritise"):
        here |= {"run_id": known["waiting"], "job_id": known["waiting_job"]}
    elif path.endswith(":rerun-failed") or "/artifacts/" in path:
        here |= {"run_id": known["ended"]}
    elif path.endswith(":release"):
        here |= {"instance_id": known["quarantined"]}
    elif path.endswith(":set-state"):
        here |= {"state": "unhealthy"}
    when = {name: known[name] for name in ("starts_at", "ends_at") if "reservations" in path}
    bodies = {JSON: {**BODIES[path], **when}} if path in BODIES else {}
    return {**known, **here, BODY: {BYTES: DATA, **bodies}}


def _first(choices: Mapping[str, Any], path: str) -> Any:
    return next(one for begin, one in choices.items() if path.startswith(begin))
