"""Fetches what a new machine is to have at hand, beside whatever else it does already (FOP-031).

Nothing waits for it and nothing depends on it: what cannot be had in time is said, and the runner
is as good as before, only colder (FOP-032).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog

from forgeyard.agent.backoff import BackOff, persist
from forgeyard.agent.transfer import Threads, receive
from forgeyard.agent.work import Shop
from forgeyard.beneath import remove_tree
from forgeyard.errors import Conflict, ForgeyardError, StaleRejected
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import WarmArchive, WarmUpOutcome, WarmUpPlan

T = TypeVar("T")
FOLDER = "warmup"
TRIES = 2
MOST_SAID = 300

_log = structlog.get_logger(__name__)


class WarmUp:
    """The warm-up of one machine in one session."""

    def __init__(
        self, shop: Shop, session_id: SessionId, *, every: float, longest_back_off: float
    ) -> None:
        self._shop = shop
        self._session_id = session_id
        self._every = every
        """After so many seconds it is asked again whether the runner is admitted."""
        self._longest = longest_back_off
        self._folder = shop.work_dir / FOLDER
        self._threads = Threads()
        self._taken = 0

    async def run(self) -> None:
        """Fetch and report; whatever goes wrong is only said."""
        try:
            outcome = await self._fetched(await self._plan())
            _log.info("warmed up", archives=outcome.archives, problem=outcome.problem or None)
            client = self._shop.client
            await self._insist(lambda: client.warmed_up(self._session_id, outcome))
        except ForgeyardError as error:
            _log.warning("no warm-up", error=error.message)
        except Exception:
            # The jobs of this runner go on whatever becomes of this.
            _log.exception("the warm-up broke off")

    async def _plan(self) -> WarmUpPlan:
        """Ask until the runner is admitted: before that nothing is its to fetch."""
        while True:
            try:
                return await self._insist(lambda: self._shop.client.warmup_plan(self._session_id))
            except StaleRejected:
                raise
            except Conflict:
                await asyncio.sleep(self._every)

    async def _fetched(self, plan: WarmUpPlan) -> WarmUpOutcome:
        """Fetch one after the other until all are there or the time is up."""
        done = WarmUpOutcome(missing=len(plan.archives))
        try:
            await self._threads.run(self._folder.mkdir, mode=0o700, exist_ok=True)
            async with asyncio.timeout(plan.within / 1000):
                for archive in plan.archives:
                    done = await self._one_more(archive, done)
        except TimeoutError:
            done = _troubled(done, f"not everything came within {plan.within / 1000:g} s")
        except OSError as error:
            done = _troubled(done, str(error))
        finally:
            await asyncio.shield(asyncio.ensure_future(self._clear_away()))
        return done

    async def _clear_away(self) -> None:
        await self._threads.settle()
        await asyncio.to_thread(remove_tree, self._folder)

    async def _one_more(self, archive: WarmArchive, done: WarmUpOutcome) -> WarmUpOutcome:
        shelf = self._shop.shelf
        if self._taken + archive.size > shelf.limit:
            return _troubled(done, "the local cache has no room for everything")
        target = self._folder / archive.digest.replace(":", "-")
        fetched = 0
        try:
            if await self._threads.run(shelf.take, archive.digest, target) is None:
                fetched = await self._insist(lambda: self._fetch(archive, target))
        except ForgeyardError as error:
            return _troubled(done, error.message)
        finally:
            # Another key may stand for the same archive, which is put here again then.
            await self._threads.run(target.unlink, missing_ok=True)
        shelf.used(archive.key, archive.digest)
        self._taken += archive.size
        return replace(
            done,
            archives=done.archives + 1,
            bytes_fetched=done.bytes_fetched + fetched,
            missing=done.missing - 1,
        )

    async def _fetch(self, archive: WarmArchive, target: Path) -> int:
        pieces = self._shop.client.fetch_warm(self._session_id, archive.digest)
        size = await receive(
            pieces, target, digest=archive.digest, limit=archive.size, threads=self._threads
        )
        await self._threads.run(self._shop.shelf.keep, archive.digest, target)
        return size

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        back_off = BackOff(longest=self._longest, rng=self._shop.rng)
        return await persist(call, back_off=back_off, tries=TRIES, what="warm-up")


def _troubled(done: WarmUpOutcome, problem: str) -> WarmUpOutcome:
    """Keep the first problem: the others follow from it more often than not."""
    return replace(done, problem=done.problem or problem[:MOST_SAID])
