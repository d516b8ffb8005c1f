"""Who asks: a person or a program, what they may do, and the tenant that bounds them, if any."""

from dataclasses import dataclass
from enum import StrEnum

from forgeyard.errors import Forbidden, NotFound
from forgeyard.model.permission import EVERYTHING, Permission


class PrincipalKind(StrEnum):
    """What sort of caller a token was given to."""

    USER = "user"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The scope that a caller belongs to."""

    tenant_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody whose token was good."""

    principal: str
    kind: PrincipalKind
    permissions: frozenset[Permission]
    tenant: Tenant | None = None
    token_id: str = ""
    """Empty for the token of the data directory."""
    expires_at: int | None = None

    @property
    def name(self) -> str:
        """Name the principal as the audit trail does."""
        return f"{self.kind}:{self.principal}"

    @property
    def tenant_id(self) -> str | None:
        """Tell whose runs alone the caller may see; None: everybody's."""
        return None if self.tenant is None else self.tenant.tenant_id

    @property
    def tenant_name(self) -> str | None:
        """Tell what that tenant is called."""
        return None if self.tenant is None else self.tenant.name

    def demand(self, permission: Permission) -> None:
        """Insist on a permission.

        Raises:
            Forbidden: the caller does not have it.
        """
        if permission not in self.permissions:
            raise Forbidden(
                f"{self.name} may not do this: it needs {permission}",
                field="permission",
                value=permission,
                allowed=", ".join(sorted(self.permissions)) or "nothing",
            )

    def demand_seen(self, path: str) -> None:
        """Insist that a scope is the caller's to see; another tenant's is as if it were not there.

        Raises:
            NotFound: it belongs to somebody else.
        """
        if self.tenant is not None and path.split("/")[0] != self.tenant.name:
            raise NotFound(
                f"there is no scope {path!r}", field="scope", value=path, allowed=self.tenant.name
            )

    def demand_ruled(self, path: str) -> None:
        """Insist that a scope is the caller's to change: a tenant does not set its own share.

        Raises:
            NotFound: it belongs to somebody else.
            Forbidden: it is the caller's tenant itself.
        """
        self.demand_seen(path)
        if self.tenant is not None and path == self.tenant.name:
            raise Forbidden(
                f"{self.name} may change what lies inside {path}, not {path} itself",
                field="scope",
                value=path,
                allowed=f"{path}/…",
            )

    def speaks_as(self, claim: str) -> str:
        """Say in whose name something is submitted: the claim counts where the token is nobody's.

        Everybody on a host shares the token of its data directory; a service acts for others.
        """
        if not self.token_id:
            return claim
        is_service = self.kind is PrincipalKind.SERVICE and claim != self.principal
        return f"{self.principal} for {claim}" if is_service else self.principal


HOST = Caller(principal="admin", kind=PrincipalKind.USER, permissions=EVERYTHING)
"""Whoever can read the token file of the data directory."""
