"""Requests of mode "profile" through a real daemon, as a client in any language sends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from protocol import messages as m
from protocol.client import Client, find
from protocol.endpoint import runtime_folder
from protocol.session import Route
from tests.support.carry_out import request_for
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.profiling_cases import LISTED, PROJECT, smi
from tests.support.waiting import until


@pytest.fixture
def developer(another_developer: Developer) -> Developer:
    return another_developer


@pytest.fixture
def client(developer: Developer) -> Iterator[Client]:
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    endpoint = find(runtime_folder(developer.environ))
    assert endpoint is not None
    with Client(Route.local(endpoint), timeout_s=60.0) as made:
        yield made


def asked(developer: Developer, *targets: str, **options: Any) -> m.Request:
    request = request_for(developer.project, *targets, environment=developer.environ, mode=m.Mode.PROFILE)
    name = m.RequestId(os.urandom(8).hex())
    return msgspec.structs.replace(request, request_id=name, profile=m.ProfileOptions(**options))


def bodies(client: Client, request: m.Request) -> tuple[list[m.EventBody], m.Done]:
    *found, done = [event.body for event in client.submit(request)]
    assert isinstance(done, m.Done)
    return found, done


def test_candidates_are_told_and_one_is_chosen(developer: Developer, client: Client) -> None:
    found, done = bodies(client, asked(developer, "g", top=3))
    assert done.outcome is m.Outcome.BUILT and done.misses == 3, (done, found)
    assert [body.outcome for body in found if isinstance(body, m.Candidate)] == ["built"] * 3
    (chosen,) = [body for body in found if isinstance(body, m.Chosen)]
    assert chosen.target == "g" and chosen.candidate and not chosen.time_us
    assert any("no nvidia-smi" in body.text for body in found if isinstance(body, m.Notice)), found
    again, done = bodies(client, asked(developer, "g", top=3, measure=False))
    assert (done.misses, done.hits) == (0, 3) and not any(isinstance(body, m.Notice) for body in again)


def test_a_wrong_request_is_refused_with_the_place(developer: Developer, client: Client) -> None:
    _, done = bodies(client, asked(developer, "open"))
    assert done.outcome is m.Outcome.REFUSED and "open" in done.message and done.file and done.next_step
    _, done = bodies(client, asked(developer, "open", problems=("many",)))
    assert (done.outcome, done.code) == (m.Outcome.REFUSED, "bad-value")
    _, done = bodies(client, asked(developer, "none"))
    assert (done.outcome, done.code) == (m.Outcome.REFUSED, "unknown-target")
    _, done = bodies(client, asked(developer, "open", problems=("512x512x512",), top=1))
    assert done.outcome is m.Outcome.BUILT


def test_it_can_be_cancelled_and_its_process_may_die(developer: Developer, client: Client) -> None:
    """Each candidate's library waits for a measuring program that never comes: nvidia-smi hangs."""
    tools = developer.folder / "tools"
    tools.mkdir()
    slow = f"echo $$ > {tools}/asked; exec sleep 600"
    path = f"{smi(tools, slow)['PATH']}:{developer.environ['PATH']}"
    for end in ("cancel", "kill"):
        request = asked(developer, "g", top=1)
        request = msgspec.structs.replace(request, environment={**request.environment, "PATH": path})
        events = client.submit(request)
        pid = int(until(lambda: (tools / "asked").exists() and (tools / "asked").read_text()) or 0)
        (tools / "asked").unlink()
        if end == "cancel":
            client.cancel(request.request_id)
        else:
            with open(f"/proc/{pid}/stat") as file:
                os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        done = [event.body for event in events][-1]
        assert isinstance(done, m.Done)
        wanted = m.Outcome.CANCELLED if end == "cancel" else m.Outcome.DAEMON_ERROR
        assert done.outcome is wanted, done
        place = f"/proc/{pid}"
        until(lambda place=place: not os.path.exists(place), "what it started has ended")
    assert client.status().requests == 0


@pytest.mark.cuda
def test_on_a_gpu_each_measurement_has_a_lease(developer: Developer, client: Client) -> None:
    """The fake compiler's measuring program cannot run: that is told for each candidate, and the GPU is free again."""
    tools = developer.folder / "smi"
    tools.mkdir()
    path = f"{smi(tools, LISTED.replace('9.0', '8.0'))['PATH']}:{developer.environ['PATH']}"
    request = asked(developer, "g", top=2)
    found, done = bodies(client, msgspec.structs.replace(request, environment={**request.environment, "PATH": path}))
    assert [body.outcome for body in found if isinstance(body, m.Candidate)] == ["not measured"] * 2, found
    assert done.outcome is m.Outcome.BUILT and client.status().gpus == ()
