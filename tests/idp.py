"""An OpenID issuer for tests: a real HTTP server on loopback whose answers a test can spoil."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

CLIENT = "forgeyard-cli"
ROLES = {"ci-admins": "admin", "devs": "submitter", "acme-devs": "operator@acme"}


def unpadded(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(header: Mapping[str, object], claims: Mapping[str, object], secret: bytes = b"") -> str:
    """Write a token that no library would: unsigned, or with a HMAC under any secret."""
    parts = [unpadded(json.dumps(part).encode()) for part in (header, claims)]
    said = ".".join(parts)
    mac = hmac.new(secret, said.encode(), hashlib.sha256).digest() if secret else b""
    return f"{said}.{unpadded(mac)}"


@dataclass(kw_only=True)
class Idp:
    """The issuer's state: its keys, whom it signs on, and how it misbehaves."""

    url: str = ""
    keys: dict[str, RSAKey | ECKey] = field(
        default_factory=lambda: {"one": RSAKey.generate_key(2048), "two": ECKey.generate_key()}
    )
    claims: dict[str, object] = field(default_factory=dict)
    """What stands in tokens, on top of what has to."""
    spoilt: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    """Other answers by path: status, headers, body."""
    asked: list[str] = field(default_factory=list)
    """The paths that were asked for, in order."""
    state_sent: str | None = None
    """What a browser brings back instead of the state."""
    refusal: str | None = None
    polls: list[str] = field(default_factory=list)
    """The errors that device polls get before they get a token."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def said(self, **claims: object) -> dict[str, object]:
        """Put the claims of a token together; a claim of None is left out."""
        now = int(time.time())
        usual = {
            **{"iss": self.url, "aud": CLIENT, "sub": "u-1", "iat": now, "exp": now + 300},
            **{"email": "ann@example.org", "email_verified": True, "groups": ["devs"]},
        }
        whole = {**usual, **self.claims, **claims}
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, kid: str = "one", **claims: object) -> str:
        """Sign a token."""
        key = self.keys[kid]
        alg = "RS256" if isinstance(key, RSAKey) else "ES256"
        return jwt.encode({"alg": alg, "kid": kid}, self.said(**claims), key, [alg])

    def answer(self, path: str, form: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Answer a request."""
        self.asked.append(path)
        if path in self.spoilt:
            return self.spoilt[path]
        if path == "/authorize":
            return 302, {"location": self._authorize(form)}, b""
        status, document = self._document(path, form)
        return status, {}, json.dumps(document).encode()

    def _document(self, path: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "device_authorization_endpoint": f"{self.url}/device",
            }
        if path == "/keys":
            published = [{**key.as_dict(private=False), "kid": k} for k, key in self.keys.items()]
            return 200, {"keys": published}
        if path == "/device":
            assert form["client_id"] == CLIENT
            return 200, {
                **{"device_code": "secret-code", "user_code": "WDJB-MJHT", "interval": 1},
                **{"verification_uri": f"{self.url}/enter", "expires_in": 300},
            }
        return self._redeemed(form) if path == "/token" else (404, {})

    def _authorize(self, form: Mapping[str, str]) -> str:
        assert form["code_challenge_method"] == "S256"
        assert form["redirect_uri"].startswith("http://127.0.0.1:")
        self.codes["a-code"] = dict(form)
        sent = {"state": self.state_sent or form["state"]}
        sent |= {"error": self.refusal} if self.refusal else {"code": "a-code"}
        return f"{form['redirect_uri']}?{urlencode(sent)}"

    def _redeemed(self, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"])
            challenge = unpadded(hashlib.sha256(form["code_verifier"].encode()).digest())
            if (
                challenge != asked["code_challenge"]
                or form["redirect_uri"] != asked["redirect_uri"]
            ):
                return 400, {"error": "invalid_grant"}
            nonce = self.claims.get("nonce", asked["nonce"])
            return 200, {"id_token": self.token(nonce=nonce), "access_token": "unused"}
        assert form["device_code"] == "secret-code"
        if self.polls:
            return 400, {"error": self.polls.pop(0)}
        return 200, {"id_token": self.token(), "access_token": "unused"}


@contextmanager
def running() -> Iterator[Idp]:
    """Serve an issuer on a free port for as long as the block runs."""
    idp = Idp()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            self._answer(asked.path, asked.query)

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", "0"))
            self._answer(urlsplit(self.path).path, self.rfile.read(length).decode())

        def _answer(self, path: str, form: str) -> None:
            given = {name: values[0] for name, values in parse_qs(form).items()}
            status, headers, body = idp.answer(path, given)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

        def handle(self) -> None:
            # Who asked for too much has hung up.
            with suppress(ConnectionError):
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    idp.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield idp
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
