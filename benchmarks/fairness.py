"""What a tenant gets while another floods the partition with ten thousand jobs.

    python -m benchmarks.fairness [--quick]

One tenant submits all its jobs at once, twenty submit steadily; a virtual clock lets jobs run and
end, and the product's planner places what is next, cycle after cycle. As in the store, a cycle sees
the first jobs of every queue, and its tags are carried over to the next.

Scenarios: *equal* and *unequal* weights, where each of the twenty asks for a little more than its
share, so that all have work all the time; *light*, where they ask for half of it and the flood may
have the rest; *long*, where the flood's jobs also run four times as long. Service is CPU time,
counted after a warm-up and divided by the weight; Jain's index is 1 when all have the same. First
come, first served is simulated beside it. Prints a table to stderr, one JSON object to stdout, and
ends with 1 if a goal does not hold.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from benchmarks.instances import NOW
from benchmarks.measures import Goal, at_least, at_most, percentile
from benchmarks.virtual import Arrival, Partition, Planner, Service
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu, Resources
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.scopes import SchedulingScope, Tags, service
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

Figures = dict[str, float]
POLICY = SchedulingPolicy()
SECOND = 1_000
TICK = 30 * SECOND
FLOOD, TENANTS = 10_000, 20
RUNNERS, SLOTS = 25, 8
TAKES = (2, 4, 6)
"""Ticks that a job runs; four on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Who asks for how much."""

    name: str
    weights: tuple[int, ...] = (1,)
    """Dealt out to the twenty in turn; the flood has the first."""
    asks: int = 130
    """What each of the twenty asks for, in percent of its share."""
    stretch: int = 1
    """How many times longer the flood's jobs run."""


SCENARIOS = (
    Scenario(name="equal"),
    Scenario(name="unequal", weights=(1, 2, 4)),
    Scenario(name="light", asks=50),
    Scenario(name="long", stretch=4),
)


