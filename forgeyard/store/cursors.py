"""Cursors that readers of logs carry from page to page: how much of each attempt they have.

Opaque to the reader, bounded, and refused unless well formed; nothing secret is in one.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forgeyard.errors import InvalidRequest

_KEY = 6
_MAX_CURSOR = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How much of one attempt's log a reader has."""

    sequence: int = -1
    size: int = 0


def key(attempt_id: str) -> bytes:
    """Shorten an attempt's id, for a cursor with a thousand of them must fit in a URL."""
    return hashlib.sha256(attempt_id.encode()).digest()[:_KEY]


def write(marks: Mapping[bytes, Seen]) -> str:
    parts = (key + _number(seen.sequence + 1) + _number(seen.size) for key, seen in marks.items())
    return base64.urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")


def read(text: str | None) -> dict[bytes, Seen]:
    if not text:
        return {}
    try:
        if len(text) > _MAX_CURSOR:
            raise ValueError("too long")
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return dict(_marks(data))
    except (ValueError, IndexError, binascii.Error):
        raise InvalidRequest(
            "after: not a cursor",
            field="after",
            value=ascii(text),
            allowed="the `next` of an earlier answer",
        ) from None


def _marks(data: bytes) -> Iterator[tuple[bytes, Seen]]:
    at = 0
    while at < len(data):
        key = data[at : at + _KEY]
        sequence, at = _take_number(data, at + _KEY)
        size, at = _take_number(data, at)
        yield key, Seen(sequence=sequence - 1, size=size)


def _number(value: int) -> bytes:
    """Write a number in groups of seven bits, the last without the high bit."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _take_number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(9):
        value |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            return value, at + place + 1
    raise ValueError("a number is too long")
