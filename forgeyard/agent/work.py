"""One lease, from taking the offer to reporting the end of the attempt.

Whatever happens in between, no process and no file of the attempt stays behind.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from forgeyard import proctable
from forgeyard.agent import ending, secrets, toolchains, visible
from forgeyard.agent.attempt import Attempt
from forgeyard.agent.client import AgentClient
from forgeyard.agent.ending import Ending
from forgeyard.agent.health import Health
from forgeyard.agent.isolation import Isolation
from forgeyard.agent.journal import Journal
from forgeyard.agent.lease import LOOK_AGAIN_S, Clock, HeldLease, Interrupted
from forgeyard.agent.logs import LogStream
from forgeyard.agent.masking import Masker
from forgeyard.agent.offers import search_path
from forgeyard.agent.process import GroupId, kill_marked
from forgeyard.agent.reports import Findings, Reports
from forgeyard.agent.shelf import Shelf
from forgeyard.agent.steps import KILL_AFTER_S, MARK, Bench, environment
from forgeyard.agent.transfer import Transfers
from forgeyard.agent.usage import Meter, Sampler
from forgeyard.agent.workspace import folders_of
from forgeyard.config import LimitsConfig
from forgeyard.config import environment as allowed
from forgeyard.errors import ForgeyardError, Unavailable
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.capability import Toolchain
from forgeyard.model.equipment import Equipment
from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import CompletionVerdict, Outcome

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """What every attempt on this host shares."""

    client: AgentClient
    journal: Journal
    sampler: Sampler
    shelf: Shelf
    health: Health
    isolation: Isolation
    config: AgentConfig
    limits: LimitsConfig
    work_dir: Path
    clock: Clock
    now: Callable[[], datetime]
    rng: random.Random
    kill_after: float = KILL_AFTER_S

    def heard(self, store_mark: str) -> None:
        """Keep a new mark of the server's store, and show it with every request from now on."""
        if not store_mark:
            return
        self.client.show(store_mark)
        try:
            self.journal.keep_mark(store_mark)
        except Unavailable as error:
            # The next one may be kept; until then an older one is shown after a restart.
            _log.warning("mark not kept", error=error.message)


