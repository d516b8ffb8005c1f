"""Seals payloads before Temporal gets them, and opens them again.

The data converter stays what it is. Payloads of a time before there were keys, and those that an
operator writes by hand, are read as they are.
"""

from collections.abc import Sequence
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from forgeyard.trust.sealing import KeyFile, Sealed

ENCODING: Final = "encoding"
SEALED: Final = b"binary/encrypted"
KEY_ID: Final = "encryption-key-id"


class EncryptionCodec(PayloadCodec):
    """Seals with the newest key of a file, opens with all of them."""

    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload whole, its metadata too."""
        return [self._seal(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open those that are sealed.

        Raises:
            UnreadablePayload: the key of one is not known here, or it was changed.
        """
        return [
            self._open(payload) if payload.metadata.get(ENCODING) == SEALED else payload
            for payload in payloads
        ]

    def _seal(self, payload: Payload) -> Payload:
        sealed = self._keys.keyring.seal(payload.SerializeToString())
        metadata = {ENCODING: SEALED, KEY_ID: sealed.key_id.encode()}
        return Payload(metadata=metadata, data=sealed.content)

    def _open(self, payload: Payload) -> Payload:
        name = payload.metadata.get(KEY_ID, b"").decode("ascii", errors="replace")
        # What opens was sealed by us, so it is a payload.
        return Payload.FromString(self._keys.open(Sealed(key_id=name, content=payload.data)))
