"""Takes out of a text what looks like a credential, wherever we log, answer or record it.

It knows the shapes that issuers give to theirs, and what stands behind names such as `password`.
It refuses to promise more: a secret without a shape is recognised by nobody but its owner.
"""

import base64
import binascii
import re
from typing import Final

MASK: Final = "[redacted]"
_LONGEST_BASE64: Final = 16 * 1024
_NAMES: Final = (
    r"(?:password|passwd|pwd|secret|token|credential|(?:api|access|account|private|shared)_?key"
    r"|private_key_id|\bsig)"
)
_WHOLE: Final = (
    # A private key to its end, or what there is of it; line ends may be escaped as in JSON.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?:[A-Za-z0-9+/=\s\\:,]|-(?!-))*"
    r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|(?:(?:\\n|\s){0,4}[A-Za-z0-9+/=]{16,})*)",
    # Ours, AWS, Google, GitHub, GitLab, Slack, npm, PyPI, Stripe, Azure, signed tokens.
    r"\bfy[ae]_[A-Za-z0-9_-]{8,}",
    r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b",
    r"\bAIza[A-Za-z0-9_-]{35}",
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bgithub_pat_[A-Za-z0-9_]{30,}",
    r"\bgl(?:pat|rt|cbt|dt)-[A-Za-z0-9_-]{20,}",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\bpypi-[A-Za-z0-9_-]{40,}",
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",
    r"\b[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,40}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
)
_BEHIND: Final = (
    # A header's value, the password of a URL, and what a name of a secret is given.
    r"(?i:\b(?:bearer|basic)\s+)(?P<header>[A-Za-z0-9._~+/=-]{8,})",
    r"://[^/\s:@]{0,200}:(?P<url>[^/\s@]{1,500})@",
    rf"(?i:{_NAMES})[\"']?\s{{0,5}}=\s{{0,5}}[\"']?(?P<given>[^\s\"',;&]{{4,}})",
    rf"(?i:{_NAMES})[\"']\s{{0,5}}:\s{{0,5}}[\"'](?P<quoted>[^\"']{{4,}})",
)
_SHAPE: Final = re.compile("|".join(_WHOLE))
_AFTER: Final = tuple(re.compile(pattern) for pattern in _BEHIND)
_BASE64: Final = re.compile(rf"[A-Za-z0-9+/_-]{{20,{_LONGEST_BASE64}}}={{0,2}}")


def redacted(text: str) -> str:
    """Mask every credential that has a known shape, or is base64 of a text that holds one."""
    return _BASE64.sub(_unless_secret, _plain(text))


def _plain(text: str) -> str:
    text = _SHAPE.sub(MASK, text)
    for pattern in _AFTER:
        text = pattern.sub(_masked_group, text)
    return text


def _masked_group(found: re.Match[str]) -> str:
    """Keep what stands around the credential, so that a reader knows what was there."""
    start, end = found.span(found.lastindex or 0)
    begin = found.start()
    whole = found.group()
    return whole[: start - begin] + MASK + whole[end - begin :]


def _unless_secret(found: re.Match[str]) -> str:
    text = found.group()
    padded = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        inner = base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return text
    return MASK if _plain(inner) != inner else text
