"""Hides secret values in a stream of bytes, also where a value spans two pieces of it.

Hides the forms in which tools usually print a value: as it is, line by line, in base64, percent
and JSON escapes. Refuses to promise more: a job that wants to print a secret in disguise can.
"""

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator

MASK = b"***"
SHORTEST = 4
"""Shorter values would blank out ordinary text and are easily guessed; they are not secrets."""


def forms(value: str) -> frozenset[bytes]:
    """List the ways in which a value may appear in output."""
    raw = value.encode()
    whole = base64.b64encode(raw)[: len(raw) // 3 * 4]
    found = {
        raw,
        *raw.splitlines(),
        whole,
        whole.translate(bytes.maketrans(b"+/", b"-_")),
        urllib.parse.quote(value, safe="").encode(),
        json.dumps(value)[1:-1].encode(),
    }
    return frozenset(form for form in found if len(form) >= SHORTEST)


class Masker:
    """Masks one stream; holds back only what may be the beginning of a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(sorted({form for value in secrets for form in forms(value)}))
        self._firsts = frozenset(secret[0] for secret in self._secrets)
        self._longest = max((len(secret) for secret in self._secrets), default=0)
        self._held = b""
        self._covered = 0  # leading bytes of `_held` whose mask was printed already

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what can be shown by now."""
        if not self._secrets:
            return data
        self._held += data
        return self._show(self._safe_length())

    def flush(self) -> bytes:
        """End the stream, or a part of it; return the rest."""
        return self._show(len(self._held))

    def text(self, text: str) -> str:
        """Mask a text of its own, such as a message."""
        whole = Masker(())
        whole._secrets = self._secrets
        whole._held = text.encode()
        return whole.flush().decode(errors="replace")

    def _safe_length(self) -> int:
        """Find the earliest byte from which on a secret may have begun."""
        size = len(self._held)
        for start in range(max(0, size - self._longest + 1), size):
            if self._held[start] not in self._firsts:
                continue
            tail = self._held[start:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._secrets):
                return start
        return size

    def _show(self, end: int) -> bytes:
        if end == 0:
            return b""
        shown: list[bytes] = []
        at = covered = 0
        for start, stop in self._spans():
            if start >= end:
                break
            shown.append(self._held[at:start])
            if start > 0 or not self._covered:
                shown.append(MASK)
            at = min(stop, end)
            covered = max(0, stop - end)
        shown.append(self._held[at:end])
        self._held = self._held[end:]
        self._covered = covered
        return b"".join(shown)

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Merge the places that hold secrets where they overlap, in order."""
        current: tuple[int, int] | None = (0, self._covered) if self._covered else None
        for start, stop in sorted(self._places()):
            if current is not None and start < current[1]:
                current = (current[0], max(current[1], stop))
                continue
            if current is not None:
                yield current
            current = (start, stop)
        if current is not None:
            yield current

    def _places(self) -> Iterator[tuple[int, int]]:
        for secret in self._secrets:
            start = self._held.find(secret)
            while start >= 0:
                yield start, start + len(secret)
                start = self._held.find(secret, start + 1)
