"""The word of this machine's cloud about it, fetched from the cloud's metadata service.

Asked for only when it enrols, and only if an operator said so. What comes back is passed on as it
is: the server judges it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from forgeyard.errors import Forbidden, Unavailable
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.enrolment import Cloud
from forgeyard.trust.evidence import MOST_EVIDENCE

TOKEN: Final = "/latest/api/token"
DOCUMENT: Final = "/latest/dynamic/instance-identity/rsa2048"
LIFE_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"
_LIFE_S: Final = 60
_EACH_S: Final = 2.0
_PASSING: Final = frozenset({429, 500, 502, 503, 504})


def source(config: AgentConfig) -> Callable[[], Awaitable[str]] | None:
    """Tell how to get what the configuration asks for, if it asks for anything."""
    if config.cloud_identity is None:
        return None
    fetch = {Cloud.AWS: of_aws}[config.cloud_identity]
    return lambda: fetch(config.metadata_url.rstrip("/"))


async def of_aws(url: str) -> str:
    """Fetch the signed identity document of this machine, under a token of the service (IMDSv2).

    Raises:
        Unavailable: the service does not answer, for now.
        Forbidden: it answers, and not with that.
    """
    # Neither a proxy nor a redirect may stand between a machine and its metadata.
    async with httpx.AsyncClient(timeout=_EACH_S, trust_env=False) as client:
        token = await _ask(client, "PUT", f"{url}{TOKEN}", {LIFE_HEADER: str(_LIFE_S)})
        return await _ask(client, "GET", f"{url}{DOCUMENT}", {TOKEN_HEADER: token.strip()})


async def _ask(client: httpx.AsyncClient, method: str, url: str, headers: dict[str, str]) -> str:
    try:
        async with (
            asyncio.timeout(2 * _EACH_S),
            client.stream(method, url, headers=headers) as answer,
        ):
            if answer.status_code in _PASSING:
                raise Unavailable(f"{url} answers {answer.status_code}", field="metadata_url")
            if answer.status_code != httpx.codes.OK:
                raise _unfit(url, f"answers {answer.status_code}")
            return await _text(answer, url)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise _unfit(url, f"cannot be asked: {error}") from error
    except (httpx.TransportError, TimeoutError) as error:
        what = str(error) or type(error).__name__
        raise Unavailable(f"{url}: {what}", field="metadata_url") from error


async def _text(answer: httpx.Response, url: str) -> str:
    found = b""
    async for piece in answer.aiter_raw():
        found += piece
        if len(found) > MOST_EVIDENCE:
            raise _unfit(url, "answers more than any document has")
    if not found.isascii():
        raise _unfit(url, "answers something else than text")
    return found.decode()


def _unfit(url: str, what: str) -> Forbidden:
    return Forbidden(
        f"{url} {what}",
        field="metadata_url",
        allowed="the metadata service of AWS, if this machine is one of its",
    )
