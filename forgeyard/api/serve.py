"""One process of the API: both listeners and what runs beside them, in one event loop.

Beside the listeners run the reader of the long polls, the relay of what was just committed, and
the beat that tells the sweep that renewals can be heard. Temporal is needed for none of it.

Asked to end, it first says that it is not ready, then answers whoever waits, lets requests under
way finish, and relays at last what they have committed.
"""

import asyncio
import contextlib
import errno
import logging
import math
import socket
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI
from temporalio.client import Client
from temporalio.service import RPCError

from activities import production, relay
from activities.connection import connect_later, payload_codec
from forgeyard import entropy, telemetry, tracing
from forgeyard.api.agent_app import create_agent_app
from forgeyard.api.agent_callers import SessionOwners
from forgeyard.api.app import create_app
from forgeyard.api.auth import ensure_token
from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.heads import HeadKeeper
from forgeyard.api.keepalive import keepalive
from forgeyard.api.metrics import StoreFigures
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.api.polling import AssignmentReader
from forgeyard.api.relay_kick import RelayKick
from forgeyard.api.tls import AgentTls, CertifiedProtocol, agent_tls, demand_closed
from forgeyard.api.trust import Trust
from forgeyard.config import Config
from forgeyard.errors import PortTaken, StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Assignments
from forgeyard.store import dispatch, lineage, liveness, migrate, outbox, readings
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import open_engine, read, write

