"""A client in another language, written from SPEC.md alone, builds and follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from blake3 import blake3

from protocol.messages import (
    CacheHit,
    Diagnostic,
    Done,
    Failed,
    FailureKind,
    JobId,
    Mode,
    Outcome,
    Planned,
    RequestId,
    Severity,
)
from tests.support.paths import TESTS
from tests.support.serving import FakeHandler, Serving, serving, short_folder
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.node
SOURCE = TESTS / "node"


@pytest.fixture
def served() -> Iterator[Serving]:
    with short_folder() as base, serving(base / "run") as made:
        yield made


def command_of(*words: str) -> list[str]:
    return ["node", str(SOURCE / "client.mjs"), *words]


def run(*words: str, **environ: str) -> tuple[int, list[dict[str, Any]], str]:
    command = command_of(*words)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environ}
    )
    return done.returncode, [json.loads(text) for text in done.stdout.splitlines()], done.stderr


def bodies(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry["body"] for entry in lines if entry["type"] == "event"]


def test_it_builds_a_target_and_follows_its_log(served: Serving) -> None:
    status, lines, errors = run(str(served.folder.path), "/some/project", "kernels")
    assert (status, errors) == (0, "")
    assert lines[0]["type"] == "welcome" and lines[0]["instance"] == served.server.instance
    assert [body["type"] for body in bodies(lines)] == ["planned", *["log_line"] * 3, "done"]
    assert bodies(lines)[0] == {"type": "planned", "targets": ["kernels"], "actions": 3}
    assert [entry["sequence"] for entry in lines[1:]] == [1, 2, 3, 4, 5]
    (request,) = served.handler.requests.values()
    assert request.project == "/some/project" and request.targets == ("kernels",) and "PATH" in request.environment
    (line,) = served.handler.audit_lines
    assert 'client="node-spec-client/1.0.0"' in line


def test_it_asks_for_a_profile(served: Serving) -> None:
    status, lines, errors = run(str(served.folder.path), "/some/project", "gemm", "--profile", "3")
    assert (status, errors) == (0, "") and "profile" in lines[0]["capabilities"]
    (request,) = served.handler.requests.values()
    assert (request.mode, request.profile.top, request.targets) == (Mode.PROFILE, 3, ("gemm",))


def test_it_finds_the_runtime_folder_by_the_rules(served: Serving) -> None:
    status, lines, errors = run("-", "/p", "t", BUILDD_RUNTIME_DIR=str(served.folder.path.parent))
    assert (status, errors) == (0, "") and lines


class Failing(FakeHandler):
    def submit(self, client: Any, request: Any, log: Any) -> None:
        finding = Diagnostic(severity=Severity.ERROR, message="expected ';'", file="a.cu", line=3, column=7)
        log.append(Planned(targets=(), actions=2))
        log.append(CacheHit(job_id=JobId(1), action="a", reason="same inputs", saved_s=1.5))
        log.append(
            Failed(job_id=JobId(2), action="b", kind=FailureKind.COMPILE_ERROR, message="no", diagnostics=(finding,))
        )
        log.append(Done(outcome=Outcome.FAILED, failures=1, hits=1, misses=1))


def test_a_failed_build_shows_its_diagnostics_and_exits_with_one() -> None:
    with short_folder() as base, serving(base / "run", handler=Failing()) as served:
        status, lines, _ = run(str(served.folder.endpoint_file), "/p", "t")
    assert status == 1
    assert bodies(lines)[2]["diagnostics"] == [
        {"severity": "error", "message": "expected ';'", "file": "a.cu", "line": 3, "column": 7}
    ]


def test_it_cancels_through_the_control_socket(served: Serving) -> None:
    served.handler.manual = True
    command = command_of(str(served.folder.path), "/p", "t", "--cancel-after", "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        until(lambda: bool(served.handler.logs))
        (log,) = served.handler.logs.values()
        log.append(Planned(targets=(), actions=1))
        out, _ = child.communicate(timeout=60)
    lines = [json.loads(text) for text in out.splitlines()]
    assert child.returncode == 1 and served.handler.cancelled == [RequestId(lines[1]["request_id"])]
    assert bodies(lines)[-1]["outcome"] == "cancelled"
    assert any(entry["type"] == "ok" for entry in lines)


def test_its_death_cancels_what_only_it_wanted(served: Serving) -> None:
    served.handler.manual = True
    with subprocess.Popen(command_of(str(served.folder.path), "/p", "t"), stdout=subprocess.PIPE) as child:
        until(lambda: bool(served.handler.logs))
        child.kill()
    until(lambda: len(served.handler.cancelled) == 1)


def test_it_reads_the_status_and_says_when_nobody_is_there(served: Serving) -> None:
    status, (reply,), _ = run(str(served.folder.path), "--status")
    assert status == 0 and reply["type"] == "status" and reply["daemon"] == "buildd/test"
    with short_folder() as base:
        status, _, errors = run(str(base), "/p", "t")
    assert status == 3 and "no daemon" in errors


SCALE = """
#warning followed from another language
__global__ void scale(float *x, float by) { x[threadIdx.x] *= by; }
extern "C" void run(float *x) { scale<<<1, 32>>>(x, 2.f); }
"""


@pytest.mark.cuda
def test_it_builds_a_cuda_project_through_the_real_daemon() -> None:
    with short_folder() as base:
        user = User(base)
        project = base / "project"
        (project / "src").mkdir(parents=True)
        source = project / "src" / "scale.cu"
        source.write_text(SCALE)
        (project / "buildd.toml").write_text(
            '[target.scale]\nkind = "cuda"\nsources = ["src/scale.cu"]\narch = ["sm_80"]\n'
        )

        def build() -> tuple[int, list[dict[str, Any]]]:
            status, lines, errors = run("-", str(project), "scale", **user.environ)
            assert errors == "" and lines[0]["type"] == "welcome"
            assert [entry["sequence"] for entry in lines[1:]] == list(range(1, len(lines)))
            return status, bodies(lines)

        try:
            status, said = user.buildd("up")
            assert status == 0, said

            status, events = build()
            assert status == 0, events
            assert events[0] == {"type": "planned", "targets": ["scale"], "actions": 2, **_some(events[0])}
            kinds = [body["type"] for body in events]
            first = [kinds.index(kind) for kind in ("planned", "queued", "started", "log_line", "finished", "artifact")]
            assert first == sorted(first)
            assert any("followed from another language" in b["text"] for b in events if b["type"] == "log_line")
            done = events[-1]
            assert (done["type"], done["outcome"], done["misses"]) == ("done", "built", 2)
            (artifact,) = (body for body in events if body["type"] == "artifact")
            library = project / artifact["path"]
            assert blake3(library.read_bytes()).hexdigest() == artifact["digest"]
            assert library.stat().st_size == artifact["size_bytes"]

            shutil.rmtree(project / "build")
            status, events = build()
            assert (status, events[-1]["hits"], library.is_file()) == (0, 2, True)
            assert not [body for body in events if body["type"] == "started"]
            assert any("followed from another language" in b["text"] for b in events if b["type"] == "log_line")

            source.write_text(SCALE.replace("by)", "oops)"))
            status, events = build()
            assert (status, events[-1]["outcome"]) == (1, "failed")
            (failed,) = (body for body in events if body["type"] == "failed")
            assert failed["kind"] == "compile_error"
            assert {"file": "src/scale.cu", "line": 3}.items() <= failed["diagnostics"][-1].items()
        finally:
            leftovers = user.end()
        assert not leftovers


def _some(body: dict[str, Any]) -> dict[str, Any]:
    """What differs from run to run."""
    return {name: value for name, value in body.items() if name == "expected_s"}
