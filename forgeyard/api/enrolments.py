"""Enrolments and certificates of runners, for those who look after them."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from forgeyard.api.callers import RunnerEnroller, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.api.runners import RunnerPath
from forgeyard.model.enrolment import Grant
from forgeyard.model.permission import Permission
from forgeyard.store import enrolments, identities, quarantine, runners
from forgeyard.store.engine import read
from forgeyard.store.enrolments import LONGEST_WINDOW_MS, WINDOW_MS, EnrolmentView, Wanted
from forgeyard.store.identities import CertificateView

router = APIRouter(prefix="/v1/enrolments", tags=["enrolments"])
runner_router = APIRouter(prefix="/v1/runners", tags=["runners"])
EnrolmentPath = Annotated[str, Path(max_length=64)]
RunnerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Generation = Annotated[int, Field(ge=1, lt=2**31)]
NOTHING = Grant()


class Mint(Because):
    """A host that is to become a runner, and what it is given."""

    runner_name: RunnerName
    generation: Generation = 1
    """The same host again, as a new machine: a new token that replaces what the host has."""
    grant: Grant = NOTHING
    needs_approval: bool = False
    """Whether its key has to be approved by an operator who has compared it."""
    window_ms: Annotated[int, Field(ge=1_000, le=LONGEST_WINDOW_MS)] = WINDOW_MS


class Approve(Because):
    """The public key that an operator has compared."""

    key: Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minted:
    """A token, which is shown to whoever asks for it again in the same words, and where to go."""

    enrolment: EnrolmentView
    token: str
    pin: str
    """The name of the root's key, by which the agent knows the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutOut:
    """A runner that is in quarantine now, and how many leases it lost."""

    runner: str
    leases: int


@router.post("", status_code=201)
def mint_enrolment(message: Mint, deps: Deps, who: RunnerEnroller) -> Minted:
    """Make the token of a host, or show the one that it has; it is stored nowhere."""
    wanted = Wanted(
        binding=f"host/{message.runner_name}/{message.generation}",
        runner_name=message.runner_name,
        grant=message.grant,
        window_ms=message.window_ms,
        needs_approval=message.needs_approval,
    )
    if message.grant.expects.machine is not None:
        deps.trust.demand_checkable(message.grant.expects.machine)
    with deps.change_for(who) as connection:
        made = enrolments.mint(
            connection, wanted, message.intent, mark=deps.trust.mark_of, rng=deps.rng
        )
    return Minted(
        enrolment=made,
        token=deps.trust.token(made.enrolment_id, made.binding).written(),
        pin=deps.trust.authority.pin(),
    )


@router.get("", dependencies=[needs(Permission.RUNNER_READ)])
def list_enrolments(deps: Deps) -> tuple[EnrolmentView, ...]:
    """List the newest enrolments; tokens are not among what is shown."""
    with read(deps.engine) as connection:
        return enrolments.list_all(connection)


@router.post("/{enrolment_id}:approve")
def approve_enrolment(
    enrolment_id: EnrolmentPath, message: Approve, deps: Deps, who: RunnerEnroller
) -> EnrolmentView:
    """Let the machine in that came with this key."""
    with deps.change_for(who) as connection:
        return enrolments.approve(connection, enrolment_id, message.key, message.intent)


@router.post("/{enrolment_id}:cancel", status_code=204)
def cancel_enrolment(
    enrolment_id: EnrolmentPath, message: Because, deps: Deps, who: RunnerEnroller
) -> None:
    """Make a token worthless."""
    with deps.change_for(who) as connection:
        enrolments.cancel(connection, enrolment_id, message.intent)


@runner_router.get("/{name}/certificates", dependencies=[needs(Permission.RUNNER_READ)])
def list_certificates(name: RunnerPath, deps: Deps) -> tuple[CertificateView, ...]:
    """List the certificates that a runner was given, the newest first."""
    with read(deps.engine) as connection:
        return identities.list_of(connection, runners.id_of(connection, name))


@runner_router.post("/{name}:revoke")
def revoke_runner(name: RunnerPath, message: Because, deps: Deps, who: RunnerEnroller) -> ShutOut:
    """Revoke what a runner proves itself with, take its leases, and put it into quarantine."""
    with deps.change_for(who) as connection:
        policy = deps.policy(connection).lease
        leases = quarantine.shut_out(connection, name, message.intent, policy=policy)
    return ShutOut(runner=name, leases=leases)


@runner_router.post("/{name}:admit", status_code=204)
def admit_runner(name: RunnerPath, message: Because, deps: Deps, who: RunnerEnroller) -> None:
    """Let a runner out of quarantine; it has to prove itself anew."""
    with deps.change_for(who) as connection:
        quarantine.admit(connection, name, message.intent)
