"""The versions of the scheduling policy: the newest readable one is in force.

A version is appended and never changed. Without any, the built-in policy is in force as version 0.
A version that cannot be read is reported and passed over, so that one damaged row stops no loop.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, Corrupt, InvalidPolicy
from forgeyard.model import policy_document
from forgeyard.model.injection import Injection
from forgeyard.model.policy import SchedulingPolicy, digest_of
from forgeyard.store import changes, generations, tables
from forgeyard.store.engine import database_now

BUILT_IN: Final = 0
"""The version of the policy that is in force while nobody has set one."""
_policies = tables.policies
_NEWEST = sa.select(_policies).order_by(_policies.c.version.desc())
IN_FORCE: Final = _NEWEST.limit(1)
_OLDER = _NEWEST.where(_policies.c.version < sa.bindparam("than")).limit(1)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """A policy and the version that it is; `digest` names its content."""

    version: int
    digest: str
    policy: SchedulingPolicy

    @property
    def injection(self) -> Injection:
        """Tell what it adds to the requirements of jobs."""
        return Injection(
            rules=self.policy.rules,
            nameable_pools=self.policy.nameable_pools,
            longest_offline=self.policy.lease.longest_offline,
            version=self.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """What was set, by whom and why; `damage` says why it cannot be read, if it cannot."""

    version: int
    digest: str
    actor: str
    reason: str
    created_at: int
    damage: str | None = None


def current(connection: sa.Connection, built_in: SchedulingPolicy) -> PolicyInForce:
    """Read the policy in force: the newest that can be read, else the built-in one."""
    return in_force(connection, connection.execute(IN_FORCE).mappings().first(), built_in)


def in_force(
    connection: sa.Connection, newest: Mapping[Any, Any] | None, built_in: SchedulingPolicy
) -> PolicyInForce:
    """Tell the same for whoever has read the newest row, by `IN_FORCE`."""
    while newest is not None:
        try:
            policy = stored(newest["document"], newest["digest"])
        except Corrupt as error:
            version = newest["version"]
            logger.error("policy version %d is passed over: %s", version, error.message)
            newest = connection.execute(_OLDER, {"than": version}).mappings().first()
            continue
        return PolicyInForce(version=newest["version"], digest=newest["digest"], policy=policy)
    return PolicyInForce(version=BUILT_IN, digest=built_in.digest(), policy=built_in)


@lru_cache(maxsize=16)
def stored(document: str, digest: str) -> SchedulingPolicy:
    """Read a stored document.

    Raises:
        Corrupt: it is not the one that the digest names, or not allowed in this release.
    """
    if digest_of(document) != digest:
        raise Corrupt("the stored policy is not the one that its digest names")
    try:
        return policy_document.read(json.loads(document))
    except (ValueError, RecursionError, InvalidPolicy) as error:
        raise Corrupt(f"the stored policy cannot be read: {error}") from error


def set_policy(
    connection: sa.Connection,
    policy: SchedulingPolicy,
    *,
    expected_version: int,
    actor: str,
    channel: str,
    reason: str,
    built_in: SchedulingPolicy,
) -> PolicyInForce:
    """Put a policy in force as a new version; what is in force already stays as it is.

    Raises:
        Conflict: another version is in force than the caller has seen.
    """
    _wait_for_commits(connection)
    before = current(connection, built_in)
    digest = policy.digest()
    if before.digest == digest:
        return before
    if before.version != expected_version:
        raise Conflict(
            f"policy version {before.version} is in force, not {expected_version}",
            field="expected_version",
            value=expected_version,
            allowed=f"{before.version}, once you have read that policy",
        )
    version, now = _next_version(connection), database_now(connection)
    row = {
        "version": version,
        "digest": digest,
        "document": policy.canonical(),
        "actor": actor,
        "reason": reason,
        "created_at": now,
    }
    connection.execute(sa.insert(_policies).values(row))
    generations.bump(connection)
    changes.audit(
        connection,
        actor=actor,
        channel=channel,
        action="policy.set",
        target=f"policy {version}",
        detail=f"{digest}: {reason}",
        before=before.digest,
        after=digest,
        now=now,
    )
    changes.wake_all_waiting(connection, reason=f"policy {version} is in force")
    return PolicyInForce(version=version, digest=digest, policy=policy)


def _next_version(connection: sa.Connection) -> int:
    """Count on from the newest, readable or not."""
    newest = connection.execute(sa.select(sa.func.max(_policies.c.version))).scalar()
    return (newest or BUILT_IN) + 1


def _wait_for_commits(connection: sa.Connection) -> None:
    """Take the outermost scopes, which every commit locks before it looks at the policy.

    So whoever commits after us sees our policy, and two who set one come one after the other.
    """
    scopes = tables.scopes
    outermost = sa.select(scopes.c.scope_id).where(scopes.c.level == 0).order_by(scopes.c.scope_id)
    connection.execute(outermost.with_for_update())


def history(connection: sa.Connection, *, limit: int) -> tuple[PolicyVersion, ...]:
    """List what was set, the newest first."""
    rows = connection.execute(_NEWEST.limit(limit)).all()
    return tuple(
        PolicyVersion(
            version=row.version,
            digest=row.digest,
            actor=row.actor,
            reason=row.reason,
            created_at=row.created_at,
            damage=_damage(row.document, row.digest),
        )
        for row in rows
    )


def _damage(document: str, digest: str) -> str | None:
    try:
        stored(document, digest)
    except Corrupt as error:
        return error.message
    return None
