"""Brings an attempt's dependency caches along and saves those that were missing.

A cache saves time and is never needed: whatever goes wrong with one is a note in the log, and the
job goes on without it. Only a key that cannot be computed is the job's own fault.
"""

import platform
from collections.abc import Coroutine

from forgeyard.agent import ending
from forgeyard.agent.cachekey import cache_key, key_files
from forgeyard.agent.ending import Ending
from forgeyard.agent.lease import Interrupted
from forgeyard.agent.reports import Reports
from forgeyard.agent.steps import Bench
from forgeyard.agent.transfer import Transfers
from forgeyard.errors import ForgeyardError, NotFound, Rejected
from forgeyard.model.ids import Digest
from forgeyard.model.job import CacheSpec, FailureClass

TRIES = 2
"""How often a transfer is tried: the job waits meanwhile, and can do without."""


class Caches:
    """The caches of one attempt."""

    def __init__(self, bench: Bench, reports: Reports, transfers: Transfers) -> None:
        self._folders = bench.folders
        self._held = bench.held
        self._logs = bench.logs
        self._specs = bench.held.offer.spec.caches
        self._reports = reports
        self._transfers = transfers
        self._missed: dict[str, Digest] = {}

    @property
    def has_missed(self) -> bool:
        """Tell whether there is a cache to save."""
        return bool(self._missed)

    async def restore(self, *, until: float) -> Ending | None:
        """Unpack what there is under the keys of the workspace as it is now.

        One cache may take half of the time that is left, so that the job still gets to run.
        """
        if not self._specs:
            return None
        try:
            keys = await self._held.watch(self._transfers.in_thread(self._keys), until=until)
        except Rejected as error:
            return ending.failed(FailureClass.USER_COMMAND, error.message)
        except OSError as error:
            return ending.failed(FailureClass.INFRASTRUCTURE, f"cache keys: {error}")
        self._missed = {spec.name: key for spec, key in keys}
        for spec, key in keys:
            now = self._held.clock()
            half = now + (until - now) / 2
            await self._attempted(spec, self._restore(spec, key, until=half), "miss")
        # What still writes in a thread, though nobody waits for it, must not meet the steps.
        await self._transfers.settle()
        return None

    def _keys(self) -> list[tuple[CacheSpec, Digest]]:
        """Compute every key before any cache is there to be taken for a part of the source."""
        here = {"platform": platform.system(), "architecture": platform.machine()}
        workspace = self._folders.workspace
        return [(spec, cache_key(spec, key_files(workspace, spec), **here)) for spec in self._specs]

    async def _restore(self, spec: CacheSpec, key: Digest, *, until: float) -> str:
        try:
            size = await self._reports.insist(
                lambda: self._transfers.fetch_cache(spec, key),
                until=until,
                tries=TRIES,
                what=f"cache {spec.name}",
            )
        except NotFound:
            return "miss"
        files = await self._held.watch(self._transfers.unpack_cache(spec), until=until)
        del self._missed[spec.name]
        return f"hit, {files} files from {_megabytes(size)}"

    async def save(self, *, until: float) -> None:
        """Upload what was missing, for the jobs that come after this one."""
        for spec in self._specs:
            key = self._missed.get(spec.name)
            if key is not None:
                await self._attempted(spec, self._save(spec, key, until=until), "not saved")

    async def _save(self, spec: CacheSpec, key: Digest, *, until: float) -> str:
        if await self._is_there(spec, key, until=until):
            return "saved by another job meanwhile"
        packed, path = await self._held.watch(self._transfers.pack_cache(spec), until=until)
        if packed.files == 0:
            return f"not saved, {spec.path} matches no file"
        await self._reports.insist(
            lambda: self._transfers.send_cache(spec, key, packed, path),
            until=until,
            tries=TRIES,
            what=f"cache {spec.name}",
        )
        left_out = f", {len(packed.skipped)} left out" if packed.skipped else ""
        return f"saved, {packed.files} files in {_megabytes(packed.size)}{left_out}"

    async def _is_there(self, spec: CacheSpec, key: Digest, *, until: float) -> bool:
        try:
            await self._reports.insist(
                lambda: self._transfers.find_cache(spec, key),
                until=until,
                tries=TRIES,
                what=f"cache {spec.name}",
            )
        except NotFound:
            return False
        return True

    async def _attempted(
        self, spec: CacheSpec, work: Coroutine[object, object, str], failed: str
    ) -> None:
        """Do it, and say what came of it.

        Whoever asks to stop ends this only: a job that waits for a cache hears of it next, and one
        that has done everything else has succeeded.

        Raises:
            Interrupted: the attempt may be another's by now.
        """
        try:
            said = await work
        except ForgeyardError as error:
            said = f"{failed}, {error.message}"
        except OSError as error:
            said = f"{failed}, {error}"
        except Interrupted as stop:
            if stop.reason.is_fenced:
                raise
            said = f"{failed}, {stop.reason.value.replace('_', ' ')}"
        await self._logs.note(f"cache {spec.name}: {said}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
