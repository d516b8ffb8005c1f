"""Runners that come by certificate: what they are is what was granted, once they are well."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, Forbidden, InvalidRequest
from forgeyard.model.capability import TrustClass
from forgeyard.model.enrolment import Admission, Grant
from forgeyard.model.equipment import Device, Equipment
from forgeyard.model.protocol import Heartbeat, Register, Registered
from forgeyard.model.runner import RunnerHealth, RunnerState
from forgeyard.store import codec, identities, quarantine, runners, tables
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.entrance import Entry
from forgeyard.store.heartbeats import hear_together
from forgeyard.store.identities import Issued
from tests.builders import LEASE_POLICY, RNG, a_registration, some_capabilities
from tests.leasing import Desk
from tests.trusting import INTENT, enrolled, invite, redeem, serials

pytestmark = pytest.mark.integration
GRANT = Grant(trust=TrustClass.TRUSTED_INTERNAL, labels={"zone": "b"}, trusted=("trusted.hsm",))


def arrive(
    engine: sa.Engine, issued: Issued, message: Register | None = None, **changed: Any
) -> Registered:
    """Register as the runner of a certificate."""
    with write(engine) as connection:
        fields = {"clock_ms": database_now(connection), **changed}
        said = replace(message or a_registration(issued.runner_name), **fields)
        return runners.register(
            connection,
            said,
            policy=LEASE_POLICY,
            rng=RNG,
            entry=Entry(runner_id=issued.runner_id, agent_versions=">=0.1"),
        )


def beat(engine: sa.Engine, session: Registered, **said: Any) -> None:
    """Say that the session lives, the way that the API takes it in."""
    message = Heartbeat(**said)
    with write(engine) as connection:
        (answer,) = hear_together(connection, [(session.session_id, message)])
    if answer is None:
        with write(engine) as connection:
            runners.heartbeat(connection, session.session_id, message)


def row(engine: sa.Engine, name: str = "runner-1") -> dict[str, Any]:
    query = sa.select(tables.runners).where(tables.runners.c.name == name)
    with read(engine) as connection:
        return dict(connection.execute(query).mappings().one())


def standing(engine: sa.Engine) -> tuple[str, str]:
    found = row(engine)
    return found["admission"], found["state"]


@pytest.fixture
def issued(engine: sa.Engine) -> Issued:
    """Enrol a runner."""
    with write(engine) as connection:
        return enrolled(connection, grant=GRANT)


@pytest.mark.requirement(
    "BOO-007",
    "BOO-010",
    "BOO-013",
    "BOO-014",
    "TST-019",
    "RCN-022",
    "ACC-047",
    "INV-053",
    "ELG-037",
)
def test_a_runner_gets_work_only_after_its_first_heartbeat_says_that_it_is_well(
    engine: sa.Engine, issued: Issued
) -> None:
    desk = Desk(engine)
    desk.submit()
    session = arrive(engine, issued)
    assert session.runner_id == issued.runner_id
    assert session.admission is Admission.PENDING
    assert standing(engine) == (Admission.PENDING, RunnerState.UNADMITTED)
    assert desk.cycle().granted == 0
    beat(engine, session, health=RunnerHealth.UNHEALTHY, health_reason="its disk")
    assert standing(engine) == (Admission.PENDING, RunnerState.UNADMITTED)
    assert desk.cycle().granted == 0
    beat(engine, session)
    assert standing(engine) == (Admission.VERIFIED, RunnerState.ONLINE)
    assert desk.cycle().granted == 1


@pytest.mark.requirement("TST-019", "ACC-054")
def test_a_machine_that_was_not_meant_never_gets_work(engine: sa.Engine, issued: Issued) -> None:
    desk = Desk(engine)
    desk.submit()
    session = arrive(engine, issued, clock_ms=0)
    assert session.admission is Admission.REJECTED
    assert "behind" in session.admission_reason
    for _ in range(3):
        beat(engine, session)
        assert desk.cycle().granted == 0
    assert standing(engine) == (Admission.REJECTED, RunnerState.UNADMITTED)
    assert arrive(engine, issued).admission is Admission.PENDING


@pytest.mark.requirement("TST-020", "INV-055", "BOO-005")
def test_nobody_raises_its_own_trust(engine: sa.Engine, issued: Issued) -> None:
    claims = some_capabilities(trust=TrustClass.SIGNING_RESTRICTED, labels={"zone": "a"})
    session = arrive(engine, issued, a_registration(capabilities=claims))
    found = row(engine)
    assert found["trust"] == TrustClass.TRUSTED_INTERNAL
    assert '"zone":"b"' in found["capabilities"]
    beat(engine, session, report=replace(a_registration(capabilities=claims)))
    assert row(engine)["trust"] == TrustClass.TRUSTED_INTERNAL
    assert "signing" not in row(engine)["capabilities"]


def test_a_later_report_adds_nothing_that_was_not_granted(
    engine: sa.Engine, issued: Issued
) -> None:
    session = arrive(engine, issued)
    devices = (Device(kind="trusted.hsm"), Device(kind="trusted.other"), Device(kind="phone"))
    claims = some_capabilities(
        equipment=Equipment(devices=devices), labels={"trusted.root": "1", "zone": "a"}
    )
    beat(engine, session, report=a_registration(capabilities=claims))
    found = row(engine)["capabilities"]
    assert "trusted.other" not in found
    assert "trusted.root" not in found
    assert '"provenance":"provisioned"' in found


@pytest.mark.requirement("ELG-039")
@pytest.mark.parametrize("when", ["registers", "reports"])
def test_who_comes_by_the_token_offers_nothing_that_only_an_enrolment_grants(
    engine: sa.Engine, when: str
) -> None:
    claims = some_capabilities(equipment=Equipment(devices=(Device(kind="trusted.hsm"),)))
    message = a_registration(capabilities=claims)
    with write(engine) as connection:
        made = runners.register(connection, a_registration(), policy=LEASE_POLICY, rng=RNG)
    say = {
        "registers": lambda it: runners.register(it, message, policy=LEASE_POLICY, rng=RNG),
        "reports": lambda it: runners.heartbeat(it, made.session_id, Heartbeat(report=message)),
    }[when]
    with pytest.raises(InvalidRequest, match=r"trusted\.hsm"), write(engine) as connection:
        say(connection)


def test_a_certificate_of_one_runner_opens_no_session_for_another(
    engine: sa.Engine, issued: Issued
) -> None:
    with write(engine) as connection:
        other = enrolled(connection, "runner-2")
    arrive(engine, other)
    session = arrive(engine, issued, a_registration("runner-2"))
    assert session.runner_id == issued.runner_id
    assert session.admission is Admission.REJECTED
    assert "that of runner-1" in session.admission_reason


def test_a_certificate_that_no_enrolment_knows_opens_no_session(engine: sa.Engine) -> None:
    stranger = Issued(runner_id="rnr_x", runner_name="x", pem="", generation=1)
    with pytest.raises(Forbidden, match="nobody enrolled"):
        arrive(engine, stranger)


def test_a_runner_that_is_there_already_under_this_name_is_not_taken_over(
    engine: sa.Engine,
) -> None:
    """Invited before another one of its name registered: the enrolment has another id by then."""
    with write(engine) as connection:
        issued = enrolled(connection)
        runners.register(connection, a_registration(), policy=LEASE_POLICY, rng=RNG)
    with pytest.raises(Forbidden, match="another runner"):
        arrive(engine, issued)


def test_an_enrolment_puts_its_runner_into_its_pool_once(engine: sa.Engine) -> None:
    pools = tables.pools
    with write(engine) as connection:
        connection.execute(
            sa.insert(pools).values(pool_id="pol_x", name="x", created_at=0, state="open")
        )
        issued = enrolled(connection, grant=Grant(pool="x"))
    arrive(engine, issued)
    assert row(engine)["pool_id"] == "pol_x"
    with write(engine) as connection:
        connection.execute(sa.update(tables.runners).values(pool_id="pol_default"))
    arrive(engine, issued)
    assert row(engine)["pool_id"] == "pol_default"


def test_who_is_shut_out_loses_leases_session_and_certificates(
    engine: sa.Engine, issued: Issued
) -> None:
    """S14."""
    desk = Desk(engine)
    desk.submit()
    session = arrive(engine, issued)
    beat(engine, session)
    desk.cycle()
    (lease,) = desk.leases()
    with write(engine) as connection:
        lost = quarantine.shut_out(connection, "runner-1", INTENT, policy=LEASE_POLICY)
        assert identities.refused_serials(connection) == {*serials(connection, issued.runner_id)}
    assert lost == 1
    found = row(engine)
    assert (found["session_id"], found["state"]) == (None, RunnerState.OFFLINE)
    assert found["admission"] == Admission.QUARANTINED
    assert lease.runner_id == issued.runner_id
    assert desk.leases(state="revoked") == [lease]


def test_quarantine_outlives_registrations_until_an_operator_ends_it(
    engine: sa.Engine, issued: Issued
) -> None:
    arrive(engine, issued)
    with write(engine) as connection:
        quarantine.shut_out(connection, "runner-1", INTENT, policy=LEASE_POLICY)
    session = arrive(engine, issued)
    beat(engine, session)
    assert standing(engine) == (Admission.QUARANTINED, RunnerState.UNADMITTED)
    with write(engine) as connection:
        quarantine.admit(connection, "runner-1", INTENT)
    beat(engine, arrive(engine, issued))
    assert standing(engine) == (Admission.VERIFIED, RunnerState.ONLINE)
    with pytest.raises(Conflict), write(engine) as connection:
        quarantine.admit(connection, "runner-1", INTENT)


def test_a_new_invitation_ends_quarantine(engine: sa.Engine, issued: Issued) -> None:
    arrive(engine, issued)
    with write(engine) as connection:
        quarantine.shut_out(connection, "runner-1", INTENT, policy=LEASE_POLICY)
        again = redeem(connection, invite(connection, binding="host/runner-1/2"), "sha256/new")
    assert isinstance(again, Issued)
    beat(engine, arrive(engine, again))
    assert standing(engine) == (Admission.VERIFIED, RunnerState.ONLINE)


def test_a_runner_that_never_registered_can_be_shut_out_by_its_id(
    engine: sa.Engine, issued: Issued
) -> None:
    with write(engine) as connection:
        quarantine.shut_out_if_known(connection, issued.runner_id, INTENT, policy=LEASE_POLICY)
        assert identities.refused_serials(connection) == {*serials(connection, issued.runner_id)}


def test_a_drained_runner_that_is_not_admitted_stays_out(engine: sa.Engine, issued: Issued) -> None:
    arrive(engine, issued, clock_ms=0)
    for change in (runners.drain, runners.undrain):
        with write(engine) as connection:
            change(connection, "runner-1", reason="x", actor="x", channel="api")
        assert row(engine)["state"] == RunnerState.UNADMITTED


def test_grants_are_kept_as_they_were_given(engine: sa.Engine, issued: Issued) -> None:
    with read(engine) as connection:
        found = identities.grant_of(connection, issued.runner_id)
    assert found is not None
    assert codec.encode(found[2]) == codec.encode(GRANT)


@pytest.mark.requirement("INV-072")
@pytest.mark.parametrize("way", ["token", "certificate"])
def test_by_token_or_by_certificate_only_the_admitted_get_work(
    engine: sa.Engine, issued: Issued, way: str
) -> None:
    """By its token a runner comes in on the host of a standalone system, on either database."""
    desk = Desk(engine)
    name = "local" if way == "token" else "runner-1"

    def enter() -> tuple[str, str]:
        session = desk.register(name) if way == "token" else arrive(engine, issued)
        beat(engine, session)
        found = row(engine, name)
        return found["admission"], found["state"]

    assert enter() == (Admission.VERIFIED, RunnerState.ONLINE)
    with write(engine) as connection:
        quarantine.shut_out(connection, name, INTENT, policy=LEASE_POLICY)
    desk.submit()
    assert enter() == (Admission.QUARANTINED, RunnerState.UNADMITTED)
    assert desk.cycle().granted == 0
    with write(engine) as connection:
        quarantine.admit(connection, name, INTENT)
    assert enter() == (Admission.VERIFIED, RunnerState.ONLINE)
    assert desk.cycle().granted == 1
