"""How much the system around the scheduler can bear, and what it does about that (BKP-001..007).

Pressure changes the pace and the order of admission, never what is right: nothing is dropped, and
whatever is held back goes on by itself when the signal falls.
"""

from dataclasses import dataclass
from enum import StrEnum

from forgeyard.model.job import Priority
from forgeyard.model.policy import PressurePolicy
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.readings import Readings

LOW_ALONE, ALL_BUT_URGENT = BASE[Priority.NORMAL], BASE[Priority.HIGH]


class Signal(StrEnum):
    """Where the pressure comes from (BKP-005)."""

    STORAGE = "storage_pressure"
    CAS = "cas_pressure"
    RUNNER_SATURATION = "runner_saturation"
    QUEUE_DEPTH = "queue_depth"
    CONTROL_PLANE = "control_plane_pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The signals that are up, and what follows from them (BKP-006)."""

    signals: tuple[Signal, ...] = ()
    batch_percent: int = 100
    """How much of a batch a cycle may place."""
    least_priority: int = 0
    """Jobs of a lower base priority wait."""
    no_inputs: str = ""
    """Set: jobs that must fetch something wait, for this reason."""
    rejects_below: int = 0
    """New runs whose jobs all have a lower base priority are turned away for now."""


def judge(readings: Readings, policy: PressurePolicy) -> Pressure:
    """Grade the readings: twice a limit is worse than once."""
    control = _grade(readings.outbox_lag_ms, policy.outbox_lag)
    storage = _grade(readings.store_ms, policy.store_latency)
    depth = _grade(readings.waiting, policy.queue_depth)
    graded = (
        (Signal.STORAGE, storage),
        (Signal.CAS, 1 if readings.blobs else 0),
        (Signal.RUNNER_SATURATION, int(readings.saturation >= policy.saturation)),
        (Signal.QUEUE_DEPTH, depth),
        (Signal.CONTROL_PLANE, control),
    )
    worst = max(control, storage)
    return Pressure(
        signals=tuple(signal for signal, grade in graded if grade),
        batch_percent=(100, 25, 5)[worst],
        least_priority=LOW_ALONE if worst > 1 else 0,
        no_inputs=readings.blobs,
        rejects_below=(0, LOW_ALONE, ALL_BUT_URGENT)[depth],
    )


def _grade(reading: int, limit: int) -> int:
    """Count how often a reading holds its limit: not at all, once, or twice and more."""
    return min(2, reading // limit) if limit > 0 else 0
