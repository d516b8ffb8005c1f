"""Who a client certificate says that somebody is; the TLS layer has verified its chain."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from forgeyard.errors import Unauthenticated

_PATH: Final = "/runner/"
_SCHEME: Final = "spiffe://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerIdentity:
    """A runner, as its certificate names it."""

    runner_id: str
    serial: str
    """The certificate's own number, in hexadecimal digits."""
    ends: datetime


@lru_cache(maxsize=65_536)
def identity_in(der: bytes) -> RunnerIdentity:
    """Read the identity out of a certificate; remembered, for each request asks.

    Raises:
        Unauthenticated: it is not the certificate of a runner.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise _unfit() from error
    if ExtendedKeyUsageOID.CLIENT_AUTH not in uses or len(found) != 1:
        raise _unfit()
    domain, path, runner_id = found[0].removeprefix(_SCHEME).partition(_PATH)
    if not (found[0].startswith(_SCHEME) and domain and path and runner_id):
        raise _unfit()
    return RunnerIdentity(
        runner_id=runner_id,
        serial=serial_of(certificate),
        ends=certificate.not_valid_after_utc,
    )


def serial_of(certificate: x509.Certificate) -> str:
    """Write a certificate's number the one way it is stored."""
    return f"{certificate.serial_number:x}"


def _unfit() -> Unauthenticated:
    return Unauthenticated(
        "the certificate is not that of a runner",
        field="certificate",
        allowed="one that an enrolment gave",
    )
