"""What stands in the certificates that the authority signs; nothing is taken from a request.

Of who asks for one only the public key enters. Subject, names, uses and lifetime are ours.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from forgeyard.errors import Corrupt, InvalidRequest
from forgeyard.trust.keys import PrivateKey, PublicKey

Certificate = x509.Certificate
SKEW: Final = timedelta(minutes=5)
"""So far back a certificate is valid, for clocks that are behind."""
_ORGANIZATION: Final = "Forgeyard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A certificate of an authority, and its key."""

    certificate: Certificate
    key: PrivateKey


def root(key: PrivateKey, domain: str, *, now: datetime, lasts: timedelta) -> Certificate:
    """Sign the certificate that everything else rests on; it signs one level of others."""
    name = _name(f"{domain} root")
    begun = _begun(name, name, key.public_key(), now=now, lasts=lasts)
    return _authority(begun, key.public_key(), key.public_key(), path_length=1).sign(
        key, hashes.SHA256()
    )


def intermediate(
    key: PublicKey, domain: str, number: int, *, by: Signer, now: datetime, lasts: timedelta
) -> Certificate:
    """Sign the certificate of the authority that is online; it signs no further authority."""
    name = _name(f"{domain} issuing {number}")
    begun = _begun(name, by.certificate.subject, key, now=now, lasts=lasts)
    return _authority(begun, key, by.key.public_key(), path_length=0).sign(by.key, hashes.SHA256())


def server(
    key: PublicKey, hosts: Sequence[str], *, by: Signer, now: datetime, lasts: timedelta
) -> Certificate:
    """Sign the certificate of a server that is reached by these names and addresses.

    Raises:
        InvalidRequest: there is no name, or one is neither a host name nor an address.
    """
    if not hosts:
        raise InvalidRequest("a server needs a name", field="hosts", allowed="one name or more")
    names = [_host(host) for host in hosts]
    return _leaf(key, hosts[0], names, ExtendedKeyUsageOID.SERVER_AUTH, by=by, now=now, lasts=lasts)


def client(
    key: PublicKey, identity: str, *, by: Signer, now: datetime, lasts: timedelta
) -> Certificate:
    """Sign the certificate of a runner, named by a URI such as `spiffe://domain/runner/ID`."""
    names = [x509.UniformResourceIdentifier(identity)]
    common = identity.rsplit("/", 1)[-1]
    return _leaf(key, common, names, ExtendedKeyUsageOID.CLIENT_AUTH, by=by, now=now, lasts=lasts)


def written(certificates: Collection[Certificate]) -> bytes:
    """Write certificates as PEM, one after the other."""
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def read(content: bytes, name: str) -> list[Certificate]:
    """Read the certificates in a PEM text.

    Raises:
        Corrupt: there is none, or one cannot be read.
    """
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise Corrupt(f"{name} holds no certificate: {error}") from error


def public_key(certificate: Certificate) -> PublicKey:
    """Give the key that a certificate is for.

    Raises:
        Corrupt: it is of another kind than ours.
    """
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Corrupt("the certificate is for a key of another kind than P-256")
    return key


def fingerprint(certificate: Certificate) -> str:
    """Name a certificate by the SHA-256 of its DER."""
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def _leaf(
    key: PublicKey,
    common_name: str,
    names: Sequence[x509.GeneralName],
    usage: x509.ObjectIdentifier,
    *,
    by: Signer,
    now: datetime,
    lasts: timedelta,
) -> Certificate:
    """Sign a certificate that signs nothing, for no longer than its signer is good for."""
    ends = min(now + lasts, by.certificate.not_valid_after_utc)
    begun = _begun(_name(common_name), by.certificate.subject, key, now=now, lasts=ends - now)
    return (
        begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_signed_by(by.key.public_key()), critical=False)
        .sign(by.key, hashes.SHA256())
    )


def _begun(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, *, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lasts)
    )


def _authority(
    begun: x509.CertificateBuilder, key: PublicKey, signer: PublicKey, *, path_length: int
) -> x509.CertificateBuilder:
    return (
        begun.add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_signed_by(signer), critical=False)
    )


def _signed_by(key: PublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common[:64]),
        ]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    plain = all(
        0 < len(label) <= 63 and label.replace("-", "a").isalnum() and label.isascii()
        for label in labels
    )
    if not plain or len(host) > 253:
        raise InvalidRequest(
            f"{host} is no host name", field="hosts", value=host, allowed="a DNS name or an address"
        )
    return x509.DNSName(host)
