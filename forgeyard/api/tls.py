"""The agents' listener under TLS: asks for a client certificate, and hands it to the application.

The server does the verifying, as its TLS library does it; what it does not do is tell the
application who came. A client without a certificate gets in as far as the gate, which lets it ask
for one and nothing else; a client with a wrong one does not get in.
"""

import asyncio
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
from uvicorn.protocols.http.h11_impl import H11Protocol

from forgeyard.addresses import LOOPBACK
from forgeyard.api.agent_callers import CERTIFICATE
from forgeyard.api.trust import Trust
from forgeyard.config import Config
from forgeyard.errors import InvalidRequest, Unavailable
from forgeyard.trust.keys import read_private

PROBED: Final = "/agent/v1/sessions"
PROBE_S: Final = 10.0
PROBE_PAUSE_S: Final = 0.5
LEAST_SECRET: Final = 32


class CertifiedProtocol(H11Protocol):
    """HTTP/1.1 that puts the client's certificate into the state of every request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the certificate from the connection, which TLS has verified."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        found = transport.get_extra_info("ssl_object")
        der = found.getpeercert(binary_form=True) if isinstance(found, ssl.SSLObject) else None
        self.app_state = {**self.app_state, CERTIFICATE: der}


class AgentTls:
    """The context of the listener, which takes up new files while it is in use."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._seen: tuple[object, ...] = ()
        self._trusted = ""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = ssl.CERT_OPTIONAL

    def refresh(self, trusted: str) -> None:
        """Take up the server's certificate and what is trusted, if either has changed.

        Raises:
            Unavailable: a file cannot be read, or key and certificate are not of one pair.
        """
        try:
            mark = tuple((path.stat().st_mtime_ns, path.stat().st_ino) for path in self._files)
            if mark != self._seen:
                self.context.load_cert_chain(self._chain, self._key)
                self._seen = mark
            if trusted != self._trusted:
                self.context.load_verify_locations(cadata=trusted)
                self._trusted = trusted
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"the agents' listener has no certificate: {error}") from error

    @property
    def _files(self) -> tuple[Path, Path]:
        return (self._chain, self._key)


def agent_tls(config: Config) -> AgentTls | None:
    """Make the context of the agents' listener, if they prove themselves by certificates.

    Raises:
        InvalidRequest: others than this host or its front would reach a listener without TLS.
        NotFound: there is no authority, or no certificate for the listener.
    """
    if config.api.agent_identity == "certificate":
        trust = Trust(config)
        tls = AgentTls(*trust.authority.server_files())
        tls.refresh(trust.trusted())
        return tls
    _demand_loopback(config)
    if config.api.agent_identity == "front":
        Trust(config).trusted()
        front_secret(config)
    return None


def _demand_loopback(config: Config) -> None:
    """Insist that nobody from elsewhere reaches a listener without TLS."""
    if config.api.agent_host in LOOPBACK:
        return
    here = f"one of {', '.join(sorted(LOOPBACK))} as api.agent_host"
    if config.api.agent_identity == "front":
        raise InvalidRequest(
            "a listener behind a front must be out of reach for everybody else",
            field="api.agent_host",
            value=config.api.agent_host,
            allowed=here,
        )
    raise InvalidRequest(
        "agents on other machines must not come with the token, which opens everything;"
        " make an authority: `forgeyard ca init`, `forgeyard ca server HOST`",
        field="api.agent_identity",
        value="token",
        allowed=f"certificate, or {here}",
    )


def front_secret(config: Config) -> bytes:
    """Read what a TLS front sends along.

    Raises:
        InvalidRequest: none is configured, or it is too short.
        NotFound: there is no such file.
        Forbidden: others may read it.
    """
    file = config.api.front_secret_file
    secret = read_private(Path(file)).strip() if file else b""
    if len(secret) < LEAST_SECRET:
        raise InvalidRequest(
            "a front has to prove itself",
            field="api.front_secret_file",
            value=file or None,
            allowed=f"a 0600 file of {LEAST_SECRET} characters or more",
        )
    return secret


async def demand_closed(url: str, stop: asyncio.Event) -> None:
    """Insist that a request without a certificate is refused where one is needed; ask till told.

    Raises:
        Unavailable: it is served; nobody may be served like that.
    """
    async with httpx.AsyncClient(verify=False, timeout=PROBE_S, trust_env=False) as nobody:
        while not stop.is_set():
            try:
                answer = await nobody.post(f"{url}{PROBED}", json={})
            except httpx.HTTPError:
                # Who does not answer serves nobody.
                await asyncio.sleep(PROBE_PAUSE_S)
                continue
            if answer.status_code == HTTPStatus.UNAUTHORIZED:
                return
            raise Unavailable(
                f"{url} answers {answer.status_code} to who has no certificate: not serving agents"
            )
