"""A build as OpenTelemetry spans: one for the build, one for each job, one for each step; sent once, at its end.

The OTEL_* variables say where to; the SDK reads most of them itself. Sending takes a bounded time, and a collector that
does not answer costs the build one line. Knows pictures of builds; the packages of the extra `otel` are imported late.
Source of the variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from buildd.ui.problems import print_note
from buildd.ui.text import clean
from buildd.web.picture import Bar, BarOutcome
from buildd.web.timeline import Timeline
from protocol.messages import Event, LogLine

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_AT_ONCE = 512
_MOST_SECONDS = 5.0
_MOST_TEXT = 1000


class SpanView:
    """Collects a build's events, and sends its spans when it is closed."""

    def __init__(self, environ: Mapping[str, str], name: str, build: str) -> None:
        self._environ, self._name, self._build = environ, name, build
        self._events: list[Event] = []

    def event(self, event: Event) -> None:
        if not isinstance(event.body, LogLine):
            self._events.append(event)

    def close(self) -> None:
        if self._events:
            send(self._events, self._environ, name=self._name, build=self._build)


def send(events: list[Event], environ: Mapping[str, str], *, name: str, build: str) -> bool:
    """Send the spans of a build that has ended; False if they could not be sent, which one line says.

    Args:
        name: of the first span, such as "buildd build ops".
        build: the build's id.
    """
    if importlib.util.find_spec("opentelemetry.exporter.otlp") is None or not _has_sdk():
        print_note('buildd: no spans: OTEL_* asks for them; install them: pip install "PATH/TO/CHECKOUT[otel]"')
        return False
    picture = Timeline.of(events)
    spans = _spans(picture, environ, name, build)
    return _sent(spans)


def _has_sdk() -> bool:
    return importlib.util.find_spec("opentelemetry.sdk") is not None


def _spans(picture: Timeline, environ: Mapping[str, str], name: str, build: str) -> list[ReadableSpan]:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    ended: list[ReadableSpan] = []

    class Collecting(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    service = environ.get("OTEL_SERVICE_NAME") or "buildd"
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), sampler=ALWAYS_ON, span_limits=SpanLimits()
    )
    provider.add_span_processor(Collecting())
    tracer = provider.get_tracer("buildd")
    head = picture.head
    given = {key: environ[key.upper()] for key in ("traceparent", "tracestate") if environ.get(key.upper())}
    above = TraceContextTextMapPropagator().extract(given)
    root = tracer.start_span(
        clean(name)[:_MOST_TEXT],
        context=above,
        start_time=head.began_ns,
        attributes={
            "buildd.build_id": build,
            "buildd.outcome": head.outcome,
            "buildd.hits": head.hits,
            "buildd.misses": head.misses,
            "buildd.failures": head.failures,
            "buildd.saved_s": head.saved_s,
        },
    )
    if head.outcome != "built":
        root.set_status(trace.StatusCode.ERROR, clean(head.message)[:_MOST_TEXT])
    below = trace.set_span_in_context(root)
    for bar in picture.bars:
        if bar.lane and bar.outcome is not BarOutcome.HIT:
            _job(tracer, below, bar, head.began_ns)
    root.end(end_time=_at(head.began_ns, head.elapsed_s))
    return ended


def _job(tracer: Any, below: Any, bar: Bar, began_ns: int) -> None:
    from opentelemetry import trace

    job = tracer.start_span(
        clean(bar.name)[:_MOST_TEXT],
        context=below,
        start_time=_at(began_ns, bar.start_s),
        attributes={
            "buildd.kind": bar.kind,
            "buildd.outcome": bar.outcome.value,
            "buildd.lane": bar.lane,
            "buildd.waited_s": max(0.0, bar.start_s - bar.queued_s),
            "buildd.user_s": bar.user_s,
            "buildd.system_s": bar.system_s,
            "buildd.peak_bytes": bar.peak_bytes,
            "buildd.reason": clean(bar.reasons[0])[:_MOST_TEXT] if bar.reasons else "",
        },
    )
    if bar.outcome is not BarOutcome.BUILT:
        job.set_status(trace.StatusCode.ERROR, clean(bar.message)[:_MOST_TEXT])
    inside = trace.set_span_in_context(job)
    for step in bar.steps:
        if step.hit:
            continue
        start_s = bar.start_s + step.start_s
        made = tracer.start_span(
            clean(step.name)[:_MOST_TEXT],
            context=inside,
            start_time=_at(began_ns, start_s),
            attributes={"buildd.kind": "step", "buildd.peak_bytes": step.peak_bytes},
        )
        made.end(end_time=_at(began_ns, start_s + step.wall_s))
    job.end(end_time=_at(began_ns, bar.end_s))


def _at(began_ns: int, after_s: float) -> int:
    return began_ns + round(after_s * 1e9)


def _sent(spans: list[ReadableSpan]) -> bool:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the line below says it
    exporter = OTLPSpanExporter(timeout=int(_MOST_SECONDS))
    try:
        for first in range(0, len(spans), _AT_ONCE):
            if exporter.export(spans[first : first + _AT_ONCE]) is not SpanExportResult.SUCCESS:
                print_note("buildd: no spans: the collector that OTEL_* names does not take them")
                return False
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return True
