"""Instance identity documents of AWS, under the RSA-2048 signature, checked without asking AWS.

Evidence is what the metadata service answers at `instance-identity/rsa2048`: a signed message with
the document inside, in base64. The certificates are the operator's to give; AWS publishes one per
region. They are what everything rests on, so their own dates are not looked at.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa

from forgeyard.errors import InvalidRequest
from forgeyard.trust import signed_message
from forgeyard.trust.evidence import MOST_EVIDENCE, Doubt, Facts, Unproved
from forgeyard.trust.signed_message import UnreadableMessage

_LEAST_BITS: Final = 2048
_LONGEST: Final = 64
_MOST_PEM: Final = 64 * 1024
_FIELD: Final = "api.aws_certificates"


class AwsVerifier:
    """Checks documents by the certificates of their regions."""

    def __init__(self, keys: Mapping[str, Sequence[rsa.RSAPublicKey]]) -> None:
        self._keys = keys

    def knows(self, region: str) -> bool:
        """Tell whether documents of this region could be checked; empty means of any."""
        return region in self._keys if region else bool(self._keys)

    def verify(self, evidence: str) -> Facts | Unproved:
        """Tell what AWS has signed, or why nothing is; whatever is given, it never raises."""
        if not evidence:
            return Unproved(doubt=Doubt.MISSING, detail="it brought no identity document")
        try:
            message = signed_message.read(_bytes(evidence))
            facts = _facts(message.content)
        except (ValueError, OverflowError, RecursionError) as error:
            return Unproved(doubt=Doubt.UNREADABLE, detail=f"its identity document: {error}")
        keys = self._keys.get(facts.region)
        if keys is None:
            return Unproved(
                doubt=Doubt.UNKNOWN_REGION,
                detail=f"no certificate of AWS is configured for {facts.region!a}",
            )
        if not any(message.is_signed_by(key) for key in keys):
            return Unproved(doubt=Doubt.FORGED, detail="AWS did not sign its identity document")
        return facts


def load(files: Mapping[str, str]) -> AwsVerifier:
    """Read the certificates of each region.

    Raises:
        InvalidRequest: a file cannot be read, or holds something else than RSA-2048 certificates.
    """
    return AwsVerifier({region: _keys(region, Path(file)) for region, file in files.items()})


def _keys(region: str, file: Path) -> tuple[rsa.RSAPublicKey, ...]:
    try:
        with file.open("rb") as stream:
            found = x509.load_pem_x509_certificates(stream.read(_MOST_PEM))
        keys = tuple(one.public_key() for one in found)
    except OSError as error:
        raise _refused(region, file, error.strerror or "it cannot be read") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused(region, file, "it holds no certificates that can be read") from error
    fit = tuple(
        key for key in keys if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_BITS
    )
    if len(fit) != len(keys):
        raise _refused(region, file, "it holds a certificate of another kind")
    return fit


def _refused(region: str, file: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the certificates of {region}: {why}",
        field=_FIELD,
        value=file,
        allowed="PEM of what AWS publishes for this region under RSA-2048",
    )


def _bytes(evidence: str) -> bytes:
    if len(evidence) > MOST_EVIDENCE:
        raise UnreadableMessage("it is too long")
    try:
        return base64.b64decode("".join(evidence.split()), validate=True)
    except binascii.Error as error:
        raise UnreadableMessage("it is no base64") from error


def _facts(document: bytes) -> Facts:
    """Read a document that is not believed yet."""
    said: object = json.loads(document)
    if not isinstance(said, dict):
        raise UnreadableMessage("it is no document")
    fields = cast("dict[object, object]", said)
    return Facts(
        account=_text(fields, "accountId"),
        region=_text(fields, "region"),
        instance=_text(fields, "instanceId"),
        launched_at=_instant(_text(fields, "pendingTime")),
    )


def _text(fields: Mapping[object, object], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST or not found.isascii():
        raise UnreadableMessage(f"it does not say its {name}")
    return found


def _instant(text: str) -> int:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise UnreadableMessage("it does not say its pendingTime")
    return int(found.timestamp() * 1000)
