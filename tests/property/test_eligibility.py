"""The hard filter against a matcher that was written apart from it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from forgeyard.model.capability import Capabilities, Requirements
from forgeyard.scheduler.eligibility import can_ever_run, is_eligible, rejections
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.worlds import demand_hits, fixed, naive_capable, naive_match, worlds


def pairs(world: Snapshot) -> list[tuple[SchedulingJob, SchedulingRunner]]:
    return [(job, runner) for job in world.jobs for runner in world.runners]


def test_the_fast_path_agrees_with_the_full_list_of_rejections() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds)
    def check(world: Snapshot) -> None:
        for job, runner in pairs(world):
            found = rejections(job, runner)
            assert is_eligible(job, runner) is (not found)
            assert can_ever_run(job, runner) is (not any(it.permanent for it in found))
            hits["rejected" if found else "eligible"] += 1
            hits["rejected for now only"] += bool(found) and can_ever_run(job, runner)

    check()
    demand_hits(hits, "eligible", "rejected", "rejected for now only")


@pytest.mark.requirement("ELG-001", "ELG-017")
def test_a_pairing_is_eligible_exactly_when_the_naive_matcher_says_so() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds)
    def check(world: Snapshot) -> None:
        for job, runner in pairs(world):
            fits = naive_match(job, runner, runner.free)
            assert is_eligible(job, runner) is fits
            assert can_ever_run(job, runner) is naive_capable(job, runner)
            hits["matched" if fits else "did not match"] += 1
            hits["tools matched"] += bool(job.requirements.toolchains) and fits

    check()
    demand_hits(hits, "matched", "did not match")
    demand_hits(hits, "tools matched")


def test_a_job_that_asks_for_nothing_but_room_has_only_passing_reasons_and_size() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds)
    def check(world: Snapshot) -> None:
        for job, runner in pairs(world):
            modest = replace(job, requirements=Requirements())
            lasting = {it.code for it in rejections(modest, runner) if it.permanent}
            assert all(
                code.startswith("insufficient_") or code == "trust_mismatch" for code in lasting
            )
            hits["lasting"] += bool(lasting)

    check()
    demand_hits(hits, "lasting")


@pytest.mark.requirement("ELG-018")
def test_a_runner_that_tells_nothing_satisfies_no_capability_requirement() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds)
    def check(world: Snapshot) -> None:
        for job, runner in pairs(world):
            mute = replace(runner, capabilities=Capabilities())
            asked = replace(job.requirements, trust=None) != Requirements()
            if asked:
                assert not can_ever_run(job, mute)
                hits["something was required"] += 1

    check()
    demand_hits(hits, "something was required")
