"""Signatures over the records of images, checked by public keys that an operator gave.

Detached ones, as `openssl` and `cosign sign-blob` make them: Ed25519 over the bytes themselves, or
ECDSA on P-256 over their SHA-256. Which bytes a record is, is for who has the record.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from forgeyard.errors import InvalidRequest

VerifyingKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_MOST_PEM: Final = 64 * 1024
_FIELD: Final = "fleets.image_keys"


class ImageKeys:
    """The keys that sign images here, and whether every image has to be signed."""

    def __init__(self, keys: Mapping[str, VerifyingKey], *, is_required: bool = False) -> None:
        self._keys = keys
        self.is_required = is_required

    @property
    def names(self) -> tuple[str, ...]:
        """Name the keys."""
        return tuple(sorted(self._keys))

    def signer_of(self, content: bytes, signature: str) -> str | None:
        """Name the key that made a signature, in base64, over these bytes; `None`: none of ours."""
        try:
            made = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        return next((name for name in self.names if _fits(self._keys[name], made, content)), None)


NO_KEYS: Final = ImageKeys({})


def load(files: Mapping[str, str], *, is_required: bool) -> ImageKeys:
    """Read the public key of each name.

    Raises:
        InvalidRequest: a file cannot be read, or holds something else than a key of these kinds.
    """
    keys = {name: _key(name, Path(file)) for name, file in files.items()}
    return ImageKeys(keys, is_required=is_required)


def _key(name: str, file: Path) -> VerifyingKey:
    try:
        with file.open("rb") as stream:
            key = serialization.load_pem_public_key(stream.read(_MOST_PEM))
    except OSError as error:
        raise _refused(name, file, error.strerror or "it cannot be read") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused(name, file, "it holds no public key that can be read") from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise _refused(name, file, "it holds a key of another kind")


def _refused(name: str, file: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the key {name} of images: {why}",
        field=_FIELD,
        value=file,
        allowed="PEM of one public key, Ed25519 or ECDSA on P-256",
    )


def _fits(key: VerifyingKey, signature: bytes, content: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
