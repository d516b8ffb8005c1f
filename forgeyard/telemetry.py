"""The figures that every process counts for itself, and how any of them is published.

A process says here what it did: each figure is a sum over processes, so Prometheus adds them up.
What must be right whichever process is asked is read from SQL instead, by `forgeyard.api.metrics`.
Labels come from enumerations of ours, or name a fleet: no name and no id of a tenant, a run, a job
or a runner is ever one (MET-021).
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest, start_http_server
from prometheus_client.registry import Collector

from forgeyard.errors import PortTaken

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

_STEP_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_WAIT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400)
_SCORES = (0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000)
_BATCH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)

CYCLE_LATENCY = Histogram(
    "forgeyard_scheduler_cycle_latency_seconds",
    "How long a step of a scheduling cycle took: plan, commit, relay.",
    ("step",),
    buckets=_STEP_S,
    registry=REGISTRY,
)
JOBS_CONSIDERED = Counter(
    "forgeyard_scheduler_jobs_considered",
    "Jobs that scheduling cycles looked at; one that waits is counted in every cycle.",
    registry=REGISTRY,
)
PLACEMENTS = Counter(
    "forgeyard_scheduler_placements", "Placements that became leases.", registry=REGISTRY
)
CONFLICTS = Counter(
    "forgeyard_scheduler_placement_conflicts",
    "Planned placements that the commit refused, by its verdict.",
    ("verdict",),
    registry=REGISTRY,
)
TURNED_AWAY = Counter(
    "forgeyard_api_turned_away",
    "Requests that were answered 503 because too many were being answered already.",
    registry=REGISTRY,
)
UNPROVED = Counter(
    "forgeyard_enrolment_unproved",
    "Tokens that came without good evidence of the cloud machine that was meant, by what is wrong.",
    ("doubt",),
    registry=REGISTRY,
)
PREEMPTIONS = Counter(
    "forgeyard_scheduler_preemptions",
    "Jobs that were stopped to make room for an urgent one.",
    registry=REGISTRY,
)
REJECTIONS = Counter(
    "forgeyard_scheduler_rejections",
    "Runners that cycles turned down for a job that none can ever run, by reason.",
    ("code",),
    registry=REGISTRY,
)
QUEUE_WAIT = Histogram(
    "forgeyard_scheduler_queue_wait_seconds",
    "How long placed jobs had been eligible, by priority.",
    ("priority",),
    buckets=_WAIT_S,
    registry=REGISTRY,
)
PLACEMENT_SCORE = Histogram(
    "forgeyard_scheduler_placement_score",
    "The score, out of 1000, of the runner that each placed job got.",
    buckets=_SCORES,
    registry=REGISTRY,
)
PLACEMENT_LOCALITY = Histogram(
    "forgeyard_scheduler_placement_locality_score",
    "How near, out of 1000, the planned runner of each job with inputs is to them.",
    buckets=_SCORES,
    registry=REGISTRY,
)
LOCALITY_INPUTS = Counter(
    "forgeyard_locality_inputs",
    "Archives of inputs that attempts unpacked, by where they were: at_hand, fetched.",
    ("where",),
    registry=REGISTRY,
)
LOCALITY_CACHES = Counter(
    "forgeyard_locality_caches",
    "Dependency caches that attempts unpacked, by where they were: at_hand, fetched.",
    ("where",),
    registry=REGISTRY,
)
DISPATCH_FAILURES = Counter(
    "forgeyard_scheduler_lease_dispatch_failures",
    "Offers that no runner took up: rejected by its agent, or expired.",
    ("reason",),
    registry=REGISTRY,
)
LEASE_ANSWERS = Counter(
    "forgeyard_lease_answers",
    "What agents told this process about leases: accepted, rejected, or how they ended; or stale.",
    ("answer",),
    registry=REGISTRY,
)
RENEWALS = Counter(
    "forgeyard_lease_renewals",
    "Leases that agents asked this process to keep alive, by its verdict.",
    ("verdict",),
    registry=REGISTRY,
)
BATCHED = Histogram(
    "forgeyard_api_batch_calls",
    "How many calls of agents were written in one transaction: renewals, heartbeats.",
    ("what",),
    buckets=_BATCH,
    registry=REGISTRY,
)
SWEPT = Counter(
    "forgeyard_upkeep_swept",
    "What the sweep had to do: expired offers and leases, other deadlines, settling, repairs.",
    ("kind",),
    registry=REGISTRY,
)
FINDINGS = Counter(
    "forgeyard_reconciler_findings",
    "What contradicted itself in the store, by kind; counted by whoever reconciled.",
    ("kind",),
    registry=REGISTRY,
)
FLEET_SCALE_UP = Counter(
    "forgeyard_fleet_scale_up",
    "Machines that decisions of this process wanted.",
    ("fleet",),
    registry=REGISTRY,
)
FLEET_SCALE_DOWN = Counter(
    "forgeyard_fleet_scale_down",
    "Machines that decisions of this process let go.",
    ("fleet",),
    registry=REGISTRY,
)
FLEET_BOOTSTRAP_FAILURES = Counter(
    "forgeyard_fleet_bootstrap_failures",
    "Machines that were made and whose runner never came up.",
    ("fleet",),
    registry=REGISTRY,
)
FLEET_PROVISION_LATENCY = Histogram(
    "forgeyard_fleet_provision_latency_seconds",
    "How long machines took from the wish for them to an admitted runner.",
    ("fleet",),
    buckets=_WAIT_S,
    registry=REGISTRY,
)
FLEET_PROVIDER_FAILURES = Counter(
    "forgeyard_fleet_provider_failures",
    "Calls to providers that did not do what they were for, by the code of the error.",
    ("fleet", "code"),
    registry=REGISTRY,
)
FLEET_INTERRUPTIONS = Counter(
    "forgeyard_fleet_spot_interruptions",
    "Machines that their provider said it would take away.",
    ("provider_kind",),
    registry=REGISTRY,
)
FLEET_WARMUPS = Counter(
    "forgeyard_fleet_warmups",
    "Warm-ups of new machines that ended, by whether all of it was there.",
    ("fleet", "result"),
    registry=REGISTRY,
)
EVENTS_RELAYED = Counter(
    "forgeyard_outbox_relayed",
    "Events that this process tried to send to Temporal: delivered, or given back.",
    ("result",),
    registry=REGISTRY,
)


def published(*more: Collector) -> CollectorRegistry:
    """Put what this process counts together with what else it can tell."""
    registry = CollectorRegistry()
    for collector in (REGISTRY, *more):
        registry.register(collector)
    return registry


def text(registry: Collector) -> bytes:
    """Write every figure in the format that Prometheus reads."""
    return generate_latest(registry)


@contextmanager
def listening(host: str, port: int | None, *more: Collector) -> Generator[None]:
    """Answer whoever asks on a port of its own, without a token, while the block runs.

    Raises:
        PortTaken: another program listens there.
    """
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, published(*more))
    except OSError as error:
        raise PortTaken(
            f"cannot publish metrics on {host}:{port}: {error.strerror}",
            field="metrics",
            value=port,
            allowed="a free port",
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def count_all(counter: Counter, counts: Iterable[tuple[str, int]]) -> None:
    """Add several amounts to a counter of one label."""
    for label, amount in counts:
        if amount:
            counter.labels(label).inc(amount)
