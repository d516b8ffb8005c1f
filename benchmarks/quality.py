"""How good placement is: against the best there is, which OR-Tools finds, and against first fit.

    python -m benchmarks.quality [--quick]

Small seeded partitions, so that the best can be proved, at three loads: jobs that want 80, 100 and
130 percent of the CPUs. One cycle is compared with the placement that maximises one number: jobs
placed, CPU given away, or *value*, which is CPU times the weight of the job's priority. Such a
placement leaves out whatever is urgent and awkward; *in order* is therefore the CPU of the best one
that never lets a job take what one before it in the queue needs. *Makespan* plans cycle after cycle
under a virtual clock until all is done; the best knows every duration beforehand, which no planner
here is told. First fit takes jobs by age and the first runner with room. Where the solver ran out
of time its bound counts as the best.

Prints a table to stderr, one JSON object to stdout, and ends with 1 if a goal does not hold.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from statistics import fmean

from benchmarks.instances import NOW, Instance, an_instance, runners_that_fit
from benchmarks.measures import Goal, at_least, at_most
from benchmarks.solver import Problem, Solver, SolverUnavailable, a_solver
from benchmarks.virtual import Arrival, Partition, Planner
from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

Figures = dict[str, float]
POLICY = SchedulingPolicy(batch=1_000)
MINUTE = 60_000
WORTH = {
    Priority.LOW: 1,
    Priority.NORMAL: 2,
    Priority.HIGH: 4,
    Priority.RELEASE_CRITICAL: 8,
    Priority.EMERGENCY: 16,
}
MEASURES: Mapping[str, Callable[[SchedulingJob], int]] = {
    "jobs": lambda job: 1,
    "cpu": lambda job: job.resources.cpu,
    "value": lambda job: WORTH[job.priority] * job.resources.cpu,
}


LOADS = (80, 100, 130)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many partitions are drawn of either sort, at each load."""

    cycles: int
    makespans: int


FULL, QUICK = Size(cycles=40, makespans=20), Size(cycles=6, makespans=6)


def main() -> int:
    """Place, solve, tell, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("--quick", action="store_true", help="fewer partitions, within 60 s")
    size = QUICK if parser.parse_args().quick else FULL
    try:
        with a_solver() as solve:
            figures = _cycles(size.cycles, solve) | _makespans(size.makespans, solve)
    except SolverUnavailable as unavailable:
        _say(str(unavailable))
        return 7
    goals = _goals(figures)
    _tell(figures, goals)
    result = {
        "benchmark": "quality",
        "figures": {name: round(value, 3) for name, value in figures.items()},
        "goals": [goal.shown() for goal in goals],
    }
    print(json.dumps(result))
    return 0 if all(goal.holds for goal in goals) else 1


def planned(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Place as the product does."""
    decisions = plan(snapshot, POLICY).decisions
    return [(decision.job_id, decision.candidates[0][0]) for decision in decisions]


