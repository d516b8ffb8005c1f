"""Agents that come through a TLS front, such as Caddy: its headers are believed on its word alone.

The front demands and verifies certificates and passes each one on whole. Every server that was
tried lets forged headers of this kind through, so that they count only with a secret that the
front adds, on a listener that other machines cannot reach; and the authority's signature on the
certificate is checked once more here.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard.api.agent_callers import CERTIFICATE
from forgeyard.trust.certificates import Certificate

SECRET: Final = "Forgeyard-Front"
SHOWN: Final = "Forgeyard-Certificate"
LONGEST: Final = 16 * 1024


class FrontHeaders:
    """Take the certificate that a front passes on, if it is the front that does."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        secret: bytes,
        issuing: Callable[[], tuple[Certificate, ...]],
    ) -> None:
        self._app = app
        self._secret = secret
        self._issuing = issuing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its certificate if it has one that counts."""
        if scope["type"] == "http":
            scope["state"][CERTIFICATE] = self._shown(Headers(scope=scope))
        await self._app(scope, receive, send)

    def _shown(self, headers: Headers) -> bytes | None:
        given = headers.get(SECRET, "").encode()
        text = headers.get(SHOWN, "")
        if not hmac.compare_digest(given, self._secret) or not 0 < len(text) <= LONGEST:
            return None
        try:
            der = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return None
        return der if is_ours(der, self._issuing()) else None


@lru_cache(maxsize=65_536)
def is_ours(der: bytes, issuing: tuple[Certificate, ...]) -> bool:
    """Tell whether one of our authorities signed a certificate; remembered for each request."""
    try:
        certificate = x509.load_der_x509_certificate(der)
    except ValueError:
        return False
    for authority in issuing:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False
