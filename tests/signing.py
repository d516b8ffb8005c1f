"""Keys that sign records of images, as an operator and a builder have them."""

import base64
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def sign(key: SigningKey, content: bytes) -> str:
    """Make a detached signature, in base64."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        made = key.sign(content)
    else:
        made = key.sign(content, ec.ECDSA(hashes.SHA256()))
    return base64.b64encode(made).decode()


def public_file(folder: Path, name: str, key: SigningKey) -> str:
    """Write the public half where a configuration may point at it."""
    file = folder / f"{name}.pem"
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    file.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, spki))
    return str(file)
