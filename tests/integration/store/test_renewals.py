"""Renewals and heartbeats of many agents in one transaction: each in its own right, none waits."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.api.keepalive import keepalive
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.errors import StoreUnavailable
from forgeyard.model.holdings import NOTHING_HELD
from forgeyard.model.ids import LeaseId, SessionId
from forgeyard.model.job import FailureClass, JobSpec, MatrixCell
from forgeyard.model.protocol import (
    Heartbeat,
    HeartbeatAnswer,
    Outcome,
    Renew,
    Renewal,
    RenewalVerdict,
    RenewAnswer,
)
from forgeyard.model.runner import ResourcePressure
from forgeyard.store import leases, liveness, runners, tables
from forgeyard.store.engine import write
from forgeyard.store.heartbeats import hear_together
from forgeyard.store.renewals import renew_together
from tests.builders import a_job_spec, some_resources
from tests.integration.store.test_commit_races import WAITING, at_once, numbered
from tests.leasing import Desk, Lease
from tests.sharing import cancel

pytestmark = pytest.mark.integration
WIDE = {"total": some_resources(cpu=90_000, memory=2**45, disk=2**45, slots=90)}


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def message(*held: Lease, session_id: str = "", epoch: int = 0) -> Renew:
    """Ask for leases as their holder does, or under another session or epoch."""
    return Renew(
        session_id=SessionId(session_id or held[0].session_id),
        leases=tuple(
            Renewal(lease_id=LeaseId(one.lease_id), epoch=epoch or one.epoch) for one in held
        ),
    )


def together(desk: Desk, *messages: Renew) -> list[list[RenewalVerdict] | None]:
    answers = desk.change(renew_together, messages, policy=desk.policy.lease)
    return [
        None if answer is None else [one.verdict for one in answer.leases] for answer in answers
    ]


def working(desk: Desk, count: int) -> list[Lease]:
    """Give one runner so many jobs, all accepted."""
    desk.register(**WIDE)
    desk.submit(*numbered("job", count))
    assert desk.cycle().granted == count
    for lease in desk.leases():
        desk.accept(lease)
    return sorted(desk.leases(), key=lambda lease: lease.job_id)


def expiry(desk: Desk, lease: Lease) -> int:
    return int(desk.row(tables.leases, lease.lease_id)["expires_at"])


@pytest.mark.requirement("LSE-002", "LSE-016")
def test_each_of_a_batch_is_judged_by_its_own_session_epoch_and_time(desk: Desk) -> None:
    """The lease decides, whoever asks: nobody's process or batch has a say."""
    good, stopped, lapsed, other = working(desk, 4)
    desk.overwrite(tables.leases, stopped.lease_id, cancel_requested=1)
    desk.later(1_000)
    desk.overwrite(tables.leases, lapsed.lease_id, expires_at=1)
    stranger = desk.register("runner-2").session_id
    asked = (
        message(good),
        message(good, stopped),
        message(lapsed),
        message(other, session_id=stranger),
        message(other, epoch=7),
        message(good, replace(good, lease_id="lse_unknown")),
    )
    before = {one.lease_id: expiry(desk, one) for one in (good, stopped, lapsed, other)}
    renewed, cancelled = RenewalVerdict.RENEWED, RenewalVerdict.CANCEL
    assert together(desk, *asked) == [[renewed], [renewed, cancelled], None, None, None, None]
    grown = [expiry(desk, one) - before[one.lease_id] for one in (good, stopped, lapsed, other)]
    assert grown[0] >= 1_000
    assert grown[1] >= 1_000
    assert grown[2:] == [0, 0]
    alone = [desk.change(leases.renew, one, policy=desk.policy.lease) for one in asked[2:]]
    stale = RenewalVerdict.STALE
    verdicts = [[one.verdict for one in answer.leases] for answer in alone]
    assert verdicts == [[stale], [stale], [stale], [renewed, stale]]


@pytest.mark.requirement("LSE-016")
def test_a_batch_leaves_out_what_somebody_else_holds_and_waits_for_nobody(
    postgresql_engine: sa.Engine,
) -> None:
    desk = Desk(postgresql_engine)
    free, held = working(desk, 2)
    before = expiry(desk, free), expiry(desk, held)
    row = sa.select(tables.leases).where(tables.leases.c.lease_id == held.lease_id)
    desk.later(1_000)
    with write(desk.engine) as connection:
        connection.execute(row.with_for_update())
        answers = together(desk, message(held), message(free), message(free, held))
        connection.rollback()
    assert answers == [None, [RenewalVerdict.RENEWED], None]
    assert expiry(desk, free) > before[0] - 1_000
    assert expiry(desk, held) == before[1] - 1_000


