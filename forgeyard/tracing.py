"""Spans for whoever runs OpenTelemetry: off unless an endpoint is configured.

The trace of a run, of a cycle or of a machine is named after it: its ids are derived from that
name, so every process finds the trace by itself, after a crash as well, and nothing has to be
carried through SQL or through workflows that live for ever. Spans are recorded when they end. Their
attributes are where ids belong, which no metric may have (MET-021).
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    ProxyTracerProvider,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
)

from forgeyard import clock
from forgeyard.errors import InvalidRequest

Value = str | int
EXTRA: Final = "forgeyard[otel]"
_root: ContextVar[SpanContext | None] = ContextVar("_root", default=None)
"""What the root span is called that is being recorded."""


@dataclass(slots=True, kw_only=True)
class Span:
    """A span under way; the block may say whose trace it belongs to only when it knows."""

    name: str
    of: str
    began: datetime
    attributes: dict[str, Value]
    error: str = field(default="", init=False)

    def note(self, **attributes: Value) -> None:
        """Add what has become known."""
        self.attributes.update(attributes)


def is_on() -> bool:
    """Tell whether anybody collects spans."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@contextmanager
def root_span(name: str, *, of: str = "", **attributes: Value) -> Generator[Span]:
    """Record a block as the one with which the trace of something begins."""
    found = Span(name=name, of=of, began=clock.now(), attributes=attributes)
    try:
        with _told(found):
            yield found
    finally:
        token = _root.set(_name_of(found.of))
        _record(found, Context())
        _root.reset(token)


@contextmanager
def span(name: str, *, of: str = "", **attributes: Value) -> Generator[Span]:
    """Record a block as a part of the trace of something."""
    found = Span(name=name, of=of, began=clock.now(), attributes=attributes)
    try:
        with _told(found):
            yield found
    finally:
        _record(found, _within(found.of))


def past(name: str, *, of: str, lasted_ms: int, **attributes: Value) -> None:
    """Record something that has gone on until now."""
    began = clock.now() - timedelta(milliseconds=lasted_ms)
    _record(Span(name=name, of=of, began=began, attributes=attributes), _within(of))


@contextmanager
def _told(found: Span) -> Generator[None]:
    try:
        yield
    except Exception as error:
        found.error = f"{type(error).__name__}: {error}"
        raise


def _record(found: Span, context: Context) -> None:
    if not is_on():
        return
    recorded = trace.get_tracer(__name__).start_span(
        found.name,
        context=context,
        start_time=int(found.began.timestamp() * 1_000_000_000),
        attributes={f"forgeyard.{name}": value for name, value in found.attributes.items()},
    )
    if found.error:
        recorded.set_status(Status(StatusCode.ERROR, found.error))
    recorded.end()


def _within(of: str) -> Context:
    """Find the place in the trace of something; without a name, start one of its own."""
    name = _name_of(of)
    return Context() if name is None else trace.set_span_in_context(NonRecordingSpan(name))


def _name_of(of: str) -> SpanContext | None:
    """Derive the ids of a trace and of its root."""
    if not of:
        return None
    drawn = hashlib.sha256(of.encode()).digest()
    return SpanContext(
        trace_id=int.from_bytes(drawn[:16]),
        span_id=int.from_bytes(drawn[16:24]),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


@contextmanager
def exported(endpoint: str, *, ratio: float, process: str) -> Generator[None]:
    """Send this process's spans to an OTLP endpoint while the block runs; without one, none.

    Raises:
        InvalidRequest: an endpoint is configured, but the extra is not installed.
    """
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
    except ImportError as error:
        raise InvalidRequest(
            f"spans cannot be exported: {error.name} is not installed",
            field="tracing.endpoint",
            value=endpoint,
            allowed=f"nothing, or pip install '{EXTRA}'",
        ) from error

    class Ids(RandomIdGenerator):
        """Gives a root span the ids that are derived from what it is of."""

        def generate_trace_id(self) -> int:
            root = _root.get()
            return super().generate_trace_id() if root is None else root.trace_id

        def generate_span_id(self) -> int:
            root = _root.get()
            return super().generate_span_id() if root is None else root.span_id

    # The ratio looks at the trace's id alone, so every process keeps the same traces.
    provider = TracerProvider(
        resource=Resource.create({"service.name": "forgeyard", "forgeyard.process": process}),
        sampler=TraceIdRatioBased(ratio),
        id_generator=Ids(),
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
