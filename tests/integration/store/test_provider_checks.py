"""What a provider says of credentials and images: asked for now and then, told by the doctor."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.fleet.doctor import examine
from forgeyard.fleet.ports import Check, CheckLevel
from forgeyard.model.fleet import Offering
from forgeyard.scheduler.doctor import CheckVerdict
from forgeyard.store import fleet_symptoms, fleets, provider_checks, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.shares import Intent
from tests.builders import RNG, a_fleet_spec
from tests.leasing import Desk

ME = Intent(actor="ann", channel="test", reason="a test")
NEW_KEYS = Check(name="credentials", level=CheckLevel.FAILED, text="UnauthorizedOperation")
FINE = Check(name="image", level=CheckLevel.OK, text="")


def due(desk: Desk) -> tuple[Offering, ...]:
    with read(desk.engine) as connection:
        return provider_checks.due(connection, "local", now=database_now(connection))


def told(desk: Desk) -> tuple[CheckVerdict, str]:
    with read(desk.engine) as connection:
        checks = examine(fleet_symptoms.read_symptoms(connection, "builders"))
    (found,) = (one for one in checks if one.name == "builders: provider")
    return found.verdict, found.sentence


@pytest.mark.requirement("FRC-026", "FRC-029", "FRC-032", "FRC-034")
def test_what_a_provider_complains_of_is_told_until_it_is_asked_again(engine: sa.Engine) -> None:
    desk = Desk(engine)
    assert due(desk) == (), "no fleet wants anything of it"
    offering = Offering(name="default", machine="m7.large")
    spec = a_fleet_spec(offerings=(offering,))
    desk.change(fleets.apply, spec, ME, expected_version=None, rng=RNG)
    assert due(desk) == (offering,)
    assert told(desk)[0] is CheckVerdict.OK
    with read(engine) as connection:
        now = database_now(connection)
    desk.change(provider_checks.keep, "local", (FINE, NEW_KEYS), now=now)
    assert due(desk) == (), "it was asked a moment ago"
    assert told(desk) == (
        CheckVerdict.FAIL,
        "Provider local complains: credentials: UnauthorizedOperation.",
    )
    desk.change(provider_checks.keep, "local", (FINE,), now=now - provider_checks.EVERY_MS)
    assert due(desk) == (offering,)
    assert told(desk)[0] is CheckVerdict.OK


def audited(desk: Desk) -> list[str]:
    audit = tables.audit
    query = sa.select(audit.c.detail).where(audit.c.action == "provider.identity")
    with read(desk.engine) as connection:
        return list(connection.execute(query.order_by(audit.c.audit_id)).scalars())


@pytest.mark.requirement("ALR-013")
def test_that_a_provider_lets_us_in_as_somebody_else_is_on_record(engine: sa.Engine) -> None:
    """Between the old credentials and the new ones a provider may let nobody in."""
    desk = Desk(engine)
    with read(engine) as connection:
        now = database_now(connection)
    old = Check(name="identity", level=CheckLevel.OK, text="user/old")
    new = replace(old, text="role/new")
    nobody = Check(name="identity", level=CheckLevel.FAILED, text="Denied")
    for found in ((old, FINE), (old,), (nobody,), (nobody,), (old,), (nobody,), (new,), (new,)):
        desk.change(provider_checks.keep, "local", found, now=now)
    assert audited(desk) == ["nobody to user/old", "user/old to role/new"]
