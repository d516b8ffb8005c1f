"""The fake is as bad as it is told to be, and the same for the same seed."""

import pytest

from forgeyard.errors import Ambiguous, OutOfCapacity, Throttled, Unavailable
from forgeyard.fleet.ports import TAG_INSTALLATION, Listing
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import Offering
from tests.fleet.fake import NEVER, FakeProvider, Knobs
from tests.fleet.requests import OURS, THEIRS, a_request, sought

MINUTE = 60_000


class World:
    """A fake and its time."""

    def __init__(self, **knobs: object) -> None:
        self.time = 1_000_000
        self.fake = FakeProvider(lambda: self.time, seed=7, knobs=Knobs(**knobs))

    def make(self, count: int) -> list[str]:
        return [self.fake.provision(a_request(f"cin_{n}")).ref for n in range(count)]

    def listing(self) -> Listing:
        return self.fake.list_machines(OURS)

    def refs(self) -> list[str]:
        return [machine.ref for machine in self.listing().machines]


def test_by_default_nothing_is_seen_at_once() -> None:
    world = World()
    made = world.make(40)
    assert len(world.refs()) < 40
    assert world.fake.inspect(sought(a_request("cin_0"))) is None
    world.fake.terminate(sought(a_request("cin_0"), made[0]))
    assert len(world.fake.existing()) == 40
    world.time += 30_000
    assert sorted(world.refs()) == sorted(made)


def test_creates_go_as_planned_and_then_as_usual() -> None:
    world = World()
    world.fake.knobs.creates.extend(["lost", "raises", "throttled", "ok"])
    for error in (Ambiguous, Unavailable, Throttled):
        with pytest.raises(error):
            world.fake.provision(a_request())
    world.make(1)
    assert len(world.fake.existing()) == 2
    assert world.fake.calls["provision"] == 4


def test_without_tokens_a_blind_retry_makes_two() -> None:
    world = World(dedupes=False)
    world.fake.provision(a_request())
    world.fake.provision(a_request())
    assert len(world.fake.existing()) == 2


def test_an_offering_or_everything_may_be_refused() -> None:
    world = World(offerings={"scarce": "ice"})
    with pytest.raises(OutOfCapacity):
        world.fake.provision(a_request(offering=Offering(name="scarce")))
    assert [check.name for check in world.fake.check((Offering(name="scarce"),))] == ["scarce"]
    world.fake.knobs.calls = "down"
    with pytest.raises(Unavailable):
        world.listing()


def test_pages_are_lost_shuffled_and_empty_as_told() -> None:
    world = World(lag_ms=(0, 0), page_size=3, lost_pages=1)
    made = world.make(7)
    assert not world.listing().complete
    assert sorted(world.refs()) == sorted(made)
    world.fake.knobs.shuffles = True
    assert any(sorted(world.refs()) != sorted(made) for _ in range(20))
    world.fake.knobs.is_empty = True
    assert world.listing() == Listing(machines=(), complete=True)


def test_a_terminate_takes_its_time_or_does_nothing() -> None:
    world = World(lag_ms=(0, 0), stop_ms=NEVER)
    (ref,) = world.make(1)
    target = sought(a_request("cin_0"), ref)
    world.fake.terminate(target)
    world.time += 10 * MINUTE
    assert world.fake.existing() == [ref]
    world.fake.knobs.stop_ms = MINUTE
    world.fake.terminate(target)
    found = world.fake.inspect(target)
    assert found is not None
    assert found.state is MachineState.STOPPING
    world.time += MINUTE
    assert world.fake.existing() == []


def test_others_may_plant_retag_and_kill() -> None:
    world = World(lag_ms=(0, 0), clock_offset_ms=5)
    (ref,) = world.make(1)
    world.fake.plant("alike", {TAG_INSTALLATION: THEIRS})
    assert world.refs() == [ref]
    world.fake.retag("alike", {TAG_INSTALLATION: OURS})
    assert sorted(world.refs()) == sorted([ref, "alike"])
    assert {machine.launched_at for machine in world.listing().machines} == {world.time + 5}
    world.fake.kill(ref)
    assert world.fake.existing() == ["alike"]


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_warnings_come_late_twice_or_never_and_the_machine_goes_all_the_same(copies: int) -> None:
    world = World(lag_ms=(0, 0))
    (ref,) = world.make(1)
    world.fake.announce(ref, within_ms=2 * MINUTE, late_ms=MINUTE, copies=copies)
    assert world.fake.interruptions() == ()
    world.time += MINUTE
    found = world.fake.interruptions()
    assert [one.ref for one in found] == [ref] * copies
    assert world.fake.interruptions() == found
    world.fake.acknowledge(tuple(one.receipt for one in found))
    assert world.fake.interruptions() == ()
    world.time += MINUTE
    assert world.fake.existing() == []
