import json
from dataclasses import asdict, replace

import pytest

from forgeyard.model.capability import Capabilities, Platform
from forgeyard.model.job import Priority
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler.diagnose import DiagnosticCode
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.rejection import RejectionCode
from tests.scheduling import (
    MINUTE,
    NOW,
    POLICY,
    a_job,
    a_job_that_requires,
    a_runner,
    a_snapshot,
    amounts,
)

HALF = amounts(cpu=2_000, memory_gib=0, disk_gib=0, slots=2)


@pytest.mark.requirement("DIA-002", "DIA-004", "DIA-001")
def test_a_job_that_can_be_placed_is_told_where_and_why() -> None:
    snapshot = a_snapshot([a_job()], [a_runner("idle"), a_runner("half", reserved=HALF)])
    told = explain(a_job(), snapshot, POLICY)
    assert told.sentence == (
        "Goes to idle in the next cycle: it scores 552, the best of 2 runners that can take it now."
    )
    assert (told.winner, told.eligible_runners, told.code) == ("idle", 2, None)
    assert [(runner.name, runner.rank) for runner in told.runners] == [("idle", 1), ("half", 2)]
    assert all(runner.score is not None and not runner.rejections for runner in told.runners)


def test_the_only_willing_runner_and_a_tie_are_said_so() -> None:
    alone = explain(a_job(), a_snapshot([a_job()], [a_runner()]), POLICY)
    assert alone.sentence == "Goes to linux-1 in the next cycle: no other runner can take it now."
    twins = a_snapshot([a_job()], [a_runner("a"), a_runner("b")])
    assert "tie-break" in explain(a_job(), twins, POLICY).sentence


@pytest.mark.requirement("DIA-003", "DIA-004", "ACC-033")
def test_every_runner_comes_with_every_reason() -> None:
    runners = [
        a_runner("mac", capabilities=Capabilities(platform=Platform.MACOS)),
        a_runner("small", total=amounts(memory_gib=12), state=RunnerState.DRAINING),
        a_runner("linux-1"),
    ]
    job = replace(
        a_job_that_requires(platform=Platform.LINUX), resources=amounts(cpu=2_000, memory_gib=16)
    )
    told = explain(job, a_snapshot([job], runners), POLICY)
    assert told.code is DiagnosticCode.INSUFFICIENT_MEMORY
    assert told.permanent
    assert told.winner is None
    assert "it needs 16 GiB of memory, but the best match (linux-1) has 12 GiB" in told.sentence
    reasons = {
        runner.name: [reason.code for reason in runner.rejections] for runner in told.runners
    }
    assert reasons == {
        "linux-1": [RejectionCode.INSUFFICIENT_MEMORY],
        "mac": [RejectionCode.PLATFORM_MISMATCH, RejectionCode.INSUFFICIENT_MEMORY],
        "small": [
            RejectionCode.DRAINING,
            RejectionCode.INSUFFICIENT_CPU,
            RejectionCode.INSUFFICIENT_MEMORY,
        ],
    }
    assert told.near_misses[0].text == "needs 16 GiB of memory, has 12 GiB"
    assert told.requirements == (
        "platform linux",
        "2 cores",
        "16 GiB of memory",
        "1 GiB of disk",
        "1 slot",
    )


def test_jobs_ahead_take_their_room_first() -> None:
    jobs = [a_job("first", eligible_at=NOW - 1), a_job("second")]
    one_slot = a_runner(total=amounts(cpu=4_000, memory_gib=12, disk_gib=100, slots=1))
    told = explain(jobs[1], a_snapshot(jobs, [one_slot]), POLICY)
    assert (told.position, told.waiting) == (2, 2)
    assert told.code is DiagnosticCode.NO_CAPACITY_NOW
    assert told.sentence == "Waiting for room: only linux-1 can run this job, but it is full."
    assert told.runners[0].free.slots == 0
    assert told.runners[0].rejections[0].text == "needs 1 slot, has 0 slots free now"


def test_a_job_behind_a_full_batch_waits_its_turn() -> None:
    jobs = [a_job(str(number)) for number in range(3)]
    told = explain(jobs[2], a_snapshot(jobs, [a_runner()]), replace(POLICY, batch=2))
    assert told.sentence == "Waits its turn: the next cycle is full with 2 jobs ahead of it."
    assert (told.position, told.winner, told.code) == (3, None, None)


def test_priority_is_taken_apart() -> None:
    job = a_job(priority=Priority.HIGH, eligible_at=NOW - 7 * MINUTE)
    parts = explain(job, a_snapshot([job], [a_runner()]), POLICY).priority
    assert (parts.priority, parts.base, parts.aging, parts.effective) == (
        Priority.HIGH,
        200,
        7,
        207,
    )
    assert parts.waited_ms == 7 * MINUTE


def test_a_job_beyond_the_loaded_ones_can_be_explained_too() -> None:
    told = explain(a_job("late"), a_snapshot([a_job("early")], [a_runner()]), POLICY)
    assert told.job_name == "late"
    assert (told.position, told.waiting) == (2, 2)


@pytest.mark.requirement("SCO-031", "SCO-032", "PRI-027")
def test_the_same_snapshot_gives_the_same_bytes_and_names_its_policy() -> None:
    jobs = [a_job("one"), a_job("two")]
    runners = [a_runner("a"), a_runner("b")]
    texts = {
        json.dumps(asdict(explain(a_job("two"), snapshot, POLICY)))
        for snapshot in (a_snapshot(jobs, runners), a_snapshot(jobs[::-1], runners[::-1]))
    }
    assert len(texts) == 1
    told = json.loads(texts.pop())
    assert told["policy_digest"] == POLICY.digest()
    assert told["snapshot_digest"] == a_snapshot(jobs, runners).digest()
