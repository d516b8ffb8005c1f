"""Gets an ID token from an OpenID issuer: in a browser here, or by a code typed in elsewhere.

A public client: there is no secret of the client that a command line could keep.
"""

import base64
import hashlib
import hmac
import time
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from forgeyard import clock, entropy
from forgeyard.cli import output
from forgeyard.cli.client import shaped
from forgeyard.errors import Corrupt, Forbidden, Rejected, Unavailable
from forgeyard.trust import issuer
from forgeyard.trust.destinations import checked_issuer
from forgeyard.trust.issuer import Metadata

SCOPE: Final = "openid profile email"
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
WAIT_S: Final = 300.0
LONGEST_WAIT_S: Final = 1_800
SLOWER_S: Final = 5
MOST_PAUSE_S: Final = 60
IDLE_S: Final = 2.0
BACK: Final = "/callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """An ID token, and the nonce that has to be in it if one was asked for."""

    id_token: str
    nonce: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What an issuer answers who wants to sign on by a code."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str = ""
    interval: int = 5


def by_browser(metadata: Metadata, client_id: str, *, wait_s: float = WAIT_S) -> Proof:
    """Sign on in a browser on this host, by authorization code and PKCE.

    Raises:
        Forbidden: the issuer refused, or the answer was not to this login.
        Unavailable: nobody signed on in time, or the issuer does not answer.
    """
    state, nonce, verifier = entropy.token(), entropy.token(), entropy.token()
    with _Listener() as listener:
        asked = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": listener.url,
            "scope": SCOPE,
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        start = _with_query(_offered(metadata.authorization_url, "browser"), asked)
        output.say(f"sign on in a browser on this host: {start}")
        webbrowser.open(start)
        answer = listener.wait(wait_s)
        if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
            raise Forbidden("the answer belongs to another login: the state differs", field="state")
        if "code" not in answer:
            raise _refused(answer.get("error", "no code"))
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": listener.url,
            "client_id": client_id,
            "code_verifier": verifier,
        }
        status, said = issuer.send(_offered(metadata.token_url, "token"), form)
    if status != HTTPStatus.OK:
        raise _refused(str(said.get("error", status)))
    return Proof(id_token=_id_token(said), nonce=nonce)


def by_device(
    metadata: Metadata, client_id: str, *, sleep: Callable[[float], None] = time.sleep
) -> Proof:
    """Sign on with a code that is typed in on any machine (RFC 8628).

    Raises:
        Forbidden: the issuer refused, or whoever was asked did.
        Unavailable: nobody signed on in time, or the issuer does not answer.
    """
    url = _offered(metadata.device_url, "device")
    status, said = issuer.send(url, {"client_id": client_id, "scope": SCOPE})
    if status != HTTPStatus.OK:
        raise _refused(str(said.get("error", status)))
    code = shaped(DeviceCode, said)
    page = checked_issuer(code.verification_uri_complete or code.verification_uri)
    output.say(f"open {page} on any machine and enter {code.user_code}")
    token_url = _offered(metadata.token_url, "token")
    form = {"grant_type": DEVICE_GRANT, "device_code": code.device_code, "client_id": client_id}
    pause, until = max(1, code.interval), min(code.expires_in, LONGEST_WAIT_S) + clock.monotonic()
    while clock.monotonic() < until:
        sleep(min(pause, MOST_PAUSE_S))
        status, said = issuer.send(token_url, form)
        if status == HTTPStatus.OK:
            return Proof(id_token=_id_token(said))
        why = str(said.get("error", status))
        if why == "slow_down":
            pause += SLOWER_S
        elif why != "authorization_pending":
            raise _refused(why)
    raise Unavailable("nobody signed on in time", field="device")


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _with_query(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(asked)}"


def _offered(url: str, flow: str) -> str:
    if not url:
        raise Rejected(f"the issuer offers no {flow} login", field="issuer")
    return url


def _id_token(said: Mapping[str, object]) -> str:
    found = said.get("id_token")
    if not isinstance(found, str):
        raise Corrupt("the issuer sent no ID token", field="id_token")
    return found


def _refused(why: str) -> Forbidden:
    return Forbidden(f"the issuer refused the login: {why}", field="issuer", value=why)


class _Listener(HTTPServer):
    """Waits on this host alone for the one answer that a browser brings back."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: dict[str, str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{BACK}"

    def wait(self, wait_s: float) -> dict[str, str]:
        until = clock.monotonic() + wait_s
        while self.answer is None:
            left = until - clock.monotonic()
            if left <= 0:
                raise Unavailable("nobody signed on in time", field="oidc")
            self.timeout = left
            self.handle_request()
        return self.answer

    def keep(self, query: str) -> None:
        found = parse_qs(query, max_num_fields=20)
        self.answer = {name: values[0] for name, values in found.items()}


class _Handler(BaseHTTPRequestHandler):
    """Takes the answer out of the address; a connection that says nothing is not waited for."""

    timeout = IDLE_S

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        is_answer = asked.path == BACK and isinstance(self.server, _Listener)
        self.send_response(HTTPStatus.OK if is_answer else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if is_answer and isinstance(self.server, _Listener):
            self.server.keep(asked.query)
            self.wfile.write(b"You may close this page and go back to the command line.\n")

    def log_message(self, format: str, *args: object) -> None:
        """Keep the code out of the terminal."""
