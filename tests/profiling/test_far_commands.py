"""Commands and requests that measure on a cluster: whose cluster that is, and what is said where a node cannot measure.

The fake compiler's measuring program cannot run on any machine: everything before that works.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from buildd.profiling.devices import recall
from buildd.profiling.first_measurement import capabilities_far
from protocol import messages as m
from protocol.client import Client, find
from protocol.endpoint import runtime_folder
from protocol.session import Route
from tests.support.carry_out import request_for
from tests.support.clusters import fake_settings
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.profiling_cases import PROJECT, smi

TARGET = PROJECT.partition("[target.open]")[0]
CANNOT = "beta/0: nothing is measured there any more: the measuring program cannot be started"


def with_cluster(developer: Developer) -> Developer:
    """Their config.toml names a cluster whose node "beta" has a GPU; this machine has none."""
    settings = fake_settings(developer.folder, gpus={"beta": 1})
    file = Path(developer.environ["HOME"], ".config/buildd/config.toml")
    file.parent.mkdir(parents=True)
    file.write_text(f"[ray]\naddress = '{settings.address}'\npython = '{settings.python}'\n")
    tools = developer.folder / "tools"
    tools.mkdir()
    # Without an answer where HOME is set, as it is here: the processes on nodes get PATH alone.
    listing = 'if [ -n "$HOME" ]; then exit 9; fi\necho "0, GPU-far-commands, NVIDIA A100, 580.1, 8.0"'
    developer.environ["PATH"] = f"{smi(tools, listing)['PATH']}:{developer.environ['PATH']}"
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    developer.write("buildd.toml", TARGET)
    return developer


def test_the_command_measures_on_a_node(another_developer: Developer) -> None:
    developer = with_cluster(another_developer)
    status, words = developer.buildd("profile", "-C", str(developer.project), "--top", "1", "g")
    assert status == 0 and CANNOT in words and "not measured" in words and "compiling the likely" not in words, words
    status, words = developer.buildd("profile", "-C", str(developer.project), "--top", "1", "--no-gpu", "g")
    assert status == 0 and "beta" not in words, words


def test_a_build_measures_on_a_node_first_and_remembers_its_gpu(another_developer: Developer) -> None:
    developer = with_cluster(another_developer)
    developer.write("buildd.toml", TARGET.replace("k = 512\n", "k = 512\nprofile = true\n"))
    status, words = developer.buildd("build", "-C", str(developer.project), "g")
    assert status == 0 and "measuring on NVIDIA A100 first" in words and CANNOT in words, words
    request = request_for(developer.project, store=str(developer.store), environment={})
    assert capabilities_far(request, developer.environ) == ("8.0",)
    assert recall(str(developer.store), developer.environ) is None, "this machine's are another matter"


@pytest.mark.slow  # it needs a daemon of its own
def test_a_request_measures_on_the_daemons_cluster_alone(developer: Developer) -> None:
    with_cluster(developer)
    assert developer.buildd("build", "-C", str(developer.project), "g")[0] == 0
    endpoint = find(runtime_folder(developer.environ))
    assert endpoint is not None
    environment = {**developer.environ, "RAY_ADDRESS": "nowhere:1", "HOME": str(developer.folder / "nobody")}
    request = request_for(developer.project, "g", environment=environment, mode=m.Mode.PROFILE)
    request = msgspec.structs.replace(
        request, request_id=m.RequestId(os.urandom(8).hex()), profile=m.ProfileOptions(top=1)
    )
    with Client(Route.local(endpoint), timeout_s=60.0) as client:
        bodies = [event.body for event in client.submit(request)]
    assert any(isinstance(body, m.Notice) and CANNOT in body.text for body in bodies), bodies
    assert isinstance(bodies[-1], m.Done) and bodies[-1].outcome is m.Outcome.BUILT
