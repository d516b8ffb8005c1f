"""Real git repositories for tests, and servers that give them out over HTTP."""

import base64
import os
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PERSON = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


def git_environment(home: Path) -> dict[str, str]:
    """Give what keeps git off the settings of this host."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def use_own_git(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep this process off the settings of this host; return the global configuration."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in git_environment(home).items():
        monkeypatch.setenv(name, value)
    (home / "gitconfig").touch()
    return home / "gitconfig"


@dataclass(frozen=True)
class Repository:
    """A repository with a working tree."""

    root: Path

    @classmethod
    def new(cls, root: Path, *options: str) -> "Repository":
        """Begin an empty one on the branch `main`."""
        root.mkdir(parents=True)
        made = cls(root)
        made.git("init", "--quiet", "--template=", "--initial-branch=main", *options)
        return made

    @property
    def url(self) -> str:
        """Name it as a URL."""
        return f"file://{self.root}"

    def git(self, *words: str) -> str:
        """Run git in it."""
        home = self.root.parent
        kept = {name: os.environ[name] for name in ("PATH",)}
        done = subprocess.run(
            ("git", *words),
            cwd=self.root,
            env={**kept, **git_environment(home), **PERSON},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Write files and commit them; return the commit's id."""
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


class _Quiet(SimpleHTTPRequestHandler):
    """Serves plain files, as a host without git does."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class _Smart(BaseHTTPRequestHandler):
    """Hands requests to `git http-backend`, for one user only if there is one."""

    def __init__(self, root: Path, user: str | None, *arguments: object) -> None:
        self._root = root
        self._user = user
        super().__init__(*arguments)  # pyright: ignore[reportArgumentType]

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer a request without a body."""
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer a request with one."""
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def _answer(self, body: bytes) -> None:
        known = base64.b64encode((self._user or "").encode()).decode()
        if self._user is not None and self.headers.get("Authorization") != f"Basic {known}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers, _, content = self._backend(body).partition(b"\r\n\r\n")
        pairs = dict(line.split(": ", 1) for line in headers.decode().splitlines())
        self.send_response(int(pairs.pop("Status", "200").split()[0]))
        for name, value in {**pairs, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _backend(self, body: bytes) -> bytes:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            **git_environment(self._root),
            "GIT_PROJECT_ROOT": str(self._root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ("git", "http-backend"), input=body, env=environment, capture_output=True, check=True
        )
        return done.stdout


@contextmanager
def _serving(handler: object) -> Generator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # pyright: ignore[reportArgumentType]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def served(root: Path, *, user: str | None = None) -> Iterator[int]:
    """Serve the repositories below a directory as git hosts do; give the port on 127.0.0.1."""
    with _serving(partial(_Smart, root, user)) as port:
        yield port


@contextmanager
def served_plainly(root: Path) -> Iterator[int]:
    """Serve the files below a directory as they are; give the port on 127.0.0.1."""
    with _serving(partial(_Quiet, directory=str(root))) as port:
        yield port
