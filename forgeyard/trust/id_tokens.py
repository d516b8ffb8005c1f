"""ID tokens of an OpenID issuer: whether one is good, and what it says of its bearer.

Only keys that the issuer publishes count, found by the name in the token's header. Nothing else in
that header is believed: no algorithm beyond the list, no key and no address of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from forgeyard.errors import Unauthenticated, Unavailable

PublicKey = RSAKey | ECKey
Claims = Mapping[str, object]
ALGORITHMS: Final = ("RS256", "ES256")
LEEWAY_S: Final = 60
LONGEST: Final = 16 * 1024
MOST_KEYS: Final = 100
SMALLEST_RSA_BITS: Final = 2_048
_REGISTRY: Final = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a token has to say; `nonce` only where whoever brings it has asked for one."""

    issuer: str
    audience: str
    nonce: str | None = None


def keys_in(document: Mapping[str, object]) -> dict[str, PublicKey]:
    """Read the keys that sign out of a key set, by their names; pass over what is of no use here.

    Raises:
        Unavailable: it is no key set.
    """
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise Unavailable("the issuer's key set holds no keys", field="oidc.issuer")
    found: dict[str, PublicKey] = {}
    for entry in cast("list[object]", listed)[:MOST_KEYS]:
        if isinstance(entry, dict):
            entries = cast("dict[str, object]", entry)
            name, key = entries.get("kid"), _key(entries)
            if isinstance(name, str) and key is not None:
                found[name] = key
    return found


def _key(entry: Mapping[str, object]) -> PublicKey | None:
    if entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if isinstance(value, str)}
    try:
        if entry.get("kty") == "RSA":
            key = RSAKey.import_key({name: public[name] for name in ("kty", "n", "e")})
            return key if key.public_key.key_size >= SMALLEST_RSA_BITS else None
        if entry.get("kty") == "EC" and entry.get("crv") == "P-256":
            return ECKey.import_key({name: public[name] for name in ("kty", "crv", "x", "y")})
    except (JoseError, KeyError, ValueError):
        return None
    return None


def key_name(token: str) -> str:
    """Read which key a token claims to be signed with; nothing is verified yet.

    Raises:
        Unauthenticated: it is no signed token, or names no key.
    """
    try:
        name = jws.extract_compact(token.encode(), registry=_REGISTRY).headers().get("kid")
    except (JoseError, ValueError) as error:
        raise _refused("it is not one") from error
    if not isinstance(name, str):
        raise _refused("it names no key")
    return name


def verify(token: str, key: PublicKey, expected: Expected, *, now: datetime) -> Claims:
    """Return what a token says, if it was signed with this key and is meant for us, now.

    Raises:
        Unauthenticated: anything about it is not as it has to be.
    """
    registry = jwt.JWTClaimsRegistry(
        now=int(now.timestamp()),
        leeway=LEEWAY_S,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "value": expected.audience},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        claims: Claims = jwt.decode(token, key, ALGORITHMS, _REGISTRY).claims
        registry.validate(dict(claims))
    except (JoseError, ValueError) as error:
        raise _refused(str(error)) from error
    if expected.nonce is not None and claims.get("nonce") != expected.nonce:
        raise _refused("it answers another login: the nonce differs")
    return claims


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(
        f"this ID token is not good: {why}",
        field="id_token",
        allowed=f"of the configured issuer, for us, in force, by {', '.join(ALGORITHMS)}",
    )
