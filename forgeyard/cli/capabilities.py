"""How `forgeyard runner show` prints a capability report: what, how much of it, how it is known."""

from collections.abc import Iterator, Sequence
from typing import Final

from forgeyard.cli import output
from forgeyard.cli.runner_shapes import Gpu, Runner
from forgeyard.cli.watching import now_ms

COLUMNS: Final = ("capability", "value", "known by")
UNKNOWN: Final = "unknown"
Row = tuple[str, str, str]


def report_line(runner: Runner) -> str:
    """Say how old the report is, what shape it has and what names its content."""
    at, version = runner.reported_at, runner.capabilities.schema_version
    age = "never reported" if at is None else f"reported {output.duration(now_ms() - at)} ago"
    return f"{runner.name}: {age}, schema {version}, {runner.capability_digest}"


def capability_rows(runner: Runner) -> Iterator[Row]:
    """Write everything a runner said it can do as rows, each with its provenance."""
    offered, known = runner.capabilities, runner.capabilities.provenance
    plain = (
        ("platform", offered.platform),
        ("os_version", offered.os_version),
        ("architecture", offered.architecture),
        ("trust", offered.trust),
        ("agent_version", offered.agent_version),
    )
    for name, value in plain:
        yield output.words(name), value or UNKNOWN, _known_by(known.get(name))
    yield from _standing_rows(runner)
    for name, value in sorted(offered.labels.items()):
        yield f"label {name}", value, _known_by(known.get("labels"))
    for tool in offered.toolchains:
        version = " ".join(part for part in (tool.version or UNKNOWN, tool.digest) if part)
        yield f"toolchain {tool.name}", version, _known_by(tool.provenance)
    yield from _equipment_rows(runner)


def _standing_rows(runner: Runner) -> Iterator[Row]:
    """Say where it is, how long it may be counted on, what it costs, what it has at hand."""
    offered, where, has = runner.capabilities, runner.location, runner.holdings
    known, cost = offered.provenance, offered.cost_micros_per_hour
    for name, value in (("host", where.host), ("site", where.site), ("region", where.region)):
        yield name, value or UNKNOWN, ""
    yield "reliability", offered.reliability or UNKNOWN, _known_by(known.get("reliability"))
    an_hour = UNKNOWN if cost is None else f"{cost / 1e6:g} an hour"
    yield "cost", an_hour, _known_by(known.get("cost_micros_per_hour"))
    more = " and more" if has.has_more else ""
    caches = "1 cache" if len(has.closures) == 1 else f"{len(has.closures)} caches"
    yield "health", output.words(runner.health) + _because(runner.health_reason), ""
    for said in runner.diagnostics:
        yield "diagnostic", said, ""
    yield "penalty", f"{runner.penalty} points", ""
    yield "at hand", f"{has.objects} archives of {output.size(has.bytes)}{more}, {caches}", ""


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _equipment_rows(runner: Runner) -> Iterator[Row]:
    has, known = runner.capabilities.equipment, runner.capabilities.provenance
    for name in ("cpu_features", "sandboxes", "network_modes", "isolation"):
        yield output.words(name), _listed(getattr(has, name)), _known_by(known.get(name))
    entries = (
        ("runtimes", has.runtimes),
        ("devices", has.devices),
        ("gpus", has.gpus),
    )
    for name, found in entries:
        if not found:
            yield name, UNKNOWN if found is None else "none", ""
    for runtime in has.runtimes or ():
        version = runtime.version or UNKNOWN
        yield f"runtime {runtime.name}", version, _known_by(runtime.provenance)
    for device in has.devices or ():
        yield f"device {device.kind}", str(device.count), _known_by(device.provenance)
    for place, gpu in enumerate(has.gpus or ()):
        yield f"gpu {place}", _gpu_text(gpu), _known_by(gpu.provenance)


def _listed(names: Sequence[str] | None) -> str:
    return UNKNOWN if names is None else ", ".join(names) or "none"


def _gpu_text(gpu: Gpu) -> str:
    memory = UNKNOWN if gpu.memory is None else output.size(gpu.memory)
    parts = (
        gpu.vendor or f"{UNKNOWN} vendor",
        gpu.model or f"{UNKNOWN} model",
        f"{memory} of memory",
        f"compute capability {gpu.compute_capability or UNKNOWN}",
        gpu.sharing or f"{UNKNOWN} sharing",
    )
    return ", ".join(parts)


def _known_by(provenance: str | None) -> str:
    return output.words(provenance or "self_reported")
