"""An agent from start to end: clear what an earlier one left, register, work, drain.

Speaks to nothing but the agent API. One work directory belongs to one agent at a time.
"""

import asyncio
import random
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import structlog

from forgeyard import clock, entropy
from forgeyard.agent import cloud_identity, enrolling, isolation, probe, secrets, workspace
from forgeyard.agent.backoff import BackOff
from forgeyard.agent.client import AgentClient
from forgeyard.agent.contact import GAVE_UP, Contact
from forgeyard.agent.credentials import Wallet
from forgeyard.agent.enrolling import Invitation, Keeper
from forgeyard.agent.health import Health
from forgeyard.agent.isolation import Isolation
from forgeyard.agent.journal import Journal
from forgeyard.agent.lease import Clock
from forgeyard.agent.process import kill_marked, kill_recorded
from forgeyard.agent.session import Session, Wishes
from forgeyard.agent.shelf import Shelf
from forgeyard.agent.steps import KILL_AFTER_S, MARK
from forgeyard.agent.usage import Sampler
from forgeyard.agent.work import Shop
from forgeyard.config import LimitsConfig
from forgeyard.errors import Conflict, InvalidRequest, StaleRejected, Unavailable
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.enrolment import Admission
from forgeyard.model.ids import LeaseId
from forgeyard.model.protocol import Register, Registered
from forgeyard.model.units import Resources

T = TypeVar("T")
LONGEST_BACK_OFF_S = 15.0
SPARE_THREADS = 8
SHELF = "archives"
"""Where in the work directory archives are kept."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Where the server is, and what this host's operator grants."""

    urls: tuple[str, ...]
    """Every address of the agent API; begun with any of them, so that agents spread."""
    token: str = field(repr=False)
    """Of the data directory; empty for a runner that has a certificate, or is about to get one."""
    config: AgentConfig
    limits: LimitsConfig
    enrol_token: str = field(default="", repr=False)
    """What `forgeyard runner invite` gave; worth nothing once there is a certificate."""
    ca_pin: str = ""
    private: tuple[Path, ...] = ()
    """Files and directories of this host that no job that is shut in is to see."""


async def run_agent(settings: AgentSettings, stop: asyncio.Event | None = None) -> int:
    """Run an agent until `stop` is set, then let it finish what runs; return the exit code.

    Raises:
        ForgeyardError: it cannot start: a wrong setting, token, secrets file or work directory.
    """
    agent = Agent(settings)
    stopping = asyncio.ensure_future(_when(stop, agent))
    try:
        return await agent.run()
    finally:
        stopping.cancel()


async def _when(stop: asyncio.Event | None, agent: "Agent") -> None:
    if stop is not None:
        await stop.wait()
        agent.drain()


def serve(settings: AgentSettings) -> int:
    """Run an agent as this process: TERM drains, TERM again or INT ends what runs, too."""
    if not structlog.is_configured():
        configure_log()
    return asyncio.run(_serve(settings))


async def _serve(settings: AgentSettings) -> int:
    agent, loop = Agent(settings), asyncio.get_running_loop()
    # Every job may keep a thread busy packing; killing and heartbeats must not wait for that.
    loop.set_default_executor(ThreadPoolExecutor(SPARE_THREADS + 2 * settings.config.jobs))
    loop.add_signal_handler(signal.SIGTERM, agent.drain)
    loop.add_signal_handler(signal.SIGINT, agent.halt)
    return await agent.run()


