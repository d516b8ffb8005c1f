"""Many schedulers and agents at once: exactly the capacity is granted, and nothing is held twice.

PostgreSQL runs them side by side; SQLite lets one writer in at a time and must come out the same.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from forgeyard.errors import StoreUnavailable
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import CompletionVerdict, Renew, Renewal, RenewalVerdict
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import tables
from forgeyard.store.engine import write
from forgeyard.store.leases import Refused, renew
from tests.builders import a_job_spec, some_resources
from tests.integration.store.test_commit import a_plan
from tests.leasing import Desk

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("recorded")]
SCHEDULERS = 4
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def at_once(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Start every call in its own thread at the same moment; return what they return."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def small_runner() -> dict[str, object]:
    """Give room for three jobs."""
    return {"total": some_resources(cpu=1_500, slots=3, memory=2**40, disk=2**40)}


def numbered(prefix: str, count: int) -> list[object]:
    return [a_job_spec(f"{prefix}-{number}") for number in range(count)]


@pytest.mark.requirement(
    "LSE-005",
    "LSE-006",
    "RCN-005",
    "RCN-006",
    "ACC-011",
    "INV-004",
    "INV-010",
    "INV-038",
    "PRI-026",
    "PHA-010",
    "GAT-003",
    "TST-004",
    "EOS-055",
)
def test_four_schedulers_with_one_backlog_grant_exactly_the_capacity(desk: Desk) -> None:
    runner_ids = [desk.register(f"runner-{n}", **small_runner()).runner_id for n in range(5)]
    desk.submit(*numbered("job", 40))
    plans = [desk.plan() for _ in range(SCHEDULERS)]
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans])
    assert sum(outcome.granted for outcome in outcomes) == 15
    leases = desk.leases(state="offered")
    assert len({lease.job_id for lease in leases}) == len(leases) == 15
    assert [desk.reserved(runner_id)["slots"] for runner_id in runner_ids] == [3] * 5


@pytest.mark.case("SP-002")
@pytest.mark.requirement(
    "LSE-006",
    "RCN-006",
    "ACC-010",
    "INV-019",
    "INV-038",
    "INV-039",
    "TST-004",
    "GAT-003",
    "EOP-001",
)
def test_four_schedulers_with_a_backlog_each_fill_the_same_runners(desk: Desk) -> None:
    runner_ids = [desk.register(f"runner-{n}", **small_runner()).runner_id for n in range(4)]
    cycles = []
    for scheduler in range(SCHEDULERS):
        run_id = desk.submit(*numbered(f"s{scheduler}", 10))
        jobs = sorted(row["job_id"] for row in desk.rows(tables.jobs, run_id=run_id))
        # Each prefers another runner first, so that they cross each other's locks.
        turned = runner_ids[scheduler:] + runner_ids[:scheduler]
        cycles.append(desk.plan(a_plan(*((job_id, turned) for job_id in jobs))))
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in cycles])
    assert sum(outcome.granted for outcome in outcomes) == 12
    refused = {verdict for outcome in outcomes for _, verdict in outcome.verdicts}
    assert refused == {Verdict.GRANTED, Verdict.NO_CAPACITY}
    assert [desk.reserved(runner_id)["slots"] for runner_id in runner_ids] == [3] * 4


def test_one_cycle_committed_by_four_at_once_is_committed_once(desk: Desk) -> None:
    desk.register()
    desk.submit(*numbered("job", 4))
    cycle_id = desk.plan()
    outcomes = at_once([lambda: desk.commit(cycle_id)] * SCHEDULERS)
    assert outcomes == [outcomes[0]] * SCHEDULERS
    assert outcomes[0].granted == 4
    assert len(desk.leases()) == 4


def test_an_offer_accepted_twice_at_once_starts_once(desk: Desk) -> None:
    lease = desk.offered()
    answers = at_once([lambda: desk.accept(lease)] * 3)
    assert not any(isinstance(answer, Refused) for answer in answers)
    assert desk.row(tables.attempts, lease.attempt_id)["version"] == 2


@pytest.mark.requirement("RES-012")
def test_a_completion_sent_twice_at_once_counts_once(desk: Desk) -> None:
    lease = desk.active()
    answers = at_once([lambda: desk.complete(lease)] * 3)
    assert sorted(answers) == [
        CompletionVerdict.ACCEPTED,
        CompletionVerdict.DUPLICATE_ACCEPTED,
        CompletionVerdict.DUPLICATE_ACCEPTED,
    ]
    assert desk.run_state(lease.run_id) == "succeeded"
    assert desk.reserved(lease.runner_id)["slots"] == 0


def test_a_completion_against_the_sweep_has_one_winner(desk: Desk) -> None:
    lease = desk.active()
    desk.later(10_000_000)
    desk.heartbeat(lease.session_id)
    verdict, swept = at_once([lambda: desk.complete(lease), desk.sweep])
    assert (verdict, swept.expired) == (CompletionVerdict.STALE_REJECTED, 1)
    assert desk.states(lease) == ("expired", "lost", "lost")


def test_a_runner_registered_by_two_at_once_has_one_open_session(desk: Desk) -> None:
    first, second = at_once([lambda: desk.register("twin")] * 2)
    assert first.runner_id == second.runner_id
    states = sorted(row["state"] for row in desk.rows(tables.sessions))
    assert states == ["open", "superseded"]
    (session,) = desk.rows(tables.sessions, state="open")
    assert desk.row(tables.runners, first.runner_id)["session_id"] == session["session_id"]


def test_jobs_that_end_at_once_leave_exact_counts(desk: Desk) -> None:
    desk.register(total=some_resources(cpu=8_000, slots=8, memory=2**40, disk=2**40))
    names = [f"job-{number}" for number in range(6)]
    run_id = desk.submit(*numbered("job", 6), a_job_spec("last", needs=tuple(names)))
    assert desk.cycle().granted == 6
    leases = desk.leases()
    for lease in leases:
        desk.accept(lease)
    at_once([lambda lease=lease: desk.complete(lease) for lease in leases])
    (last,) = desk.rows(tables.jobs, run_id=run_id, name="last")
    assert (last["state"], last["waiting_needs"]) == ("eligible", 0)
    assert desk.row(tables.runs, run_id)["open_jobs"] == 1


def test_agents_restarting_while_schedulers_grant_never_leave_a_lease_of_a_dead_session(
    desk: Desk,
) -> None:
    registered = desk.register(**small_runner())
    desk.submit(*numbered("job", 30))

    def schedule() -> int:
        return sum(desk.cycle().granted for _ in range(6))

    def restart() -> int:
        refused = 0
        for _ in range(6):
            try:
                desk.register(**small_runner())
            except StoreUnavailable:
                refused += 1  # given work five times in a row; an agent would try again
        return refused

    granted, other, refused = at_once([schedule, schedule, restart])
    assert granted + other >= 3
    assert refused < 6
    (session,) = desk.rows(tables.sessions, state="open")
    for state in ("offered", "active"):
        assert all(lease.session_id == session["session_id"] for lease in desk.leases(state=state))
    assert desk.reserved(registered.runner_id)["slots"] <= 3


def test_a_renewal_locks_leases_in_the_order_in_which_a_run_is_stopped(
    postgresql_engine: sa.Engine,
) -> None:
    """Else the two could each hold what the other waits for."""
    desk = Desk(postgresql_engine)
    room = some_resources(cpu=8_000, slots=8, memory=2**40, disk=2**40)
    runner_id = desk.register(total=room).runner_id
    run_id = desk.submit(*numbered("job", 6))
    jobs = sorted((row["job_id"] for row in desk.rows(tables.jobs, run_id=run_id)), reverse=True)
    for job_id in jobs:  # the last job gets the first lease, so the two orders differ
        assert desk.commit(desk.plan(a_plan((job_id, [runner_id])))).granted == 1
    leases = sorted(desk.leases(), key=lambda lease: lease.job_id)
    for lease in leases:
        desk.accept(lease)
    message = Renew(
        session_id=SessionId(leases[0].session_id),
        leases=tuple(Renewal(lease_id=lease.lease_id, epoch=lease.epoch) for lease in leases),
    )
    table = tables.leases
    with ThreadPoolExecutor(1) as pool, write(desk.engine) as connection:
        first = sa.select(table).where(table.c.lease_id == leases[0].lease_id)
        connection.execute(first.with_for_update())
        renewing = pool.submit(desk.change, renew, message, policy=desk.policy.lease)
        while not connection.execute(sa.text(WAITING)).scalar_one():
            assert not renewing.done()
        others = sa.select(table.c.lease_id).where(table.c.lease_id != leases[0].lease_id)
        free = connection.execute(others.with_for_update(skip_locked=True)).all()
        connection.rollback()
    assert len(free) == 5
    assert {answer.verdict for answer in renewing.result().leases} == {RenewalVerdict.RENEWED}
