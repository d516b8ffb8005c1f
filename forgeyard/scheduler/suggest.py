"""What a job might ask for, judged by what its recent attempts used: told to people, never applied.

Only attempts that succeeded count, for one that ran out of memory tells too little. Nothing here
lowers a request below what the policy says jobs should at least ask for (POL-001, POL-002).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from forgeyard.model.policy import SuggestionPolicy
from forgeyard.model.units import MIB, Bytes, MilliCpu, Resources, Rounding, bytes_text, cpu_text

FEWEST: Final = 3
"""Of fewer attempts nothing is said."""
_MEMORY_STEPS: Final = ((1_024 * MIB, 64 * MIB), (8_192 * MIB, 256 * MIB))
_LARGE_MEMORY: Final = 1_024 * MIB
_CPU_STEPS: Final = ((1_000, 100), (4_000, 250))
_LARGE_CPU: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one attempt used; what was not measured is `None`."""

    wall_ms: int | None
    cpu_ms: int | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A request that would have sufficed lately, beside the one that is made."""

    attempts: int
    """How many it rests on."""
    cpu: MilliCpu | None
    memory: Bytes | None
    requested_cpu: MilliCpu
    requested_memory: Bytes
    text: str


def suggest(
    requested: Resources, attempts: Sequence[Measured], policy: SuggestionPolicy
) -> Suggestion:
    """Suggest requests with a margin above what all but one attempt in twenty used at most."""
    cpu = _with_margin(_cores(attempts), policy.margin_percent)
    memory = _with_margin(
        (one.peak_memory_bytes for one in attempts if one.peak_memory_bytes is not None),
        policy.margin_percent,
    )
    cpu = cpu and max(_up(cpu, _CPU_STEPS, _LARGE_CPU), policy.least_cpu_milli)
    memory = memory and max(
        _up(memory, _MEMORY_STEPS, _LARGE_MEMORY), policy.least_memory_mib * MIB
    )
    return Suggestion(
        attempts=len(attempts),
        cpu=None if cpu is None else MilliCpu(cpu),
        memory=None if memory is None else Bytes(memory),
        requested_cpu=requested.cpu,
        requested_memory=requested.memory,
        text=_text(requested, cpu, memory, attempts=len(attempts)),
    )


def _cores(attempts: Iterable[Measured]) -> Iterable[int]:
    """Tell how many thousandths of a core each attempt kept busy."""
    return (
        -(-one.cpu_ms * 1_000 // one.wall_ms)
        for one in attempts
        if one.cpu_ms is not None and one.wall_ms
    )


def _with_margin(amounts: Iterable[int], percent: int) -> int | None:
    """Take the 95th percentile and add to it; nothing, where too little is known."""
    ordered = sorted(amounts)
    if len(ordered) < FEWEST:
        return None
    high = ordered[-(-len(ordered) * 95 // 100) - 1]
    return -(-high * (100 + percent) // 100)


def _up(amount: int, steps: Sequence[tuple[int, int]], large: int) -> int:
    """Round up to a step that suits the size."""
    step = next((step for limit, step in steps if amount <= limit), large)
    return -(-amount // step) * step


def _text(requested: Resources, cpu: int | None, memory: int | None, *, attempts: int) -> str:
    if cpu is None and memory is None:
        return f"nothing to suggest yet: {attempts} of {FEWEST} attempts that succeeded are known"
    parts: list[str] = []
    if cpu is not None:
        parts.append(f"{cpu_text(cpu)} (asks for {cpu_text(requested.cpu)})")
    if memory is not None:
        asked = bytes_text(requested.memory, rounding=Rounding.REQUEST)
        parts.append(
            f"{bytes_text(memory, rounding=Rounding.REQUEST)} of memory (asks for {asked})"
        )
    return f"suggested from {attempts} recent attempts: {', '.join(parts)}; nothing is changed"
