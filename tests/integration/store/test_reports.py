"""What an agent says of its host again and again: taken in whole, cut down, or refused."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest
from forgeyard.model.capability import TrustClass
from forgeyard.model.equipment import Device, Equipment, Provenance
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.job import Priority
from forgeyard.model.protocol import Report
from forgeyard.model.runner import ResourcePressure, RunnerHealth
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.snapshot import SchedulingRunner
from forgeyard.store import overview, runners, snapshot, tables
from forgeyard.store.engine import read
from forgeyard.store.overview import RunnerView
from tests.builders import PARTITION, a_job_spec, a_registration, some_capabilities, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration
HELD = Holdings(objects={"sha256:a": 7}, closures=("sha256:key",))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def a_report(**changed: object) -> Report:
    """Describe a host; every field may be given."""
    said = a_registration()
    report = Report(capabilities=said.capabilities, total=said.total, headroom=said.headroom)
    return replace(report, **changed)


def seen(desk: Desk) -> SchedulingRunner:
    """Look at the one runner as a cycle does."""
    with read(desk.engine) as connection:
        (runner,) = snapshot.load(connection, PARTITION, desk.policy).runners
    return runner


def shown(desk: Desk) -> RunnerView:
    """Look at the one runner as its operator does."""
    with read(desk.engine) as connection:
        (runner,) = overview.runners(connection)
    return runner


def row(desk: Desk) -> dict[str, object]:
    """Read the row of the one runner."""
    (found,) = desk.rows(tables.runners)
    return found


@pytest.mark.case("SP-060")
@pytest.mark.requirement("RES-002")
def test_a_host_that_keeps_back_more_than_it_has_is_taken_cut_down_and_shown_so(
    desk: Desk,
) -> None:
    greedy = some_resources(cpu=6_000, slots=0)
    session_id = desk.register(headroom=greedy).session_id
    desk.heartbeat(session_id, report=a_report(headroom=greedy))
    assert shown(desk).allocatable.cpu == 0
    assert shown(desk).diagnostics == ("no cpu is left for jobs: the headroom takes all of it",)
    assert seen(desk).allocatable.cpu == 0
    desk.submit(a_job_spec())
    assert desk.cycle().granted == 0
    desk.heartbeat(session_id, report=a_report())
    assert shown(desk).diagnostics == ()
    assert desk.cycle().granted == 1


@pytest.mark.case("SP-056")
def test_a_runner_that_leaves_with_work_on_it_breaks_no_cycle_and_no_sum(desk: Desk) -> None:
    session_id = desk.register().session_id
    for name in "abcd":
        desk.submit(a_job_spec(name))
    assert desk.cycle().granted == 4
    for lease in desk.leases(state="offered"):
        desk.accept(lease)
    tiny = some_resources(cpu=100, memory=1, disk=1, slots=1)
    desk.heartbeat(session_id, report=a_report(total=tiny))
    desk.submit(a_job_spec("waits"))
    assert desk.cycle().granted == 0, "more is held than there is"
    assert min(amounts(shown(desk).free)) == 0
    assert min(amounts(shown(desk).allocatable)) > 0
    desk.change(runners.close, session_id, policy=desk.policy.lease)
    assert desk.cycle().granted == 0
    assert min(amounts(shown(desk).free)) >= 0
    with read(desk.engine) as connection:
        assert overview.capacity(connection).runners == 0
        assert min(amounts(overview.capacity(connection).free)) == 0
        (waits,) = desk.rows(tables.jobs, name="waits")
        job, world = snapshot.load_with(connection, waits["job_id"], desk.policy)
    assert explain(job, world, desk.policy) is not None
    assert not any(desk.reserved(shown(desk).runner_id).values())
    desk.register(total=tiny)
    assert desk.cycle().granted == 0
    desk.register()
    assert desk.cycle().granted > 0


def amounts(resources: object) -> list[int]:
    """List an amount of every resource."""
    return [getattr(resources, name) for name in ("cpu", "memory", "disk", "slots")]


@pytest.mark.requirement("ELG-028", "ELG-029")
def test_a_host_that_was_looked_at_anew_is_known_by_what_was_found(desk: Desk) -> None:
    session_id = desk.register().session_id
    desk.overwrite(tables.runners, seen(desk).runner_id, reported_at=1, changed_at=1)
    desk.heartbeat(session_id, report=a_report())
    assert seen(desk).reported_at > 1, "nothing has changed, but it is known again"
    assert row(desk)["changed_at"] == 1
    before, wakes = seen(desk).capability_digest, desk.wakes()
    has = Equipment(devices=(Device(kind="phone", provenance=Provenance.CONFIGURED),))
    desk.submit(a_job_spec())
    wakes = desk.wakes()
    desk.heartbeat(session_id, report=a_report(capabilities=some_capabilities(equipment=has)))
    assert seen(desk).capabilities.equipment == has
    assert seen(desk).capability_digest != before
    assert row(desk)["changed_at"] == row(desk)["last_seen_at"]
    assert desk.wakes() == wakes + 1, "it may take other jobs than before"


def test_a_report_changes_no_trust_and_one_that_cannot_be_changes_nothing(desk: Desk) -> None:
    session_id = desk.register().session_id
    claims = some_capabilities(trust=TrustClass.SIGNING_RESTRICTED)
    desk.heartbeat(session_id, report=a_report(capabilities=claims))
    assert seen(desk).trust is TrustClass.TRUSTED_INTERNAL
    before = row(desk)
    verified = Equipment(devices=(Device(kind="phone", provenance=Provenance.VERIFIED),))
    for wrong in (
        a_report(capabilities=some_capabilities(equipment=verified)),
        a_report(total=some_resources(cpu=-1)),
    ):
        with pytest.raises(InvalidRequest):
            desk.heartbeat(session_id, report=wrong)
    assert row(desk) == before


@pytest.mark.requirement("RUN-012", "RUN-013")
@pytest.mark.parametrize(
    ("health", "state", "degraded"),
    [
        (RunnerHealth.HEALTHY, "online", False),
        (RunnerHealth.DEGRADED, "online", True),
        (RunnerHealth.UNHEALTHY, "unhealthy", False),
    ],
)
def test_how_a_runner_says_it_is_is_known_to_a_cycle(
    desk: Desk, health: RunnerHealth, state: str, degraded: bool
) -> None:
    session_id = desk.register().session_id
    desk.heartbeat(session_id, health=health, health_reason="two disks of three")
    assert (seen(desk).state, seen(desk).degraded) == (state, degraded)
    assert (shown(desk).health, shown(desk).health_reason) == (health, "two disks of three")
    desk.submit(a_job_spec())
    wakes = desk.wakes()
    desk.heartbeat(session_id)
    assert (seen(desk).state, seen(desk).degraded) == ("online", False)
    assert desk.wakes() == wakes + (0 if health is RunnerHealth.HEALTHY else 1)
    desk.heartbeat(session_id, health=RunnerHealth.UNHEALTHY, pressure=ResourcePressure.MEMORY)
    assert seen(desk).state == "unhealthy", "the worse of the two counts"


@pytest.mark.requirement("SCO-009")
def test_what_a_runner_need_not_fetch_stays_known_until_it_says_otherwise(desk: Desk) -> None:
    session_id = desk.register().session_id
    assert seen(desk).holdings == NOTHING_HELD
    desk.heartbeat(session_id, holdings=HELD)
    digest = seen(desk).holdings_digest
    desk.heartbeat(session_id)
    assert seen(desk).holdings == HELD
    assert (shown(desk).holdings.objects, shown(desk).holdings.bytes) == (1, 7)
    assert shown(desk).holdings.closures == ("sha256:key",)
    desk.heartbeat(session_id, holdings=replace(HELD, closures=()))
    assert seen(desk).holdings_digest not in ("", digest)
    desk.heartbeat(session_id, holdings=NOTHING_HELD)
    assert (seen(desk).holdings, seen(desk).holdings_digest) == (NOTHING_HELD, "")


@pytest.mark.requirement("ACC-016")
def test_holdings_that_cannot_be_read_are_no_hint_and_nothing_worse(desk: Desk) -> None:
    desk.register()
    desk.overwrite(tables.runners, seen(desk).runner_id, holdings="{]")
    assert seen(desk).holdings == NOTHING_HELD
    assert shown(desk).holdings.objects == 0
    desk.submit(a_job_spec())
    assert desk.cycle().granted == 1


@pytest.mark.requirement("RUN-013")
def test_policy_says_what_an_unwell_runner_takes_and_the_job_says_why_it_waits(
    desk: Desk,
) -> None:
    session_id = desk.register().session_id
    desk.heartbeat(session_id, health=RunnerHealth.DEGRADED)
    desk.submit(a_job_spec("urgent", priority=Priority.HIGH))
    desk.submit(a_job_spec("usual"))
    assert desk.cycle().granted == 1
    (urgent,), (usual,) = (desk.rows(tables.jobs, name=name) for name in ("urgent", "usual"))
    assert (urgent["state"], usual["state"]) == ("eligible", "leased")
    assert "only runner-1 can run this job, but it is not well" in urgent["diagnosis"]
    desk.policy = replace(desk.policy, degraded_takes=400)
    assert desk.cycle().granted == 1
    desk.policy = replace(desk.policy, degraded_takes=-1)
    desk.submit(a_job_spec("another"))
    assert desk.cycle().granted == 0
    desk.heartbeat(session_id)
    assert desk.cycle().granted == 1
