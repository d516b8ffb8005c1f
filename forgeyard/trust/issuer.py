"""An OpenID issuer as it answers over HTTP: what it says of itself, and small JSON documents.

Bounded in size and time. It follows no redirect, takes no proxy, and refuses addresses where
clouds hand out credentials: those that a name leads to before, and the one it spoke to after.
"""

import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

import httpx

from forgeyard import clock
from forgeyard.errors import Unavailable
from forgeyard.trust.destinations import checked_issuer, demand_open

WELL_KNOWN: Final = "/.well-known/openid-configuration"
LARGEST: Final = 256 * 1024
WHOLE_S: Final = 10.0
STEP_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Where an issuer does what; empty where it does not say."""

    issuer: str
    keys_url: str
    authorization_url: str
    token_url: str
    device_url: str


def describe(issuer: str) -> Metadata:
    """Ask an issuer what it says of itself.

    Raises:
        Unavailable: it does not answer as an issuer does, or speaks for another one.
        Forbidden: it lies where no issuer does.
        InvalidRequest: an address that it names is not safe.
    """
    said = fetch(f"{issuer.rstrip('/')}{WELL_KNOWN}")
    if said.get("issuer") != issuer:
        raise Unavailable(
            f"{issuer} says that it is another issuer", field="issuer", value=said.get("issuer")
        )
    return Metadata(
        issuer=issuer,
        keys_url=_address(said, "jwks_uri"),
        authorization_url=_address(said, "authorization_endpoint"),
        token_url=_address(said, "token_endpoint"),
        device_url=_address(said, "device_authorization_endpoint"),
    )


def _address(said: Mapping[str, object], name: str) -> str:
    found = said.get(name)
    return checked_issuer(found) if isinstance(found, str) and found else ""


def fetch(url: str) -> dict[str, object]:
    """Get a small JSON object.

    Raises:
        Unavailable: nothing answers with one.
        Forbidden: it lies where no issuer does.
    """
    status, said = _ask("GET", url, None)
    if status != HTTPStatus.OK:
        raise Unavailable(f"{url} answered {status}", field="issuer", value=url)
    return said


def send(url: str, form: Mapping[str, str]) -> tuple[int, dict[str, object]]:
    """Send a form; return the status and the JSON object that came back, error or not.

    Raises:
        Unavailable: nothing answers with one.
        Forbidden: it lies where no issuer does.
    """
    return _ask("POST", url, form)


def _ask(method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, dict[str, object]]:
    checked_issuer(url)
    asked = httpx.URL(url)
    try:
        found = socket.getaddrinfo(asked.host, asked.port or 443, type=socket.SOCK_STREAM)
        for *_, where in found:
            demand_open(str(where[0]))
        # The certificates that this machine trusts, a company's own among them.
        verify = ssl.create_default_context() if asked.scheme == "https" else False
        with (
            httpx.Client(verify=verify, timeout=STEP_S, trust_env=False) as client,
            client.stream(method, url, data=form, headers={"Accept": "application/json"}) as answer,
        ):
            # A name may lead elsewhere the second time.
            stream = answer.extensions["network_stream"]
            demand_open(str(stream.get_extra_info("server_addr")[0]))
            body = _body(answer, url)
    except (OSError, httpx.HTTPError) as error:
        raise Unavailable(f"{url}: {error}", field="issuer", value=url) from error
    return answer.status_code, _object(body, url)


def _body(answer: httpx.Response, url: str) -> bytes:
    until, body = clock.monotonic() + WHOLE_S, b""
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > LARGEST or clock.monotonic() > until:
            raise Unavailable(
                f"{url} answers too much or too slowly",
                field="issuer",
                value=url,
                allowed=f"{LARGEST} bytes in {WHOLE_S:.0f} s",
            )
    return body


def _object(body: bytes, url: str) -> dict[str, object]:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"{url} does not answer with a JSON object", field="issuer", value=url)
    return cast("dict[str, object]", found)
