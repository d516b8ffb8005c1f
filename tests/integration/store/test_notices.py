"""A provider's word that it takes a machine away: who hears of it, and who is to blame."""

import pytest
import sqlalchemy as sa

from forgeyard.fleet.ports import Interruption
from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.protocol import Assignments
from forgeyard.store import fleet_tables, sightings, tables
from forgeyard.store.engine import database_now, read
from tests.builders import a_job_spec
from tests.integration.store.grounds import a_fleet_of, healthy
from tests.leasing import Desk, Lease

pytestmark = pytest.mark.integration
INSTANCES = fleet_tables.capacity_instances
NOTICE = 120_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    made = Desk(engine)
    a_fleet_of(made, "")
    return made


def up(desk: Desk) -> tuple[str, str]:
    """Bring a machine up whose name its provider knows; return it, and its session."""
    made, session_id = healthy(desk)
    desk.overwrite(INSTANCES, made, provider_ref=f"ref-{made}")
    return made, session_id


def now(desk: Desk) -> int:
    with read(desk.engine) as connection:
        return database_now(connection)


def announce(desk: Desk, *machines: str, within: int | None = NOTICE, **changed: bool) -> int:
    """Let the provider say that machines go; tell for how many that was news."""
    at = None if within is None else now(desk) + within
    told = [Interruption(ref=f"ref-{one}", at=at, **changed) for one in machines]
    return desk.change(sightings.interrupted, "local", told, now=now(desk))


def left(desk: Desk, session_id: str) -> int | None:
    return desk.assignments(session_id)[session_id].leaving


@pytest.mark.requirement("SPT-009")
def test_an_agent_hears_that_its_machine_goes_and_how_soon(desk: Desk) -> None:
    machine, session_id = up(desk)
    _, other = up(desk)
    assert desk.assignments(session_id) == {session_id: Assignments()}
    assert announce(desk, machine) == 1
    heard = left(desk, session_id)
    assert heard is not None
    assert NOTICE - 20_000 < heard <= NOTICE
    assert left(desk, other) is None
    assert announce(desk, machine, within=1) == 0, "its first word counts"
    desk.overwrite(INSTANCES, machine, ended_at=1)
    assert left(desk, session_id) is None


def test_a_machine_of_which_nobody_says_when_may_go_at_any_moment(desk: Desk) -> None:
    machine, session_id = up(desk)
    announce(desk, machine, within=None)
    assert left(desk, session_id) == 0


def test_a_notice_that_is_past_is_no_negative_time(desk: Desk) -> None:
    machine, session_id = up(desk)
    announce(desk, machine, within=-5_000)
    assert left(desk, session_id) == 0


def test_what_may_happen_is_no_notice(desk: Desk) -> None:
    machine, session_id = up(desk)
    assert announce(desk, machine, is_final=False) == 0
    assert left(desk, session_id) is None


def working(desk: Desk, **changed: object) -> Lease:
    """Let a job run on whatever runner there is."""
    run_id = desk.submit(a_job_spec("long", **changed))
    assert desk.cycle().granted == 1
    (lease,) = (one for one in desk.leases(state="offered") if one.run_id == run_id)
    desk.accept(lease)
    return lease


def lose(desk: Desk, lease: Lease) -> None:
    """Let a runner fall silent for longer than its lease and its grace."""
    policy = desk.policy.lease
    desk.later(policy.execution_ttl + policy.connectivity_grace + 1)
    desk.sweep()


@pytest.mark.requirement("SPT-007", "SPT-008", "ACC-043", "INV-062", "TST-014")
@pytest.mark.parametrize(
    ("is_announced", "blamed"),
    [(True, FailureClass.INFRASTRUCTURE), (False, FailureClass.RUNNER_LOST)],
    ids=["taken away", "silent"],
)
def test_what_a_machine_takes_along_is_tried_again_elsewhere_as_after_any_infrastructure_failure(
    desk: Desk, is_announced: bool, blamed: FailureClass
) -> None:
    machine, _ = up(desk)
    lease = working(desk)
    up(desk)
    if is_announced:
        announce(desk, machine)
    lose(desk, lease)
    attempt = desk.row(tables.attempts, lease.attempt_id)
    assert (attempt["state"], attempt["failure_class"]) == ("lost", blamed)
    assert ("taken away by its provider" in attempt["message"]) is is_announced
    assert desk.settle(lease).decision == f"try again at once after {blamed}"
    # Both are there again, the one that failed the job as well as the other.
    mine, other = (desk.register(name).runner_id for name in ("builders-1", "builders-2"))
    assert desk.cycle().granted == 1
    (again,) = desk.leases(state="offered")
    assert (lease.runner_id, again.runner_id) == (mine, other)
    assert again.job_id == lease.job_id


@pytest.mark.requirement("SPT-007")
def test_a_job_that_is_tried_for_nothing_but_its_own_failures_is_not_tried_again(
    desk: Desk,
) -> None:
    """Nobody is asked whether the machine was cheap: the retry policy of the job has the word."""
    machine, _ = up(desk)
    lease = working(desk, retry=RetryPolicy(on=(FailureClass.USER_COMMAND,)))
    announce(desk, machine)
    lose(desk, lease)
    desk.settle(lease)
    job = desk.row(tables.jobs, lease.job_id)
    assert (job["state"], job["failure_class"]) == ("failed", FailureClass.INFRASTRUCTURE)


@pytest.mark.case("FLT-099")
@pytest.mark.requirement("SPT-008")
def test_many_machines_that_go_together_are_so_many_infrastructure_failures_each_once(
    desk: Desk,
) -> None:
    machines, leases = [], []
    for _ in range(6):
        machines.append(up(desk)[0])
        leases.append(working(desk))
    assert len({lease.runner_id for lease in leases}) == len(machines)
    assert announce(desk, *machines, *machines) == len(machines)
    lose(desk, leases[0])
    desk.sweep()
    attempts = desk.rows(tables.attempts)
    assert len(attempts) == len(machines)
    assert {one["failure_class"] for one in attempts} == {FailureClass.INFRASTRUCTURE}
    for lease in leases:
        desk.settle(lease)
    jobs = desk.rows(tables.jobs)
    assert [(job["state"], job["attempts_charged"]) for job in jobs] == [("eligible", 1)] * 6
