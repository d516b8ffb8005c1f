"""Certificates that are over and old invitations are forgotten, and nothing that still decides."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard import clock
from forgeyard.config import RetentionConfig
from forgeyard.errors import Forbidden, InvalidRequest, Unauthenticated
from forgeyard.model.enrolment import CloudMachine, Expectation, Grant
from forgeyard.store import enrolments, identities, retention, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import read, write
from forgeyard.store.identities import Issued
from forgeyard.trust.evidence import Doubt, Facts, Unproved
from tests.trusting import INTENT, Signs, enrolled, invite, redeem, serials

pytestmark = pytest.mark.integration
HOUR = 3_600_000
CONFIG = RetentionConfig(identities_h=48)


class Attic:
    """A store in which time passes, and which forgets."""

    def __init__(self, engine: sa.Engine, root: Path) -> None:
        self.engine = engine
        self.blobs = FileBlobStore(root)

    def later(self, hours: int) -> None:
        past = {
            tables.enrolments: (
                *("created_at", "opens_at", "approved_at"),
                *("used_at", "cancelled_at", "alarmed_at"),
            ),
            tables.certificates: ("issued_at", "ends_at", "replaced_at"),
            tables.enrolled_machines: ("launched_at",),
        }
        with write(self.engine) as connection:
            for table, names in past.items():
                values = {name: table.c[name] - hours * HOUR for name in names}
                connection.execute(sa.update(table).values(values))

    def forget(self) -> int:
        return retention.forget(self.engine, self.blobs, CONFIG).traces

    def count(self, table: sa.Table) -> int:
        with read(self.engine) as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def counts(self) -> tuple[int, int]:
        return self.count(tables.certificates), self.count(tables.enrolments)


@pytest.fixture
def attic(engine: sa.Engine, tmp_path: Path) -> Attic:
    """Give an empty store."""
    return Attic(engine, tmp_path / "blobs")


def test_a_certificate_and_its_invitation_go_when_both_are_long_over(attic: Attic) -> None:
    with write(attic.engine) as connection:
        enrolled(connection)
    attic.later(48)
    assert attic.forget() == 0
    attic.later(2)
    assert attic.forget() == 2
    assert attic.counts() == (0, 0)


def test_an_invitation_stays_as_long_as_its_runner_renews(attic: Attic) -> None:
    with write(attic.engine) as connection:
        first = enrolled(connection)
        (serial,) = serials(connection, first.runner_id)
        long = Signs(lasts_ms=100 * HOUR)
        identities.renew(connection, serial, "sha256/next", sign=long)
    attic.later(60)
    assert attic.forget() == 1
    assert attic.counts() == (1, 1)
    with write(attic.engine) as connection:
        (serial,) = serials(connection, first.runner_id)
        third = identities.renew(connection, serial, "sha256/third", sign=Signs())
        assert isinstance(third, Issued)
        assert third.generation == 3
        # And the answer to that may be lost as well.
        assert identities.renew(connection, serial, "sha256/third", sign=Signs()) == third
        assert identities.grant_of(connection, first.runner_id) is not None


def test_a_token_makes_no_second_runner_after_its_certificate_was_forgotten(attic: Attic) -> None:
    with write(attic.engine) as connection:
        view = invite(connection)
        redeem(connection, view)
        connection.execute(sa.delete(tables.certificates))
    with pytest.raises(Forbidden, match="used"), write(attic.engine) as connection:
        redeem(connection, view)
    attic.later(50)
    attic.forget()
    with pytest.raises(Unauthenticated), write(attic.engine) as connection:
        redeem(connection, view)
    with write(attic.engine) as connection:
        anew = invite(connection)
    assert anew.enrolment_id != view.enrolment_id


def test_the_key_of_a_runner_that_was_shut_out_never_comes_again(attic: Attic) -> None:
    """S13."""
    with write(attic.engine) as connection:
        old = enrolled(connection)
        identities.revoke(connection, old.runner_id, reason="stolen", now=1)
    attic.later(1_000)
    assert attic.forget() == 0
    assert attic.counts() == (1, 1)
    with write(attic.engine) as connection:
        view = invite(connection, "new")
    with (
        pytest.raises(InvalidRequest, match="another certificate"),
        write(attic.engine) as connection,
    ):
        redeem(connection, view, "sha256/runner-1")


def test_one_that_its_own_machine_replaced_is_no_such_one(attic: Attic) -> None:
    with write(attic.engine) as connection:
        enrolled(connection)
        redeem(connection, invite(connection, binding="host/runner-1/2"), "sha256/anew")
    attic.later(50)
    assert attic.forget() == 4
    assert attic.counts() == (0, 0)


def test_what_nobody_used_goes_and_what_happened_lately_stays(attic: Attic) -> None:
    with write(attic.engine) as connection:
        invite(connection, "unused")
        withdrawn = invite(connection, "withdrawn")
        waits = invite(connection, "waits", needs_approval=True)
        redeem(connection, waits, "sha256/waits")
    attic.later(50)
    with write(attic.engine) as connection:
        enrolments.cancel(connection, withdrawn.enrolment_id, INTENT)
        enrolments.approve(connection, waits.enrolment_id, "sha256/waits", INTENT)
    assert attic.forget() == 1
    with write(attic.engine) as connection:
        assert isinstance(redeem(connection, waits, "sha256/waits"), Issued)


def test_a_machine_is_remembered_until_its_document_is_stale_for_everybody(attic: Attic) -> None:
    machine = CloudMachine(account="123456789012", launched_within_ms=364 * 24 * HOUR)
    grant = Grant(expects=Expectation(machine=machine))
    launched = int(clock.now().timestamp() * 1000)
    facts = Facts(account="123456789012", region="eu-1", instance="i-1", launched_at=launched)
    with write(attic.engine) as connection:
        redeem(connection, invite(connection, "one", grant), prove=lambda cloud: facts)
    attic.later(363 * 24)
    assert attic.forget() == 2
    with write(attic.engine) as connection:
        again = redeem(connection, invite(connection, "two", grant), prove=lambda cloud: facts)
    assert isinstance(again, Unproved)
    assert again.doubt is Doubt.USED
    attic.later(3 * 24)
    attic.forget()
    assert attic.count(tables.enrolled_machines) == 0


def test_the_trail_of_what_was_forgotten_stays(attic: Attic) -> None:
    with write(attic.engine) as connection:
        enrolled(connection)
    attic.later(50)
    before = attic.count(tables.audit)
    attic.forget()
    assert attic.count(tables.audit) == before > 0
