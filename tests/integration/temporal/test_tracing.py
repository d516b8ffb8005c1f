"""Spans of real processes, as an OTLP collector receives them."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from temporalio.client import Client

from forgeyard import tracing
from forgeyard.errors import InvalidRequest
from forgeyard.store import codec, fleet_tables
from forgeyard.store.engine import read
from tests.builders import a_registration
from tests.integration.api.house import a_document
from tests.integration.temporal.server import Server
from tests.scraping import a_free_port

pytestmark = pytest.mark.integration
PARTITION = "traced"
DEADLINE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A span as the collector got it."""

    name: str
    process: str
    trace: bytes
    span: bytes
    parent: bytes
    attributes: dict[str, str]
    lasted_ms: int


@dataclass(kw_only=True)
class Collector:
    """An OTLP endpoint that keeps what it is sent."""

    port: int
    spans: list[Received] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        """Find spans; a worker also sweeps partitions that other tests have left open."""
        return [
            span
            for span in self.spans
            if span.name == name and span.attributes.get("partition", PARTITION) == PARTITION
        ]

    def take(self, body: bytes) -> None:
        """Read one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            process = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Received(
                        name=span.name,
                        process=process["forgeyard.process"],
                        trace=span.trace_id,
                        span=span.span_id,
                        parent=span.parent_span_id,
                        attributes={
                            one.key.removeprefix("forgeyard."): one.value.string_value
                            or str(one.value.int_value)
                            for one in span.attributes
                        },
                        lasted_ms=(span.end_time_unix_nano - span.start_time_unix_nano) // 10**6,
                    )
                    for span in scope.spans
                ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Listen for spans."""
    kept = Collector(port=a_free_port())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", kept.port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield kept
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def _process(command: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(
            (sys.executable, "-m", "forgeyard.cli.main", command),
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        child.terminate()
        assert child.wait(40) == 0, log.read_text()


def _eventually(client: httpx.Client, path: str, wanted: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            said = client.get(path).text
        except httpx.TransportError as error:
            said = str(error)
        if wanted in said:
            return
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def _run_a_job(api_port: int, agent_port: int, token: str) -> str:
    """Submit a run of one job over HTTP, do it as an agent does, and return the run's id."""
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{api_port}", headers=headers) as people,
        httpx.Client(base_url=f"http://127.0.0.1:{agent_port}", headers=headers) as agent,
    ):
        _eventually(people, "/readyz", "ready")
        agent.headers["content-type"] = "application/json"
        session = agent.post("/agent/v1/sessions", content=codec.encode(a_registration())).json()
        run_id: str = people.post("/v1/runs", json={"document": a_document()}).json()["run_id"]
        poll = f"/agent/v1/sessions/{session['session_id']}/poll"
        offers = []
        while not offers:
            offers = agent.post(poll, params={"wait_ms": 5_000}, timeout=30).json()["offers"]
        holder = {"session_id": session["session_id"], "epoch": offers[0]["epoch"]}
        lease = f"/agent/v1/leases/{offers[0]['lease_id']}"
        assert agent.post(f"{lease}/accept", json=holder).status_code == 200
        done = agent.post(f"{lease}/complete", json={**holder, "outcome": "succeeded"})
        assert done.json()["verdict"] == "accepted"
    return run_id


@pytest.mark.requirement("TRC-001", "TRC-004", "TRC-005", "TRC-006", "TRC-007")
async def test_a_run_is_one_trace_through_all_processes_and_a_cycle_another(
    client: Client,
    temporal_server: Server,
    collector: Collector,
    sqlite_url: str,
    tmp_path: Path,
) -> None:
    api_port, agent_port = a_free_port(), a_free_port()
    environment = {
        "FORGEYARD_DATA_DIR": str(tmp_path),
        "FORGEYARD_STORE__URL": sqlite_url,
        "FORGEYARD_PARTITION": PARTITION,
        "FORGEYARD_TEMPORAL__ADDRESS": temporal_server.address,
        "FORGEYARD_API__PORT": str(api_port),
        "FORGEYARD_API__AGENT_PORT": str(agent_port),
        "FORGEYARD_TRACING__ENDPOINT": f"http://127.0.0.1:{collector.port}/v1/traces",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    token = tmp_path / "token"
    token.write_text("sesame-open")
    token.chmod(0o600)
    with ExitStack() as running:
        for command in ("api", "worker"):
            running.enter_context(_process(command, environment, tmp_path / f"{command}.log"))
        run_id = await asyncio.to_thread(_run_a_job, api_port, agent_port, "sesame-open")
        await asyncio.to_thread(_until, collector, "attempt.settle")
        await asyncio.to_thread(_until, collector, "scheduler.reconcile")
    (submit,) = collector.named("run.submit")
    assert (submit.process, submit.parent) == ("api", b"")
    assert submit.attributes["run_id"] == run_id
    parts = {
        "scheduler.wait": "worker",
        "lease.accept": "api",
        "lease.complete": "api",
        "attempt.settle": "worker",
    }
    for name, process in parts.items():
        (part,) = collector.named(name)
        assert (part.process, part.trace, part.parent) == (process, submit.trace, submit.span)
    dispatched = collector.named("scheduler.dispatch")
    assert {one.trace for one in dispatched} == {submit.trace}
    (wait,) = collector.named("scheduler.wait")
    (settled,) = collector.named("attempt.settle")
    assert wait.attributes["attempt_id"] == settled.attributes["attempt_id"]
    (leased,) = (one for one in collector.named("scheduler.lease"))
    assert leased.attributes["cycle_id"] == wait.attributes["cycle_id"]
    (cycle,) = (one for one in collector.named("scheduler.cycle") if one.trace == leased.trace)
    (place,) = (one for one in collector.named("scheduler.place") if one.trace == leased.trace)
    assert (cycle.parent, place.parent, leased.parent) == (b"", cycle.span, cycle.span)
    assert cycle.trace != submit.trace
    reconciled = collector.named("scheduler.reconcile")[0]
    assert (reconciled.process, reconciled.attributes["partition"]) == ("worker", PARTITION)
    assert reconciled.attributes["findings"] == "0"


@pytest.mark.requirement("TRC-008", "TRC-009", "TRC-010", "TRC-011")
@pytest.mark.requirement("TRC-012", "TRC-013", "TRC-014")
async def test_the_life_of_a_machine_is_one_trace_from_the_wish_for_it_to_its_end(
    client: Client,
    temporal_server: Server,
    collector: Collector,
    sqlite_url: str,
    sqlite_engine: sa.Engine,
    tmp_path: Path,
) -> None:
    api_port = a_free_port()
    environment = {
        "FORGEYARD_DATA_DIR": str(tmp_path),
        "FORGEYARD_STORE__URL": sqlite_url,
        "FORGEYARD_PARTITION": PARTITION,
        "FORGEYARD_TEMPORAL__ADDRESS": temporal_server.address,
        "FORGEYARD_API__PORT": str(api_port),
        "FORGEYARD_API__AGENT_PORT": str(a_free_port()),
        "FORGEYARD_FLEETS__LOOK_S": "0.5",
        "FORGEYARD_FLEETS__OBSERVE_S": "1",
        "FORGEYARD_AGENT__HEADROOM_MEMORY": "0",
        "FORGEYARD_AGENT__HEADROOM_DISK": "0",
        "FORGEYARD_TRACING__ENDPOINT": f"http://127.0.0.1:{collector.port}/v1/traces",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    token = tmp_path / "token"
    token.write_text("sesame-open")
    token.chmod(0o600)
    with ExitStack() as running:
        for command in ("api", "worker"):
            running.enter_context(_process(command, environment, tmp_path / f"{command}.log"))
        machine = await asyncio.to_thread(_live_and_end, api_port, "sesame-open")
        await asyncio.to_thread(_until, collector, "fleet.terminate")
    (intend,) = collector.named("fleet.intend")
    assert (intend.process, intend.parent) == ("worker", b"")
    with read(sqlite_engine) as connection:
        query = sa.select(fleet_tables.capacity_instances)
        row = connection.execute(query).mappings().one()
    phases = {
        "fleet.bootstrap": row["enrolled_at"] - row["running_at"],
        "fleet.admit": row["healthy_at"] - row["enrolled_at"],
        "fleet.drain": row["ending_at"] - row["drained_at"],
    }
    assert phases["fleet.bootstrap"] > 0
    for name, took in phases.items():
        (part,) = collector.named(name)
        assert took <= part.lasted_ms + 1 < took + 2_000, (name, took)
    for name in ("fleet.provision", *phases):
        (part,) = collector.named(name)
        assert (part.process, part.trace, part.parent) == ("worker", intend.trace, intend.span)
        assert (part.attributes["machine"], part.attributes["fleet"]) == (machine, "traced")
    ended = collector.named("fleet.terminate")
    assert {(one.trace, one.parent) for one in ended} == {(intend.trace, intend.span)}
    (bootstrap,) = collector.named("fleet.bootstrap")
    (admit,) = collector.named("fleet.admit")
    assert bootstrap.attributes["state"] in {"enrolling", "healthy"}
    assert admit.attributes["state"] == "healthy"
    planned = collector.named("fleet.plan")
    assert {"0", "1"} <= {one.attributes["wanted"] for one in planned}
    assert {one.attributes["fleet"] for one in planned} == {"traced"}
    assert {one.attributes["provider"] for one in collector.named("fleet.reconcile")} == {"local"}


def _live_and_end(api_port: int, token: str) -> str:
    """Have one machine of a fleet on this host come up and go again; return its id."""
    headers = {"authorization": f"Bearer {token}"}
    because = {"reason": "a test wants it"}
    size = {"cpu": 0.1, "memory": "64Mi", "disk": "16Mi", "slots": 1}
    scaling = {"max": 1, "down": {"idle_grace": "0s", "window": "0s"}}
    document = {"name": "traced", "capacity": {"resources": size}, "scaling": scaling}
    with httpx.Client(base_url=f"http://127.0.0.1:{api_port}", headers=headers) as people:
        _eventually(people, "/readyz", "ready")
        made = people.put("/v1/fleets/traced", json={"document": document, **because})
        assert made.status_code == 200, made.text
        try:
            bounds = {"min": 1, "max": 1, **because}
            assert people.post("/v1/fleets/traced:scale", json=bounds).is_success
            _eventually(people, "/v1/fleets/traced/capacity", '"healthy"')
        finally:
            assert people.post("/v1/fleets/traced:drain", json=because).is_success
            _eventually(people, "/v1/fleets/traced/capacity", '"terminated"')
        (machine,) = people.get("/v1/fleets/traced/capacity").json()
    return str(machine["instance_id"])


def _until(collector: Collector, name: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not collector.named(name):
        assert time.monotonic() < deadline, [span.name for span in collector.spans]
        time.sleep(0.05)


def test_without_the_extra_an_endpoint_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with (
        pytest.raises(InvalidRequest) as caught,
        tracing.exported("http://127.0.0.1:1/v1/traces", ratio=1, process="api"),
    ):
        pass
    assert caught.value.field == "tracing.endpoint"
    assert "pip install 'forgeyard[otel]'" in str(caught.value.allowed)
    assert not tracing.is_on()
    with tracing.exported("", ratio=1, process="api"):
        assert not tracing.is_on()
