"""Secrets that can be told apart, derived instead of stored: `fye_ID_SECRET`.

The secret follows from a key of the server and from what the token is for, so that asking twice for
the token of one machine gives one token, and no database holds anything that opens a door.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from forgeyard.errors import Unauthenticated

PREFIX: Final = "fye_"
_SHAPE: Final = re.compile(r"fye_([0-9A-HJKMNP-TV-Z]{26})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token taken apart; its secret never shows up in a traceback."""

    enrolment_id: str
    secret: str = field(repr=False)

    def written(self) -> str:
        """Write it as it is handed over."""
        return f"{PREFIX}{self.enrolment_id.removeprefix('enr_')}_{self.secret}"


def derive(key: bytes, enrolment_id: str, binding: str) -> Token:
    """Make the one token that an enrolment has."""
    return Token(enrolment_id=enrolment_id, secret=_mac(key, f"secret/{enrolment_id}/{binding}"))


def mark(key: bytes, token: Token) -> str:
    """Say what is stored in the place of a token, by which it is known again."""
    return _mac(key, f"mark/{token.enrolment_id}/{token.secret}")


def read(text: str) -> Token:
    """Take a token apart.

    Raises:
        Unauthenticated: it is none; what was given is not repeated.
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise Unauthenticated("this is no enrolment token", field="token", allowed=f"{PREFIX}…")
    return Token(enrolment_id=f"enr_{found[1]}", secret=found[2])


def is_same(one: str, other: str) -> bool:
    """Compare two marks without telling how much of them is alike."""
    return hmac.compare_digest(one.encode(), other.encode())


def _mac(key: bytes, text: str) -> str:
    digest = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
