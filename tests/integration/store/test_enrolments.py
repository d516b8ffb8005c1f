"""A token makes one runner, once: windows, races, lost answers and copies."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from forgeyard.errors import (
    Conflict,
    Forbidden,
    ForgeyardError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from forgeyard.model.capability import TrustClass
from forgeyard.model.enrolment import Awaited, Grant
from forgeyard.store import enrolments, identities, tables
from forgeyard.store.engine import read, write
from forgeyard.store.enrolments import Alarm
from forgeyard.store.identities import Cloned, Issued
from forgeyard.trust import tokens
from tests.builders import RNG
from tests.trusting import (
    INTENT,
    TOKEN_KEY,
    Signs,
    enrolled,
    invite,
    no_evidence,
    redeem,
    serials,
)

pytestmark = pytest.mark.integration
MINUTE = 60_000
RACERS, ROUNDS = 12, 10


def later(engine: sa.Engine, ms: int) -> None:
    """Let so much time pass for every enrolment and certificate."""
    back = {
        tables.enrolments: ("created_at", "opens_at", "approved_at", "used_at"),
        tables.certificates: ("issued_at", "ends_at", "replaced_at"),
    }
    with write(engine) as connection:
        for table, names in back.items():
            connection.execute(
                sa.update(table).values({name: table.c[name] - ms for name in names})
            )


def audited(engine: sa.Engine) -> list[str]:
    with read(engine) as connection:
        query = sa.select(tables.audit.c.action).order_by(tables.audit.c.audit_id)
        return list(connection.execute(query).scalars())


def test_asking_for_a_token_again_gives_the_same_one(engine: sa.Engine) -> None:
    with write(engine) as connection:
        one, again = invite(connection), invite(connection)
    assert one == again
    assert audited(engine) == ["enrolment.mint"]


@pytest.mark.parametrize(
    "other",
    [{"grant": Grant(trust=TrustClass.CONFIDENTIAL)}, {"runner_name": "x"}, {"window_ms": 5_000}],
)
def test_another_wish_for_the_same_machine_is_a_conflict(
    engine: sa.Engine, other: dict[str, object]
) -> None:
    with write(engine) as connection:
        invite(connection)
    with pytest.raises(Conflict), write(engine) as connection:
        invite(connection, **{"binding": "host/runner-1/1", **other})


def test_a_pool_that_is_granted_has_to_be_there(engine: sa.Engine) -> None:
    with pytest.raises(NotFound, match="no pool moon"), write(engine) as connection:
        invite(connection, grant=Grant(pool="moon"))


@pytest.mark.requirement("BOO-003", "ACC-049", "INV-054", "TST-018")
def test_a_token_gives_one_certificate_and_another_key_sets_off_the_alarm(
    engine: sa.Engine,
) -> None:
    sign = Signs()
    with write(engine) as connection:
        view = invite(connection)
        first = redeem(connection, view, "sha256/one", sign)
        again = redeem(connection, view, "sha256/one", sign)
    assert isinstance(first, Issued)
    assert first == again
    assert sign.made == 1
    with write(engine) as connection:
        other = redeem(connection, view, "sha256/two", sign)
    assert other == Alarm(enrolment_id=view.enrolment_id, runner_id=first.runner_id)
    assert audited(engine) == ["enrolment.mint", "enrolment.alarm"]
    with pytest.raises(Forbidden, match="alarmed"), write(engine) as connection:
        redeem(connection, view, "sha256/one", sign)
    assert sign.made == 1


@pytest.mark.requirement("BOO-002", "BOO-003", "TST-018")
@pytest.mark.parametrize(("minutes", "opens"), [(14, True), (16, False)])
def test_a_token_opens_nothing_after_its_window(
    engine: sa.Engine, minutes: int, opens: bool
) -> None:
    with write(engine) as connection:
        view = invite(connection)
    later(engine, minutes * MINUTE)
    if opens:
        with write(engine) as connection:
            assert isinstance(redeem(connection, view), Issued)
        return
    with pytest.raises(Forbidden, match="expired"), write(engine) as connection:
        redeem(connection, view)


def test_the_window_of_a_machine_opens_when_it_is_first_seen(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, binding="instance/i-7/1", opens_when_seen=True)
    with pytest.raises(Unavailable, match="not been seen"), write(engine) as connection:
        redeem(connection, view)
    later(engine, 60 * MINUTE)
    with write(engine) as connection:
        enrolments.seen(connection, "instance/i-7/1")
        assert isinstance(redeem(connection, view), Issued)


def test_seeing_a_machine_again_does_not_open_the_window_again(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, binding="instance/i-7/1", opens_when_seen=True)
        enrolments.seen(connection, "instance/i-7/1")
    later(engine, 16 * MINUTE)
    with write(engine) as connection:
        enrolments.seen(connection, "instance/i-7/1")
    with pytest.raises(Forbidden, match="expired"), write(engine) as connection:
        redeem(connection, view)


def test_a_token_waits_for_its_machine_no_longer_than_a_day(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, binding="instance/i-7/1", opens_when_seen=True)
    later(engine, 25 * 60 * MINUTE)
    with pytest.raises(Forbidden, match="expired"), write(engine) as connection:
        redeem(connection, view)


def test_a_token_that_was_withdrawn_opens_nothing(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection)
        enrolments.cancel(connection, view.enrolment_id, INTENT)
    with pytest.raises(Forbidden, match="cancelled"), write(engine) as connection:
        redeem(connection, view)
    with pytest.raises(Conflict), write(engine) as connection:
        invite(connection)


@pytest.mark.parametrize("mark", ["", "x", "wrong"])
def test_a_forged_token_is_refused(engine: sa.Engine, mark: str) -> None:
    with write(engine) as connection:
        view = invite(connection)
    for enrolment_id in (view.enrolment_id, "enr_nobody"):
        with pytest.raises(Unauthenticated), write(engine) as connection:
            enrolments.redeem(
                connection,
                enrolment_id,
                mark,
                "sha256/one",
                sign=Signs(),
                prove=no_evidence,
                rng=RNG,
            )


def test_nothing_that_is_stored_opens_a_door(engine: sa.Engine) -> None:
    """S1: a dump of the tables holds no token."""
    with write(engine) as connection:
        view = invite(connection)
        redeem(connection, view)
    token = tokens.derive(TOKEN_KEY, view.enrolment_id, view.binding)
    with read(engine) as connection:
        dump = "".join(
            repr(tuple(row))
            for table in tables.metadata.sorted_tables
            for row in connection.execute(sa.select(table))
        )
    assert view.enrolment_id in dump
    assert token.secret not in dump


def test_of_many_who_bring_one_token_with_keys_of_their_own_one_wins(
    engine: sa.Engine, record_property: object
) -> None:
    """S1: and all others set off the alarm."""
    won = 0
    for number in range(ROUNDS):
        with write(engine) as connection:
            view = invite(connection, f"raced-{number}")
        line = Barrier(RACERS)

        def run(racer: int, view: enrolments.EnrolmentView = view, line: Barrier = line) -> object:
            line.wait(30)
            try:
                with write(engine) as connection:
                    return redeem(connection, view, f"sha256/{view.enrolment_id}/{racer}")
            except ForgeyardError as error:
                return error

        with ThreadPoolExecutor(RACERS) as pool:
            answers = list(pool.map(run, range(RACERS)))
        issued = [one for one in answers if isinstance(one, Issued)]
        assert len(issued) <= 1
        rest = [one for one in answers if not isinstance(one, Issued)]
        assert all(isinstance(one, Alarm | Forbidden) for one in rest), rest
        won += len(issued)
    record_property("races won by one", f"{won} of {ROUNDS}")
    assert won > 0


@pytest.mark.requirement("ELG-043")
def test_a_machine_that_needs_approval_gets_its_certificate_after_it(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, needs_approval=True)
        waits = redeem(connection, view, "sha256/one")
    assert waits == Awaited(runner_name="runner-1", key="sha256/one")
    with pytest.raises(Conflict, match="another key"), write(engine) as connection:
        enrolments.approve(connection, view.enrolment_id, "sha256/other", INTENT)
    with write(engine) as connection:
        assert enrolments.list_all(connection)[0].state == "to_approve"
        enrolments.approve(connection, view.enrolment_id, "sha256/one", INTENT)
        assert isinstance(redeem(connection, view, "sha256/one"), Issued)


def test_an_approval_lasts_a_window(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, needs_approval=True)
        redeem(connection, view, "sha256/one")
        enrolments.approve(connection, view.enrolment_id, "sha256/one", INTENT)
    later(engine, 16 * MINUTE)
    with pytest.raises(Forbidden, match="expired"), write(engine) as connection:
        redeem(connection, view, "sha256/one")


def test_nothing_is_approved_before_a_machine_came(engine: sa.Engine) -> None:
    with write(engine) as connection:
        view = invite(connection, needs_approval=True)
    with pytest.raises(Conflict, match="no machine waits"), write(engine) as connection:
        enrolments.approve(connection, view.enrolment_id, "sha256/one", INTENT)


def test_the_next_certificate_is_given_for_a_new_key(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = enrolled(connection)
        (serial,) = serials(connection, first.runner_id)
        second = identities.renew(connection, serial, "sha256/next", sign=Signs())
    assert isinstance(second, Issued)
    assert (first.generation, second.generation) == (1, 2)


def test_the_same_request_for_the_next_one_is_answered_again(engine: sa.Engine) -> None:
    """The answer was lost; the agent still has the certificate before it, and the same key."""
    sign = Signs()
    with write(engine) as connection:
        (serial,) = serials(connection, enrolled(connection).runner_id)
        second = identities.renew(connection, serial, "sha256/next", sign=sign)
        assert identities.renew(connection, serial, "sha256/next", sign=sign) == second
    assert sign.made == 1


def test_two_next_ones_with_keys_of_their_own_are_two_machines(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = enrolled(connection)
        (serial,) = serials(connection, first.runner_id)
        identities.renew(connection, serial, "sha256/next", sign=Signs())
        other = identities.renew(connection, serial, "sha256/copy", sign=Signs())
    assert other == Cloned(runner_id=first.runner_id)


def test_a_revoked_certificate_gives_no_next_one(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = enrolled(connection)
        (serial,) = serials(connection, first.runner_id)
        identities.revoke(connection, first.runner_id, reason="stolen", now=1)
    with pytest.raises(Forbidden, match="revoked"), write(engine) as connection:
        identities.renew(connection, serial, "sha256/next", sign=Signs())


@pytest.mark.parametrize("how", ["enrol", "renew"])
def test_the_key_of_another_runner_is_refused(engine: sa.Engine, how: str) -> None:
    """S13: also that of one that was revoked."""
    with write(engine) as connection:
        old = enrolled(connection, "old")
        identities.revoke(connection, old.runner_id, reason="stolen", now=1)
        fresh = enrolled(connection, "fresh")
        view = invite(connection, "new")
        (serial,) = serials(connection, fresh.runner_id)
    ask = {
        "enrol": lambda it: redeem(it, view, "sha256/old"),
        "renew": lambda it: identities.renew(it, serial, "sha256/old", sign=Signs()),
    }[how]
    with pytest.raises(InvalidRequest, match="another certificate"), write(engine) as connection:
        ask(connection)


def test_a_replaced_certificate_is_good_for_five_minutes_more(engine: sa.Engine) -> None:
    with write(engine) as connection:
        (serial,) = serials(connection, enrolled(connection).runner_id)
        identities.renew(connection, serial, "sha256/next", sign=Signs())
        assert identities.refused_serials(connection) == frozenset()
    later(engine, 6 * MINUTE)
    with write(engine) as connection:
        assert identities.refused_serials(connection) == {serial}


def test_what_is_over_need_not_be_refused_by_name(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = enrolled(connection)
        identities.revoke(connection, first.runner_id, reason="stolen", now=1)
        assert len(identities.refused_serials(connection)) == 1
    later(engine, 120 * MINUTE)
    with write(engine) as connection:
        assert identities.refused_serials(connection) == frozenset()


def test_a_machine_that_is_enrolled_anew_replaces_the_one_of_its_name(engine: sa.Engine) -> None:
    with write(engine) as connection:
        first = enrolled(connection)
        view = invite(connection, binding="host/runner-1/2")
        second = redeem(connection, view, "sha256/new machine")
        assert isinstance(second, Issued)
        assert second.runner_id == first.runner_id
        old, _ = serials(connection, first.runner_id)
        assert identities.refused_serials(connection) == {old}
