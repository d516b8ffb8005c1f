"""Signed messages (CMS, RFC 5652) out of hostile bytes: of the one form that AWS signs in.

One signer, SHA-256 with RSA over attributes, the content inside. `cryptography` checks no
signatures of such messages, and its ASN.1 reader takes no lengths left open, which these have.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

MOST_BYTES: Final = 8 * 1024
_DEEPEST: Final = 16
_CONSTRUCTED: Final = 0x20
_INTEGER, _OCTETS, _OBJECT, _SEQUENCE, _SET = 0x02, 0x04, 0x06, 0x30, 0x31
_FIRST, _SECOND = 0xA0, 0xA1  # what stands under [0] and [1]
_OPEN, _END = 0x80, b"\x00\x00"

# As they are encoded, without tag and length.
_DATA: Final = bytes.fromhex("2a864886f70d010701")
_SIGNED_DATA: Final = bytes.fromhex("2a864886f70d010702")
_CONTENT_TYPE: Final = bytes.fromhex("2a864886f70d010903")
_MESSAGE_DIGEST: Final = bytes.fromhex("2a864886f70d010904")
_SHA_256: Final = bytes.fromhex("608648016503040201")
_RSA: Final = frozenset(bytes.fromhex(f"2a864886f70d0101{kind}") for kind in ("01", "0b"))
"""rsaEncryption and sha256WithRSAEncryption: signers write either for the same thing."""


class UnreadableMessage(ValueError):
    """These bytes are no signed message of the form that is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage:
    """A message taken apart; nothing in it is true until its signature was checked."""

    content: bytes
    digest: bytes
    """What its attributes say is the SHA-256 of the content."""
    attributes: bytes
    """As they were signed."""
    signature: bytes

    def is_signed_by(self, key: rsa.RSAPublicKey) -> bool:
        """Tell whether the owner of this key signed the content."""
        if hashlib.sha256(self.content).digest() != self.digest:
            return False
        try:
            key.verify(self.signature, self.attributes, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """One value of ASN.1: a constructed one has parts, any other has a body."""

    tag: int
    whole: bytes
    body: bytes = b""
    parts: tuple["_Value", ...] = ()


def read(message: bytes) -> SignedMessage:
    """Take a message apart.

    Raises:
        UnreadableMessage: it is too long, no such message, or one of another form.
    """
    if len(message) > MOST_BYTES:
        raise UnreadableMessage("it is too long")
    outer, end = _value(message, 0, len(message), depth=0)
    if end != len(message):
        raise UnreadableMessage("something follows it")
    kind, inside = _parts(outer, _SEQUENCE, _OBJECT, _FIRST)
    _demand(kind, _SIGNED_DATA)
    (signed,) = _parts(inside, _FIRST, _SEQUENCE)
    # Certificates and revocations may come along; nobody asks the sender whom to trust.
    kept = tuple(part for part in signed.parts if part.tag not in (_FIRST, _SECOND))
    if tuple(part.tag for part in kept) != (_INTEGER, _SET, _SEQUENCE, _SET):
        raise UnreadableMessage("it has other parts")
    (signer,) = _parts(kept[3], _SET, _SEQUENCE)
    return _signed(_content(kept[2]), signer)


def _content(value: _Value) -> bytes:
    kind, inside = _parts(value, _SEQUENCE, _OBJECT, _FIRST)
    _demand(kind, _DATA)
    if len(inside.parts) != 1:
        raise UnreadableMessage("it has not one content")
    return _octets(inside.parts[0])


def _signed(content: bytes, signer: _Value) -> SignedMessage:
    _, _, digest, attributes, algorithm, signature = _parts(
        signer, _SEQUENCE, _INTEGER, _SEQUENCE, _SEQUENCE, _FIRST, _SEQUENCE, _OCTETS
    )
    _demand(_first(digest), _SHA_256)
    _demand(_first(algorithm), *_RSA)
    said = _attributes(attributes)
    if _CONTENT_TYPE not in said or _MESSAGE_DIGEST not in said:
        raise UnreadableMessage("it does not say what was signed")
    _demand(said[_CONTENT_TYPE], _DATA)
    return SignedMessage(
        content=content,
        digest=_octets(said[_MESSAGE_DIGEST]),
        # They are signed as the set that they are, and sent under another tag (RFC 5652 §5.4).
        attributes=bytes((_SET,)) + attributes.whole[1:],
        signature=signature.body,
    )


def _attributes(value: _Value) -> Mapping[bytes, _Value]:
    found: dict[bytes, _Value] = {}
    for attribute in value.parts:
        kind, values = _parts(attribute, _SEQUENCE, _OBJECT, _SET)
        if kind.body in found or len(values.parts) != 1:
            raise UnreadableMessage("an attribute is there twice")
        found[kind.body] = values.parts[0]
    return found


def _parts(value: _Value, tag: int, *tags: int) -> tuple[_Value, ...]:
    """Give the parts of a value, which have to be of these kinds."""
    if value.tag != tag or tuple(part.tag for part in value.parts) != tags:
        raise UnreadableMessage("it has other parts")
    return value.parts


def _first(value: _Value) -> _Value:
    if not value.parts:
        raise UnreadableMessage("it names no algorithm")
    return value.parts[0]


def _demand(value: _Value, *allowed: bytes) -> None:
    if value.tag != _OBJECT or value.body not in allowed:
        raise UnreadableMessage("it is of another kind, or signed in another way")


def _octets(value: _Value) -> bytes:
    """Read a string of bytes, which may come in pieces."""
    if value.tag == _OCTETS:
        return value.body
    if value.tag != _OCTETS | _CONSTRUCTED or any(one.tag != _OCTETS for one in value.parts):
        raise UnreadableMessage("it has other parts")
    return b"".join(one.body for one in value.parts)


def _value(data: bytes, at: int, end: int, *, depth: int) -> tuple[_Value, int]:
    """Read the value that begins here, and tell where it is over."""
    tag, length, start = _header(data, at, end)
    stop = end if length is None else start + length
    if stop > end or depth > _DEEPEST:
        raise UnreadableMessage("it ends too early, or is too deep")
    if not tag & _CONSTRUCTED:
        if length is None:
            raise UnreadableMessage("it has a length that may not be left open")
        return _Value(tag=tag, whole=data[at:stop], body=data[start:stop]), stop
    parts: list[_Value] = []
    here = start
    while here < stop:
        if length is None and data[here : min(here + 2, stop)] == _END:
            return _Value(tag=tag, whole=data[at : here + 2], parts=tuple(parts)), here + 2
        part, here = _value(data, here, stop, depth=depth + 1)
        parts.append(part)
    if length is None:
        raise UnreadableMessage("it ends too early")
    return _Value(tag=tag, whole=data[at:stop], parts=tuple(parts)), stop


def _header(data: bytes, at: int, end: int) -> tuple[int, int | None, int]:
    """Read tag and length, `None` if that is left open, and where the contents begin."""
    if end - at < 2:
        raise UnreadableMessage("it ends too early")
    tag, first = data[at], data[at + 1]
    start = at + 2
    if tag & 0x1F == 0x1F:
        raise UnreadableMessage("it has a tag that is not of this form")
    if first < _OPEN:
        return tag, first, start
    if first == _OPEN:
        return tag, None, start
    size = first & 0x7F
    if size > 2 or start + size > end:
        raise UnreadableMessage("it has a length that cannot be")
    return tag, int.from_bytes(data[start : start + size], "big"), start + size
