"""The log arrives whole, in order, in bounded pieces, and to its last byte."""

import asyncio

import pytest

from forgeyard.agent import logs
from forgeyard.agent.lease import Interrupted, StopReason
from forgeyard.agent.logs import LogChunk, LogStream, whole_characters
from forgeyard.agent.masking import Masker
from forgeyard.errors import InvalidRequest
from forgeyard.model.protocol import MAX_LOG_CHUNK

LIMIT = 10 * 2**20


class Server:
    """Takes in chunks; answers only while it is open."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.chunks: list[LogChunk] = []
        self.open = asyncio.Event()
        self.open.set()

    async def take(self, chunk: LogChunk) -> None:
        """Receive one chunk."""
        await self.open.wait()
        self.chunks.append(chunk)
        self.first.set()

    def text(self, step: str = "run") -> bytes:
        """Join what arrived of a step."""
        return b"".join(chunk.data for chunk in self.chunks if chunk.step == step)


def a_stream(server: Server, *secrets: str, limit: int = LIMIT) -> LogStream:
    """Open a stream to a server."""
    return LogStream(server.take, masker=Masker(secrets), limit=limit)


async def sent(stream: LogStream, *pieces: tuple[str, bytes]) -> None:
    """Write pieces and close; return when everything was delivered."""
    sending = asyncio.create_task(stream.run())
    for step, data in pieces:
        await stream.write(step, data)
    await stream.close()
    await sending


async def test_chunks_are_bounded_numbered_without_a_gap_and_complete() -> None:
    server, data = Server(), bytes(range(256)) * 2_000
    await sent(a_stream(server), ("run", data), ("run", b"the end"))
    assert server.text() == data + b"the end"
    assert [chunk.sequence for chunk in server.chunks] == list(range(1, len(server.chunks) + 1))
    assert max(len(chunk.data) for chunk in server.chunks) <= MAX_LOG_CHUNK


async def test_a_last_line_without_an_end_arrives() -> None:
    server = Server()
    await sent(a_stream(server, "hunter22"), ("run", b"almost hunt"))
    assert server.text() == b"almost hunt"


async def test_a_secret_across_two_steps_is_two_halves_and_each_arrives_in_its_step() -> None:
    server = Server()
    await sent(a_stream(server, "hunter22"), ("a", b"x hunt"), ("b", b"er22 hunter22"))
    assert server.text("a") == b"x hunt"
    assert server.text("b") == b"er22 ***"


async def test_output_is_shown_soon_although_the_chunk_is_not_full() -> None:
    server = Server()
    stream = a_stream(server)
    sending = asyncio.create_task(stream.run())
    await stream.write("run", b"working")
    async with asyncio.timeout(5):
        await server.first.wait()
    await stream.write("run", b" done")
    await stream.close()
    await sending
    assert [chunk.data for chunk in server.chunks] == [b"working", b" done"]


async def test_a_writer_waits_while_the_server_is_away_and_loses_nothing() -> None:
    server = Server()
    server.open.clear()
    stream, data = a_stream(server), b"x" * (logs.ROOM + 5 * MAX_LOG_CHUNK)
    sending = asyncio.create_task(stream.run())
    writing = asyncio.create_task(stream.write("run", data))
    await asyncio.wait((writing,), timeout=0.3)
    assert not writing.done()
    server.open.set()
    await writing
    await stream.close()
    await sending
    assert server.text() == data


async def test_past_the_limit_one_byte_tells_the_server_and_the_rest_is_dropped() -> None:
    server = Server()
    stream = a_stream(server, limit=1_000)
    await sent(stream, ("run", b"a" * 900), ("run", b"b" * 900), ("run", b"c" * 900))
    assert server.text() == b"a" * 900 + b"b" * 101


async def test_a_chunk_that_is_refused_does_not_hold_up_the_others() -> None:
    server = Server()

    async def picky(chunk: LogChunk) -> None:
        if chunk.sequence == 1:
            raise InvalidRequest("no")
        await server.take(chunk)

    stream = LogStream(picky, masker=Masker(()), limit=LIMIT)
    await sent(stream, ("a", b"first"), ("b", b"second"))
    assert server.text("b") == b"second"


async def test_a_lost_lease_frees_whoever_waits_to_write() -> None:
    async def lost(_chunk: LogChunk) -> None:
        raise Interrupted(StopReason.LOST)

    stream = LogStream(lost, masker=Masker(()), limit=LIMIT)
    sending = asyncio.create_task(stream.run())
    async with asyncio.timeout(5):
        await stream.write("run", b"x" * 4 * logs.ROOM)
        await stream.close()
    with pytest.raises(Interrupted):
        await sending


async def test_no_chunk_ends_within_a_character() -> None:
    server, text = Server(), "€" * MAX_LOG_CHUNK
    await sent(a_stream(server), ("run", text.encode()))
    assert "".join(chunk.data.decode() for chunk in server.chunks) == text


@pytest.mark.parametrize(
    ("data", "end", "cut"),
    [
        (b"abc", 2, 2),
        ("a€".encode(), 2, 1),
        ("a€".encode(), 3, 1),
        ("a€b".encode(), 4, 4),
        ("😀x".encode(), 3, 3),
        (b"\x80\x80\x80\x80\x80", 4, 4),
        (b"a\xff\xffb", 3, 3),
    ],
)
def test_a_cut_moves_back_to_a_whole_character_where_that_helps(
    data: bytes, end: int, cut: int
) -> None:
    assert whole_characters(data, end) == cut
