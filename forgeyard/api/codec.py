"""Opens and seals payloads for Temporal's Web UI and command line, which hold no keys.

Temporal's remote codec protocol over HTTP: payloads as its protobuf JSON, bytes in base64. The
page of the Web UI, and no other one, may call it from a browser; the token is demanded of it as of
everybody.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final
from urllib.parse import urlsplit

from annotated_types import Len, MaxLen
from fastapi import APIRouter
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.api.common.v1 import Payload

from forgeyard.api.dependencies import Deps
from forgeyard.errors import InvalidRequest, NotFound

PREFIX: Final = "/v1/codec"
MOST_PAYLOADS: Final = 1_000
MOST_METADATA: Final = 32
LARGEST_DATA: Final = 4 * 1024 * 1024
Text = Annotated[str, MaxLen(4_096)]
router = APIRouter(prefix=PREFIX, tags=["codec"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadJson:
    """A payload as Temporal writes it in JSON."""

    metadata: Annotated[dict[Text, Text], Len(0, MOST_METADATA)] = field(default_factory=dict)
    data: Annotated[str, MaxLen(LARGEST_DATA)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadsJson:
    """What goes in and what comes out."""

    payloads: Annotated[list[PayloadJson], Len(0, MOST_PAYLOADS)]


@router.post("/decode")
async def decode_payloads(message: PayloadsJson, deps: Deps) -> PayloadsJson:
    """Open what is sealed, and leave the rest as it is."""
    if deps.codec is None:
        return message
    return await _through(deps.codec.decode, message)


@router.post("/encode")
async def encode_payloads(message: PayloadsJson, deps: Deps) -> PayloadsJson:
    """Seal what an operator is about to send to a workflow."""
    if deps.codec is None:
        raise NotFound("there are no keys to seal with", field="temporal.codec_keys_file")
    return await _through(deps.codec.encode, message)


async def _through(
    codec: Callable[[Sequence[Payload]], Awaitable[list[Payload]]], message: PayloadsJson
) -> PayloadsJson:
    done = await codec([_read(each) for each in message.payloads])
    return PayloadsJson(payloads=[_written(each) for each in done])


def _read(given: PayloadJson) -> Payload:
    metadata = {name: _bytes(value, "metadata") for name, value in given.metadata.items()}
    return Payload(metadata=metadata, data=_bytes(given.data, "data"))


def _bytes(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(
            f"payloads: {name} is not base64", field=f"payloads.{name}", allowed="base64"
        ) from error


def _written(payload: Payload) -> PayloadJson:
    return PayloadJson(
        metadata={name: _text(value) for name, value in payload.metadata.items()},
        data=_text(payload.data),
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


class ForTheWebUi:
    """Tell browsers that pages of Temporal's Web UI may call the codec, and nothing else."""

    def __init__(self, app: ASGIApp, *, ui_url: str) -> None:
        where = urlsplit(ui_url)
        self._app = app
        self._open = CORSMiddleware(
            app,
            allow_origins=[f"{where.scheme}://{where.netloc}"],
            allow_methods=["POST"],
            allow_headers=["Authorization", "Content-Type", "X-Namespace"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the browser's question itself; let all other requests go on."""
        is_ours = scope["type"] == "http" and scope["path"].startswith(f"{PREFIX}/")
        await (self._open if is_ours else self._app)(scope, receive, send)
