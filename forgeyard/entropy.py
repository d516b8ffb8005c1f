"""The one place where randomness enters; everybody else takes a `random.Random` as an argument."""

import random
import secrets


def system() -> random.Random:
    """Return a generator fed by the operating system, fit for identifiers."""
    return random.SystemRandom()


def token() -> str:
    """Make a secret of 256 bits, safe in a URL."""
    return secrets.token_urlsafe(32)


def secret(count: int) -> bytes:
    """Make a secret of so many bytes."""
    return secrets.token_bytes(count)
