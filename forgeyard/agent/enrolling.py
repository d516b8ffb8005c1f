"""How this machine becomes a runner: a token and a pin go in, a certificate comes out.

The first connection trusts nobody: it only fetches what signs here, and compares its root with the
pin. The token is sent after that, to a server that this root stands for.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

import structlog

from forgeyard.agent.backoff import BackOff
from forgeyard.agent.client import AgentClient
from forgeyard.agent.credentials import (
    Credentials,
    Wallet,
    root_pin,
    trusting,
    trusting_nobody,
)
from forgeyard.errors import Forbidden, ForgeyardError, Unauthenticated, Unavailable
from forgeyard.model.enrolment import Awaited, Enrol, Renewal
from forgeyard.trust import tokens
from forgeyard.trust.certificates import SKEW
from forgeyard.trust.requests import write_request

LONGEST_WAIT_S: Final = 15.0
APPROVAL_EVERY_S: Final = 3.0
EARLIEST, LATEST = 0.5, 2 / 3
"""When in the life of a certificate the next one is asked for."""

T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What an operator gave this machine; worth nothing once it has a certificate."""

    pin: str
    token: str = field(repr=False)
    evidence: Callable[[], Awaitable[str]] | None = None
    """Fetches what the cloud of this machine says about it, if that is asked for."""


async def obtain(
    wallet: Wallet,
    urls: tuple[str, ...],
    invitation: Invitation | None,
    *,
    now: Callable[[], datetime],
    rng: random.Random,
    heard: Callable[[], None] = lambda: None,
) -> Credentials:
    """Give the credentials of this machine, asking for them if it has none that are good.

    Raises:
        Unauthenticated: it has none, and no token to ask with.
        Forbidden: the server is not the one of the pin, the token opens nothing, or this is not the
            machine that was meant.
    """
    await asyncio.to_thread(wallet.open)
    found = await asyncio.to_thread(wallet.stored)
    token = None if invitation is None else tokens.read(invitation.token).enrolment_id
    if found is not None and now() < found.ends and token in (None, found.enrolment):
        return found
    if invitation is None or token is None:
        raise Unauthenticated(
            "this machine has no certificate that is good",
            field="agent",
            allowed="--enrol-token-file and --ca-pin, as `forgeyard runner invite` prints them",
        )
    back_off = BackOff(longest=LONGEST_WAIT_S, rng=rng)
    authorities = await _insist(lambda: _authorities(urls, invitation.pin), back_off)
    key = await asyncio.to_thread(wallet.next_key, token)
    request = write_request(key)
    evidence = "" if invitation.evidence is None else await _insist(invitation.evidence, back_off)
    async with AgentClient(urls, tls=trusting(authorities), heard=heard) as client:
        while True:
            answer = await _insist(
                lambda: client.enrol(_message(invitation, request, evidence, now())), back_off
            )
            if not isinstance(answer, Awaited):
                _log.info("enrolled", runner=answer.runner_name, generation=answer.generation)
                return await asyncio.to_thread(wallet.store, answer, key, token)
            _log.info("waiting for approval", runner=answer.runner_name, key=answer.key)
            await asyncio.sleep(APPROVAL_EVERY_S)


def _message(invitation: Invitation, request: str, evidence: str, now: datetime) -> Enrol:
    clock_ms = int(now.timestamp() * 1000)
    return Enrol(token=invitation.token, request=request, clock_ms=clock_ms, evidence=evidence)


async def _authorities(urls: tuple[str, ...], pin: str) -> str:
    """Fetch what signs here from whoever answers, and believe it only by its pin."""
    async with AgentClient(urls, tls=trusting_nobody()) as client:
        found = (await client.authorities()).certificates
    if root_pin(found) != pin:
        raise Forbidden(
            f"the server's root is {root_pin(found)}, which is not the one that was expected",
            field="ca-pin",
            value=pin,
            allowed="what `forgeyard ca export --pin` prints on the server",
        )
    return found


async def _insist(call: Callable[[], Awaitable[T]], back_off: BackOff) -> T:
    while True:
        try:
            return await call()
        except Unavailable as error:
            delay = back_off.delay()
            _log.warning("cannot enrol yet", error=error.message, wait_s=round(delay, 2))
            await asyncio.sleep(delay)


class Keeper:
    """Has the next certificate in time, for as long as the agent runs."""

    def __init__(
        self,
        wallet: Wallet,
        credentials: Credentials,
        client: AgentClient,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._wallet = wallet
        self._has = credentials
        self._client = client
        self._now = now
        self._rng = rng

    async def run(self) -> None:
        """Renew again and again; whoever is refused has to be enrolled anew, and hears of it."""
        back_off = BackOff(longest=LONGEST_WAIT_S, rng=self._rng)
        while True:
            await asyncio.sleep(self.due_in())
            try:
                await self.renew()
                back_off.reset()
            except ForgeyardError as error:
                delay = back_off.delay()
                _log.warning("certificate not renewed", error=error.message, wait_s=round(delay, 1))
                await asyncio.sleep(delay)

    def due_in(self) -> float:
        """Tell in how many seconds the next certificate is to be asked for."""
        begun, life = self._has.begins + SKEW, self._has.ends - self._has.begins - SKEW
        due = begun + life * self._rng.uniform(EARLIEST, LATEST)
        return max(0.0, (due - self._now()).total_seconds())

    async def renew(self) -> None:
        """Ask for the next certificate, with a new key, and use it from then on.

        Raises:
            ForgeyardError: there is none, for now or for good.
        """
        key = await asyncio.to_thread(self._wallet.next_key, self._has.enrolment)
        answer = await self._client.renew_identity(Renewal(request=write_request(key)))
        self._has = await asyncio.to_thread(self._wallet.store, answer, key, self._has.enrolment)
        await self._client.show_certificate(self._has.context())
        _log.info("certificate renewed", generation=self._has.generation, ends=str(self._has.ends))
