"""A token alone is not enough where a machine of a cloud was meant, and a machine comes once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import sqlalchemy as sa

from forgeyard import clock
from forgeyard.errors import Forbidden
from forgeyard.model.enrolment import Awaited, Cloud, CloudMachine, Expectation, Grant
from forgeyard.store import enrolments, tables
from forgeyard.store.engine import read, write
from forgeyard.store.enrolments import Alarm, EnrolmentView
from forgeyard.store.identities import Issued
from forgeyard.store.proven_machines import MOST_REFUSALS, Prove
from forgeyard.trust.evidence import Doubt, Facts, Unproved
from tests.trusting import invite, redeem

pytestmark = pytest.mark.integration
MACHINE = CloudMachine(account="123456789012", instance="i-1")
DEMANDING = Grant(expects=Expectation(machine=MACHINE))
RACERS = 6


def saying(**changed: object) -> Prove:
    """Prove that somebody is a machine."""
    now = int(clock.now().timestamp() * 1000)
    facts = Facts(account="123456789012", region="eu-1", instance="i-1", launched_at=now - 60_000)
    return lambda cloud: replace(facts, **changed)


def never(cloud: Cloud) -> Facts | Unproved:
    raise AssertionError("nobody asked for this")


def doubt_of(found: object) -> Doubt:
    assert isinstance(found, Unproved), found
    return found.doubt


def refused(engine: sa.Engine) -> list[str]:
    audit = tables.audit
    with read(engine) as connection:
        query = sa.select(audit.c.detail).where(audit.c.action == "enrolment.refuse")
        return list(connection.execute(query.order_by(audit.c.audit_id)).scalars())


def view_of(engine: sa.Engine, made: EnrolmentView) -> EnrolmentView:
    with read(engine) as connection:
        listed = enrolments.list_all(connection)
    return next(one for one in listed if one.enrolment_id == made.enrolment_id)


def test_a_token_without_the_cloud_s_word_is_refused_counted_and_audited(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING)
        assert doubt_of(redeem(connection, view)) is Doubt.MISSING
        assert doubt_of(redeem(connection, view, prove=saying(instance="i-2"))) is (
            Doubt.OTHER_INSTANCE
        )
    assert view_of(engine, view).refusals == 2
    assert view_of(engine, view).state == "open"
    assert refused(engine) == [
        "host/runner-1/1: it brought nothing",
        "host/runner-1/1: its instance is i-2, expected i-1",
    ]


def test_the_machine_that_was_meant_comes_in_after_others_were_refused(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING)
        redeem(connection, view, "sha256/thief")
        first = redeem(connection, view, "sha256/one", prove=saying())
    assert isinstance(first, Issued)


@pytest.mark.case("FLT-006")
def test_of_two_machines_of_one_name_the_one_that_was_meant_comes_in_and_once(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING)
        early = redeem(connection, view, "sha256/two", prove=saying(instance="i-2"))
        assert doubt_of(early) is Doubt.OTHER_INSTANCE
        first = redeem(connection, view, "sha256/one", prove=saying())
        assert isinstance(first, Issued)
        late = redeem(connection, view, "sha256/two", prove=saying(instance="i-2"))
        assert late == Alarm(enrolment_id=view.enrolment_id, runner_id=first.runner_id)
        certificates = connection.execute(sa.select(tables.certificates.c.runner_id)).scalars()
        assert list(certificates) == [first.runner_id]


def test_an_answer_that_was_lost_needs_no_second_proof_again(engine: sa.Engine) -> None:
    """The key was proved to be the machine's; its document may be stale by now."""
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING)
        first = redeem(connection, view, prove=saying())
        assert redeem(connection, view, prove=never) == first
        assert isinstance(redeem(connection, view, "sha256/two", prove=saying()), Alarm)


def test_nothing_is_proved_where_nothing_was_demanded(engine: sa.Engine) -> None:
    with write(engine) as connection:
        assert isinstance(redeem(connection, invite(connection), prove=never), Issued)


def test_an_operator_s_approval_does_not_stand_for_the_cloud_s_word(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING, needs_approval=True)
        assert doubt_of(redeem(connection, view)) is Doubt.MISSING
        assert isinstance(redeem(connection, view, prove=saying()), Awaited)


def test_a_token_that_was_refused_often_opens_nothing_any_more(engine: sa.Engine) -> None:
    """And the trail does not grow for ever by it."""
    with write(engine) as connection:
        view = invite(connection, grant=DEMANDING)
    for _ in range(MOST_REFUSALS):
        with write(engine) as connection:
            redeem(connection, view)
    with pytest.raises(Forbidden, match="refused"), write(engine) as connection:
        redeem(connection, view, prove=saying())
    assert view_of(engine, view).state == "refused"
    assert len(refused(engine)) == MOST_REFUSALS


def test_a_machine_comes_once_whatever_invitation_it_brings(engine: sa.Engine) -> None:
    """A stolen document is worth nothing once its machine is in, though it is fresh."""
    grant = Grant(expects=Expectation(machine=replace(MACHINE, instance="")))
    with write(engine) as connection:
        first = redeem(connection, invite(connection, "one", grant), "sha256/one", prove=saying())
        assert isinstance(first, Issued)
        again = redeem(connection, invite(connection, "two", grant), "sha256/two", prove=saying())
        assert doubt_of(again) is Doubt.USED
        other = invite(connection, "three", grant)
        assert isinstance(
            redeem(connection, other, "sha256/two", prove=saying(instance="i-3")), Issued
        )


def test_of_many_who_bring_one_document_at_once_one_comes_in(engine: sa.Engine) -> None:
    grant = Grant(expects=Expectation(machine=replace(MACHINE, instance="")))
    with write(engine) as connection:
        views = [invite(connection, f"raced-{number}", grant) for number in range(RACERS)]
    line, prove = Barrier(RACERS), saying()

    def run(view: EnrolmentView) -> object:
        line.wait(30)
        with write(engine) as connection:
            return redeem(connection, view, f"sha256/{view.enrolment_id}", prove=prove)

    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(run, views))
    assert len([one for one in answers if isinstance(one, Issued)]) == 1
    rest = [one for one in answers if not isinstance(one, Issued)]
    assert {doubt_of(one) for one in rest} == {Doubt.USED}


def test_an_invitation_asked_for_again_is_the_same_by_what_it_says(engine: sa.Engine) -> None:
    """Not by how it was written: an older release wrote less."""
    with write(engine) as connection:
        view = invite(connection)
        short = sa.update(tables.enrolments).values(grants='{"trust":"untrusted_general"}')
        connection.execute(short)
        assert invite(connection) == view