def first_fit(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Place as the simplest queue does: oldest first, on the first runner with room."""
    free = {runner.runner_id: runner.free for runner in snapshot.runners}
    placed: list[tuple[str, str]] = []
    for job in sorted(snapshot.jobs, key=lambda job: (job.eligible_at, job.job_id)):
        runner = next((it for it in snapshot.runners if _takes(job, it, free)), None)
        if runner is not None:
            free[runner.runner_id] = free[runner.runner_id].minus(job.resources)
            placed.append((job.job_id, runner.runner_id))
    return placed


def _takes(job: SchedulingJob, runner: SchedulingRunner, free: Mapping[str, Resources]) -> bool:
    return is_eligible(job, runner, free=free[runner.runner_id])


PLANNERS: Mapping[str, Planner] = {"ours": planned, "first_fit": first_fit}


def _cycles(count: int, solve: Solver) -> Figures:
    """Compare one cycle with the best one, by each measure."""
    worlds = [_in_order(world) for world in _drawn(count, runners=(3, 6))]
    _say(f"{len(worlds)} single cycles, {1 + len(MEASURES)} optima each")
    figures: Figures = {"cycles": len(worlds), "jobs": fmean(len(_jobs(it)) for it in worlds)}
    for measure, worth in MEASURES.items():
        problems = [
            _problem(it.snapshot) | {"kind": "values", "values": list(map(worth, _jobs(it)))}
            for it in worlds
        ]
        best = solve(problems)
        figures[f"{measure}_proved"] = _proved(best)
        figures |= _compared(measure, worlds, worth, [answer["bound"] for answer in best])
    placed = solve([_problem(it.snapshot) | {"kind": "in order"} for it in worlds])
    ordered = [
        sum(_jobs(world)[job].resources.cpu for job in answer["placed"])
        for world, answer in zip(worlds, placed, strict=True)
    ]
    return figures | _compared("in_order", worlds, MEASURES["cpu"], ordered)


def _drawn(count: int, *, runners: tuple[int, int]) -> list[Instance]:
    return [
        an_instance(load * 1_000 + seed, runners=runners, load=load)
        for load in LOADS
        for seed in range(count)
    ]


def _in_order(world: Instance) -> Instance:
    """Sort the jobs as a cycle serves them, for the solver knows no rule of ours."""
    queue = in_order(world.snapshot.jobs, POLICY, world.snapshot.taken_at)
    return replace(world, snapshot=replace(world.snapshot, jobs=tuple(queue)))


def _compared(
    measure: str,
    worlds: Sequence[Instance],
    worth: Callable[[SchedulingJob], int],
    best: Sequence[int],
) -> Figures:
    figures: Figures = {}
    for name, planner in PLANNERS.items():
        reached = [_worth(world, planner, worth) for world in worlds]
        ratios = [have / most for have, most in zip(reached, best, strict=True)]
        figures |= {f"{measure}_{name}_mean": fmean(ratios), f"{measure}_{name}_worst": min(ratios)}
    return figures


def _worth(world: Instance, planner: Planner, worth: Callable[[SchedulingJob], int]) -> int:
    placed = {job_id for job_id, _ in planner(world.snapshot)}
    return sum(worth(job) for job in _jobs(world) if job.job_id in placed)


def _makespans(count: int, solve: Solver) -> Figures:
    """Compare how long all jobs take, cycle after cycle, with the shortest possible."""
    worlds = _drawn(count, runners=(2, 4))
    _say(f"{len(worlds)} partitions until all is done")
    spans = {name: [_span(it, planner) for it in worlds] for name, planner in PLANNERS.items()}
    problems = [
        _problem(world.snapshot)
        | {
            "kind": "makespan",
            "takes": [world.takes[job.job_id] // MINUTE for job in _jobs(world)],
            "known": min(each) // MINUTE,
        }
        for world, *each in zip(worlds, *spans.values(), strict=True)
    ]
    best = solve(problems)
    figures: Figures = {"makespans": len(worlds), "makespans_proved": _proved(best)}
    for name, ours in spans.items():
        pairs = zip(ours, best, strict=True)
        ratios = [span / (answer["bound"] * MINUTE) for span, answer in pairs]
        figures |= {f"makespan_{name}_mean": fmean(ratios), f"makespan_{name}_worst": max(ratios)}
    return figures


def _span(world: Instance, planner: Planner) -> int:
    arrivals = [Arrival(job=job, takes=world.takes[job.job_id]) for job in _jobs(world)]
    partition = Partition(world.snapshot.runners, arrivals, since=NOW)
    return max(service.ended for service in partition.run(planner)) - NOW


def _jobs(world: Instance) -> Sequence[SchedulingJob]:
    return world.snapshot.jobs


def _problem(snapshot: Snapshot) -> Problem:
    """Reduce a partition to small numbers and to who may run what."""
    wants = [_amounts(job.resources) for job in snapshot.jobs]
    has = [_amounts(runner.free) for runner in snapshot.runners]
    units = [gcd(*column) or 1 for column in zip(*wants, *has, strict=True)]
    return {
        "wants": [_scaled(row, units) for row in wants],
        "has": [_scaled(row, units) for row in has],
        "fits": [runners_that_fit(job, snapshot) for job in snapshot.jobs],
    }


def _amounts(resources: Resources) -> list[int]:
    return [resources.cpu, resources.memory, resources.disk, resources.slots]


def _scaled(row: Iterable[int], units: Iterable[int]) -> list[int]:
    return [amount // unit for amount, unit in zip(row, units, strict=True)]


def _proved(best: Iterable[Mapping[str, int]]) -> float:
    return fmean(answer["found"] == answer["bound"] for answer in best)


def _goals(figures: Figures) -> Sequence[Goal]:
    return (
        at_least("CPU ÷ best in queue order, mean", figures["in_order_ours_mean"], 0.94),
        at_least("CPU ÷ best in queue order, worst", figures["in_order_ours_worst"], 0.86),
        at_least(
            "CPU ÷ optimum, ours ÷ first fit",
            figures["cpu_ours_mean"] / figures["cpu_first_fit_mean"],
            1,
        ),
        at_most("makespan ÷ optimum, mean", figures["makespan_ours_mean"], 1.15),
        at_least(
            "value ÷ optimum, ours ÷ first fit",
            figures["value_ours_mean"] / figures["value_first_fit_mean"],
            1,
        ),
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