@dataclass(slots=True, kw_only=True)
class FairPlanner:
    """Plans with the product's rule, and keeps its tags from cycle to cycle."""

    scopes: dict[str, SchedulingScope]

    def __call__(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        """Place one cycle, and charge it as a commit does."""
        jobs = {job.job_id: job for job in first_of_every_queue(snapshot.jobs)}
        seen = replace(snapshot, jobs=tuple(jobs.values()), scopes=self.scopes)
        decisions = plan(seen, POLICY).decisions
        tags = Tags(self.scopes)
        for decision in decisions:
            job = jobs[decision.job_id]
            tags.charge(job.scopes, service(job.resources))
        self.scopes = {
            name: replace(scope, finish_tag=tags.finish[name], clock=tags.clock[name])
            for name, scope in self.scopes.items()
        }
        return [(decision.job_id, decision.candidates[0][0]) for decision in decisions]


def first_of_every_queue(jobs: Iterable[SchedulingJob]) -> list[SchedulingJob]:
    """Take as many of the oldest jobs of each queue as a cycle can place."""
    queues: dict[str, list[SchedulingJob]] = {}
    for job in sorted(jobs, key=lambda job: (job.eligible_at, job.job_id)):
        queues.setdefault(job.queue_id, []).append(job)
    return [job for queue in queues.values() for job in queue[: POLICY.batch]]


def first_come(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Place by age, on the first runner with room."""
    queue = sorted(snapshot.jobs, key=lambda job: (job.eligible_at, job.job_id))
    free = {runner.runner_id: runner.free for runner in snapshot.runners}
    placed: list[tuple[str, str]] = []
    for job in queue:
        runner = next((name for name, it in free.items() if job.resources.fits_in(it)), None)
        if runner is None:
            break
        free[runner] = free[runner].minus(job.resources)
        placed.append((job.job_id, runner))
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tenants of one scenario got."""

    services: Sequence[Service]
    weights: Mapping[str, int]
    since: int
    until: int
    waiting: Sequence[SchedulingJob]

    def waits(self) -> list[int]:
        """List how long the jobs of the twenty waited, also those that still do."""
        pairs = [(it.job, it.started) for it in self.services]
        pairs += [(job, self.until) for job in self.waiting]
        return [
            started - job.eligible_at
            for job, started in pairs
            if job.tenant_id != "flood" and job.eligible_at >= self.since
        ]

    def weighted(self) -> dict[str, float]:
        """Add up each tenant's CPU seconds and divide them by its weight."""
        total = dict.fromkeys(self.weights, 0.0)
        for it in self.services:
            inside = min(it.ended, self.until) - max(it.started, self.since)
            total[it.job.tenant_id] += max(0, inside) * it.job.resources.cpu / 1_000_000
        return {tenant: amount / self.weights[tenant] for tenant, amount in total.items()}


def main() -> int:
    """Simulate, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness")
    parser.add_argument("--quick", action="store_true", help="an hour of each, within 60 s")
    minutes = 60 if parser.parse_args().quick else 240
    figures: Figures = {}
    for scenario in SCENARIOS:
        _say(f"{scenario.name}: {minutes} minutes")
        figures |= {
            f"{scenario.name}_{name}": value
            for name, value in simulate(scenario, minutes=minutes).items()
        }
    goals = _goals(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "fairness",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def jain(shares: Iterable[float]) -> float:
    """Take Jain's index: 1 when all shares are alike, 1/n when one has everything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def simulate(scenario: Scenario, *, minutes: int) -> Figures:
    """Let time pass under either planner; tell what the tenants got."""
    weights = _weights(scenario)
    until = NOW + minutes * 60 * SECOND
    arrivals = _arrivals(scenario, weights, until)
    figures: Figures = {}
    planners: dict[str, Planner] = {
        "ours": FairPlanner(scopes=_scopes(weights)),
        "fifo": first_come,
    }
    for name, planner in planners.items():
        partition = Partition(_fleet(), arrivals, since=NOW)
        services = partition.run(planner, until=until)
        outcome = Outcome(
            services=services,
            weights=weights,
            since=NOW + (until - NOW) // 4,
            until=until,
            waiting=tuple(partition.waiting.values()),
        )
        figures |= {f"{what}_{name}": value for what, value in _figures(outcome).items()}
    return figures


def _figures(outcome: Outcome) -> Figures:
    shares = outcome.weighted()
    flood = shares["flood"]
    steady = (sum(shares.values()) - flood) / TENANTS
    return {
        "jain": jain(shares.values()),
        "flood_share": flood / (flood + steady),
        "p95_wait_minutes": percentile(outcome.waits(), 0.95) / 60_000,
        "flood_left": float(sum(job.tenant_id == "flood" for job in outcome.waiting)),
    }


def _weights(scenario: Scenario) -> dict[str, int]:
    dealt = {
        f"tenant-{number:02}": scenario.weights[number % len(scenario.weights)]
        for number in range(TENANTS)
    }
    return {"flood": scenario.weights[0]} | dealt


def _scopes(weights: Mapping[str, int]) -> dict[str, SchedulingScope]:
    """Make a scope for each level of each tenant, and the root."""
    scopes = {"scp_root": SchedulingScope(scope_id="scp_root", name="everything", kind="root")}
    for tenant, weight in weights.items():
        scopes[tenant] = SchedulingScope(
            scope_id=tenant, name=tenant, kind="tenant", parent_id="scp_root", weight=weight
        )
        parent = tenant
        for kind in ("organization", "project", "queue"):
            name = f"{kind}-of-{tenant}"
            scopes[name] = SchedulingScope(scope_id=name, name=name, kind=kind, parent_id=parent)
            parent = name
    return scopes


def _fleet() -> list[SchedulingRunner]:
    total = Resources(
        cpu=MilliCpu(SLOTS * 1_000),
        memory=Bytes(SLOTS * 4 * GIB),
        disk=Bytes(SLOTS * 10 * GIB),
        slots=SLOTS,
    )
    return [
        SchedulingRunner(
            runner_id=f"rnr_{number:02}",
            name=f"runner-{number}",
            session_id=f"ses_{number}",
            total=total,
        )
        for number in range(RUNNERS)
    ]


def _arrivals(scenario: Scenario, weights: Mapping[str, int], until: int) -> list[Arrival]:
    """Let the flood come at once, and the others a few jobs at every tick."""
    rng = Random(len(weights) * 1_000 + scenario.asks)
    arrivals = [_arrival(rng, "flood", n, NOW, scenario.stretch) for n in range(FLOOD)]
    cores = RUNNERS * SLOTS / fmean((1, 1, 2))
    jobs_a_tick = cores / fmean(TAKES) * scenario.asks / 100
    for tenant, weight in weights.items():
        if tenant != "flood":
            rate = jobs_a_tick * weight / sum(weights.values())
            arrivals += _steady(rng, tenant, rate, until)
    return arrivals


def _steady(rng: Random, tenant: str, rate: float, until: int) -> list[Arrival]:
    ticks = range(NOW, until, TICK)
    due = [int(rate * (number + 1)) - int(rate * number) for number in range(len(ticks))]
    instants = [instant for instant, jobs in zip(ticks, due, strict=True) for _ in range(jobs)]
    return [_arrival(rng, tenant, number, instant, 1) for number, instant in enumerate(instants)]


def _arrival(rng: Random, tenant: str, number: int, instant: int, stretch: int) -> Arrival:
    cores = rng.choice((1, 1, 2))
    job = SchedulingJob(
        job_id=f"job_{tenant}_{number:05}",
        run_id="run_1",
        name=f"{tenant}-{number}",
        tenant_id=tenant,
        organization_id=f"organization-of-{tenant}",
        project_id=f"project-of-{tenant}",
        queue_id=f"queue-of-{tenant}",
        resources=Resources(
            cpu=MilliCpu(cores * 1_000), memory=Bytes(cores * 2 * GIB), disk=Bytes(GIB), slots=1
        ),
        eligible_at=instant,
    )
    return Arrival(job=job, takes=rng.choice(TAKES) * TICK * stretch)


def _goals(figures: Figures) -> Sequence[Goal]:
    left = min(value for name, value in figures.items() if name.endswith("flood_left_ours"))
    return (
        at_least("Jain's index, equal weights", figures["equal_jain_ours"], 0.95),
        at_least("Jain's index, unequal weights", figures["unequal_jain_ours"], 0.95),
        at_most("light tenants' p95 wait, min", figures["light_p95_wait_minutes_ours"], 5),
        at_least("jobs of the flood left at the end", left, 1),
    )


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        _say(f"{name.replace('_', ' '):<36}{value:>14.3f}")
    for goal in goals:
        _say(f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<40}{goal.value:>8.3f}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
