"""Moves inputs and outputs of one attempt, verified, in bounded memory and off the event loop."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

from forgeyard import archive
from forgeyard.agent.client import AgentClient
from forgeyard.agent.lease import HeldLease
from forgeyard.agent.shelf import Shelf
from forgeyard.agent.usage import Meter
from forgeyard.agent.workspace import Folders
from forgeyard.config import LimitsConfig
from forgeyard.errors import TooLarge, WrongDigest
from forgeyard.model.ids import Digest
from forgeyard.model.job import CacheSpec, OutputSpec
from forgeyard.model.protocol import Input

P = ParamSpec("P")
T = TypeVar("T")
SOURCE = "source"


class Transfers:
    """The archives of one attempt on their way."""

    def __init__(
        self,
        client: AgentClient,
        held: HeldLease,
        folders: Folders,
        *,
        shelf: Shelf,
        meter: Meter,
        limits: LimitsConfig,
    ) -> None:
        self._client = client
        self._held = held
        self._folders = folders
        self._shelf = shelf
        self._meter = meter
        self._limits = limits
        self._threads = Threads()

    async def fetch(self, given: Input) -> Path:
        """Bring an input, from the shelf if it is there, and verify it.

        Raises:
            WrongDigest: it is not what was promised.
            TooLarge: it exceeds the limit of its kind.
        """
        target = self._folders.transfer / given.digest.replace(":", "-")
        if await self.in_thread(self._shelf.take, given.digest, target) is not None:
            self._meter.inputs_at_hand += 1
            return target
        pieces = self._client.fetch(self._held.lease_id, self._held.holder, digest=given.digest)
        await self._receive(pieces, target, digest=given.digest, limit=self._limit(given))
        self._meter.inputs_fetched += 1
        return target

    async def _receive(
        self, pieces: AsyncIterator[bytes], target: Path, *, digest: str, limit: int
    ) -> int:
        """Write an archive down, verify it and keep it; return its size."""
        size = await receive(pieces, target, digest=digest, limit=limit, threads=self._threads)
        self._meter.bytes_fetched += size
        await self.in_thread(self._shelf.keep, digest, target)
        return size

    async def unpack(self, given: Input, path: Path) -> int:
        """Unpack a fetched input into the workspace and drop the archive; return the files."""
        return await self.in_thread(self._unpack, given, path)

    def _unpack(self, given: Input, path: Path) -> int:
        with path.open("rb") as source:
            files = archive.unpack(source, self._folders.workspace, limit=self._limit(given))
        path.unlink()
        return files

    def _limit(self, given: Input) -> int:
        return self._limits.source if given.origin == SOURCE else self._limits.output

    async def pack(self, output: OutputSpec) -> tuple[archive.Packed, Path]:
        """Write an output's archive; it may turn out to hold no files."""
        path = self._folders.transfer / f"output-{output.name}"
        return await self.in_thread(self._pack, output.path, path)

    def _pack(self, pattern: str, path: Path) -> tuple[archive.Packed, Path]:
        # A job may have put a pipe here, which to open would take for ever: never what is there.
        path.unlink(missing_ok=True)
        with path.open("xb") as target:
            packed = archive.pack_output(
                self._folders.workspace, pattern, target, self._limits.output
            )
        return packed, path

    async def send(self, output: OutputSpec, packed: archive.Packed, path: Path) -> None:
        """Upload a packed output; sending it again is harmless."""
        await self._client.upload(
            self._held.lease_id,
            self._held.holder,
            name=output.name,
            digest=Digest(packed.digest),
            size=packed.size,
            source=path,
        )
        self._meter.bytes_uploaded += packed.size
        # A job that needs it may well come here.
        await self.in_thread(self._shelf.keep, packed.digest, path)

    async def find_cache(self, cache: CacheSpec, key: Digest) -> Digest:
        """Ask what a cache's archive hashes to.

        Raises:
            NotFound: nobody whom this runner may trust has saved one under this key.
        """
        return await self._client.find_cache(
            self._held.lease_id, self._held.holder, name=cache.name, key=key
        )

    async def fetch_cache(self, cache: CacheSpec, key: Digest) -> int:
        """Bring a cache's archive, from the shelf if it is there, and verify it; return its size.

        Raises:
            NotFound: there is none.
            WrongDigest: it is damaged.
        """
        digest = await self.find_cache(cache, key)
        target, limit = self._cache_archive(cache), self._limits.output
        size = await self.in_thread(self._shelf.take, digest, target)
        if size is None:
            pieces = self._client.fetch_cache(
                self._held.lease_id, self._held.holder, name=cache.name, key=key
            )
            size = await self._receive(pieces, target, digest=digest, limit=limit)
            self._meter.caches_fetched += 1
        else:
            self._meter.caches_at_hand += 1
        self._shelf.used(key, digest)
        return size

    async def unpack_cache(self, cache: CacheSpec) -> int:
        """Put a fetched cache's files into the workspace; return how many."""
        return await self.in_thread(self._unpack_cache, cache)

    def _unpack_cache(self, cache: CacheSpec) -> int:
        path = self._cache_archive(cache)
        staging = path.with_name(f"{path.name}.files")
        with path.open("rb") as source:
            files = archive.unpack_output(
                source,
                self._folders.workspace,
                cache.path,
                staging=staging,
                limit=self._limits.output,
            )
        path.unlink()
        return files

    async def pack_cache(self, cache: CacheSpec) -> tuple[archive.Packed, Path]:
        """Write a cache's archive; it may turn out to hold no files."""
        return await self.in_thread(self._pack, cache.path, self._cache_archive(cache))

    async def send_cache(
        self, cache: CacheSpec, key: Digest, packed: archive.Packed, path: Path
    ) -> None:
        """Upload a cache; sending it again, or when another job was first, is harmless."""
        await self._client.upload_cache(
            self._held.lease_id,
            self._held.holder,
            name=cache.name,
            key=key,
            digest=Digest(packed.digest),
            size=packed.size,
            source=path,
        )
        self._meter.bytes_uploaded += packed.size
        await self.in_thread(self._shelf.keep, packed.digest, path)
        self._shelf.used(key, packed.digest)

    def _cache_archive(self, cache: CacheSpec) -> Path:
        return self._folders.transfer / f"cache-{cache.name}"

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread; `settle` waits for it even when nobody else does."""
        return await self._threads.run(function, *args, **kwargs)

    async def settle(self) -> None:
        """Wait until no thread touches the directories any more."""
        await self._threads.settle()


class Threads:
    """Blocking work off the event loop, all of which can be waited for in the end."""

    def __init__(self) -> None:
        self._working: set[asyncio.Future[None]] = set()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something in a thread; `settle` waits for it even when nobody else does."""
        work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        ended = asyncio.ensure_future(_end_of(work))
        self._working.add(ended)
        ended.add_done_callback(self._working.discard)
        return await asyncio.shield(work)

    async def settle(self) -> None:
        """Wait until no thread is at work any more."""
        while self._working:
            await asyncio.wait(self._working)


async def receive(
    pieces: AsyncIterator[bytes], target: Path, *, digest: str, limit: int, threads: Threads
) -> int:
    """Write an archive down and verify it; return its size.

    Raises:
        WrongDigest: it is not what was promised.
        TooLarge: it exceeds the limit.
    """
    with await threads.run(target.open, "wb") as file:
        sink = _Sink(file, limit=limit)
        async for piece in pieces:
            await threads.run(sink.write, piece)
    if sink.digest() != digest:
        raise WrongDigest(
            f"the bytes hash to {sink.digest()}, not to {digest}", field="digest", value=digest
        )
    return sink.size


async def _end_of(work: "asyncio.Future[T]") -> None:
    await asyncio.wait((work,))


class _Sink:
    """Writes and hashes at once."""

    def __init__(self, file: BinaryIO, *, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            raise TooLarge(f"the archive exceeds {self._limit} bytes", field="input")
        self._hash.update(piece)
        self._file.write(piece)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
