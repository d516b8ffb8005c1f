"""Fleets at size: what a tick of planning costs for 100 fleets, 10,000 machines and 10,000 jobs.

    python -m benchmarks.fleet [--quick]

One tick exports the unmet demand from a snapshot, shares it out among the fleets and decides for
each of them. Beside it, in the same run, the machines for one class are reckoned by lots and job by
job, first fit, which is how one would first write it. Prints a table to stderr, one JSON object to
stdout, and ends with 1 if a goal does not hold. Times are the process's own, so that a machine
which does other things as well measures the same.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import process_time
from typing import TypeVar

from benchmarks.measures import Goal, at_least, at_most
from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.packing import Amounts, Load, Packing, size_of
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import Allocation, FleetDecision, FleetView, InstanceView
from forgeyard.model.capability import Architecture, Capabilities, Platform, Requirements
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import CapacityClass, FleetSpec, Market, Offering, ScaleUp, Scaling
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu, Resources
from forgeyard.scheduler.demand import Demand, unmet
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

Figures = dict[str, float]
T = TypeVar("T")
NOW, MINUTE = 1_700_000_000_000, 60_000
FLEETS, MACHINES, JOBS, CLASSES = 100, 100, 10_000, 40
ONE_BY_ONE = 4_000
"""Jobs that are put job by job as well: ten thousand would take half a minute."""
ANY = frozenset({"stable", "spot"})
SIZE = Resources(cpu=MilliCpu(8_000), memory=Bytes(32 * GIB), disk=Bytes(200 * GIB), slots=8)
KINDS = [(platform, arch) for platform in Platform for arch in Architecture]


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, within 60 s")
    figures = measure(rounds=3 if parser.parse_args().quick else 15)
    goals = goals_of(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "fleet",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def measure(*, rounds: int) -> Figures:
    """Run some ticks and reckon one class in both ways."""
    snapshot, views = a_snapshot(), [a_fleet(place) for place in range(FLEETS)]
    ticks = [_tick(snapshot, views) for _ in range(rounds)]
    whole = [
        sum(tick[step] for step in ("demand_ms", "allocate_ms", "decide_ms")) for tick in ticks
    ]
    medians = {name: median(tick[name] for tick in ticks) for name in ticks[0]}
    return {**medians, "tick_ms": median(whole), **_packings(rounds)}


def _tick(snapshot: Snapshot, views: Sequence[FleetView]) -> Figures:
    demand_ms, demand = timed(lambda: unmet(snapshot, SchedulingPolicy()))
    allocate_ms, shares = timed(lambda: allocate(demand, views, NOW))
    decide_ms, decisions = timed(lambda: _decided(views, shares, demand))
    return {
        "demand_ms": demand_ms,
        "allocate_ms": allocate_ms,
        "decide_ms": decide_ms,
        "jobs_counted": float(sum(one.count for one in demand.classes)),
        "fleets_that_serve": float(len(shares.shares)),
        "launches": float(sum(len(one.launch) for one in decisions)),
    }


def _decided(views: Sequence[FleetView], shares: Allocation, demand: Demand) -> list[FleetDecision]:
    return [decide(it, shares.of(it.fleet_id), demand=demand, now=NOW) for it in views]


def _packings(rounds: int) -> Figures:
    loads = [
        Load(name=str(n), count=ONE_BY_ONE // 20, each=_each(300 + 170 * n), offerings=ANY)
        for n in range(20)
    ]
    by_lots = [timed(lambda: packed(loads)) for _ in range(rounds)]
    job_by_job_ms, machines = timed(lambda: first_fit(loads))
    lots_ms = median(ms for ms, _ in by_lots)
    return {
        "packing_ms": lots_ms,
        "packing_job_by_job_ms": job_by_job_ms,
        "times_faster": job_by_job_ms / max(lots_ms, 0.001),
        "machines_by_lots": float(by_lots[0][1]),
        "machines_job_by_job": float(machines),
    }


def packed(loads: Sequence[Load]) -> int:
    """Count machines as the product does."""
    packing = Packing(size_of(SIZE))
    for load in loads:
        packing.put(load, most_new=JOBS, of=ANY)
    return packing.new


def first_fit(loads: Sequence[Load]) -> int:
    """Count machines by putting every job on the first that has room."""
    machines: list[list[int]] = []
    for load in loads:
        for _ in range(load.count):
            _put(load.each, machines)
    return len(machines)


def _put(each: Amounts, machines: list[list[int]]) -> None:
    for machine in machines:
        if all(have >= want for have, want in zip(machine, each, strict=True)):
            break
    else:
        machine = list(size_of(SIZE))
        machines.append(machine)
    machine[:] = [have - want for have, want in zip(machine, each, strict=True)]


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Do some work; tell how many milliseconds of processor it took."""
    began = process_time()
    result = work()
    return (process_time() - began) * 1000, result


