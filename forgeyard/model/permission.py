"""What a caller may do: permissions, and the roles that are sets of them. Nothing is implied.

A caller that belongs to a tenant may be given only what the store can keep inside that tenant;
whatever looks at everybody's jobs, or at the machines, is not among it.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from forgeyard.errors import InvalidRequest


class Permission(StrEnum):
    """One thing that a caller may be allowed to do."""

    RUN_READ = "run.read"
    RUN_SUBMIT = "run.submit"
    RUN_CANCEL = "run.cancel"
    JOB_REPRIORITISE = "job.reprioritise"
    PRIORITY_ELEVATE = "priority.elevate"
    SCOPE_READ = "scope.read"
    SCOPE_MANAGE = "scope.manage"
    SCHEDULER_READ = "scheduler.read"
    SCHEDULER_MANAGE = "scheduler.manage"
    POLICY_READ = "policy.read"
    POLICY_SET = "policy.set"
    RUNNER_READ = "runner.read"
    RUNNER_MANAGE = "runner.manage"
    RUNNER_ENROL = "runner.enrol"
    """Say which machines are runners and what they are trusted with, and shut them out."""
    POOL_READ = "pool.read"
    POOL_MANAGE = "pool.manage"
    STORE_READ = "store.read"
    STORE_MANAGE = "store.manage"
    METRICS_READ = "metrics.read"
    AUDIT_READ = "audit.read"
    TOKEN_MANAGE = "token.manage"
    PAYLOAD_READ = "payload.read"
    """Open and seal what Temporal keeps."""
    FLEET_READ = "fleet.read"
    FLEET_MANAGE = "fleet.manage"
    FLEET_SCALE = "fleet.scale"
    FLEET_DRAIN = "fleet.drain"
    FLEET_FREEZE = "fleet.freeze"
    FLEET_IMAGE_MANAGE = "fleet.image.manage"
    FLEET_RESERVATION_MANAGE = "fleet.reservation.manage"


class Role(StrEnum):
    """A set of permissions that has a name."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    AUTOSCALER = "autoscaler"
    ADMIN = "admin"


EVERYTHING: Final = frozenset(Permission)
_VIEWER: Final = frozenset(
    {
        *(Permission.RUN_READ, Permission.SCOPE_READ, Permission.SCHEDULER_READ),
        *(Permission.POLICY_READ, Permission.RUNNER_READ, Permission.POOL_READ),
        *(Permission.STORE_READ, Permission.METRICS_READ, Permission.FLEET_READ),
    }
)
_SUBMITTER: Final = frozenset(
    {Permission.RUN_READ, Permission.RUN_SUBMIT, Permission.RUN_CANCEL, Permission.SCOPE_READ}
)
_OPERATOR: Final = (
    _VIEWER
    | _SUBMITTER
    | {
        *(Permission.JOB_REPRIORITISE, Permission.SCOPE_MANAGE, Permission.SCHEDULER_MANAGE),
        *(Permission.RUNNER_MANAGE, Permission.POOL_MANAGE),
        *(Permission.FLEET_SCALE, Permission.FLEET_DRAIN, Permission.FLEET_FREEZE),
    }
)
_AUTOSCALER: Final = frozenset(
    {
        *(Permission.SCHEDULER_READ, Permission.RUNNER_READ, Permission.FLEET_READ),
        *(Permission.FLEET_SCALE, Permission.FLEET_DRAIN),
    }
)
ROLES: Final = {
    Role.VIEWER: _VIEWER,
    Role.SUBMITTER: _SUBMITTER,
    Role.OPERATOR: _OPERATOR,
    Role.AUTOSCALER: _AUTOSCALER,
    Role.ADMIN: EVERYTHING,
}
INSIDE_A_TENANT: Final = frozenset(
    {
        *(Permission.RUN_READ, Permission.RUN_SUBMIT, Permission.RUN_CANCEL),
        *(Permission.JOB_REPRIORITISE, Permission.PRIORITY_ELEVATE),
        *(Permission.SCOPE_READ, Permission.SCOPE_MANAGE),
    }
)
"""What can be kept inside one tenant, and so all that a caller of a tenant may ever do."""


def granted(
    role: Role | None, permissions: Collection[Permission], *, tenant: str | None
) -> frozenset[Permission]:
    """Add a role and permissions up; what a role has beyond a tenant does not reach its callers."""
    found = frozenset((*permissions, *(ROLES[role] if role else ())))
    return found if tenant is None else found & INSIDE_A_TENANT


def check_grant(
    role: Role | None, permissions: Collection[Permission], *, tenant: str | None
) -> frozenset[Permission]:
    """Add up what somebody is to be given, and refuse what would come to nothing.

    Raises:
        InvalidRequest: nothing is granted, or a permission reaches beyond the tenant.
    """
    beyond = sorted(set(permissions) - INSIDE_A_TENANT)
    if tenant is not None and beyond:
        raise InvalidRequest(
            f"{beyond[0]} reaches beyond a tenant",
            field="permissions",
            value=beyond[0],
            allowed=", ".join(sorted(INSIDE_A_TENANT)),
        )
    found = granted(role, permissions, tenant=tenant)
    if not found:
        raise InvalidRequest(
            "a token that may do nothing is good for nothing",
            field="permissions",
            allowed="a role, or permissions" if tenant is None else "one that fits a tenant",
        )
    return found
