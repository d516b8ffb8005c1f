"""How an agent gets its certificate, and the next one in time."""

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Response

from forgeyard import telemetry
from forgeyard.api.agent_callers import Caller, CallingAgent
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.errors import Forbidden, InvalidRequest
from forgeyard.fleet import admission
from forgeyard.model.enrolment import Authorities, Awaited, Enrol, Identity, Renewal
from forgeyard.store import enrolments, identities, quarantine
from forgeyard.store.engine import database_now
from forgeyard.store.enrolments import COPIED, Alarm
from forgeyard.store.identities import CLONED, Cloned, Issued
from forgeyard.store.shares import Intent
from forgeyard.trust import requests, tokens
from forgeyard.trust.evidence import Unproved
from forgeyard.trust.keys import pin_of

AUTHORITY: Final = "/agent/v1/authority"
ENROLMENTS: Final = "/agent/v1/enrolments"
OPEN_TO_STRANGERS: Final = frozenset({AUTHORITY, ENROLMENTS})
"""Paths of the agent API that need no certificate, for they give one."""
COPY = Intent(actor="enrolment", channel="agent-api", reason=CLONED)

open_router = APIRouter(tags=["identity"])
router = APIRouter(prefix="/agent/v1/identity", tags=["identity"])


@open_router.get(AUTHORITY)
def show_authorities(deps: Deps) -> Authorities:
    """Give what signs here, to who knows the root's pin and compares."""
    return Authorities(certificates=deps.trust.trusted())


@open_router.post(ENROLMENTS, status_code=201)
def enrol(message: Enrol, deps: Deps, response: Response) -> Identity | Awaited:
    """Turn a token into a certificate; 202 while an operator has to approve it first.

    The same token with the same key gives the same certificate again.
    """
    token, key = tokens.read(message.token), requests.key_in(message.request)
    with deps.change() as connection:
        off = next(admission.skew_complaints(message.clock_ms, now=database_now(connection)), None)
        if off is not None:
            raise InvalidRequest(
                off, field="clock_ms", value=message.clock_ms, allowed="the right time"
            )
        answer = enrolments.redeem(
            connection,
            token.enrolment_id,
            deps.trust.mark(token),
            pin_of(key),
            sign=deps.trust.signer(key),
            prove=deps.trust.prover(message.evidence),
            rng=deps.rng,
        )
        if isinstance(answer, Alarm) and answer.runner_id is not None:
            policy = deps.policy(connection).lease
            quarantine.shut_out_if_known(connection, answer.runner_id, COPIED, policy=policy)
    if isinstance(answer, Unproved):
        telemetry.UNPROVED.labels(answer.doubt).inc()
        # What was expected is told to those who look after runners, and not to a stranger.
        raise Forbidden(
            "this machine did not prove that it is the one that was meant",
            field="evidence",
            value=answer.doubt,
            allowed="the signed identity document of that machine; see agent.cloud_identity",
        )
    if isinstance(answer, Alarm):
        raise Forbidden(
            "this token was used with another key: somebody else may have it",
            field="token",
            allowed="a new one, when you know who",
        )
    if isinstance(answer, Awaited):
        response.status_code = HTTPStatus.ACCEPTED
        return answer
    return _identity(deps, answer)


@router.post(":renew")
def renew_identity(message: Renewal, deps: Deps, caller: Caller) -> Identity:
    """Give out the next certificate, for a new key; the same request again is harmless."""
    serial = _serial(caller)
    key = requests.key_in(message.request)
    with deps.change() as connection:
        answer = identities.renew(connection, serial, pin_of(key), sign=deps.trust.signer(key))
        if isinstance(answer, Cloned):
            policy = deps.policy(connection).lease
            quarantine.shut_out_if_known(connection, answer.runner_id, COPY, policy=policy)
    if isinstance(answer, Cloned):
        raise Forbidden(f"{CLONED}: it was shut out", field="certificate", value=serial)
    return _identity(deps, answer)


def _serial(caller: CallingAgent) -> str:
    if caller.identity is None:
        raise Forbidden("who comes with a token has no certificate", field="certificate")
    return caller.identity.serial


def _identity(deps: ApiDependencies, issued: Issued) -> Identity:
    return Identity(
        runner_name=issued.runner_name,
        certificate=issued.pem,
        authorities=deps.trust.trusted(),
        generation=issued.generation,
    )
