"""The scheduling policy: read it, check another one, put it in force, see what was set before."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from forgeyard.api.callers import PolicySetter, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import CHANNEL, Body, Who
from forgeyard.model import policy_document
from forgeyard.model.permission import Permission
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import policies
from forgeyard.store.engine import read
from forgeyard.store.policies import PolicyInForce

router = APIRouter(prefix="/v1/policy", tags=["policy"])


class CheckPolicy(Body):
    """A policy; what it does not say has its default."""

    document: dict[str, object]


class SetPolicy(CheckPolicy):
    """A policy to put in force, why, and which version the caller has seen."""

    reason: Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")]
    actor: Who = "api"
    expected_version: Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChecked:
    """A policy that would be accepted, with its defaults filled in."""

    digest: str
    document: SchedulingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShown(PolicyChecked):
    """The policy in force; version 0 is the built-in one."""

    version: int


@router.get("", dependencies=[needs(Permission.POLICY_READ)])
def show_policy(deps: Deps) -> PolicyShown:
    """Show the policy in force."""
    with read(deps.engine) as connection:
        return _shown(policies.current(connection, deps.policies.built_in))


@router.get("/history", dependencies=[needs(Permission.POLICY_READ)])
def policy_history(
    deps: Deps, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> tuple[policies.PolicyVersion, ...]:
    """List the versions that were set, the newest first."""
    with read(deps.engine) as connection:
        return policies.history(connection, limit=limit)


@router.post(":check", dependencies=[needs(Permission.POLICY_READ)])
def check_policy(message: CheckPolicy, deps: Deps) -> PolicyChecked:
    """Say whether a policy would be accepted; nothing is stored."""
    policy = policy_document.read(message.document)
    return PolicyChecked(digest=policy.digest(), document=policy)


@router.put("")
def set_policy(message: SetPolicy, deps: Deps, who: PolicySetter) -> PolicyShown:
    """Put a policy in force; the one that is in force already stays as it is."""
    policy = policy_document.read(message.document)
    with deps.change_for(who) as connection:
        found = policies.set_policy(
            connection,
            policy,
            expected_version=message.expected_version,
            actor=message.actor,
            channel=CHANNEL,
            reason=message.reason,
            built_in=deps.policies.built_in,
        )
    deps.policies.forget()
    return _shown(found)


def _shown(found: PolicyInForce) -> PolicyShown:
    return PolicyShown(version=found.version, digest=found.digest, document=found.policy)
