"""Spans of builds: OpenTelemetry's own exporter sends them, a collector decodes them with OpenTelemetry's messages."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from buildd.client.otel import wants_spans
from buildd.web import spans
from protocol.messages import Event, RequestId
from tests.support.pages import a_build, a_large_build
from tests.support.serving import short_folder
from tests.support.user import User

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    """An OTLP/HTTP collector of traces on a port of its own."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def events(bodies: list[Any]) -> list[Event]:
    return [
        Event(request_id=RequestId("r"), sequence=number, time_ns=10**18 + round(at_s * 1e9), body=body)
        for number, (at_s, body) in enumerate(bodies, 1)
    ]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_build_its_jobs_and_its_steps_are_nested_spans(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, collector.endpoint)
    assert spans.send(events(a_build()), {}, name="buildd build ops", build="b1")
    named = {span.name: span for span in collector.spans}
    assert set(named) == {"buildd build ops", "ops/a.cu.o", "ops/lib.so", "cicc a", "ptxas a"}
    root, job, step = named["buildd build ops"], named["ops/a.cu.o"], named["ptxas a"]
    assert (job.parent_span_id, step.parent_span_id) == (root.span_id, job.span_id)
    assert len({span.trace_id for span in collector.spans}) == 1
    assert job.start_time_unix_nano == 10**18 + 200_000_000 and job.end_time_unix_nano == 10**18 + 2 * 10**9
    assert attributes(root)["buildd.hits"] == 1 and attributes(root)["buildd.build_id"] == "b1"
    assert attributes(job)["buildd.peak_bytes"] == 600 << 20 and attributes(job)["buildd.kind"] == "nvcc"
    assert attributes(job)["buildd.reason"] == "input src/a.cu"


def test_a_failed_build_is_an_error(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, collector.endpoint)
    assert spans.send(events(a_build(fails=True)), {}, name="b", build="b1")
    assert {span.name: span.status.code for span in collector.spans} == {"b": 2, "ops/a.cu.o": 2}


def test_ten_thousand_jobs_go_in_pieces(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, collector.endpoint)
    assert spans.send(events(a_large_build(3000)), {}, name="b", build="b1")
    assert len(collector.spans) == 3001
    assert len(collector.requests) == 6


def test_a_collector_that_refuses_or_is_gone_costs_one_line(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.endpoint)
    collector.status = 400
    assert not spans.send(events(a_build()), {}, name="b", build="b1")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    began_s = time.monotonic()
    assert not spans.send(events(a_build()), {}, name="b", build="b1")
    assert time.monotonic() - began_s < 20
    assert (
        capsys.readouterr().err.splitlines()
        == ["buildd: no spans: the collector that OTEL_* names does not take them"] * 2
    )


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_variables_say_whether_spans_are_wanted(environ: dict[str, str], wanted: bool) -> None:
    assert wants_spans(environ) is wanted


def test_a_build_reaches_a_collector(collector: Collector, tmp_path: Path) -> None:
    """A `buildd run` with a real compiler, below a span of the caller's."""
    with short_folder() as folder:
        variables = {
            ENDPOINT: collector.endpoint,
            "OTEL_SERVICE_NAME": "kernels",
            "TRACEPARENT": f"00-{TRACE}-{PARENT}-01",
            "TRACESTATE": "vendor=1",
        }
        user = User(folder, variables)
        (folder / "a.c").write_text("int a;\n")
        status, said = user.buildd("run", "--", "sh", "-c", "gcc -c a.c -o a.o")
        assert status == 0, said
        assert user.end() == []
    named = {span.name: span for span in collector.spans}
    assert "buildd run sh" in named and any(name.endswith("a.o") for name in named), said
    root = named["buildd run sh"]
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state) == (TRACE, PARENT, "vendor=1")
    (resource,) = {str(request.resource_spans[0].resource) for request in collector.requests}
    assert "kernels" in resource
