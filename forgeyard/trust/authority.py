"""The folder of the internal authority: a root that should be kept away, and issuing ones.

    root.crt  root.key          the root; its key is needed to rotate only, and may lie elsewhere
    issuing/0001.crt  .key      authorities that sign runners and servers; the newest one signs
    server.crt  server.key      the agent API's own certificate with its chain

What a newer issuing authority replaces stays trusted until it ends, so that nobody is cut off.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from forgeyard import entropy
from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.trust import certificates, keys
from forgeyard.trust.certificates import Certificate, Signer
from forgeyard.trust.keys import PublicKey

ROOT_LASTS: Final = timedelta(days=3650)
ISSUING_LASTS: Final = timedelta(days=365)
SERVER_LASTS: Final = timedelta(days=90)
_DOMAIN: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """One issuing authority: its number, its certificate, and where its key lies."""

    number: int
    certificate: Certificate
    key_file: Path


class Authority:
    """The internal authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def root_key_file(self) -> Path:
        """Tell where the root's key is made; it may be taken away."""
        return self.folder / "root.key"

    def create(self, domain: str, *, now: datetime) -> None:
        """Make a root and the first issuing authority.

        Raises:
            InvalidRequest: the trust domain is not written like a host name.
            Conflict: there is an authority here.
        """
        if len(domain) > 50 or not _DOMAIN.fullmatch(domain):
            raise InvalidRequest(
                f"{domain} is no trust domain",
                field="domain",
                value=domain,
                allowed="a name such as ci.example.org, at most 50 characters",
            )
        if self._root_file.exists():
            raise Conflict(
                f"there is an authority in {self.folder}",
                field="folder",
                value=str(self.folder),
                allowed="an empty folder, or `ca rotate`",
            )
        (self.folder / "issuing").mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        key = keys.new_key()
        keys.save_key(self.root_key_file, key)
        root = certificates.root(key, domain, now=now, lasts=ROOT_LASTS)
        self._root_file.write_bytes(certificates.written([root]))
        self._issue(Signer(certificate=root, key=key), domain, 1, now=now)

    def rotate(self, root_key: Path | None, *, now: datetime) -> Issuing:
        """Make a new issuing authority, which signs from now on; older ones stay trusted.

        Raises:
            NotFound: there is no authority, or no key of its root.
            InvalidRequest: the key is not the root's.
        """
        root = self.root()
        path = root_key or self.root_key_file
        key = keys.load_key(path)
        if keys.pin_of(key.public_key()) != self.pin():
            raise InvalidRequest(
                f"{path} is not the key of this root",
                field="root_key",
                value=str(path),
                allowed=f"the key named {self.pin()}",
            )
        newest = max((one.number for one in self._issuing_files()), default=0)
        signer = Signer(certificate=root, key=key)
        return self._issue(signer, self.domain(), newest + 1, now=now)

    def _issue(self, by: Signer, domain: str, number: int, *, now: datetime) -> Issuing:
        key = keys.new_key()
        made = certificates.intermediate(
            key.public_key(), domain, number, by=by, now=now, lasts=ISSUING_LASTS
        )
        place = self.folder / "issuing" / f"{number:04}"
        keys.save_key(place.with_suffix(".key"), key)
        place.with_suffix(".crt").write_bytes(certificates.written([made]))
        return Issuing(number=number, certificate=made, key_file=place.with_suffix(".key"))

    def root(self) -> Certificate:
        """Read the root.

        Raises:
            NotFound: there is no authority here.
        """
        if not self._root_file.exists():
            raise NotFound(
                f"there is no authority in {self.folder}; `forgeyard ca init` makes one",
                field="folder",
                value=str(self.folder),
            )
        return certificates.read(self._root_file.read_bytes(), str(self._root_file))[0]

    def domain(self) -> str:
        """Tell the trust domain."""
        common = self.root().subject.rdns[-1].rfc4514_string().partition("=")[2]
        return common.removesuffix(" root")

    def pin(self) -> str:
        """Name the root's key, for who connects for the first time."""
        return keys.pin_of(certificates.public_key(self.root()))

    def issuing(self, *, now: datetime) -> tuple[Issuing, ...]:
        """List the issuing authorities that are good now, the newest first."""
        good = (one for one in self._issuing_files() if now < one.certificate.not_valid_after_utc)
        return tuple(sorted(good, key=lambda one: -one.number))

    def signer(self, *, now: datetime) -> Signer:
        """Give the authority that signs.

        Raises:
            NotFound: none is good any more.
        """
        good = self.issuing(now=now)
        if not good:
            raise NotFound("no issuing authority is good any more; `forgeyard ca rotate` makes one")
        return Signer(certificate=good[0].certificate, key=keys.load_key(good[0].key_file))

    def bundle(self, *, now: datetime) -> tuple[Certificate, ...]:
        """Give everything that is trusted: the root, then the issuing authorities, newest first."""
        return (self.root(), *(one.certificate for one in self.issuing(now=now)))

    def server(self, hosts: Sequence[str], *, now: datetime) -> tuple[Path, Path]:
        """Make a new key and certificate for the agent API; return where both lie.

        Raises:
            InvalidRequest: a host is neither a name nor an address.
            NotFound: there is no authority, or none that is good.
        """
        by, key = self.signer(now=now), keys.new_key()
        made = certificates.server(key.public_key(), hosts, by=by, now=now, lasts=SERVER_LASTS)
        chain, secret = self.folder / "server.crt", self.folder / "server.key"
        fresh = secret.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        keys.save_key(fresh, key)
        fresh.replace(secret)
        chain.write_bytes(certificates.written([made, by.certificate]))
        return chain, secret

    def client(
        self, key: PublicKey, runner_id: str, *, now: datetime, lasts: timedelta
    ) -> tuple[Certificate, Certificate]:
        """Sign a runner's certificate; return it and its issuer's."""
        by = self.signer(now=now)
        identity = f"spiffe://{self.domain()}/runner/{runner_id}"
        return certificates.client(key, identity, by=by, now=now, lasts=lasts), by.certificate

    def token_key(self) -> bytes:
        """Read the key that enrolment tokens are derived from, made when it is first needed.

        Raises:
            NotFound: there is no authority here.
        """
        self.root()
        path = self.folder / "tokens.key"
        with suppress(Conflict):
            if not path.exists():
                keys.save_private(path, entropy.token().encode())
        return keys.read_private(path)

    def server_files(self) -> tuple[Path, Path]:
        """Tell where the agent API's certificate with its chain, and its key, lie.

        Raises:
            NotFound: they were not made yet.
        """
        chain, secret = self.folder / "server.crt", self.folder / "server.key"
        if not chain.exists() or not secret.exists():
            raise NotFound(
                f"the agent API has no certificate in {self.folder};"
                " `forgeyard ca server HOST` makes one",
                field="folder",
                value=str(self.folder),
            )
        return chain, secret

    @property
    def _root_file(self) -> Path:
        return self.folder / "root.crt"

    def _issuing_files(self) -> list[Issuing]:
        return [
            Issuing(
                number=int(path.stem),
                certificate=certificates.read(path.read_bytes(), str(path))[0],
                key_file=path.with_suffix(".key"),
            )
            for path in sorted((self.folder / "issuing").glob("[0-9]*.crt"))
        ]
