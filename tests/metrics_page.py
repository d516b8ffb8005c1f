"""Write docs/metrics.md from the metrics themselves; `--check` fails when the page is stale.

python -m tests.metrics_page [--check]
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import Metric

from forgeyard import telemetry
from forgeyard.api.metrics import StoreFigures, families
from forgeyard.config import StoreConfig
from forgeyard.model.units import Resources
from forgeyard.scheduler.doctor import Contention
from forgeyard.store.device_views import InUse
from forgeyard.store.engine import open_engine
from forgeyard.store.figures import Figures
from forgeyard.store.overview import SchedulerStatus

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
PREFIX = "forgeyard_"
HEAD = """\
# Metrics

`GET /metrics` of the API's own port answers whoever has the token. `metrics.api_port` and
`metrics.worker_port` open a port that asks for none, on `metrics.host` (this host only unless you
say otherwise); no such port is open by itself. `metrics.temporal_port` publishes what Temporal's
SDK counts in the worker. Alerts and scrape configuration: `deploy/prometheus/`.

No label names a tenant, a run, a job or a runner: their ids are in logs, spans and `explain-job`.
"""
COUNTED = """
## Counted by each process

Add them up over processes. Beside these come the usual `process_…`.
"""
READ = """
## Read from the store

The API tells them, every process the same, at most five seconds old: take `max`, never `sum`.
"""
TABLE = "\n| metric | kind | label | meaning |\n|---|---|---|---|\n"


NOTHING = Figures(
    status=SchedulerStatus(
        partition="default",
        jobs={},
        runners={},
        oldest_eligible_ms=None,
        wake_generation=0,
        wake_signalled=0,
        wake_reason="",
        outbox_lag_ms=0,
        renewal_beat_ms=0,
        renewal_gaps=0,
        last_cycle=None,
        held=(),
    ),
    unschedulable={},
    oldest_wait_ms={},
    fairness_delay_ms=0,
    allocatable=Resources(),
    reserved=Resources(),
    in_use=InUse(),
    live_leases={},
    overdue_leases=0,
    ended_leases=dict.fromkeys(("released", "rejected", "offer_expired", "lost", "revoked"), 0),
    undelivered=0,
    wrong_runners=0,
    contention=Contention(),
    last_cycle_ms=0,
    swept_ms=0,
    reconciled_ms=0,
)
"""A store in which nothing is, but for what is only told if it is there."""


def counted() -> list[tuple[Metric, tuple[str, ...]]]:
    """List what every process counts, with its labels."""
    found = []
    for collector in telemetry.REGISTRY._collector_to_names:
        labels = tuple(getattr(collector, "_labelnames", ()))
        found += [(family, labels) for family in collector.collect()]
    return [pair for pair in found if pair[0].name.startswith(PREFIX)]


def read() -> list[tuple[Metric, tuple[str, ...]]]:
    """List what is read from the store, with its labels."""
    away = StoreFigures(open_engine("sqlite:////no/such/store.db", StoreConfig()), "default")
    found = (*away.collect(), *families(NOTHING))
    return [(family, tuple(getattr(family, "_labelnames", ()))) for family in found]


def samples() -> set[str]:
    """Name every series there can be."""
    names: set[str] = set()
    for family, _ in (*counted(), *read()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        names |= {f"{family.name}{suffix}" for suffix in suffixes.get(family.type, ("",))}
    return names


def page() -> str:
    """Write the page."""
    return f"{HEAD}{COUNTED}{_table(counted())}{READ}{_table(read())}"


def _table(listed: Iterable[tuple[Metric, Sequence[str]]]) -> str:
    lines = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type}"
        f" | {', '.join(labels)} | {family.documentation} |\n"
        for family, labels in listed
    ]
    return TABLE + "".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text("utf-8") != page())
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
