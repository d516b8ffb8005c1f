"""An explanation as text: what API, command line and pages show, line by line.

The outcome comes first, then what it rests on, then every runner.
"""

from collections.abc import Iterator

from forgeyard.model.units import brief_duration
from forgeyard.scheduler.estimate import Estimate
from forgeyard.scheduler.explain import Explanation, RunnerVerdict
from forgeyard.scheduler.gates import Gate, GateCode
from forgeyard.scheduler.score import NEUTRAL, TERMS, PlacementScore

_HELD_BY = {
    GateCode.QUEUE_PAUSED: "the pause of",
    GateCode.QUOTA_BLOCKED: "the quota of",
    GateCode.KEY_HELD: "the key",
    GateCode.BACKPRESSURE: "pressure:",
}


def text(found: Explanation) -> str:
    """Write a whole explanation; the same explanation gives the same text."""
    parts = [[f"{found.job_name}: {found.sentence}"], list(_facts(found))]
    parts += [part for part in (_able(found), _nearest(found), _unable(found)) if part]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _facts(found: Explanation) -> Iterator[str]:
    yield _fact("turn", f"position {found.position} of {found.waiting}; {_priority(found)}")
    yield _fact("queue", f"{'/'.join(found.queue)}, class {found.scheduling_class}")
    if found.estimate is not None:
        yield _fact("starts", estimate_text(found.estimate))
    if found.gate is not None:
        yield _fact("held by", held_by(found.gate))
    if found.parked is not None:
        yield _fact("parked", _parked(found))
    if found.requirements:
        yield _fact("needs", ", ".join(found.requirements))
    version = "built in" if not found.policy_version else f"version {found.policy_version}"
    yield _fact("policy", f"{version}, {found.policy_digest}")


def _fact(name: str, value: str) -> str:
    return f"{name:<10}{value}"


def _priority(found: Explanation) -> str:
    parts = found.priority
    adjusted = f" + {parts.adjustment} by adjustment" if parts.adjustment else ""
    return (
        f"priority {parts.effective} = {parts.priority} {parts.base}{adjusted}"
        f" + {parts.aging} for waiting {brief_duration(parts.waited_ms)}"
    )


def estimate_text(found: Estimate) -> str:
    """Say when a job may start, and that it is a guess."""
    of = f"{found.jobs} recent {'job' if found.jobs == 1 else 'jobs'}"
    if found.starts_in_ms < 0:
        late = brief_duration(-found.starts_in_ms)
        return f"late: by the estimate from {of} it should have started {late} ago"
    return f"in about {brief_duration(found.starts_in_ms)}: an estimate, from {of}"


def held_by(gate: Gate) -> str:
    """Name what holds a job back."""
    return f"{_HELD_BY.get(gate.code, 'what is said of')} {gate.subject}"


def _parked(found: Explanation) -> str:
    assert found.parked is not None
    parked = brief_duration(found.taken_at - found.parked.since_at)
    return (
        f"for {parked} with all jobs that want the same,"
        " until a runner, a pool or the policy changes"
        f" (generation {found.parked.generation})"
    )


def _able(found: Explanation) -> list[str]:
    ranked = [verdict for verdict in found.runners if verdict.rank is not None]
    title = "can take it now" if found.gate is None else "could take it, were it not held"
    return [title, *map(_ranked, ranked)] if ranked else []


def _ranked(verdict: RunnerVerdict) -> str:
    score = verdict.score
    points = "" if score is None else f" {score.total} = {_made_of(score)};"
    avoided = f"; {verdict.avoided}" if verdict.avoided else ""
    return f"  {verdict.rank}. {verdict.name}:{points} free: {verdict.free_text}{avoided}"


def _made_of(score: PlacementScore) -> str:
    """List the terms that say anything: those that are neutral are left out."""
    terms = {name: getattr(score, name) for name in TERMS}
    told = (f"{name} {value}" for name, value in terms.items() if value != NEUTRAL.get(name))
    return ", ".join(told)


def _nearest(found: Explanation) -> list[str]:
    lines = [f"  {miss.runner}: {miss.text}" for miss in found.near_misses]
    return ["nearest", *lines] if lines else []


def _unable(found: Explanation) -> list[str]:
    others = [verdict for verdict in found.runners if verdict.rank is None]
    return ["cannot", *map(_turned_down, others)] if others else []


def _turned_down(verdict: RunnerVerdict) -> str:
    reasons = [f"{one.text}{' (never)' if one.permanent else ''}" for one in verdict.rejections]
    if verdict.pool_gate:
        reasons.append(verdict.pool_gate)
    return f"  {verdict.name}: {'; '.join(reasons)}"
