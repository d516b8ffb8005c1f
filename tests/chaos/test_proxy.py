"""The proxy does what it is told, counts it, and is harmless otherwise."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.chaos.plant import until
from tests.chaos.proxy import Proxy, Toward


@dataclass
class Echo:
    """A server that says everything back, and remembers each connection's bytes."""

    heard: list[bytearray] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        echo = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                mine = bytearray()
                echo.heard.append(mine)
                try:
                    while data := self.request.recv(65_536):
                        mine.extend(data)
                        self.request.sendall(data)
                    echo.ended.append("closed")
                except ConnectionResetError:
                    echo.ended.append("reset")

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.server.shutdown()
    echo.server.server_close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(target=echo.port, seed=7) as proxy:
        yield proxy


def connected(proxy: Proxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    sock.settimeout(10)
    return sock


def says(sock: socket.socket, data: bytes) -> bytes:
    """Send something, and give as many bytes as come back."""
    sock.sendall(data)
    return heard(sock, len(data))


def heard(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := sock.recv(65_536)):
        found += data
    return found


def is_quiet(sock: socket.socket, seconds: float = 0.3) -> bool:
    sock.settimeout(seconds)
    try:
        return sock.recv(1) == b"?"
    except TimeoutError:
        return True
    finally:
        sock.settimeout(10)


def test_on_a_clear_day_every_byte_passes_both_ways(proxy: Proxy) -> None:
    data = bytes(range(256)) * 8_000
    with connected(proxy) as sock:
        threading.Thread(target=sock.sendall, args=(data,), daemon=True).start()
        assert heard(sock, len(data)) == data
    assert proxy.counts["bytes toward server"] == proxy.counts["bytes toward client"] == len(data)


def test_latency_and_jitter_delay_what_passes(proxy: Proxy) -> None:
    proxy.let(latency_s=0.1, jitter_s=0.05)
    with connected(proxy) as sock:
        began = time.monotonic()
        assert says(sock, b"ping") == b"ping"
        assert 0.2 <= time.monotonic() - began < 5
    assert proxy.counts["delayed"] == 2


def test_bandwidth_makes_more_take_longer(proxy: Proxy) -> None:
    proxy.let(bytes_per_s=20_000)
    with connected(proxy) as sock:
        began = time.monotonic()
        assert len(says(sock, b"x" * 4_000)) == 4_000
        assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("way", list(Toward))
def test_a_blackhole_swallows_one_way_until_it_ends(proxy: Proxy, echo: Echo, way: Toward) -> None:
    with connected(proxy) as sock:
        assert says(sock, b"before") == b"before"
        proxy.blackhole(way)
        sock.sendall(b"during")
        assert is_quiet(sock)
        arrived = way is Toward.CLIENT
        assert (bytes(echo.heard[0]) == b"beforeduring") is arrived
        with connected(proxy) as late:
            late.sendall(b"late")
            assert is_quiet(late)
            proxy.clear()
            assert heard(late, 4) == b"late"
        assert heard(sock, 6) == b"during"
    assert proxy.counts[f"silenced toward {way}"] == 2


def test_a_reset_reaches_both_sides_as_one(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as sock:
        assert says(sock, b"ping") == b"ping"
        assert proxy.reset() == 1
        with pytest.raises(ConnectionResetError):
            heard(sock, 1)
    until(lambda: echo.ended == ["reset"])
    with connected(proxy) as again:
        assert says(again, b"pong") == b"pong"


def test_while_it_drops_nobody_gets_through(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as sock:
        assert says(sock, b"ping") == b"ping"
        proxy.drop()
        with suppress(ConnectionError), connected(proxy) as refused:
            assert says(refused, b"ping") == b""
        proxy.clear()
    with connected(proxy) as again:
        assert says(again, b"pong") == b"pong"
    assert proxy.counts["refused"] == 1
    assert len(echo.heard) == 2


def test_a_lost_chunk_takes_its_connection_along_as_the_seed_draws_it(echo: Echo) -> None:
    def losses(seed: int) -> list[int]:
        """Tell after how many chunks each of ten connections broke."""
        survived = []
        with Proxy(target=echo.port, seed=seed) as proxy:
            proxy.let(loses=0.2)
            for _ in range(10):
                with connected(proxy) as sock, suppress(ConnectionError):
                    survived.append(0)
                    while says(sock, b"x") == b"x":
                        survived[-1] += 1
            assert proxy.counts["lost"] == 10
        return survived

    first = losses(3)
    assert sum(first) > 0
    assert first == losses(3) != losses(4)


def test_half_of_a_connection_can_be_closed(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as sock:
        assert says(sock, b"ping") == b"ping"
        proxy.half_close(Toward.SERVER)
        until(lambda: echo.ended == ["closed"])
        assert heard(sock, 1) == b""
    assert proxy.counts["half-closed"] == 1


REQUEST = b"POST /accept HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"


def test_a_request_is_repeated_whole_on_connections_of_its_own(proxy: Proxy, echo: Echo) -> None:
    proxy.let(repeats=b"/accept", repetitions=2)
    with connected(proxy) as sock:
        sock.sendall(REQUEST[:30])
        time.sleep(0.05)
        sock.sendall(REQUEST[30:])
        assert heard(sock, len(REQUEST)) == REQUEST
        other = REQUEST.replace(b"/accept", b"/renew_")
        assert says(sock, other) == other
        until(lambda: [bytes(each) for each in echo.heard[1:]] == [REQUEST] * 2)
    assert proxy.counts["repeated"] == 2


def test_requests_and_answers_with_a_word_are_kept_until_released(proxy: Proxy, echo: Echo) -> None:
    proxy.keep_requests("/accept")
    with connected(proxy) as sock:
        sock.sendall(REQUEST)
        assert proxy.held.wait(10)
        assert is_quiet(sock)
        assert not any(echo.heard)
        proxy.clear()
        assert heard(sock, len(REQUEST)) == REQUEST
        proxy.keep_answers("/accept")
        sock.sendall(REQUEST)
        assert proxy.held.wait(10)
        assert is_quiet(sock)
        assert bytes(echo.heard[-1]) == REQUEST * 2
        proxy.clear()
        assert heard(sock, len(REQUEST)) == REQUEST


def test_answers_with_a_word_are_lost_and_counted(proxy: Proxy, echo: Echo) -> None:
    proxy.let(loses_answers=b"offer")
    proxy.count_answers("ping")
    with connected(proxy) as sock:
        assert says(sock, b"ping") == b"ping"
        with pytest.raises(ConnectionResetError):
            says(sock, b"an offer")
    assert bytes(echo.heard[0]) == b"pingan offer"
    assert (proxy.counts["answers lost"], proxy.counts["counted"]) == (1, 1)


def test_a_server_that_is_not_there_is_a_reset(echo: Echo) -> None:
    echo.server.shutdown()
    echo.server.server_close()
    with Proxy(target=echo.port) as proxy:
        with suppress(ConnectionError), connected(proxy) as sock:
            assert says(sock, b"ping") == b""
        assert proxy.counts["unreachable"] == 1
