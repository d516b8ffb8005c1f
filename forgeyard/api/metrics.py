"""`/metrics`: what this process counts, and what is so now by SQL, for Prometheus.

The API's own port answers it to whoever has the token; a port of its own, if one is configured,
answers anybody who reaches it. The store is read once for all who ask within a few seconds.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import GaugeMetricFamily, Metric

from forgeyard import clock, telemetry
from forgeyard.api.callers import needs
from forgeyard.api.dependencies import Deps
from forgeyard.errors import StoreUnavailable
from forgeyard.model.equipment import WHOLE
from forgeyard.model.fleet import FleetHealth
from forgeyard.model.permission import Permission
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import FINAL_JOB_STATES, JobState
from forgeyard.model.units import Resources
from forgeyard.scheduler.pressure import Signal
from forgeyard.store.engine import read
from forgeyard.store.figures import Figures, read_figures

FRESH_S: Final = 5.0
OPEN_JOBS: Final = tuple(state for state in JobState if state not in FINAL_JOB_STATES)
Word = TypeVar("Word", bound=str)
logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    dependencies=[needs(Permission.METRICS_READ)],
)
def metrics(deps: Deps) -> Response:
    """Tell Prometheus what this process counted and how the store stands."""
    found = telemetry.text(telemetry.published(deps.figures))
    return Response(found, media_type=CONTENT_TYPE_LATEST)


class StoreFigures:
    """A collector of what the store can tell; without a store it tells just that."""

    def __init__(self, engine: sa.Engine, partition: str, *, fresh_s: float = FRESH_S) -> None:
        self._engine = engine
        self._partition = partition
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._known: tuple[float, Figures | None] | None = None

    def collect(self) -> Iterator[Metric]:
        """Give every figure, at most a few seconds old."""
        found = self._figures()
        yield _one("forgeyard_store_up", "Whether the store could be read.", int(found is not None))
        if found is not None:
            yield from families(found)

    def _figures(self) -> Figures | None:
        """Read the store, one asker at a time; the others have what that one found."""
        with self._lock:
            if self._known is None or clock.monotonic() - self._known[0] >= self._fresh_s:
                self._known = (clock.monotonic(), self._read())
            return self._known[1]

    def _read(self) -> Figures | None:
        try:
            with read(self._engine) as connection:
                return read_figures(connection, self._partition)
        except StoreUnavailable as error:
            logger.warning("no figures: %s", error)
            return None


def families(found: Figures) -> Iterator[Metric]:
    """Write a reading as Prometheus knows it: seconds, bytes, cores, and few labels."""
    yield from _of_jobs(found)
    yield from _of_runners(found)
    yield from _of_leases(found)
    yield from _of_scheduling(found)
    yield from _of_fleets(found)


def _of_jobs(found: Figures) -> Iterator[Metric]:
    jobs = {state: found.status.jobs.get(state, 0) for state in OPEN_JOBS}
    yield _many("forgeyard_jobs", "Jobs that have not ended, by state.", "state", jobs)
    yield _many(
        "forgeyard_scheduler_unschedulable",
        "Eligible jobs that wait, by the code of their diagnosis; of the first 20,000.",
        "code",
        found.unschedulable,
    )
    yield _many(
        "forgeyard_scheduler_oldest_wait_seconds",
        "How long the longest-waiting eligible job of each priority has waited; 0 if none does.",
        "priority",
        {name: wait / 1000 for name, wait in found.oldest_wait_ms.items()},
    )
    yield _one(
        "forgeyard_scheduler_fairness_delay_seconds",
        "By how much one tenant's longest wait exceeds another's, of those that wait.",
        found.fairness_delay_ms / 1000,
    )


def _of_runners(found: Figures) -> Iterator[Metric]:
    runners = {state: found.status.runners.get(state, 0) for state in RunnerState}
    yield _many("forgeyard_runners", "Registered runners by state.", "state", runners)
    said = "What leases hold of the {} of the runners that take work."
    yield from _amounts("allocated", said, found.reserved)
    said = "The {} that the runners that take work may give away."
    yield from _amounts("allocatable", said, found.allocatable)
    yield _one(
        "forgeyard_runner_gpus_allocated",
        "How many GPUs leases hold, parts of them added up.",
        found.in_use.gpus / WHOLE,
    )
    yield _one(
        "forgeyard_runner_devices_allocated",
        "How many devices other than GPUs leases hold.",
        found.in_use.devices / WHOLE,
    )


def _amounts(word: str, said: str, amounts: Resources) -> Iterator[Metric]:
    yield _one(f"forgeyard_runner_cpu_{word}_cores", said.format("cores"), amounts.cpu / 1000)
    yield _one(f"forgeyard_runner_memory_{word}_bytes", said.format("memory"), amounts.memory)
    yield _one(f"forgeyard_runner_disk_{word}_bytes", said.format("disk"), amounts.disk)
    yield _one(f"forgeyard_runner_slots_{word}", said.format("slots"), amounts.slots)


def _of_leases(found: Figures) -> Iterator[Metric]:
    ended, answered = found.ended_leases, sum(found.ended_leases.values())
    accepted = ended["released"] + ended["lost"] + ended["revoked"]
    yield _many("forgeyard_leases", "Live leases by state.", "state", found.live_leases)
    yield _one(
        "forgeyard_leases_overdue",
        "Live leases past their time and grace that no sweep has ended yet.",
        found.overdue_leases,
    )
    yield _many(
        "forgeyard_leases_ended_recently",
        "How the leases of the last 15 minutes ended.",
        "how",
        ended,
    )
    yield _one(
        "forgeyard_runner_lost_attempt_ratio",
        "The share of the accepted leases of the last 15 minutes that their runners lost.",
        ended["lost"] / accepted if accepted else 0,
    )
    yield _one(
        "forgeyard_runner_rejection_ratio",
        "The share of the leases of the last 15 minutes that runners rejected.",
        ended["rejected"] / answered if answered else 0,
    )
    yield _one(
        "forgeyard_reservations_wrong_runners",
        "Runners whose reserved amounts are not what their live leases hold; always 0.",
        found.wrong_runners,
    )


def _of_scheduling(found: Figures) -> Iterator[Metric]:
    status = found.status
    yield _one(
        "forgeyard_store_held",
        "Whether nothing is placed or ended, for the store may be an older one; to be confirmed.",
        int(bool(status.store_hold)),
    )
    up = status.last_cycle.pressure.split(",") if status.last_cycle else ()
    yield _many(
        "forgeyard_scheduler_backpressure",
        "Whether a signal of pressure was up in the last cycle.",
        "signal",
        {signal: int(signal in up) for signal in Signal},
    )
    yield _one(
        "forgeyard_outbox_undelivered",
        "Committed events that no workflow has been told of.",
        found.undelivered,
    )
    yield _one(
        "forgeyard_outbox_lag_seconds",
        "The age of the oldest of them; 0 if there is none.",
        status.outbox_lag_ms / 1000,
    )
    yield _one(
        "forgeyard_scheduler_wakes_unsignalled",
        "Changes that the scheduler loop has not been told of.",
        status.wake_generation - status.wake_signalled,
    )
    yield _one(
        "forgeyard_scheduler_conflict_ratio",
        "The share of the placements planned in the last 15 minutes that their commits refused.",
        found.contention.ratio,
    )
    if found.last_cycle_ms is not None:
        yield _one(
            "forgeyard_scheduler_last_cycle_age_seconds",
            "How long ago the last cycle was planned.",
            found.last_cycle_ms / 1000,
        )
    if status.renewal_beat_ms is not None:
        yield _one(
            "forgeyard_renewal_beat_age_seconds",
            "How long ago any API process said that it serves lease renewals.",
            status.renewal_beat_ms / 1000,
        )
    for what, age in (("swept", found.swept_ms), ("reconciled", found.reconciled_ms)):
        if age is not None:
            yield _one(
                f"forgeyard_upkeep_{what}_age_seconds",
                f"How long ago upkeep of the partition last {what} to the end.",
                age / 1000,
            )
    yield _one(
        "forgeyard_renewal_gaps_bridged",
        "Outages of the renewal service so far for which leases were extended.",
        status.renewal_gaps,
    )


def _of_fleets(found: Figures) -> Iterator[Metric]:
    """Count machines by fleet: there are few of those, and people name them."""
    for name, said, counts in (
        ("desired", "that a fleet wanted in its last decision", [x.desired for x in found.fleets]),
        ("ready", "of a fleet whose runner is admitted", [x.ready for x in found.fleets]),
        ("provisioning", "wanted and not ready yet", [x.provisioning for x in found.fleets]),
    ):
        labels = ("fleet", "provider", "capacity_class")
        said = f"Machines {said}."
        family = GaugeMetricFamily(f"forgeyard_fleet_{name}_instances", said, labels=labels)
        for one, count in zip(found.fleets, counts, strict=True):
            family.add_metric((one.fleet, one.provider, one.capacity_class), count)
        yield family
    held_back = GaugeMetricFamily(
        "forgeyard_fleet_held_back_instances",
        "Machines that the last decision of a fleet would have made, but for its maximum.",
        labels=("fleet",),
    )
    health = GaugeMetricFamily(
        "forgeyard_fleet_health",
        "1 for the state of health that a fleet is in, 0 for the others.",
        labels=("fleet", "state"),
    )
    for fleet in found.fleets:
        held_back.add_metric((fleet.fleet,), fleet.held_back)
        for state in FleetHealth:
            health.add_metric((fleet.fleet, state.value), int(fleet.health is state))
    yield held_back
    yield health


def _one(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(name, said, value=value)


def _many(name: str, said: str, label: str, values: Mapping[Word, float]) -> Metric:
    family = GaugeMetricFamily(name, said, labels=(label,))
    for value, amount in values.items():
        family.add_metric((value,), amount)
    return family
