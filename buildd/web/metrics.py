"""The daemon's and the store's figures in Prometheus' text format, version 0.0.4.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/. Knows no scraper.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Iterable, Mapping

from buildd import __version__
from buildd.store.figures import Stats, stats
from buildd.web.archive import Archive
from buildd.web.views import READ_FIRST
from protocol.client import Client
from protocol.errors import ProtocolError
from protocol.messages import Status

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ANSWER_S = 3.0
Labels = Mapping[str, str]


class Exposition:
    """Collects families of samples; `text` is the page."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a family, unless it has no sample.

        Args:
            kind: "gauge" or "counter"; the name of a counter ends in _total.
        """
        found = list(samples)
        if not found:
            return
        self._lines += [f"# HELP {name} {_escaped(help)}", f"# TYPE {name} {kind}"]
        for labels, value in found:
            inner = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}")

    def gauge(self, name: str, help: str, value: float) -> None:
        self.family(name, "gauge", help, [({}, value)])

    def counter(self, name: str, help: str, value: float) -> None:
        self.family(name, "counter", help, [({}, value)])

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def ask(environ: Mapping[str, str]) -> Status | None:
    """The status of the daemon that runs; None if there is none, or it does not answer in time."""
    try:
        with Client.connect(environ=environ, timeout_s=_ANSWER_S, name="buildd-metrics") as client:
            return client.status(settle=True)
    except ProtocolError:
        return None


def text(status: Status | None, archive: Archive) -> str:
    """The page of metrics."""
    page = Exposition()
    page.family("buildd_info", "gauge", "The version of buildd.", [({"version": __version__}, 1)])
    page.gauge("buildd_up", "Whether a daemon runs.", status is not None)
    if status is not None:
        _daemon(page, status)
    with archive.store() as store:
        figures = stats(store) if store is not None else None
    if figures is not None:
        _store(page, figures)
    _builds(page, archive)
    return page.text()


def _daemon(page: Exposition, status: Status) -> None:
    page.gauge("buildd_uptime_seconds", "Since the daemon began.", status.uptime_s)
    page.gauge("buildd_resident_bytes", "Resident memory of the daemon.", status.rss_bytes)
    page.gauge("buildd_requests_open", "Requests that are not done.", status.requests)
    page.gauge("buildd_clients", "Connected clients.", status.clients)
    page.gauge("buildd_cpu_tokens", "Most jobs at once.", status.cpus)
    page.gauge("buildd_jobs_running", "Jobs that run.", len(status.running))
    page.gauge("buildd_jobs_queued", "Jobs that wait.", status.queued)
    used = sum(job.memory_bytes for job in status.running)
    page.gauge("buildd_jobs_memory_bytes", "Resident memory of all jobs.", used)
    page.gauge("buildd_memory_budget_bytes", "Memory that all jobs together may use.", status.budget_bytes)
    slowest = max((job.elapsed_s for job in status.running), default=0.0)
    page.gauge("buildd_oldest_job_seconds", "Age of the job that has run longest.", slowest)
    counted = [({"event": name}, value) for name, value in sorted(status.counters.items())]
    page.family("buildd_daemon_events_total", "counter", "The daemon's counters since it began.", counted)


def _store(page: Exposition, figures: Stats) -> None:
    total = figures.counters
    page.counter("buildd_hits_total", "Look-ups that found their result.", total.get("hits", 0))
    page.counter("buildd_misses_total", "Look-ups that missed.", total.get("misses", 0))
    page.counter("buildd_saved_seconds_total", "Time of the jobs that hits spared.", total.get("saved_ms", 0) / 1000)
    page.counter("buildd_evicted_bytes_total", "Size of removed results.", total.get("evicted_bytes", 0))
    page.counter("buildd_stored_bytes_total", "Bytes that were stored.", total.get("stored_bytes", 0))
    page.counter("buildd_bad_blobs_total", "Blobs found damaged, and made again.", total.get("bad_blobs", 0))
    for name, what, counts in (
        ("buildd_misses_by_reason_total", "Misses by the kind of their reason.", figures.missed),
        ("buildd_hits_by_kind_total", "Hits by how they were found.", figures.hit),
        ("buildd_passed_through_total", "Commands that shims ran as the plain tool.", figures.passed_through),
    ):
        page.family(name, "counter", what, [({"reason": key}, value) for key, value in sorted(counts.items())])
    page.gauge("buildd_store_bytes", "Size of results and blobs.", figures.held_bytes)
    page.gauge("buildd_store_limit_bytes", "The store's size limit.", figures.limit_bytes)
    page.gauge("buildd_store_results", "Results in the store.", figures.results)
    areas = [({"area": name}, held.entries) for name, held in sorted(figures.areas.items())]
    page.family("buildd_store_entries", "gauge", "Entries of what is kept beside the results.", areas)


def _builds(page: Exposition, archive: Archive) -> None:
    builds = archive.builds()
    outcomes = Counts(build.outcome.value for build in builds)
    page.family(
        "buildd_log_builds",
        "gauge",
        "Builds in the log by their outcome.",
        [({"outcome": name}, count) for name, count in sorted(outcomes.items())],
    )
    if builds:
        last = builds[0]
        page.gauge("buildd_last_build_seconds", "How long the last build took.", last.summary.wall_s)
        page.gauge("buildd_last_build_timestamp_seconds", "When the last build ended.", last.finished_ns / 1e9)
        age_s = max(0.0, time.time() - last.finished_ns / 1e9)
        page.gauge("buildd_last_build_age_seconds", "Time since the last build ended.", age_s)
    compiled: Counts[str] = Counts()
    for _, facts in archive.known_facts(builds, READ_FIRST):
        for start in facts.programs:
            compiled.update(start.counts)
    page.family(
        "buildd_log_program_parts",
        "gauge",
        "Kernels and graphs of the programs in the log, by what became of them.",
        [({"phase": name}, count) for name, count in sorted(compiled.items())],
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
