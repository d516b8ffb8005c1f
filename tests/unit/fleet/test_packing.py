"""How many machines jobs take, reckoned by lots."""

from time import process_time

import pytest

from forgeyard.fleet.packing import (
    ALL_DEVICES,
    Load,
    Lot,
    Packing,
    Source,
    each_of,
    side_by_side,
    size_of,
)
from forgeyard.model.equipment import Equipment, EquipmentRequirement, Gpu, GpuRequirement
from tests.fleets import SIZE
from tests.scheduling import amounts

ANY = frozenset({"cheap"})
MANY = 1_000_000


def load(count: int, cpu: int = 1_000, *, name: str = "a", of: frozenset[str] = ANY) -> Load:
    each = each_of(amounts(cpu=cpu), EquipmentRequirement(), Equipment())
    return Load(name=name, count=count, each=each, offerings=of)


def packed(*loads: Load, most: int = MANY, rooms: tuple[tuple[Lot, int], ...] = ()) -> Packing:
    packing = Packing(size_of(SIZE), rooms)
    for one in loads:
        packing.put(one, most_new=most - packing.new, of=ANY | {"spot"})
    return packing


def room(source: Source, count: int, *, of: frozenset[str] = ANY) -> tuple[Lot, int]:
    return Lot(source=source, free=size_of(SIZE), offerings=of), count


@pytest.mark.requirement("PLN-010", "PLN-012")
def test_machines_are_as_many_as_their_room_demands() -> None:
    assert packed(load(10)).new == 3
    assert packed(load(8)).new == 2
    assert packed(load(0)).new == 0


@pytest.mark.requirement("PLN-011")
def test_small_jobs_fill_what_large_ones_leave() -> None:
    assert packed(load(3, 3_000), load(3, 1_000, name="b")).new == 3
    assert packed(load(3, 3_000), load(4, 1_000, name="b")).new == 4


def test_the_scarcest_dimension_decides() -> None:
    heavy = Load(name="m", count=4, each=(0, 9 * 2**30, 0, 1, 0), offerings=ANY)
    assert packed(heavy).new == 4


def test_room_that_is_there_is_used_before_new_machines() -> None:
    packing = packed(load(10), rooms=(room(Source.COMING, 1), room(Source.DRAINING, 1)))
    assert packing.new == 1
    assert sum(n for _, n in packing.used(Source.COMING)) == 1
    assert sum(n for _, n in packing.used(Source.DRAINING)) == 1


def test_room_that_nobody_needs_is_not_used() -> None:
    packing = packed(load(4), rooms=(room(Source.COMING, 3),))
    assert sum(n for _, n in packing.used(Source.COMING)) == 1


def test_room_of_another_offering_is_of_no_use() -> None:
    spot = frozenset({"spot"})
    assert packed(load(4), rooms=(room(Source.COMING, 1, of=spot),)).new == 1


def test_jobs_share_a_new_machine_only_if_one_offering_suits_both() -> None:
    spot, both = frozenset({"spot"}), ANY | {"spot"}
    assert packed(load(1), load(1, name="b", of=spot)).new == 2
    shared = packed(load(1, of=both), load(1, name="b", of=spot))
    assert [lot.offerings for lot, _ in shared.used(Source.NEW)] == [spot]


def test_no_more_machines_are_added_than_may_be() -> None:
    packing = Packing(size_of(SIZE))
    assert packing.put(load(100), most_new=2, of=ANY) == 8
    assert packing.new == 2
    assert packing.put(load(100, 9_000), most_new=2, of=ANY) == 0


def test_jobs_that_want_devices_share_machines_as_far_as_the_devices_go() -> None:
    four = Equipment(gpus=tuple(Gpu(id=str(n), model="x") for n in range(4)))
    pair = EquipmentRequirement(gpus=(GpuRequirement(count=2),))
    half = EquipmentRequirement(gpus=(GpuRequirement(share=500),))
    assert side_by_side(pair, four) == 2
    assert each_of(amounts(), pair, four)[-1] == ALL_DEVICES // 2
    assert each_of(amounts(), EquipmentRequirement(), four)[-1] == 0
    assert side_by_side(half, Equipment(gpus=(Gpu(id="1"),))) == 1, "no GPU is shared unasked"


def test_ten_thousand_jobs_of_many_classes_are_packed_in_no_time() -> None:
    loads = [load(250, 100 + 90 * (n % 40), name=f"c{n}") for n in range(40)]
    began = process_time()
    packing = packed(*loads)
    assert process_time() - began < 2
    work = sum(one.count * one.each[0] for one in loads)
    assert packing.new >= work // SIZE.cpu