BEAT_S: Final = 5.0
UNKNOWN: Final = "not looked at yet"
"""What is said of the blob store before the first look, so that its answer is news."""
HEALTH_TIMEOUT: Final = timedelta(seconds=1)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the two listeners can be reached, ports filled in."""

    api_url: str
    agent_url: str


async def serve(
    config: Config,
    stop: asyncio.Event,
    *,
    client: Client | None = None,
    policy: SchedulingPolicy | None = None,
    listening: Callable[[Listening], None] | None = None,
) -> None:
    """Serve until told to stop; without a client, connect to Temporal whenever it answers.

    `policy` is in force while the store holds none that an operator set.

    Raises:
        PortTaken: another program listens on one of the ports.
        SchemaMismatch: the database's schema is not for this release.
        InvalidRequest: agents from elsewhere would come with the token alone.
        NotFound: there is no authority, or no certificate for the agents' listener.
        Unavailable: the agents' listener would serve who has no certificate.
        UnfitForProduction: the store or Temporal is made for trying out, and the profile is not.
        NotFound, Forbidden, Corrupt, InvalidFile: a certificate or key cannot be used.
    """
    production.demand_store(config)
    context = agent_tls(config)
    public, agents = _bind(config.api.host, config.api.port, field="api.port"), None
    try:
        agents = _bind(config.api.agent_host, config.api.agent_port, field="api.agent_port")
        engine = open_engine(config.database_url(), config.store)
        try:
            with contextlib.suppress(StoreUnavailable):
                migrate.demand_fit(engine)
            temporal = client or await connect_later(config.temporal)
            await _demand_server(temporal, config)
            with outbox.watching(engine) as changed:
                policies = PolicyCache(policy or SchedulingPolicy())
                process = _Process(config, policies, engine, temporal, changed=changed, tls=context)
                metrics, spans = config.metrics, config.tracing
                with (
                    telemetry.listening(metrics.host, metrics.api_port, process.figures),
                    tracing.exported(spans.endpoint, ratio=spans.ratio, process="api"),
                ):
                    if listening is not None:
                        scheme = "http" if context is None else "https"
                        agent_url = _url(agents, scheme=scheme)
                        listening(Listening(api_url=_url(public), agent_url=agent_url))
                    await process.run(stop, public=public, agents=agents)
        finally:
            engine.dispose()
    finally:
        for sock in (public, agents):
            if sock is not None:
                sock.close()


def _bind(host: str, port: int, *, field: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, or asyncio would not know that it may switch Nagle's delay of 40 ms an answer off.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortTaken(
            f"cannot listen on {host}:{port}: "
            + ("another program has the port" if taken else str(error.strerror)),
            field=field,
            value=port,
            allowed="a free port, or 0 for any",
        ) from error
    return sock


def _url(sock: socket.socket, *, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _demand_server(client: Client, config: Config) -> None:
    """Refuse an unfit server; one that is away is left to the workers, who refuse it as well."""
    try:
        async with asyncio.timeout(production.TIMEOUT.total_seconds()):
            await production.demand_server(client, config)
    except (RPCError, RuntimeError, TimeoutError) as error:
        _log.warning("could not ask Temporal at %s what it is: %s", config.temporal.address, error)


class _Process:
    """Everything that one API process runs, wired together."""

    def __init__(
        self,
        config: Config,
        policies: PolicyCache,
        engine: sa.Engine,
        client: Client,
        *,
        changed: Callable[[], bool],
        tls: AgentTls | None,
    ) -> None:
        self._config = config
        self._tls = tls
        self._trust = Trust(config)
        self._policies = policies
        self._engine = engine
        self._client = client
        self._blobs = FileBlobStore(config.blob_dir())
        self._blob_problem: str | None = UNKNOWN
        self._heads = HeadKeeper(engine, config.audit_heads())
        self._rng = entropy.system()
        self.figures = StoreFigures(engine, config.partition)
        self._relay = RelayKick(lambda: relay.relay(client, engine, config.partition))
        self._reader = AssignmentReader(
            self._assignments, period_s=config.api.poll_ms / 1000, changed=changed
        )

    async def run(
        self, stop: asyncio.Event, *, public: socket.socket, agents: socket.socket
    ) -> None:
        """Run both listeners and everything beside them until told to stop."""
        deps = self._dependencies()
        grace_s = self._config.api.grace_s
        # Before anybody is heard: a gap is bridged before the sweep may expire anything.
        await self._beat()
        listeners = (
            (_listener(create_app(deps), grace_s=grace_s), public),
            (_listener(create_agent_app(deps), grace_s=grace_s, tls=self._tls), agents),
        )
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run(deps.ending))
            tasks.create_task(self._relay.run(ended))
            tasks.create_task(self._keep_beating(ended))
            tasks.create_task(self._leave(stop, deps, [server for server, _ in listeners]))
            if self._config.api.agent_identity != "token":
                scheme = "http" if self._tls is None else "https"
                tasks.create_task(demand_closed(_url(agents, scheme=scheme), stop))
            await asyncio.gather(
                *(tasks.create_task(_serve_one(server, sock, stop)) for server, sock in listeners)
            )
            ended.set()

    async def _leave(
        self, stop: asyncio.Event, deps: ApiDependencies, servers: Collection["_Listener"]
    ) -> None:
        """Go off in order: unready, then rid of polls, so that no listener waits for them."""
        await stop.wait()
        deps.leaving.set()
        await asyncio.sleep(self._config.api.leave_s)
        deps.ending.set()
        for server in servers:
            server.should_exit = True

    def _dependencies(self) -> ApiDependencies:
        return ApiDependencies(
            engine=self._engine,
            blobs=self._blobs,
            config=self._config,
            policies=self._policies,
            token=ensure_token(self._config.token_path()),
            rng=self._rng,
            kick=self._relay.kick,
            temporal_answers=self._temporal_answers,
            assignments=self._reader,
            keepalive=keepalive(self._engine, self._policies, kick=self._relay.kick),
            trust=self._trust,
            owners=SessionOwners(self._engine),
            figures=self.figures,
            codec=payload_codec(self._config.temporal),
        )

    def _assignments(self, session_ids: Collection[str]) -> Mapping[str, Assignments]:
        with read(self._engine) as connection:
            policy = self._policies.read(connection)
            return dispatch.assignments(connection, session_ids, policy=policy.lease)

    async def _temporal_answers(self) -> bool:
        try:
            return await self._client.service_client.check_health(timeout=HEALTH_TIMEOUT)
        except Exception:
            # Whatever the reason, it does not answer; the SDK raises several kinds here.
            return False

    async def _keep_beating(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await ending.wait()
            if not ending.is_set():
                await self._beat()

    async def _beat(self) -> None:
        try:
            await asyncio.to_thread(self._write_beat)
            await asyncio.to_thread(self._report_blobs)
            if self._tls is not None:
                self._tls.refresh(await asyncio.to_thread(self._trust.trusted))
            await asyncio.to_thread(self._heads.work)
        except Exception as error:
            # No beat, no expiries: the right thing while the store is away.
            _log.warning("renewal beat failed: %s", error)

    def _write_beat(self) -> None:
        with write(self._engine) as connection:
            liveness.beat_renewal(connection, policy=self._policies.read(connection))
            lineage.leave_mark(connection, rng=self._rng)

    def _report_blobs(self) -> None:
        """Tell the scheduler whether what jobs need can be fetched and kept, when that changed."""
        problem = self._blobs.problem()
        if problem != self._blob_problem:
            _log.warning("blob store: %s", problem or "works again")
            with write(self._engine) as connection:
                readings.report(connection, readings.BLOBS, problem)
            self._blob_problem = problem


class _Listener(uvicorn.Server):
    """A server that leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def _listener(app: FastAPI, *, grace_s: float, tls: AgentTls | None = None) -> _Listener:
    return _Listener(
        uvicorn.Config(
            app,
            http="h11" if tls is None else CertifiedProtocol,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=math.ceil(grace_s),
        )
    )


async def _serve_one(server: _Listener, sock: socket.socket, stop: asyncio.Event) -> None:
    """Serve; when one listener ends, for whatever reason, everything does."""
    try:
        await server.serve([sock])
    finally:
        stop.set()
