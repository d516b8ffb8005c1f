"""Typed identifiers: a ULID behind a prefix that names what it identifies.

Time and randomness are arguments, so the same function serves the API, an
activity and a replayed workflow.
"""

import random
from datetime import datetime
from typing import NewType

RunId = NewType("RunId", str)
JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
LeaseId = NewType("LeaseId", str)
RunnerId = NewType("RunnerId", str)
SessionId = NewType("SessionId", str)
EventId = NewType("EventId", str)
ScopeId = NewType("ScopeId", str)
Digest = NewType("Digest", str)
"""`sha256:` and 64 hexadecimal digits."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 26


def new_id(prefix: str, *, now: datetime, rng: random.Random) -> str:
    """Make an identifier that sorts by creation time within its prefix."""
    value = int(now.timestamp() * 1000) << 80 | rng.getrandbits(80)
    digits = (_ALPHABET[value >> 5 * place & 31] for place in reversed(range(_LENGTH)))
    return f"{prefix}_{''.join(digits)}"
