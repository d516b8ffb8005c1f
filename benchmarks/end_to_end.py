"""From submission to running and settled, against a bare one-activity workflow in the same run.

    python -m benchmarks.end_to_end [--quick]

Starts a dev server, store, worker, API and agent of its own. Prints a table to stderr, one JSON
object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from temporalio.client import Client

from activities import contracts
from activities.connection import connect
from benchmarks import costs
from benchmarks.bare import BareRunner
from benchmarks.costs import Cost
from benchmarks.measures import Goal, at_least, at_most, percentile
from benchmarks.system import SLOTS, Batch, System, Timeline, started

Figures = dict[str, float]
TRUE = "true"
STAGES = ("stored", "leased", "accepted", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    latencies: int
    rounds: int
    jobs: int
    waves: int
    """How many times all slots run a job of two seconds or more."""


FULL = Size(latencies=40, rounds=3, jobs=120, waves=6)
QUICK = Size(latencies=8, rounds=1, jobs=24, waves=2)


def main() -> int:
    """Measure, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end")
    parser.add_argument("--quick", action="store_true", help="less of everything, within 60 s")
    size = QUICK if parser.parse_args().quick else FULL
    with started(_say) as system:
        figures = asyncio.run(_measure(system, size))
    goals = _goals(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "end_to_end",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


async def _measure(system: System, size: Size) -> Figures:
    client = await connect(system.temporal)
    bare = BareRunner(client=client)
    async with bare.serving():
        await system.run([TRUE])
        figures = await _latency(system, bare, size)
        figures |= await _throughput(system, bare, size)
        figures |= await _longer(system, client, size)
    return figures


async def _latency(system: System, bare: BareRunner, size: Size) -> Figures:
    """Take turns with the reference, so that both see the same machine."""
    _say(f"latency on an idle fleet, {size.latencies} jobs one after the other")
    reference, seen = list[float](), list[Timeline]()
    for _ in range(size.latencies):
        reference.append(await bare.once_ms())
        seen += (await system.run([TRUE])).timelines
    p50, p95 = (percentile([each.running for each in seen], share) for share in (0.5, 0.95))
    bare_p50, bare_p95 = percentile(reference, 0.5), percentile(reference, 0.95)
    figures: Figures = {
        "bare_p50_ms": bare_p50,
        "bare_p95_ms": bare_p95,
        "submitted_to_running_p50_ms": p50,
        "submitted_to_running_p95_ms": p95,
        "latency_p50_ratio": p50 / bare_p50,
        "latency_p95_ratio": p95 / bare_p95,
    }
    for stage in STAGES:
        figures[f"until_{stage}_p50_ms"] = percentile([getattr(t, stage) for t in seen], 0.5)
    ends = [each.settled - each.finished for each in seen]
    return figures | {"finished_to_settled_p50_ms": percentile(ends, 0.5)}


async def _throughput(system: System, bare: BareRunner, size: Size) -> Figures:
    _say(f"throughput, {size.rounds} times {size.jobs} jobs, {SLOTS} at a time")
    reference, settled, leased = list[float](), list[float](), list[float]()
    for _ in range(size.rounds):
        reference.append(await bare.per_second(size.jobs, parallel=SLOTS))
        batch = await system.run([TRUE] * size.jobs)
        settled.append(batch.settled_per_second)
        leased.append(batch.leased_per_second)
    bare_rate = mean(reference)
    return {
        "bare_per_second": bare_rate,
        "settled_per_second": mean(settled),
        "leases_per_second": mean(leased),
        "settled_ratio": mean(settled) / bare_rate,
        "leases_ratio": mean(leased) / bare_rate,
    }


async def _longer(system: System, client: Client, size: Size) -> Figures:
    """Jobs that last: all alike, and each of another length, so that their ends do not coincide."""
    jobs = SLOTS * size.waves
    _say(f"twice {jobs} jobs that run for 2 s or more, {SLOTS} at a time")
    alike = await _cost(system, client, await system.run(["sleep 2"] * jobs))
    lengths = [f"sleep {2 + number * 7 % jobs / jobs:.3f}" for number in range(jobs)]
    mixed = await _cost(system, client, await system.run(lengths))
    return {f"{name}_alike": value for name, value in alike.items()} | {
        f"{name}_mixed": value for name, value in mixed.items()
    }


async def _cost(system: System, client: Client, batch: Batch) -> Figures:
    attempts = [
        Cost.of(await costs.history(client, contracts.attempt_workflow_id(t.job_id, t.number)))
        for t in batch.timelines
    ]
    scheduling = await costs.of_scheduling(
        client, system.settings.partition, batch.begin_ms, batch.end_ms
    )
    jobs, own = len(attempts), sum(each.actions for each in attempts)
    return {
        "lease_events_max": max(each.events for each in attempts),
        "lease_events_mean": mean(each.events for each in attempts),
        "lease_actions_max": max(each.actions for each in attempts),
        "lease_kilobytes_mean": mean(each.kilobytes for each in attempts),
        "job_actions": (own + scheduling.actions) / jobs,
        "job_events": (sum(each.events for each in attempts) + scheduling.events) / jobs,
        "wakes_per_job": scheduling.kinds["WORKFLOW_EXECUTION_SIGNALED"] / jobs,
        "cycles_per_job": scheduling.kinds["START_CHILD_WORKFLOW_EXECUTION_INITIATED"] / jobs,
    }


def _goals(figures: Figures) -> Sequence[Goal]:
    both = ("alike", "mixed")
    return (
        at_most("latency p50 ÷ bare", figures["latency_p50_ratio"], 3),
        at_least("settled jobs/s ÷ bare", figures["settled_ratio"], 0.35),
        at_most("events per lease", max(figures[f"lease_events_max_{each}"] for each in both), 24),
        at_most("actions per lease", max(figures[f"lease_actions_max_{each}"] for each in both), 6),
        at_most("actions per job", max(figures[f"job_actions_{each}"] for each in both), 9),
    )


def _tell(figures: Figures, goals: Sequence[Goal]) -> None:
    for name, value in figures.items():
        _say(f"{name.replace('_', ' '):<36}{value:>12.2f}")
    for goal in goals:
        _say(f"{'holds' if goal.holds else 'FAILS':<7}{goal.goal:<36}{goal.value:>5.2f}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
