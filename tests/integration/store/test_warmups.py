"""What a new machine may fetch before anybody asks for it, and what is kept of how that went."""

import hashlib

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound, StaleRejected
from forgeyard.model.capability import TrustClass
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetSpec, WarmUp
from forgeyard.model.protocol import WarmUpOutcome
from forgeyard.model.units import Bytes
from forgeyard.store import blobs, distrust, fleet_tables, fleet_views, runners, tables, warmups
from forgeyard.store.engine import database_now, read
from tests.builders import a_fleet_spec
from tests.integration.store.grounds import a_fleet_of, a_machine
from tests.leasing import Desk

pytestmark = pytest.mark.integration
WARM = WarmUp(caches=("pip", "npm"), at_most=Bytes(100))
TRUSTED = TrustClass.TRUSTED_INTERNAL


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def up(desk: Desk, wish: WarmUp = WARM, name: str = "builders") -> tuple[str, str]:
    """Bring a machine of a fleet up; return it, and its session."""
    a_fleet_of(desk, "", name=name, warmup=wish)
    made = a_machine(desk, name)
    runner = desk.row(fleet_tables.capacity_instances, made)["runner_name"]
    return made, desk.register(runner).session_id


def digest_of(word: str) -> str:
    return f"sha256:{hashlib.sha256(word.encode()).hexdigest()}"


def saved(
    desk: Desk, name: str, number: int, *, size: int = 10, trust: str = TRUSTED, by: str = ""
) -> str:
    """Keep a cache that was used at an instant; return the digest of its archive."""
    digest = digest_of(f"{name}/{number}")
    row = {
        "trust": trust,
        "cache_key": digest_of(f"key/{name}/{number}"),
        "name": name,
        "digest": digest,
        "size_bytes": size,
        "created_at": number,
        "used_at": number,
        "runner_id": by or None,
    }
    desk.change(lambda connection: connection.execute(sa.insert(tables.caches), [row]))
    desk.change(blobs.record, digest, size)
    return digest


def planned(desk: Desk, session_id: str) -> list[str]:
    with read(desk.engine) as connection:
        return [one.digest for one in warmups.plan(connection, session_id).archives]


def trust_of(desk: Desk, session_id: str) -> str:
    (runner,) = desk.rows(tables.runners, session_id=session_id)
    return str(runner["trust"])


@pytest.mark.requirement("FOP-031")
def test_the_newest_of_each_name_comes_first_as_far_as_the_bytes_reach(desk: Desk) -> None:
    _, session_id = up(desk)
    trust = trust_of(desk, session_id)
    old = [saved(desk, "pip", number, trust=trust) for number in (30, 20, 10)]
    npm = saved(desk, "npm", 5, trust=trust, size=60)
    saved(desk, "cargo", 99, trust=trust)
    saved(desk, "pip", 99, trust="another")
    assert planned(desk, session_id) == [old[0], npm, old[1], old[2]]
    desk.change(
        lambda connection: connection.execute(
            sa.update(tables.caches).where(tables.caches.c.name == "npm").values(size_bytes=85)
        )
    )
    assert planned(desk, session_id) == [old[0], npm], "and 5 bytes more are not enough"


def test_what_comes_from_a_runner_that_is_distrusted_is_no_gift(desk: Desk) -> None:
    _, session_id = up(desk)
    culprit = desk.register("culprit").runner_id
    fine = saved(desk, "pip", 1, trust=trust_of(desk, session_id))
    saved(desk, "pip", 50, trust=trust_of(desk, session_id), by=culprit)
    of = tables.runners.c.runner_id == culprit
    desk.change(distrust.mark, of, since=40, reason="it was broken into")
    assert planned(desk, session_id) == [fine]


@pytest.mark.requirement("FOP-033")
def test_a_runner_that_is_not_admitted_may_fetch_nothing_and_say_nothing(desk: Desk) -> None:
    machine, session_id = up(desk)
    digest = saved(desk, "pip", 1, trust=trust_of(desk, session_id))
    (runner,) = desk.rows(tables.runners, session_id=session_id)
    desk.overwrite(tables.runners, runner["runner_id"], admission=Admission.PENDING.value)
    for call, argument in (
        (warmups.demand_planned, digest),
        (warmups.record, WarmUpOutcome()),
    ):
        with pytest.raises(Conflict, match="not admitted"):
            desk.change(call, session_id, argument)
    with pytest.raises(Conflict, match="not admitted"):
        planned(desk, session_id)
    desk.overwrite(tables.runners, runner["runner_id"], admission=Admission.VERIFIED.value)
    desk.change(warmups.demand_planned, session_id, digest)
    with pytest.raises(NotFound):
        desk.change(warmups.demand_planned, session_id, digest_of("something else"))
    assert desk.row(fleet_tables.capacity_instances, machine)["warmed_at"] is None


def test_a_session_that_has_ended_or_never_was_gets_nothing(desk: Desk) -> None:
    _, session_id = up(desk)
    desk.change(runners.close, session_id, policy=desk.policy.lease)
    with pytest.raises(StaleRejected):
        planned(desk, session_id)
    with pytest.raises(NotFound):
        planned(desk, "ses_nobody")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(a_fleet_spec(warmup=WARM), True), (a_fleet_spec(), False)],
    ids=["caches", "nothing"],
)
def test_an_agent_is_told_at_its_registration_whether_there_is_anything(
    desk: Desk, spec: FleetSpec, expected: bool
) -> None:
    a_fleet_of(desk, "", warmup=spec.warmup)
    made = a_machine(desk)
    name = desk.row(fleet_tables.capacity_instances, made)["runner_name"]
    assert desk.register(name).warmup is expected
    assert desk.register("somebody-else").warmup is False


@pytest.mark.requirement("FOP-032")
def test_how_it_went_is_written_down_once_and_shown_and_the_runner_stays_what_it_is(
    desk: Desk,
) -> None:
    machine, session_id = up(desk)
    (before,) = desk.rows(tables.runners, session_id=session_id)
    cold = WarmUpOutcome(archives=1, missing=2, problem="not everything came within 2 s")
    assert desk.change(warmups.record, session_id, cold) == ("builders", "incomplete")
    assert desk.change(warmups.record, session_id, WarmUpOutcome(archives=3)) is None
    with read(desk.engine) as connection:
        assert fleet_views.machine(connection, machine).warmup == cold
        assert database_now(connection) >= 0
    (after,) = desk.rows(tables.runners, session_id=session_id)
    assert after == before
    assert desk.register(before["name"]).warmup is False, "an agent that begins anew is told"


def test_a_warm_up_with_everything_there_is_complete(desk: Desk) -> None:
    _, session_id = up(desk)
    whole = WarmUpOutcome(archives=2, bytes_fetched=20)
    assert desk.change(warmups.record, session_id, whole) == ("builders", "complete")


def test_a_runner_of_no_fleet_has_nothing_to_fetch(desk: Desk) -> None:
    session_id = desk.register().session_id
    saved(desk, "pip", 1, trust=trust_of(desk, session_id))
    assert planned(desk, session_id) == []
    assert desk.change(warmups.record, session_id, WarmUpOutcome()) is None