def test_a_batch_is_as_many_statements_whatever_its_size(desk: Desk) -> None:
    held = working(desk, 30)
    counted: Counter[str] = Counter()

    def count(*_arguments: object) -> None:
        counted[phase] += 1

    sa.event.listen(desk.engine, "before_cursor_execute", count)
    phase = "one"
    together(desk, message(held[0]))
    phase = "thirty"
    together(desk, *(message(one) for one in held))
    sa.event.remove(desk.engine, "before_cursor_execute", count)
    assert counted["one"] == counted["thirty"] <= 3


# Heartbeats


def heard(desk: Desk, *beats: tuple[str, Heartbeat]) -> list[HeartbeatAnswer | None]:
    return list(desk.change(hear_together, beats))


def test_quiet_heartbeats_are_taken_in_together_and_those_with_news_are_left(desk: Desk) -> None:
    (lease,) = working(desk, 1)
    sessions = [desk.register(f"other-{number}").session_id for number in range(4)]
    quiet, hot, suspect, closed = sessions
    row = desk.row(tables.sessions, suspect)
    desk.overwrite(tables.runners, row["runner_id"], suspect=1)
    desk.change(runners.close, closed, policy=desk.policy.lease)
    desk.later(5_000)
    before = {row["session_id"]: row for row in desk.rows(tables.sessions)}
    fleet = desk.rows(tables.runners)
    holdings = Heartbeat(holdings=NOTHING_HELD)
    answers = heard(
        desk,
        (quiet, Heartbeat()),
        (lease.session_id, Heartbeat(held=(LeaseId(lease.lease_id),))),
        (hot, Heartbeat(pressure=ResourcePressure.MEMORY)),
        (suspect, Heartbeat()),
        (closed, Heartbeat()),
        ("ses_unknown", Heartbeat()),
        (quiet, holdings),
    )
    assert answers == [HeartbeatAnswer(), HeartbeatAnswer(), *[None] * 5]
    seen = {
        name: row["last_seen_at"] - before[name]["last_seen_at"] >= 5_000
        for name, row in ((row["session_id"], row) for row in desk.rows(tables.sessions))
    }
    assert {name for name, grew in seen.items() if grew} == {quiet, lease.session_id}
    same = [{**row, "last_seen_at": 0} for row in desk.rows(tables.runners)]
    assert same == [{**row, "last_seen_at": 0} for row in fleet]


def test_a_heartbeat_that_disagrees_about_leases_is_looked_into_by_itself(desk: Desk) -> None:
    (lease,) = working(desk, 1)
    mine, session_id = LeaseId(lease.lease_id), lease.session_id
    idle = desk.register("idle").session_id
    disagreeing = (
        (session_id, Heartbeat()),
        (session_id, Heartbeat(held=(mine, LeaseId("lse_gone")))),
        (idle, Heartbeat(held=(mine,))),
    )
    for beat in disagreeing:
        assert heard(desk, beat) == [None], beat
    assert desk.heartbeat(idle, held=(mine,)).abandon == (mine,)
    desk.heartbeat(session_id)
    named = (session_id, Heartbeat(held=(mine,)))
    assert heard(desk, named) == [None], "that it was missing is still noted"
    desk.heartbeat(session_id, held=(mine,))
    assert heard(desk, named) == [HeartbeatAnswer()]


def test_a_runner_that_an_operator_drains_hears_of_it_from_a_batch(desk: Desk) -> None:
    session_id = desk.register().session_id
    told = {"reason": "a test", "actor": "ann", "channel": "test"}
    desk.change(runners.drain, "runner-1", **told)
    assert heard(desk, (session_id, Heartbeat())) == [HeartbeatAnswer(drain=True)]


def test_a_batch_of_heartbeats_waits_for_no_runner(postgresql_engine: sa.Engine) -> None:
    desk = Desk(postgresql_engine)
    free = desk.register("free").session_id
    busy = desk.register("busy")
    row = sa.select(tables.runners).where(tables.runners.c.runner_id == busy.runner_id)
    with write(desk.engine) as connection:
        connection.execute(row.with_for_update())
        answers = heard(desk, (busy.session_id, Heartbeat()), (free, Heartbeat()))
        connection.rollback()
    assert answers == [None, HeartbeatAnswer()]


# Deadlocks


def cells(count: int) -> tuple[JobSpec, ...]:
    """Describe a matrix whose first failure stops the other cells."""
    return tuple(
        a_job_spec(f"c-{n}", matrix=MatrixCell(of="c", values={"n": str(n)}, fail_fast=True))
        for n in range(count)
    )


def as_the_api_does(desk: Desk, asked: Renew) -> RenewAnswer:
    async def ask() -> RenewAnswer:
        batches = keepalive(desk.engine, PolicyCache(desk.policy), kick=lambda: None)
        return await batches.renew(asked)

    return asyncio.run(ask())


def in_one_transaction(desk: Desk, asked: Renew) -> RenewAnswer:
    """Hold one lease while waiting for the next."""
    return desk.change(leases.renew, asked, policy=desk.policy.lease)


def bridged(desk: Desk, _asked: Renew) -> None:
    """Extend every live lease, for nobody could renew for a while."""
    desk.change(liveness.beat_renewal, policy=desk.policy)


