"""What spreading costs: counters that grow with domains, not with shards."""

from collections.abc import ItemsView, Mapping
from types import MappingProxyType

import pytest

from forgeyard.model.location import Location
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.wishes import Domain, Spread, Wishes
from forgeyard.scheduler.kin import Kin
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob
from tests.scheduling import a_job, a_runner, a_snapshot, amounts

GROUP = Spread(group="test", over=Domain.REGION)


class Counted(dict[str, int]):
    """A mapping that counts how often it is looked at."""

    looks = 0

    def items(self) -> ItemsView[str, int]:  # type: ignore[override]
        """Count one look for each entry."""
        self.looks += len(self)
        return super().items()


def shard(number: int, spread: Spread = GROUP) -> SchedulingJob:
    """Make a shard."""
    return a_job(f"shard-{number:05}", wishes=Wishes(spread=spread), resources=amounts(cpu=1))


@pytest.mark.requirement("SCO-018")
@pytest.mark.case("SP-085")
def test_one_more_of_a_hundred_thousand_shards_costs_three_domains() -> None:
    runners = [
        a_runner(name, location=Location(host=name, region=name)) for name in ("eu", "us", "ap")
    ]
    placed = Counted({"rnr_eu": 50_000, "rnr_us": 30_000, "rnr_ap": 20_000})
    shards: Mapping[str, Mapping[str, int]] = MappingProxyType({"run_1/test": placed})
    kin = Kin(a_snapshot([], runners, shards=shards))
    before = kin.counts("run_1/test")[Domain.REGION]
    assert before == {"eu": 50_000, "us": 30_000, "ap": 20_000}
    for number in range(1_000):
        kin.place(shard(number), "rnr_us")
    assert kin.counts("run_1/test")[Domain.REGION] == {"eu": 50_000, "us": 31_000, "ap": 20_000}
    assert placed.looks == 3, "the shards were counted anew"


@pytest.mark.requirement("SCO-017", "SCO-018")
@pytest.mark.case("SP-086")
@pytest.mark.parametrize("required", [True, False])
def test_a_cycle_of_a_thousand_shards_spreads_them_over_a_thousand_hosts(required: bool) -> None:
    """One look at each host for each shard, all at once; nobody compares shard with shard."""
    spread = Spread(group="test", over=Domain.HOST, required=required)
    hosts = [
        a_runner(f"h{number}", location=Location(host=f"h{number}")) for number in range(1_000)
    ]
    world = a_snapshot([shard(number, spread) for number in range(1_000)], hosts)
    made = plan(world, SchedulingPolicy(batch=1_000))
    assert len({decision.candidates[0][0] for decision in made.decisions}) == 1_000
