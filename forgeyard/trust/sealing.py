"""Keys that seal what passes through other people's servers: AES-256-GCM, several at a time.

A key is named by a digest of itself, so that a name never fits another key. The file holds one key
a line, the oldest first: the newest seals, all of them open.
"""

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from forgeyard import entropy
from forgeyard.errors import ForgeyardError, InvalidFile, UnreadablePayload
from forgeyard.trust.keys import read_private, save_private

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MOST_KEYS: Final = 100
_CONTEXT: Final = b"forgeyard sealed payload 1 "
_NAMED: Final = b"forgeyard sealing key 1 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What only a holder of the key that is named can read."""

    key_id: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """Keys by name, the oldest first."""

    keys: dict[str, bytes] = field(repr=False)

    def ids(self) -> tuple[str, ...]:
        """Name the keys, the oldest first; the last one seals."""
        return tuple(self.keys)

    def seal(self, content: bytes) -> Sealed:
        """Seal with the newest key."""
        name, key = next(reversed(self.keys.items()))
        nonce = entropy.secret(NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, content, _CONTEXT + name.encode())
        return Sealed(key_id=name, content=nonce + sealed)

    def open(self, sealed: Sealed) -> bytes:
        """Open what any of the keys has sealed.

        Raises:
            UnreadablePayload: none of the keys has, or it was changed since.
        """
        key = self.keys.get(sealed.key_id)
        if key is None:
            raise UnreadablePayload(
                f"sealed with the key {sealed.key_id!r}, which is not in the file of keys",
                field="key",
                value=sealed.key_id,
                allowed=", ".join(self.keys),
            )
        nonce, content = sealed.content[:NONCE_BYTES], sealed.content[NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, content, _CONTEXT + sealed.key_id.encode())
        except (InvalidTag, ValueError) as error:
            raise UnreadablePayload(
                f"was changed after the key {sealed.key_id} sealed it", field="payload"
            ) from error


class KeyFile:
    """A keyring on disk that is read again when a key is missing and the file has changed.

    So the processes of a system take up a new key one after the other, without a restart.
    """

    def __init__(self, path: Path) -> None:
        """Read the keys.

        Raises:
            NotFound: there is no such file.
            Forbidden: others than its owner may read it.
            InvalidFile: it holds no keys, or something else.
        """
        self._path = path
        self._seen = _state(path)
        self.keyring = read_keys(path)

    def open(self, sealed: Sealed) -> bytes:
        """Open what any of the keys has sealed, those included that were added meanwhile.

        Raises:
            UnreadablePayload: none of the keys has, or it was changed since.
        """
        if sealed.key_id not in self.keyring.keys:
            self._read_again()
        return self.keyring.open(sealed)

    def _read_again(self) -> None:
        found = _state(self._path)
        if found == self._seen:
            return
        try:
            self.keyring = read_keys(self._path)
        except ForgeyardError:
            return  # half replaced; the keys that we have stay good
        self._seen = found


def add_key(path: Path) -> str:
    """Append a new key to a file, which is made if there is none; return the key's name.

    Raises:
        Forbidden: others than its owner may read it.
        InvalidFile: it holds something else than keys, or as many as there may be.
    """
    key = entropy.secret(KEY_BYTES)
    line = base64.b64encode(key) + b"\n"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_private(path, line)
        return name_of(key)
    if len(read_keys(path).keys) >= MOST_KEYS:
        raise InvalidFile(
            f"{path} holds {MOST_KEYS} keys; take the oldest out", field="codec_keys_file"
        )
    before = read_private(path)
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    save_private(draft, before + (b"" if before.endswith(b"\n") else b"\n") + line)
    draft.replace(path)
    return name_of(key)


def read_keys(path: Path) -> Keyring:
    """Read a file of keys; what begins with # and empty lines are passed over.

    Raises:
        NotFound: there is no such file.
        Forbidden: others than its owner may read it.
        InvalidFile: it holds no keys, or something else.
    """
    lines = [line.strip() for line in read_private(path).splitlines()]
    keys = [
        _key(line, path, number)
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith(b"#")
    ]
    if not 0 < len(keys) <= MOST_KEYS:
        raise InvalidFile(
            f"{path} holds {len(keys)} keys",
            field="codec_keys_file",
            file=str(path),
            allowed=f"1 to {MOST_KEYS} keys, one a line",
        )
    return Keyring(keys={name_of(key): key for key in keys})


def name_of(key: bytes) -> str:
    """Name a key by a digest of it, which tells nothing of it."""
    return hashlib.sha256(_NAMED + key).hexdigest()[:16]


def _key(line: bytes, path: Path, number: int) -> bytes:
    """Read one line; what stands there is never told, for it may nearly be a key."""
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidFile(
            f"{path}, line {number}: no key",
            field="codec_keys_file",
            file=str(path),
            line=number,
            allowed="lines that `forgeyard codec new-key` writes",
        )
    return key


def _state(path: Path) -> tuple[int, int, int] | None:
    """Tell one content of a file from another by what the file system knows."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
