"""Permissions, roles, and what a tenant's callers can be given."""

import pytest

from forgeyard.errors import Forbidden, InvalidRequest, NotFound
from forgeyard.model.caller import HOST, Caller, PrincipalKind, Tenant
from forgeyard.model.permission import (
    EVERYTHING,
    INSIDE_A_TENANT,
    ROLES,
    Permission,
    Role,
    check_grant,
    granted,
)


def a_caller(*permissions: Permission, tenant: str | None = None) -> Caller:
    return Caller(
        principal="alice",
        kind=PrincipalKind.USER,
        permissions=frozenset(permissions),
        tenant=None if tenant is None else Tenant(tenant_id=f"tnt_{tenant}", name=tenant),
        token_id="fya_1",
    )


def test_nothing_is_granted_to_whoever_is_given_nothing() -> None:
    assert granted(None, (), tenant=None) == frozenset()
    with pytest.raises(InvalidRequest, match="nothing"):
        check_grant(None, (), tenant=None)


def test_every_role_is_known_and_only_the_admin_may_do_everything() -> None:
    assert set(ROLES) == set(Role)
    assert [role for role in Role if ROLES[role] == EVERYTHING] == [Role.ADMIN]


def test_a_viewer_changes_nothing() -> None:
    assert {one.rpartition(".")[2] for one in ROLES[Role.VIEWER]} == {"read"}


def test_the_dangerous_permissions_are_the_admins_alone_unless_they_are_given_by_name() -> None:
    guarded = {
        *(Permission.TOKEN_MANAGE, Permission.POLICY_SET, Permission.STORE_MANAGE),
        *(Permission.PRIORITY_ELEVATE, Permission.AUDIT_READ),
        *(Permission.RUNNER_ENROL, Permission.PAYLOAD_READ),
    }
    for role in set(Role) - {Role.ADMIN}:
        assert not ROLES[role] & guarded, role


@pytest.mark.requirement("GAT-012")
def test_an_autoscaler_scales_and_neither_submits_nor_manages() -> None:
    assert ROLES[Role.AUTOSCALER] == {
        *(Permission.SCHEDULER_READ, Permission.RUNNER_READ, Permission.FLEET_READ),
        *(Permission.FLEET_SCALE, Permission.FLEET_DRAIN),
    }


def test_a_tenant_is_given_nothing_that_reaches_beyond_it() -> None:
    assert granted(Role.ADMIN, (Permission.POLICY_SET,), tenant="acme") == INSIDE_A_TENANT
    with pytest.raises(InvalidRequest, match="reaches beyond"):
        check_grant(Role.SUBMITTER, (Permission.POLICY_SET,), tenant="acme")
    with pytest.raises(InvalidRequest, match="nothing"):
        check_grant(Role.AUTOSCALER, (), tenant="acme")


def test_a_permission_is_had_or_refused_by_name() -> None:
    a_caller(Permission.RUN_READ).demand(Permission.RUN_READ)
    with pytest.raises(Forbidden) as caught:
        a_caller(Permission.RUN_READ).demand(Permission.POLICY_SET)
    assert (caught.value.value, caught.value.allowed) == ("policy.set", "run.read")


@pytest.mark.parametrize("path", ["acmea", "umbra/acme", "everything", "pool:acme", "acm"])
def test_a_scope_outside_a_tenant_is_as_if_it_were_not_there(path: str) -> None:
    with pytest.raises(NotFound):
        a_caller(tenant="acme").demand_seen(path)
    with pytest.raises(NotFound):
        a_caller(tenant="acme").demand_ruled(path)
    HOST.demand_ruled(path)


def test_a_tenant_rules_what_lies_inside_it_and_not_itself() -> None:
    acme = a_caller(tenant="acme")
    acme.demand_seen("acme")
    acme.demand_ruled("acme/core")
    with pytest.raises(Forbidden):
        acme.demand_ruled("acme")


def test_a_claim_counts_only_where_the_token_is_nobodys() -> None:
    assert HOST.speaks_as("bob") == "bob"
    assert a_caller().speaks_as("bob") == "alice"
    service = Caller(
        principal="ci", kind=PrincipalKind.SERVICE, permissions=frozenset(), token_id="fya_2"
    )
    assert service.speaks_as("bob") == "ci for bob"
    assert service.speaks_as("ci") == "ci"
