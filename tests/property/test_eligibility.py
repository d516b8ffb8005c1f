"""The hard filter against a matcher that was written apart from it."""

from collections import Counter
from dataclasses import fields, replace
from random import Random

import pytest
from hypothesis import given

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Requirements,
    ToolchainRequirement,
)
from forgeyard.model.equipment import Equipment, EquipmentRequirement
from forgeyard.model.gaps import Aspect
from forgeyard.model.wishes import Domain, SpotWish
from forgeyard.scheduler.bounds import Bound, BoundKind
from forgeyard.scheduler.eligibility import can_ever_run, codes_of, is_eligible, rejections
from forgeyard.scheduler.rejection import RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.equipment import naive_codes, some_equipment, some_wishes
from tests.places import placeable, placed, some_pool
from tests.scheduling import a_job_that_requires, a_runner
from tests.worlds import (
    DIGESTS,
    RANGES,
    TOOLS,
    demand_hits,
    fixed,
    naive_capable,
    naive_match,
    seeds,
    some_job,
    some_runner,
    worlds,
)


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


@pytest.mark.requirement("ELG-001", "ELG-017", "PHA-002", "GAT-001")
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
            modest = replace(job, requirements=Requirements(), spot=SpotWish.ALLOWED)
            lasting = {it.code for it in rejections(modest, runner) if it.permanent}
            elsewhere = {"trust_mismatch", "pool_trust", "pool_reserved"}
            assert all(code.startswith("insufficient_") or code in elsewhere for code in lasting)
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
            asked = replace(job.requirements, trust=None, pools=(), regions=()) != Requirements()
            if asked:
                assert not can_ever_run(job, mute)
                hits["something was required"] += 1

    check()
    demand_hits(hits, "something was required")


EQUIPMENT_CODES = [code for aspect in Aspect for code in codes_of(aspect)]
OWNERS = ("prj_default", "prj_other", "prj_third")
NEVER_UNKNOWN = {RejectionCode.GPU_ID_UNKNOWN}
"""Every GPU is called something."""
EQUIPMENT_CODES = {code for aspect in Aspect for code in codes_of(aspect)} - NEVER_UNKNOWN
DEVICES_IN_USE = {RejectionCode.BUSY_GPU, RejectionCode.BUSY_DEVICE, *NEVER_UNKNOWN}
"""What `test_fast_devices` is about."""
ASKED_OF = {
    "cpu_features": "cpu_features",
    "runtimes": "runtimes",
    "sandbox": "sandboxes",
    "network": "network_modes",
    "isolation": "isolation",
    "devices": "devices",
    "gpus": "gpus",
}
"""Each wish, and the part of a report that answers it."""


def equipped(
    wishes: EquipmentRequirement, has: Equipment
) -> tuple[SchedulingJob, SchedulingRunner]:
    runner = a_runner(capabilities=Capabilities(equipment=has))
    return a_job_that_requires(equipment=wishes), runner


@pytest.mark.requirement("ELG-017")
def test_every_reason_against_equipment_is_the_one_that_the_naive_judge_names() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(seed=seeds)
    def check(seed: int) -> None:
        rng = Random(seed)
        for _ in range(50):
            wishes, has = some_wishes(rng, share=0.4), some_equipment(rng)
            job, runner = equipped(wishes, has)
            found = [it.code for it in rejections(job, runner)]
            assert set(found) == naive_codes(wishes, has)
            assert is_eligible(job, runner) is (not found)
            hits.update(found)
            hits["eligible"] += not found and wishes != EquipmentRequirement()

    check()
    demand_hits(hits, "eligible", *sorted(EQUIPMENT_CODES))


@pytest.mark.requirement("ELG-018")
def test_each_thing_that_a_runner_cannot_tell_is_rejected_as_unknown() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(seed=seeds)
    def check(seed: int) -> None:
        rng = Random(seed)
        wishes, has = some_wishes(rng, share=0.8), some_equipment(rng)
        for wish, part in ASKED_OF.items():
            single = replace(EquipmentRequirement(), **{wish: getattr(wishes, wish)})
            if single != EquipmentRequirement():
                job, runner = equipped(single, replace(has, **{part: None}))
                reasons = rejections(job, runner)
                assert len(reasons) == (len(single.gpus) or 1)
                for found in reasons:
                    assert found.code.endswith("_unknown")
                    assert found.permanent
                    assert "unknown" in found.offered
                hits[wish] += 1

    check()
    demand_hits(hits, *ASKED_OF)
    assert {*ASKED_OF, "gpu"} == {field.name for field in fields(EquipmentRequirement)}
    assert set(ASKED_OF.values()) == {field.name for field in fields(Equipment)}


def test_every_other_reason_occurs_and_stands_where_the_naive_matcher_says_no() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(seed=seeds)
    def check(seed: int) -> None:
        rng = Random(seed)
        for place in range(25):
            job = replace(placeable(rng, some_job(rng, place)), project_id=rng.choice(OWNERS))
            pool = some_pool(rng, "pol_1", OWNERS)
            runner = placed(rng, some_runner(rng, place % 4), pool)
            choosy = replace(
                job.requirements,
                os_version=rng.choice((None, *RANGES)),
                architecture=rng.choice((None, *Architecture)),
                toolchains=(some_tool_wish(rng),),
            )
            job = replace(job, requirements=choosy, bounds=some_bounds(rng))
            found = {it.code for it in rejections(job, runner)}
            assert bool(found) is not naive_match(job, runner, runner.free)
            hits.update(found)

    check()
    rest = set(RejectionCode) - {*EQUIPMENT_CODES, *DEVICES_IN_USE}
    demand_hits(hits, *sorted(rest))


def some_bounds(rng: Random) -> tuple[Bound, ...]:
    """Bind a job to where others are, now and then."""
    if rng.random() < 0.7:
        return ()
    domain, taken = rng.choice(list(Domain)), rng.choice(("h1", "s1", "r1", "rnr_1"))
    kind = rng.choice(list(BoundKind))
    return (Bound(kind=kind, domain=domain, of="job other", taken={taken: 1}),)


def some_tool_wish(rng: Random) -> ToolchainRequirement:
    """Ask for a tool by a range, a digest, both or neither."""
    return ToolchainRequirement(
        name=rng.choice(TOOLS),
        version=rng.choice((None, *RANGES)),
        digest=rng.choice((None, *DIGESTS)),
    )
