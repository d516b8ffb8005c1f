"""How every process connects to Temporal: over TLS, with credentials, its payloads sealed.

Files are read whenever a client is made; a process that lives on keeps what it read.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.runtime import Runtime
from temporalio.service import TLSConfig

from activities.encryption import EncryptionCodec
from forgeyard.config import TemporalConfig
from forgeyard.errors import Corrupt, Forbidden, NotFound
from forgeyard.trust import certificates
from forgeyard.trust.keys import read_private
from forgeyard.trust.sealing import KeyFile

_LARGEST_BUNDLE: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is shown to the server, and what is demanded of it; no TLS means none of both."""

    tls: TLSConfig | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)


async def connect(config: TemporalConfig, *, runtime: Runtime | None = None) -> Client:
    """Connect to Temporal.

    Raises:
        RuntimeError: the server does not answer, or refuses our certificate.
        NotFound, Forbidden, Corrupt, InvalidFile: a file cannot be used.
    """
    return await connect_as(read_access(config), config, runtime=runtime)


async def connect_as(
    access: Access, config: TemporalConfig, *, runtime: Runtime | None = None
) -> Client:
    """Connect to Temporal with these credentials, whatever the configuration has."""
    return await Client.connect(
        config.address,
        namespace=config.namespace,
        api_key=access.api_key,
        tls=access.tls or False,
        data_converter=data_converter(config),
        runtime=runtime,
    )


async def connect_later(config: TemporalConfig) -> Client:
    """Make a client that connects when it is first used, so that its owner starts without.

    Raises:
        NotFound, Forbidden, Corrupt, InvalidFile: a file cannot be used.
    """
    access = read_access(config)
    return await Client.connect(
        config.address,
        namespace=config.namespace,
        api_key=access.api_key,
        tls=access.tls or False,
        data_converter=data_converter(config),
        lazy=True,
    )


def data_converter(config: TemporalConfig) -> DataConverter:
    """Write payloads as JSON, and seal them if there are keys: failures' texts included."""
    codec = payload_codec(config)
    if codec is None:
        return pydantic_data_converter
    return replace(
        pydantic_data_converter,
        payload_codec=codec,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


def payload_codec(config: TemporalConfig) -> EncryptionCodec | None:
    """Read the keys that seal payloads, if there are any."""
    file = config.codec_keys_file
    return EncryptionCodec(KeyFile(Path(file))) if file else None


def read_access(config: TemporalConfig) -> Access:
    """Read the files that the configuration names.

    Raises:
        NotFound: a file is missing.
        Forbidden: a file cannot be read, or one that holds a secret can be read by others.
        Corrupt: a file holds something else, or the key is another certificate's.
    """
    api_key = _api_key(Path(config.api_key_file)) if config.api_key_file else None
    if not (api_key or config.tls or config.ca_file or config.cert_file or config.server_name):
        return Access()
    shown = _shown(Path(config.cert_file), Path(config.key_file)) if config.cert_file else None
    return Access(
        api_key=api_key,
        tls=TLSConfig(
            server_root_ca_cert=_certificates(Path(config.ca_file)) if config.ca_file else None,
            domain=config.server_name or None,
            client_cert=shown[0] if shown else None,
            client_private_key=shown[1] if shown else None,
        ),
    )


def _api_key(path: Path) -> str:
    key = read_private(path).decode("ascii", errors="replace").strip()
    if not (key.isascii() and key.isprintable() and key):
        raise Forbidden(f"{path} holds no key", field="temporal.api_key_file", allowed="one line")
    return key


def _shown(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Read a certificate and its key, and see that they belong together."""
    chain, secret = _certificates(certificate), read_private(key)
    try:
        private = serialization.load_pem_private_key(secret, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Corrupt(f"{key} holds no private key: {error}") from error
    mine = certificates.read(chain, str(certificate))[0].public_key()
    if _written(private.public_key()) != _written(mine):
        raise Corrupt(f"the key in {key} is not the one of the certificate in {certificate}")
    return chain, secret


def _written(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _certificates(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BUNDLE)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}", field="path", value=str(path)) from error
    except OSError as error:
        raise Forbidden(f"cannot read {path}: {error.strerror}", field="path") from error
    certificates.read(content, str(path))
    return content
