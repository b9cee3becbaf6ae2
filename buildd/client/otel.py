"""Whether the environment asks for OpenTelemetry spans of builds. Imports nothing: every build asks.

`buildd.web.spans` makes and sends them. Source of the variables:
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

from collections.abc import Mapping

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wants_spans(environ: Mapping[str, str]) -> bool:
    """Whether the environment names a collector for traces, and does not turn them off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = (environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp").split(",")
    return any(environ.get(name) for name in _ENDPOINTS) and not off and "otlp" in exporters
