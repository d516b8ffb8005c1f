"""Finds what the best possible placement is; run by an interpreter that has OR-Tools.

    python optimum.py < problems.json > answers.json

Knows neither Forgeyard nor its rules: amounts, which runner may take which job, and a value for
each job are all it is given, so that nothing of ours decides what it finds.
"""

import json
import sys
from typing import Any

from ortools.sat.python import cp_model

Problem = dict[str, Any]
Answer = dict[str, Any]
EFFORT, WORKERS, SEED = 2.0, 2, 1


def main() -> None:
    """Solve every problem of the input."""
    json.dump([_solve(problem) for problem in json.load(sys.stdin)], sys.stdout)


def _solve(problem: Problem) -> Answer:
    kinds = {"values": _most_valuable, "in order": _most_in_order, "makespan": _shortest}
    return kinds[problem["kind"]](problem)


def _most_valuable(problem: Problem) -> Answer:
    """Choose jobs and runners so that the values of the placed jobs add up to the most."""
    model = cp_model.CpModel()
    placed = _one_cycle(model, problem)
    values = zip(problem["values"], placed, strict=True)
    model.maximize(sum(value * sum(there.values()) for value, there in values))
    return _answer(model)


def _most_in_order(problem: Problem) -> Answer:
    """Place job after job wherever some arrangement of all before it leaves room for it."""
    model = cp_model.CpModel()
    placed = _one_cycle(model, problem)
    jobs: list[int] = []
    for job, there in enumerate(placed):
        trial = model.clone()
        literals = [trial.get_bool_var_from_proto_index(it.index) for it in there.values()]
        trial.add_exactly_one(literals)
        if _solver().solve(trial) == cp_model.OPTIMAL:
            model.add_exactly_one(there.values())
            jobs.append(job)
    return {"placed": jobs}


def _one_cycle(model: cp_model.CpModel, problem: Problem) -> list[dict[int, cp_model.IntVar]]:
    """Say that a job is on one runner at most, and no runner holds more than it has."""
    placed = _placements(model, problem)
    for there in placed:
        model.add_at_most_one(there.values())
    for place, offered in enumerate(problem["has"]):
        here = [(wants, there[place]) for wants, there in _wants(problem, placed) if place in there]
        for dimension, amount in enumerate(offered):
            model.add(sum(wants[dimension] * literal for wants, literal in here) <= amount)
    return placed


def _shortest(problem: Problem) -> Answer:
    """Choose runners and starts so that the last job ends as early as can be."""
    model = cp_model.CpModel()
    placed = _placements(model, problem)
    horizon = problem["known"]
    end = model.new_int_var(0, horizon, "end")
    intervals: list[dict[int, cp_model.IntervalVar]] = []
    for job, (takes, there) in enumerate(zip(problem["takes"], placed, strict=True)):
        model.add_exactly_one(there.values())
        start = model.new_int_var(0, horizon - takes, f"start {job}")
        model.add(start + takes <= end)
        intervals.append(
            {
                place: model.new_optional_fixed_size_interval_var(start, takes, literal, f"{job}")
                for place, literal in there.items()
            }
        )
    for place, offered in enumerate(problem["has"]):
        here = [(wants, it[place]) for wants, it in _wants(problem, intervals) if place in it]
        for dimension, amount in enumerate(offered):
            demands = [wants[dimension] for wants, _ in here]
            model.add_cumulative([interval for _, interval in here], demands, amount)
    model.minimize(end)
    return _answer(model)


def _placements(model: cp_model.CpModel, problem: Problem) -> list[dict[int, cp_model.IntVar]]:
    return [
        {place: model.new_bool_var(f"{job} on {place}") for place in places}
        for job, places in enumerate(problem["fits"])
    ]


def _wants(problem: Problem, by_job: list[dict[int, Any]]) -> zip:
    return zip(problem["wants"], by_job, strict=True)


def _answer(model: cp_model.CpModel) -> Answer:
    """Tell what was found, and the bound: the two are equal when it is proved the best."""
    solver = _solver()
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise SystemExit(f"the solver found nothing: {solver.status_name(status)}")
    return {"found": round(solver.objective_value), "bound": round(solver.best_objective_bound)}


def _solver() -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = EFFORT
    solver.parameters.num_search_workers = WORKERS
    solver.parameters.random_seed = SEED
    return solver


if __name__ == "__main__":
    main()
