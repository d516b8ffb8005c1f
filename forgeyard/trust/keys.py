"""Private keys on disk, readable by their owner alone, and the names of public ones."""

import base64
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from forgeyard.errors import Conflict, Corrupt, Forbidden, NotFound, TooLarge

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey
PIN: Final = "sha256/"
_MODE: Final = 0o600
_MOST: Final = 64 * 1024


def new_key() -> PrivateKey:
    """Make a key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def save_key(path: Path, key: PrivateKey) -> None:
    """Write a key that only its owner may read; an existing file is never overwritten.

    Raises:
        Conflict: there is a file of this name.
    """
    save_private(path, written(key))


def written(key: PrivateKey) -> bytes:
    """Write a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def save_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600, whole or not at all.

    Raises:
        Conflict: there is a file of this name.
    """
    beginning = path.with_name(f".{path.name}.part")
    with suppress(FileNotFoundError):
        beginning.unlink()
    descriptor = os.open(beginning, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link fails where a rename would overwrite.
        os.link(beginning, path)
    except FileExistsError as error:
        raise Conflict(
            f"{path} exists already", field="path", value=str(path), allowed="a new file"
        ) from error
    finally:
        beginning.unlink()


def load_key(path: Path) -> PrivateKey:
    """Read a key.

    Raises:
        NotFound: there is no such file.
        Forbidden: others than its owner may read it.
        Corrupt: it holds no P-256 key.
    """
    content = read_private(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"{path} holds no private key: {error}") from error
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)):
        raise Corrupt(f"{path} holds a key of another kind than P-256")
    return key


def read_private(path: Path) -> bytes:
    """Read a file that nobody but its owner may read.

    Raises:
        NotFound: there is no such file.
        Forbidden: others than its owner may read it, or this process may not.
        TooLarge: it is no file of keys.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise Forbidden(
                    f"others may read {path}", field="mode", value=f"{mode:04o}", allowed="0600"
                )
            content = file.read(_MOST + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}", field="path", value=str(path)) from error
    except OSError as error:
        raise Forbidden(f"cannot read {path}: {error.strerror}", field="path") from error
    if len(content) > _MOST:
        raise TooLarge(f"{path} is too large", field="path", allowed=f"at most {_MOST} bytes")
    return content


def public_bytes(key: PublicKey) -> bytes:
    """Write a public key as DER, which is what is compared and named."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def pin_of(key: PublicKey) -> str:
    """Name a public key by the SHA-256 of its DER, as browsers' pins did: `sha256/…`."""
    return PIN + base64.b64encode(hashlib.sha256(public_bytes(key)).digest()).decode()