class Work:
    """The work on one offer."""

    def __init__(
        self,
        shop: Shop,
        held: HeldLease,
        *,
        equipment: Equipment,
        longest_back_off: float,
        known: Sequence[Toolchain],
        doubt: Callable[[], Awaitable[None]],
    ) -> None:
        self._shop = shop
        self._equipment = equipment
        self._known = known
        """The tools of this host as they were reported before this lease was taken."""
        self._doubt = doubt
        """Looks at the host anew and says what was found, before anything else is said."""
        self.held = held
        self.is_active = False
        """Accepted and not yet reported: its lease is to be renewed."""
        self.is_over = False
        """Nothing runs any more, though its files may still be there."""
        self._spec = held.offer.spec
        self._folders = folders_of(shop.work_dir, held.lease_id)
        self._cell = shop.isolation.cell(self._spec, self._folders, held.lease_id)
        self._meter = Meter()
        self._reports = Reports(shop.client, held, longest_back_off=longest_back_off, rng=shop.rng)
        self._transfers = Transfers(
            shop.client,
            held,
            self._folders,
            shelf=shop.shelf,
            meter=self._meter,
            limits=shop.limits,
        )
        self._log = _log.bind(
            lease=held.lease_id, job=self._spec.name, attempt=held.offer.attempt_number
        )

    @property
    def slots(self) -> int:
        """Tell how many slots it takes."""
        return max(1, self._spec.resources.slots)

    async def run(self) -> None:
        """Accept, carry out, report and clean up."""
        try:
            if await self._reports.accept():
                self.is_active = True
                self._log.info("lease accepted")
                await self._carry_out()
        except Interrupted as stop:
            self._log.warning("lease lost; its processes are killed", reason=stop.reason.value)
        except Exception:
            # Other attempts go on; the server learns of this one from its silence.
            self._log.exception("work on a lease broke off")
        finally:
            self.is_active = False
            self.is_over = True
            await asyncio.shield(asyncio.ensure_future(self._clean_up()))

    async def _carry_out(self) -> None:
        begun = self._shop.clock()
        granted = await self._read_secrets()
        values = dict[str, str]() if isinstance(granted, Ending) else granted
        masker = Masker(values.values())
        logs = LogStream(self._reports.log, masker=masker, limit=self._shop.limits.log_per_attempt)
        bench = self._bench(logs, values, accepted=begun)
        attempt = Attempt(
            bench, self._reports, self._transfers, mask=masker.text, altered=self._altered
        )
        sending = asyncio.ensure_future(self.held.hold(logs.run()))
        warning = asyncio.ensure_future(self._pass_notice_on())
        try:
            end = granted if isinstance(granted, Ending) else await self._try(attempt)
            if end.message:
                await logs.note(end.message)
        finally:
            warning.cancel()
            await logs.close()
            await asyncio.gather(sending, warning, return_exceptions=True)
        await self._report(end, attempt, wall=self._shop.clock() - begun, masker=masker)

    async def _pass_notice_on(self) -> None:
        """Let a job that can save its work know that this machine goes (SPT-010)."""
        left = await self.held.noticed()
        self._log.warning("this machine is being taken away", in_s=round(left))
        if not self._spec.checkpoint:
            return
        try:
            while not await asyncio.to_thread(self._folders.give_notice, int(left)):
                await self.held.nap(LOOK_AGAIN_S)
        except OSError as error:
            self._log.warning("the job cannot be told", error=str(error))

    async def _try(self, attempt: Attempt) -> Ending:
        """Carry out the attempt; a bug of ours, or a broken disk, ends it as a failure of ours."""
        try:
            return await attempt.carry_out()
        except Interrupted:
            raise
        except Exception as error:
            self._log.exception("attempt broke off")
            return ending.failed(FailureClass.INTERNAL, f"the agent failed: {error}")

    async def _altered(self) -> str:
        """Look whether the tools of this job are what they were; if not, all there is to say."""
        wanted = self._spec.requires.toolchains
        problem = await toolchains.altered(wanted, self._known, self._shop.config)
        if problem:
            self._log.warning("a tool has changed", problem=problem)
            await self._doubt()
        return problem

    async def _read_secrets(self) -> Mapping[str, str] | Ending:
        """Read the secrets of this job anew, for the operator may have changed them."""
        if not self._spec.secrets:
            return {}
        try:
            path = Path(self._shop.config.secrets_file)
            granted = await asyncio.to_thread(secrets.load, path)
        except ForgeyardError as error:
            return ending.failed(FailureClass.POLICY, error.message)
        missing = sorted(set(self._spec.secrets) - granted.keys())
        if missing:
            return ending.failed(FailureClass.POLICY, f"not granted: {', '.join(missing)}")
        return {name: granted[name] for name in self._spec.secrets}

    def _bench(self, logs: LogStream, values: Mapping[str, str], *, accepted: float) -> Bench:
        config = self._shop.config
        wanted = self._spec.requires.toolchains
        return Bench(
            held=self.held,
            folders=self._folders,
            env=environment(
                self.held.offer,
                self._folders,
                passed=allowed(config.pass_env),
                devices=visible.environment(self.held.offer.devices, self._equipment),
                path=search_path(wanted, config.toolchains, known=self._known, path=config.path),
                secrets=values,
            ),
            logs=logs,
            meter=self._meter,
            sampler=self._shop.sampler,
            started=self._remember,
            accepted=accepted,
            kill_after=self._shop.kill_after,
            cell=self._cell,
        )

    def _remember(self, group: GroupId) -> None:
        self._shop.journal.started(self.held.lease_id, group)

    async def _report(self, end: Ending, attempt: Attempt, *, wall: float, masker: Masker) -> None:
        """Say how it ended; a success that the server finds incomplete is a failed upload."""
        self.is_over = True
        self._shop.health.ended(end.failure_class)
        found = Findings(
            usage=self._meter.total(wall=wall), steps=tuple(attempt.steps), tests=attempt.tests
        )
        said = Ending(
            outcome=end.outcome,
            failure_class=end.failure_class,
            exit_code=end.exit_code,
            message=masker.text(end.message),
        )
        verdict = await self._reports.complete(said, found)
        if verdict is CompletionVerdict.INVALID_REJECTED and end.outcome is Outcome.SUCCEEDED:
            said = ending.failed(FailureClass.OUTPUT_UPLOAD, "the server misses a required output")
            verdict = await self._reports.complete(said, found)
        self._log.info("attempt reported", outcome=said.outcome.value, verdict=verdict.value)

    async def _clean_up(self) -> None:
        """Leave nothing behind; where something stays, nothing more may run on this host."""
        await self._transfers.settle()
        try:
            await asyncio.to_thread(self._remove)
        except Exception as error:
            self._log.exception("not everything was cleaned up")
            self._shop.health.quarantine(f"cleaning up failed: {error}")

    def _remove(self) -> None:
        """Remove processes first, then files, then the memory of both; blocking."""
        mark, quarantine = f"{MARK}={self.held.lease_id}", self._shop.health.quarantine
        # Whoever was there to be killed may be there still.
        stay = kill_marked(mark) > 0 and bool(proctable.carriers(mark))
        if stay or not (self._cell is None or self._cell.close()):
            quarantine(f"processes of job {self._spec.name!r} do not end")
        if not self._folders.remove():
            quarantine(f"the workspace of job {self._spec.name!r} cannot be removed")
        self._shop.journal.ended(self.held.lease_id, now=self._shop.now())
