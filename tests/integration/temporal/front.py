"""A TLS front before the dev server, which itself speaks none: Caddy, with what it demands.

It stands for a production server: certificates are asked for by TLS, API keys by the header that
an authoriser would read.
"""

import json
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from forgeyard import clock
from forgeyard.trust import certificates, keys
from forgeyard.trust.authority import Authority
from tests.integration.temporal.server import free_port

NAME = "temporal.example.org"
"""The name in the server's certificate; it listens on loopback all the same."""
PERMISSION_DENIED, UNAUTHENTICATED = 7, 16
"""How gRPC numbers what an authoriser answers."""


@dataclass(frozen=True, kw_only=True)
class Pki:
    """An authority, what the front shows, and what a client may show."""

    authority: Authority
    trusted: Path

    @classmethod
    def create(cls, folder: Path) -> "Pki":
        """Make one."""
        authority = Authority(folder / "ca")
        authority.create("example.org", now=clock.now())
        trusted = folder / "trusted.pem"
        trusted.write_bytes(certificates.written(authority.bundle(now=clock.now())))
        return cls(authority=authority, trusted=trusted)

    def shown_by_a_client(self, folder: Path) -> tuple[Path, Path]:
        """Issue a certificate and its key; return their files."""
        key = keys.new_key()
        lasts = timedelta(hours=1)
        chain = self.authority.client(key.public_key(), "worker", now=clock.now(), lasts=lasts)
        files = folder / "client.crt", folder / "client.key"
        files[0].write_bytes(certificates.written(chain))
        keys.save_key(files[1], key)
        return files


@contextmanager
def fronted(
    pki: Pki, upstream: str, *, api_key: str = "", denied: str = "", mutual: bool = False
) -> Iterator[str]:
    """Run Caddy before a server; tell where it listens."""
    port = free_port()
    routes = [
        *([_route(_refusal(PERMISSION_DENIED), path=[f"*/{denied}"])] if denied else []),
        _route(_passing(upstream), header={"Authorization": [f"Bearer {api_key}"]})
        if api_key
        else _route(_passing(upstream)),
        _route(_refusal(UNAUTHENTICATED)),
    ]
    document = json.dumps(_document(pki, port, routes, mutual=mutual))
    binary = Path(sysconfig.get_path("scripts")) / "caddy"
    process = subprocess.Popen(
        [binary, "run", "--config", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"HOME": str(pki.trusted.parent), "XDG_DATA_HOME": str(pki.trusted.parent)},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(document.encode())
        process.stdin.close()
        _await(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "Caddy ended"
        assert time.monotonic() < deadline, "Caddy does not listen"
        time.sleep(0.05)


def _route(handler: object, **match: object) -> dict[str, object]:
    return {"handle": [handler], **({"match": [match]} if match else {})}


def _passing(upstream: str) -> object:
    return {
        "handler": "reverse_proxy",
        "transport": {"protocol": "http", "versions": ["h2c"]},
        "upstreams": [{"dial": upstream}],
        "flush_interval": -1,
    }


def _refusal(status: int) -> object:
    headers = {"Content-Type": ["application/grpc"], "Grpc-Status": [str(status)]}
    return {"handler": "static_response", "headers": headers}


def _document(pki: Pki, port: int, routes: list[dict[str, object]], *, mutual: bool) -> object:
    chain, key = pki.authority.server([NAME], now=clock.now())
    policy: dict[str, object] = {"default_sni": NAME}
    if mutual:
        policy["client_authentication"] = {
            "mode": "require_and_verify",
            "ca": {"provider": "file", "pem_files": [str(pki.trusted)]},
        }
    server = {
        "listen": [f"127.0.0.1:{port}"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [policy],
        "routes": routes,
    }
    files = [{"certificate": str(chain), "key": str(key)}]
    return {
        "admin": {"disabled": True},
        "apps": {
            "tls": {"certificates": {"load_files": files}},
            "http": {"servers": {"front": server}},
        },
    }


def foreign(folder: Path) -> tuple[Path, Path]:
    """Make a certificate and its key that no authority here has signed; return their files."""
    (folder / "foreign").mkdir()
    pki = Pki.create(folder / "foreign")
    return pki.shown_by_a_client(folder / "foreign")


def another_key(folder: Path) -> Path:
    """Make a key that belongs to no certificate."""
    path = folder / "another.key"
    keys.save_key(path, keys.new_key())
    return path
