"""Devices are given out one by one: as brute force does it, and alike in every planner."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from benchmarks.naive import NaivePlanner
from forgeyard.model.capability import Capabilities, Requirements
from forgeyard.model.devices import device_ids
from forgeyard.model.equipment import (
    WHOLE,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
)
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Bytes
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.devices import ALL_FREE, allocate, plus
from forgeyard.scheduler.diagnose import diagnose
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.equipment import (
    naive_allocations,
    naive_codes,
    some_devices,
    some_equipment,
    some_gpu,
    some_wishes,
)
from tests.scheduling import NOW, a_job, a_runner, a_snapshot, amounts
from tests.worlds import demand_hits, some_grip

ALLOCATIONS = 6_000
WORLDS = 560


@pytest.mark.requirement("ELG-012", "DEV-001", "RES-001")
@pytest.mark.case("SP-026", "SP-028")
def test_devices_are_found_exactly_when_brute_force_finds_some() -> None:
    hits: Counter[str] = Counter()
    rng = Random(3)
    for _ in range(ALLOCATIONS):
        wishes, has = some_wants(rng), some_equipment(rng)
        held = some_grip(rng, has)
        found = allocate(wishes, has, held)
        assert (found is not None) is naive_allocations(wishes, has, held)
        if found is not None:
            names = [one.device_id for one in found]
            assert len(names) == len(set(names)) == wanted_units(wishes)
            assert all(share <= WHOLE for share in plus(held, found).values())
            assert set(names) <= set(device_ids(has))
            assert found == allocate(wishes, has, dict(reversed(held.items())))
        wants = wishes.wants_devices
        hits["found"] += wants and found is not None
        hits["in use"] += found is None and allocate(wishes, has, ALL_FREE) is not None
        lacking = [code for code in naive_codes(wishes, has) if code.startswith(("gpu", "dev"))]
        hits["never"] += bool(lacking)
        hits["several requests at once"] += len(wishes.gpus) > 1 and found is not None
        hits["parts"] += any(one.share < WHOLE for one in found or ())
    demand_hits(hits, *hits)


def wanted_units(wishes: EquipmentRequirement) -> int:
    return sum(one.count for one in (*wishes.gpus, *wishes.devices))


@pytest.mark.requirement("DEV-001")
def test_no_set_of_less_capable_gpus_would_have_done() -> None:
    """Compared by the memory of the whole set, which brute force tries in every way."""
    hits: Counter[str] = Counter()
    rng = Random(4)
    for _ in range(1_500):
        has = Equipment(gpus=tuple(_known_gpu(rng, n) for n in range(rng.randint(1, 5))))
        wishes = EquipmentRequirement(
            gpus=tuple(_sized_wish(rng) for _ in range(rng.choice((1, 1, 2))))
        )
        found = allocate(wishes, has, ALL_FREE)
        if found is None:
            continue
        memory = {
            name: gpu.memory or 0 for name, gpu in zip(device_ids(has), has.gpus or (), strict=True)
        }
        taken = {one.device_id for one in found}
        for spared in memory.keys() - taken:
            for used in taken:
                if memory[spared] < memory[used]:
                    others = {name: WHOLE for name in memory.keys() - (taken - {used}) - {spared}}
                    assert not naive_allocations(wishes, has, others)
                    hits["a lesser one was spared"] += 1
    demand_hits(hits, "a lesser one was spared")


def _known_gpu(rng: Random, place: int) -> Gpu:
    return replace(some_gpu(rng, place), memory=Bytes(rng.randint(1, 9)))


def _sized_wish(rng: Random) -> GpuRequirement:
    return GpuRequirement(count=rng.choice((1, 1, 2)), memory=Bytes(rng.randint(1, 7)))


def a_farm(seed: int) -> Snapshot:
    """Make runners with devices, some alike, and jobs of few kinds that all want some."""
    rng = Random(seed)
    models = [_host(rng, place) for place in range(rng.randint(1, 4))]
    runners = tuple(
        replace(rng.choice(models), runner_id=f"rnr_{place}", name=f"runner-{place}")
        for place in range(rng.randint(1, 12))
    )
    kinds = [some_wants(rng) for _ in range(4)]
    jobs = tuple(_job(rng, place, kinds) for place in range(rng.randint(1, 16)))
    return a_snapshot(jobs, runners)


def _host(rng: Random, place: int) -> SchedulingRunner:
    has = Equipment(
        gpus=tuple(some_gpu(rng, number) for number in range(rng.randint(0, 4))),
        devices=some_devices(rng),
    )
    return a_runner(
        f"host-{place}",
        capabilities=Capabilities(equipment=has),
        held_devices=some_grip(rng, has) if rng.random() < 0.6 else {},
        total=amounts(cpu=8_000, memory_gib=64, disk_gib=64, slots=8),
        session_id=None if rng.random() < 0.1 else f"ses_{place}",
        cpu_percent=rng.choice((100, 150)),
    )


def some_wants(rng: Random) -> EquipmentRequirement:
    """Want one or two of anything, a part, one model, or seldom more than anybody has."""
    if rng.random() < 0.3:
        wishes = some_wishes(rng, share=0.5)
        return EquipmentRequirement(gpus=wishes.gpus, devices=wishes.devices)
    if rng.random() < 0.3:
        phone = DeviceRequirement(kind="phone", count=rng.choice((1, 1, 2)))
        return EquipmentRequirement(devices=(phone,))
    part = rng.random() < 0.4
    gpus = tuple(some_plain_gpus(rng, part=part) for _ in range(rng.choice((1, 1, 1, 2))))
    return EquipmentRequirement(gpus=gpus)


def some_plain_gpus(rng: Random, *, part: bool) -> GpuRequirement:
    return GpuRequirement(
        count=1 if part else rng.choice((1, 1, 2)),
        share=rng.choice((180, 500)) if part else None,
        same_model=rng.random() < 0.2,
        sharing=rng.choice((None, None, GpuSharing.SHARED)),
    )


def _job(rng: Random, place: int, kinds: list[EquipmentRequirement]) -> SchedulingJob:
    return a_job(
        f"{place}",
        requirements=Requirements(equipment=rng.choice(kinds)),
        resources=amounts(cpu=rng.choice((500, 1_000, 4_000))),
        refused_by={"rnr_0": "full"} if rng.random() < 0.1 else {},
        eligible_at=NOW - rng.randint(0, 9),
    )


@pytest.mark.requirement("FAR-018", "ELG-012", "DIA-014")
def test_the_fast_plan_gives_out_devices_as_the_naive_one_does() -> None:
    hits: Counter[str] = Counter()
    for seed in range(WORLDS):
        world, policy = a_farm(seed), SchedulingPolicy(batch=100)
        naive = NaivePlanner(snapshot=world, policy=policy).run(watched=True)
        made = plan(world, policy)
        assert made.decisions == tuple(naive.decisions), f"seed {seed}"
        assert made.diagnoses == naive.diagnoses(), f"seed {seed}"
        hits["devices given out"] += sum(it.equipment.wants_devices for it in made.decisions)
        hits["gone within the cycle"] += naive.devices_short
        hits["waiting for a device"] += sum(
            it.code == "NO_DEVICE" and not it.permanent for it in made.diagnoses
        )
        hits["never"] += sum(it.permanent for it in made.diagnoses)
        hits["in use as well"] += sum(
            tally.code.startswith("busy_") for it in made.diagnoses for tally in it.rejections
        )
    demand_hits(hits, *hits)


def test_a_census_counts_runners_whose_devices_are_in_use_as_the_plain_diagnosis_does() -> None:
    hits: Counter[str] = Counter()
    for seed in range(WORLDS // 2):
        world = a_farm(seed)
        board = Board(world, SchedulingPolicy())
        for job in world.jobs[::2]:
            board.place(job)
        census = Census(board.columns, board.stock)
        for job in world.jobs:
            told = census.diagnose(job)
            plain = diagnose(job, world.runners, board.free(), held=board.held())
            assert told == plain, f"seed {seed}"
            hits[told.code] += 1
    demand_hits(hits, "NO_DEVICE", "NO_CAPACITY_NOW", "NO_MATCHING_GPU")
