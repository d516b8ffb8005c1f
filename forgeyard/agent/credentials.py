"""What a machine proves itself with: a key that was made here, its certificate, and whom to trust.

    identity/identity.json   key, certificate, authorities and name, written as one
    identity/next-ID.key     a key that was sent off; until the answer is here it must not change

Everything is readable by the agent's user alone; jobs never see the folder.
"""

import json
import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from pydantic import TypeAdapter, ValidationError

from forgeyard.errors import Conflict, Corrupt
from forgeyard.model.enrolment import Identity
from forgeyard.trust import certificates, keys
from forgeyard.trust.keys import PrivateKey

FOLDER: Final = "identity"
_PRIVATE: Final = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An identity together with its private key, which never shows up in a traceback."""

    runner_name: str
    certificate: str
    authorities: str
    generation: int
    enrolment: str
    """Which token it came by; another one means that this machine is to be enrolled anew."""
    key: str = field(repr=False)

    @property
    def begins(self) -> datetime:
        """Tell from when on the certificate is good."""
        return self._own().not_valid_before_utc

    @property
    def ends(self) -> datetime:
        """Tell when it is over."""
        return self._own().not_valid_after_utc

    def _own(self) -> certificates.Certificate:
        return certificates.read(self.certificate.encode(), "the certificate of this runner")[0]

    def context(self) -> ssl.SSLContext:
        """Make connections that show the certificate, to servers of this authority alone."""
        context = trusting(self.authorities)
        # The library reads keys from files only.
        with NamedTemporaryFile("w", encoding="ascii") as file:
            file.write(self.key + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def trusting(authorities: str) -> ssl.SSLContext:
    """Make connections to servers whose certificate the root of this bundle stands for."""
    root = certificates.read(authorities.encode(), "the authorities")[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=certificates.written([root]).decode())
    return context


def trusting_nobody() -> ssl.SSLContext:
    """Connect to whoever answers: only for what is compared with a pin before it is believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def root_pin(authorities: str) -> str:
    """Name the key of the root in a bundle.

    Raises:
        Corrupt: there is no certificate in it.
    """
    bundle: Sequence[certificates.Certificate] = certificates.read(
        authorities.encode(), "the answer of the server"
    )
    return keys.pin_of(certificates.public_key(bundle[0]))


class Wallet:
    """The folder of the credentials."""

    def __init__(self, work_dir: Path) -> None:
        self._folder = work_dir / FOLDER

    def open(self) -> None:
        """Make the folder, for this user alone."""
        self._folder.mkdir(mode=_PRIVATE, exist_ok=True)
        self._folder.chmod(_PRIVATE)

    def stored(self) -> Credentials | None:
        """Read the credentials, if there are any.

        Raises:
            Corrupt: they cannot be read.
            Forbidden: others may read them.
        """
        if not self._file.exists():
            return None
        try:
            return _SHAPE.validate_json(keys.read_private(self._file))
        except ValidationError as error:
            raise Corrupt(f"{self._file} holds no identity") from error

    def next_key(self, enrolment: str) -> PrivateKey:
        """Give the key to ask for a certificate with: the same one until there is an answer."""
        path = self._folder / f"next-{enrolment}.key"
        with suppress(Conflict):
            if not path.exists():
                keys.save_key(path, keys.new_key())
        return keys.load_key(path)

    def store(self, identity: Identity, key: PrivateKey, enrolment: str) -> Credentials:
        """Keep an answer, whole or not at all."""
        made = Credentials(
            runner_name=identity.runner_name,
            certificate=identity.certificate,
            authorities=identity.authorities,
            generation=identity.generation,
            enrolment=enrolment,
            key=keys.written(key).decode(),
        )
        fresh = self._file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        keys.save_private(fresh, json.dumps(asdict(made)).encode())
        os.replace(fresh, self._file)
        for path in self._folder.glob("next-*.key"):
            path.unlink()
        return made

    @property
    def _file(self) -> Path:
        return self._folder / "identity.json"


_SHAPE: Final = TypeAdapter(Credentials)
