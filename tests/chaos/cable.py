"""A cable between an agent and the API that keeps, for as long as told, what travels on it."""

import socket
import threading
from contextlib import suppress
from typing import Final

CHUNK: Final = 65_536


class Cable:
    """Carries TCP to a port of this machine, on a port of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._free = threading.Event()
        self._free.set()
        self._request = self._answer = self._counted = b""
        self._sockets: list[socket.socket] = []
        self._stale: set[socket.socket] = set()
        self.held = threading.Event()
        """Set once something is being kept."""
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Tell where this end is."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def keep_requests(self, word: str) -> None:
        """Let no request through that has this word in it."""
        self._keep(request=word.encode())

    def keep_answers(self, word: str) -> None:
        """Let requests with this word through, and keep their answers."""
        self._keep(answer=word.encode())

    def count_answers(self, word: str) -> None:
        """Count from now on the answers that have this word in them."""
        with self._lock:
            self._counted, self.count = word.encode(), 0

    def release(self) -> None:
        """Let everything through, what was kept first."""
        with self._lock:
            self._request = self._answer = b""
        self._free.set()

    def close(self) -> None:
        """Cut the cable."""
        self.release()
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _keep(self, *, request: bytes = b"", answer: bytes = b"") -> None:
        with self._lock:
            self._request, self._answer = request, answer
        self.held.clear()
        self._free.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                keeps = threading.Event()
                threading.Thread(target=self._up, args=(near, far, keeps), daemon=True).start()
                threading.Thread(target=self._down, args=(near, far, keeps), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket, keeps: threading.Event) -> None:
        with suppress(OSError):
            while data := near.recv(CHUNK):
                with self._lock:
                    kept = bool(self._request) and self._request in data
                    if self._answer and self._answer in data:
                        keeps.set()
                if kept:
                    data += _rest(near)
                    far = self._later(near, far, keeps)
                far.sendall(data)
        _end(far)

    def _later(
        self, near: socket.socket, far: socket.socket, keeps: threading.Event
    ) -> socket.socket:
        """Wait; then connect anew, for the API has hung up on who said nothing for so long."""
        self._stale.add(far)
        self.held.set()
        self._free.wait()
        fresh = socket.create_connection(("127.0.0.1", self._target))
        self._sockets.append(fresh)
        threading.Thread(target=self._down, args=(near, fresh, keeps), daemon=True).start()
        return fresh

    def _down(self, near: socket.socket, far: socket.socket, keeps: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(CHUNK):
                if keeps.is_set():
                    self.held.set()
                    self._free.wait()
                    keeps.clear()
                with self._lock:
                    self.count += bool(self._counted) and self._counted in data
                near.sendall(data)
        if far not in self._stale:
            _end(near)


def _rest(sock: socket.socket) -> bytes:
    """Read what follows at once: headers and body of a request may come one after the other."""
    rest = b""
    sock.settimeout(0.3)
    with suppress(TimeoutError):
        while data := sock.recv(CHUNK):
            rest += data
    sock.settimeout(None)
    return rest


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