@pytest.mark.parametrize("taking_both", [as_the_api_does, in_one_transaction, bridged])
def test_who_takes_leases_astride_the_end_of_a_failing_cell_is_in_no_deadlock(
    postgresql_engine: sa.Engine, taking_both: Callable[[Desk, Renew], RenewAnswer | None]
) -> None:
    """It saw the failing cell alive, and waits for its sibling when the settling begins."""
    desk = Desk(postgresql_engine)
    desk.register(**WIDE)
    desk.submit(*cells(2))
    assert desk.cycle().granted == 2
    first, failing = sorted(desk.leases(), key=lambda lease: lease.job_id)
    for lease in (first, failing):
        desk.accept(lease)
    bridged(desk, message(first))
    if taking_both is bridged:
        desk.overwrite(tables.liveness, liveness.RENEWAL, beat_at=1)
    with ThreadPoolExecutor(2) as pool, write(desk.engine) as connection:
        row = sa.select(tables.leases).where(tables.leases.c.lease_id == first.lease_id)
        connection.execute(row.with_for_update())
        taking = pool.submit(taking_both, desk, message(first, failing))
        until_waiting(connection, 1)
        desk.complete(failing, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
        settling = pool.submit(desk.settle, failing)
        until_waiting(connection, 2)
        connection.rollback()
    settling.result()
    answer = taking.result()
    if answer is not None:
        assert answer.leases[0].verdict in (RenewalVerdict.RENEWED, RenewalVerdict.CANCEL)
        assert answer.leases[1].verdict is RenewalVerdict.STALE


def until_waiting(connection: sa.Connection, count: int) -> None:
    """Wait until so many transactions wait for a lock."""
    waiting = sa.text(f"SELECT count(DISTINCT pid) FROM ({WAITING.replace('count(*)', 'pid')}) w")
    for _ in range(20_000):
        if connection.execute(waiting).scalar_one() >= count:
            return
    raise AssertionError("nobody waits")


def test_batches_beside_everything_that_ends_leases_are_in_no_deadlock(
    postgresql_engine: sa.Engine, record_property: Callable[[str, object], None]
) -> None:
    """Cancels, failing cells, expiry, bridged gaps and new sessions, all at once with renewals."""
    desk = Desk(postgresql_engine)
    hits: Counter[str] = Counter()
    for number in range(8):
        crowd(desk, random.Random(number), hits)
    record_property("renewed, left to wait, heard", dict(hits))
    assert hits["deadlock"] == 0
    assert min(hits["renewed"], hits["left"], hits["heard"]) >= 20, hits


def beats_of(held: Sequence[Lease], *, idle: str) -> list[tuple[str, Heartbeat]]:
    """Say for every session what it works for, and for one more that it does nothing."""
    working: dict[str, list[str]] = {idle: []}
    for lease in held:
        working.setdefault(lease.session_id, []).append(lease.lease_id)
    return [(one, Heartbeat(held=tuple(ids))) for one, ids in sorted(working.items())]


def crowd(desk: Desk, rng: random.Random, hits: Counter[str]) -> None:
    """Let everything happen at once to the leases of three runners."""
    for number in range(3):
        desk.register(f"runner-{number}", **WIDE)
    runs = [desk.submit(*cells(4)) for _ in range(4)]
    desk.cycle()
    held = desk.leases(state="offered")
    for lease in held:
        desk.accept(lease)
    beats = beats_of(held, idle=desk.register("idle").session_id)
    ending = threading.Event()

    def beat() -> None:
        with write(desk.engine) as connection:
            age = {"beat_at": tables.liveness.c.beat_at - 60_000}
            connection.execute(sa.update(tables.liveness).values(age))
            liveness.beat_renewal(connection, policy=desk.policy)

    def end_cells() -> None:
        for lease in rng.sample(held, 4):
            desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
            desk.settle(lease)

    def renew() -> None:
        while not ending.is_set():
            asked = [message(lease) for lease in held]
            for answer in together(desk, *asked):
                hits["left" if answer is None else "renewed"] += 1
            answers = heard(desk, *beats)
            hits["heard"] += sum(answer is not None for answer in answers)

    def others() -> None:
        deeds: list[Callable[[], object]] = [
            end_cells,
            lambda: cancel(desk, runs[0]),
            lambda: [beat() for _ in range(3)],
            lambda: [desk.sweep() for _ in range(3)],
            lambda: desk.register("runner-0", **WIDE),
        ]
        try:
            at_once([lambda deed=deed: attempt(deed, hits) for deed in deeds])
        finally:
            ending.set()

    at_once([renew, others])


def attempt(deed: Callable[[], object], hits: Counter[str]) -> None:
    """Do something that may lose a race, but in no deadlock."""
    try:
        deed()
    except StoreUnavailable as error:
        hits["deadlock" if "deadlock" in error.message else "busy"] += 1