def configure_log() -> None:
    """Write to stderr, for people."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Never rich tracebacks: they print local variables, and some hold secrets.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class Agent:
    """One agent process."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        monotonic: Clock = clock.boottime,
        rng: random.Random | None = None,
        kill_after: float = KILL_AFTER_S,
    ) -> None:
        self._settings = settings
        self._config = settings.config
        self._clock = monotonic
        self._rng = rng or entropy.system()
        self._kill_after = kill_after
        self._wishes = Wishes()
        self._contact = Contact(settings.config.give_up_s)

    def drain(self) -> None:
        """Take nothing more and end when everything is finished; asked twice, end at once."""
        if self._wishes.drain.is_set():
            self._wishes.halt.set()
        self._wishes.drain.set()

    def halt(self) -> None:
        """End what runs, report it as a failure of this runner, and end."""
        self._wishes.halt.set()
        self._wishes.drain.set()

    async def run(self) -> int:
        """Work until drained, or until nobody answers any more; return the exit code."""
        work_dir = await asyncio.to_thread(self._prepare)
        urls = tuple(self._rng.sample(self._settings.urls, k=len(self._settings.urls)))
        minding = asyncio.ensure_future(self._mind_silence())
        try:
            await self._run(urls, work_dir)
        finally:
            minding.cancel()
            await asyncio.gather(minding, return_exceptions=True)
        _log.info("agent ended")
        return GAVE_UP if self._contact.is_lost else 0

    async def _mind_silence(self) -> None:
        """Drain once nobody has answered for too long: this machine only costs money then."""
        await self._contact.lost()
        _log.error("nobody answers any more: this agent ends", after_s=self._config.give_up_s)
        self._wishes.drain.set()

    async def _run(self, urls: tuple[str, ...], work_dir: Path) -> None:
        token, heard = self._settings.token, self._contact.heard
        if not token:
            await self._run_enrolled(urls, work_dir)
            return
        async with AgentClient(urls, token, heard=heard) as client:
            await self._run_with(client, work_dir)

    async def _run_enrolled(self, urls: tuple[str, ...], work_dir: Path) -> None:
        """Work under a certificate, which is renewed in time."""
        wallet, settings = Wallet(work_dir), self._settings
        invitation = None
        if settings.enrol_token:
            invitation = Invitation(
                token=settings.enrol_token,
                pin=settings.ca_pin,
                evidence=cloud_identity.source(self._config),
            )
        heard = self._contact.heard
        has = await self._unless_drained(
            enrolling.obtain(wallet, urls, invitation, now=clock.now, rng=self._rng, heard=heard)
        )
        if has is None:
            return
        # The name is the enrolment's: whatever this host is called, it is that runner.
        self._config = self._config.model_copy(update={"name": has.runner_name})
        async with AgentClient(urls, tls=has.context(), heard=heard) as client:
            keeper = Keeper(wallet, has, client, now=clock.now, rng=self._rng)
            keeping = asyncio.ensure_future(keeper.run())
            try:
                await self._run_with(client, work_dir)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    async def _unless_drained(self, call: Coroutine[object, object, T]) -> T | None:
        """Wait for something as long as this agent is wanted."""
        asking = asyncio.ensure_future(call)
        draining = asyncio.ensure_future(self._wishes.drain.wait())
        try:
            await asyncio.wait((asking, draining), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for one in (asking, draining):
                one.cancel()
            await asyncio.gather(asking, draining, return_exceptions=True)

    async def _run_with(self, client: AgentClient, work_dir: Path) -> None:
        """Work until drained."""
        with Journal(work_dir) as journal:
            health = Health(self._clock)
            cleared = await asyncio.to_thread(clear_leftovers, journal, work_dir, health)
            shut_in = await asyncio.to_thread(
                isolation.establish, self._config, work_dir, self._settings.private
            )
            await asyncio.to_thread(end_groups, cleared, shut_in, health)
            shelf = Shelf(work_dir / SHELF, limit=probe.local_cache(self._config))
            await asyncio.to_thread(shelf.open)
            shop = Shop(
                client=client,
                journal=journal,
                sampler=Sampler(),
                shelf=shelf,
                health=health,
                isolation=shut_in,
                config=self._config,
                limits=self._settings.limits,
                work_dir=work_dir,
                clock=self._clock,
                now=clock.now,
                rng=self._rng,
                kill_after=self._kill_after,
            )
            client.show(journal.mark())
            await self._work(shop)

    def _prepare(self) -> Path:
        """Check what can be checked before anything is promised to a server."""
        probe.share(self._config, Resources(), probe.headroom(self._config))
        probe.local_cache(self._config)
        if self._config.secrets_file:
            secrets.load(Path(self._config.secrets_file))
        name = self._config.name or socket.gethostname()
        try:
            return workspace.prepare_work_dir(self._config.work_dir, name=name)
        except OSError as error:
            raise InvalidRequest(
                f"the work directory cannot be made: {error}",
                field="agent.work_dir",
                value=self._config.work_dir,
                allowed="a directory that this user may write",
            ) from error

    async def _work(self, shop: Shop) -> None:
        sampling = asyncio.ensure_future(shop.sampler.run())
        try:
            while not self._wishes.drain.is_set():
                registration = await probe.registration(
                    self._config,
                    shop.work_dir,
                    await asyncio.to_thread(shop.shelf.summary),
                    isolation=shop.isolation,
                )
                registered = await self._register(shop.client, registration)
                if registered is None:
                    return
                shop.heard(registered.store_mark)
                await self._one_session(Session(shop, registered, registration, self._wishes))
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def _one_session(self, session: Session) -> None:
        try:
            await session.run()
        except StaleRejected as error:
            _log.warning("session lost; its jobs were killed", error=error.message)

    async def _register(self, client: AgentClient, message: Register) -> Registered | None:
        """Ask until the server answers or the agent is told to end.

        Raises:
            Rejected: the server will not have this agent, whatever the reason.
        """
        back_off = BackOff(longest=LONGEST_BACK_OFF_S, rng=self._rng)
        message = self._with_key(message)
        while not self._wishes.drain.is_set():
            try:
                registered = await client.register(message)
            except (Unavailable, Conflict) as error:
                if isinstance(error, Conflict):
                    message = self._with_key(message)
                delay = back_off.delay()
                _log.warning("cannot register yet", error=error.message, wait_s=round(delay, 2))
                await self._rest(delay)
            else:
                _log.info("registered", runner=message.runner_name, session=registered.session_id)
                if registered.admission is not Admission.VERIFIED:
                    why = registered.admission_reason or "its first heartbeat is awaited"
                    _log.warning("not admitted yet", admission=registered.admission, reason=why)
                return registered
        return None

    def _with_key(self, message: Register) -> Register:
        """Want a session of its own, however often the server is asked for it."""
        clock_ms = int(clock.now().timestamp() * 1000)
        return replace(message, key=f"{self._rng.getrandbits(128):032x}", clock_ms=clock_ms)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wishes.drain.wait()


def clear_leftovers(journal: Journal, work_dir: Path, health: Health) -> list[LeaseId]:
    """Kill and remove what an earlier agent left behind when it died; blocking.

    Returns the leases of which there was anything. What stays puts this host into quarantine.
    """
    leftovers = journal.leftovers()
    for leftover in leftovers:
        killed = sum(kill_recorded(group) for group in leftover.groups)
        strays = kill_marked(f"{MARK}={leftover.lease_id}")
        _log.warning("leftover cleared", lease=leftover.lease_id, groups=killed, strays=strays)
        journal.ended(leftover.lease_id, now=clock.now())
    for folder in workspace.remove_all(work_dir):
        health.quarantine(f"what an earlier job left in {folder} cannot be removed")
    return [leftover.lease_id for leftover in leftovers]


def end_groups(leases: Sequence[LeaseId], shut_in: Isolation, health: Health) -> None:
    """End what an earlier agent left in the control groups of its jobs; blocking."""
    for group in (shut_in.group(lease) for lease in leases):
        if group is not None and not group.remove():
            health.quarantine(f"processes of an earlier job in {group.folders[0]} do not end")