def a_snapshot() -> Snapshot:
    """Describe 10,000 full runners and 10,000 jobs of 40 classes, for which there is no room."""
    wants = [_wants(place) for place in range(CLASSES)]
    jobs = (_job(place, wants[place % CLASSES]) for place in range(JOBS))
    runners = (_runner(place) for place in range(FLEETS * MACHINES))
    return Snapshot(
        partition="default", taken_at=NOW, jobs=tuple(jobs), runners=tuple(runners), waiting=JOBS
    )


def _wants(place: int) -> tuple[Requirements, Resources]:
    platform, architecture = KINDS[place % len(KINDS)]
    amount = _amount(500 + 150 * (place % 20))
    return Requirements(platform=platform, architecture=architecture), amount


def _job(place: int, wants: tuple[Requirements, Resources]) -> SchedulingJob:
    requirements, amount = wants
    return SchedulingJob(
        job_id=f"job_{place:05}",
        run_id=f"run_{place // 20}",
        name=f"job-{place}",
        requirements=requirements,
        resources=amount,
        requirement_class=f"class-{place % CLASSES}",
        eligible_at=NOW - place,
        created_at=NOW - place,
    )


def _runner(place: int) -> SchedulingRunner:
    platform, architecture = KINDS[place % len(KINDS)]
    return SchedulingRunner(
        runner_id=f"rnr_{place:05}",
        name=f"runner-{place}",
        session_id=f"ses_{place}",
        capabilities=Capabilities(platform=platform, architecture=architecture),
        total=SIZE,
        reserved=SIZE,
    )


def a_fleet(place: int) -> FleetView:
    """Describe a fleet of 100 machines, most of them busy, that may have twice as many."""
    platform, architecture = KINDS[place % len(KINDS)]
    stable = Offering(name="stable", region="eu", zone=f"eu-{place % 3}", cost=200_000 + place % 4)
    spot = Offering(name="spot", region="eu", market=Market.PREEMPTIBLE, cost=90_000 + place % 4)
    spec = FleetSpec(
        name=f"fleet-{place:03}",
        capacity=CapacityClass(platform=platform, architecture=architecture, resources=SIZE),
        offerings=(stable, spot),
        scaling=Scaling(max=2 * MACHINES, warm=2, up=ScaleUp(per_minute=100, burst=100)),
    )
    machines = tuple(_machine(place * MACHINES + n, idle=n < 10) for n in range(MACHINES))
    return FleetView(fleet_id=f"flt_{place:03}", spec=spec, instances=machines)


def _machine(place: int, *, idle: bool) -> InstanceView:
    return InstanceView(
        instance_id=f"cin_{place:05}",
        state=CapacityInstanceState.HEALTHY,
        offering="stable",
        runner_id=f"rnr_{place:05}",
        cost=200_000,
        requested_at=NOW - 60 * MINUTE,
        idle_since=NOW - 10 * MINUTE if idle else None,
        leases=0 if idle else 8,
    )


def _amount(cpu: int) -> Resources:
    return Resources(cpu=MilliCpu(cpu), memory=Bytes(cpu * 3 * 2**20), disk=Bytes(GIB), slots=1)


def _each(cpu: int) -> Amounts:
    amount = _amount(cpu)
    return (amount.cpu, amount.memory, amount.disk, amount.slots, 0)


def goals_of(figures: Figures) -> list[Goal]:
    """Hold a tick against what a loop of seconds can bear."""
    return [
        at_most("demand of 10,000 jobs, ms", figures["demand_ms"], 2_000),
        at_most(
            "allocation and all decisions, ms", figures["allocate_ms"] + figures["decide_ms"], 1_000
        ),
        at_least("lots, times faster than job by job", figures["times_faster"], 50),
        at_most(
            "machines by lots, against job by job",
            figures["machines_by_lots"] / figures["machines_job_by_job"],
            1.05,
        ),
        at_least("jobs counted", figures["jobs_counted"], JOBS),
    ]


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<30}{value:>12.2f}", file=sys.stderr)
    for goal in goals:
        verdict = "holds" if goal.holds else "FAILS"
        print(f"{verdict:<7}{goal.goal:<50}{goal.value:>10.2f}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
