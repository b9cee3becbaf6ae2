"""Kind jax with the real JAX: built through the daemon, loaded by a program, for the CPU and for a GPU elsewhere.

Runs where jax is installed (`scripts/test-jax`). The GPU is one that this machine need not have: its tests need JAX's
CUDA plugin, and compile for the topology in `tests/data`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.jax_project import Project
from tests.support.user import User
from tests.support.waiting import until

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]
needs_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="no jax-cuda13-plugin and jax-cuda13-pjrt (they need no GPU)",
)

NET = """
import collections
import os
import jax
import jax.numpy as jnp

State = collections.namedtuple("State", "count moment")

def parameters():
    return {"w": jnp.full((16, 16), 0.02), "b": jnp.zeros((16,)), "unused": jnp.zeros(3)}

def state():
    return State(jnp.zeros((), jnp.int32), jnp.zeros((16, 16)))

def step(parameters, state, x, *, layers=1):
    for _ in range(layers):
        x = jnp.tanh(x @ parameters["w"] + parameters["b"])
    moment = state.moment + 0.1 * parameters["w"]
    return {**parameters, "w": parameters["w"] - moment}, State(state.count + 1, moment), [x.mean(), None]

def keyword(x, *, scale):
    return x * scale

def copied(x):
    return x

def called(x):
    return jax.pure_callback(lambda x: x, x, x)

def fails(x):
    raise ValueError("not today")

def prints(x):
    print("printed while it is traced")
    return x + 1

def leaves(x):
    raise SystemExit(7)

def dies(x):
    os._exit(9)

def waits(x):
    with open("tracing", "w") as file:
        file.write("begun")
    while True:
        pass

def own(x):
    return State(x, x)

jitted = jax.jit(step, static_argnames="layers", compiler_options={"xla_cpu_enable_fast_math": True})
"""

USE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import net
from buildd.loader import load_jax

step = load_jax("build/step/step.jax")
x = jnp.linspace(-1, 1, 64).reshape(4, 16)
native = jax.jit(net.step, static_argnames="layers")
ours, theirs = (net.parameters(), net.state()), (net.parameters(), net.state())
for _ in range(3):
    *ours, (mine, nothing) = step(*ours, x)
    *theirs, (other, _) = native(*theirs, x, layers=3)
assert nothing is None and type(ours[1]) is net.State and int(ours[1].count) == 3
same = jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), (ours, mine), (theirs, other)))
given = net.parameters()
step(given, net.state(), np.asarray(x))
said = []
for arguments in [
    (net.parameters(), net.state()),
    (net.parameters(), net.state(), x, x),
    (net.parameters(), net.state(), x.astype(jnp.bfloat16)),
    ({"w": x}, net.state(), x),
    (net.parameters(), net.state(), "text"),
]:
    try:
        step(*arguments)
    except ValueError as error:
        said.append(str(error))
try:
    jax.jit(lambda x: step(net.parameters(), net.state(), x))(x)
except ValueError as error:
    said.append(str(error))
print(json.dumps({"same": same, "given away": given["w"].is_deleted(), "said": said}))
"""


@pytest.fixture
def project(kept_user: User) -> Iterator[Project]:
    yield Project(kept_user, "one", NET)


def test_a_program_loads_what_was_compiled_and_computes_the_same(project: Project) -> None:
    status, said = project.build()
    assert status == 0 and "warning" not in said, said
    done = project.python(USE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["same"] and found["given away"]
    assert found["said"] == [
        "step: argument 3, float32[4, 16], is missing",
        "step: it has no argument 4",
        "step: argument 3 has to be float32[4, 16], not bfloat16[4, 16]; build the target with it",
        "step: argument 1['b'], float32[16], argument 1['unused'], float32[3], is missing",
        "step: argument 3 has to be float32[4, 16], not a str",
        "step is compiled already: call it outside of jax.jit, jax.grad and jax.vmap",
    ]


def test_another_checkout_and_a_change_that_changes_nothing_hit(project: Project) -> None:
    project.build("--recache")
    other = Project(project.user, "another", NET)
    status, said = other.build()
    assert status == 0 and "hit step/step.jax" in said, said
    assert other.package.read_bytes() == project.package.read_bytes()
    other.write("# a comment\n" + NET)
    assert "hit step/step.jax" in other.build()[1]
    other.write(NET.replace("0.1 * p", "0.2 * p"))
    assert "hit step/step.jax" not in other.build()[1]
    status, said = other.user.buildd("warm", "--prove", "-C", str(other.folder))
    assert status == 0, said
    other.write(NET.replace("0.1 * p", "0.3 * p"))
    assert other.user.buildd("warm", "--prove", "-C", str(other.folder))[0] == 1


def test_eight_builds_at_once_compile_once(project: Project) -> None:
    # The code counts how often it is traced: a build that comes late traces again, and finds the package.
    traces = project.user.folder / "traces"
    count = f"with open({str(traces)!r}, 'a') as file:\n    file.write('x')\n"
    project.write(count + NET.replace("0.1 * p", "0.7 * p"))
    before = ran(project.user)
    running = [project.user.start("build", "-C", str(project.folder)) for _ in range(8)]
    said = [process.communicate(timeout=280)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 8, said
    assert ran(project.user) - before - len(traces.read_text()) == 1


def ran(user: User) -> int:
    """How many actions the daemon has run."""
    status: dict[str, Any] = json.loads(user.buildd("status", "--json")[1].splitlines()[0])
    return int(status["counters"]["misses"])


def test_flags_that_the_users_code_adds_reach_the_compile_once(project: Project) -> None:
    flag = "--xla_cpu_enable_fast_math=true"
    project.write(f'import os\nos.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " {flag} {flag}"\n{NET}')
    assert project.build()[0] == 0
    assert project.described()["xla_flags"] == flag
    project.user.environ["XLA_FLAGS"] = "--xla_no_such_flag=1"
    try:
        project.write(NET)
        status, said = project.build()
    finally:
        del project.user.environ["XLA_FLAGS"]
    assert status == 1 and "--xla_no_such_flag=1" in said


def test_a_file_of_flags_counts_by_its_content(project: Project) -> None:
    project.write(NET)
    project.user.environ["XLA_FLAGS"] = f"{project.folder}/flags"
    try:
        for flag in ("--xla_cpu_enable_fast_math=true", "--xla_cpu_enable_fast_math=false"):
            (project.folder / "flags").write_text(f"{flag}\n")
            assert project.build()[0] == 0
            assert project.described()["xla_flags"] == flag
    finally:
        del project.user.environ["XLA_FLAGS"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("absent", "there is no absent; it has "),
        ("State", "cannot be traced"),
        ("fails", "net.py:.*: error: fails cannot be traced: ValueError: not today"),
        ("leaves", "net.py:.*: error: leaves cannot be traced: SystemExit: 7"),
        ("dies", "ended with status 9"),
        ("called", "calls back into Python"),
        ("own", "returns a net.State, which no argument is"),
    ],
)
def test_what_cannot_be_lowered_is_said_at_its_line(project: Project, function: str, message: str) -> None:
    project.target(function=function, inputs=[{"shape": [4]}], static={})
    status, said = project.build()
    assert status == 1
    assert re.search(message, said), said


def test_what_a_function_prints_is_shown_and_is_no_part_of_the_package(project: Project) -> None:
    project.target(function="prints", inputs=[{"shape": [4]}], static={})
    status, said = project.build()
    assert status == 0 and said.count("printed while it is traced") == 1, said
    done = project.python(
        "from buildd.loader import load_jax; import numpy as np\n"
        "print(load_jax('build/step/step.jax')(np.zeros(4, 'float32')).tolist())"
    )
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0]\n", done.stderr


def test_a_trace_without_end_is_ended_with_its_build(project: Project) -> None:
    project.write(NET.replace('"tracing"', repr(str(project.user.folder / "tracing"))))
    project.target(function="waits", inputs=[{"shape": [4]}], static={})
    tracing = project.user.folder / "tracing"
    tracing.unlink(missing_ok=True)
    building = project.user.start("build", "-C", str(project.folder))
    until(tracing.exists, "a trace")
    building.send_signal(signal.SIGINT)
    building.communicate(timeout=60)
    assert building.returncode == 130
    project.target()
    assert project.build()[0] == 0


def test_a_daemon_killed_while_jax_traces_costs_only_time(project: Project) -> None:
    tracing = project.user.folder / "tracing"
    tracing.unlink(missing_ok=True)
    # The first trace waits for its end.
    wait = "if not os.path.exists(TRACING):\n    open(TRACING, 'w').close()\n    time.sleep(60)\n"
    wait = f"import time\nTRACING = {str(tracing)!r}\n{wait}"
    project.write(f"{NET}\n{wait}")
    building = project.user.start("build", "-C", str(project.folder))
    until(tracing.exists, "a trace")
    daemon = project.user.daemon()
    assert daemon is not None
    daemon.kill()
    said = building.communicate(timeout=150)[0]
    assert building.returncode == 0, said
    assert project.described()["name"] == "step"


def test_a_function_of_keywords_and_one_that_is_jitted_already(project: Project) -> None:
    project.target(function="keyword", inputs=[{"shape": [4]}], keyword_inputs={"scale": {}}, static={})
    assert project.build()[0] == 0
    call = "from buildd.loader import load_jax; f = load_jax('build/step/step.jax')\n"
    done = project.python(call + "import numpy as np; print(f(np.ones(4, 'float32'), scale=3.0).tolist())")
    assert done.stdout == "[3.0, 3.0, 3.0, 3.0]\n", done.stderr
    project.target(function="jitted")
    assert "jax.jit already" in project.build()[1]
    project.target(function="jitted", inputs=[{"function": "parameters"}, {"function": "state"}, {"shape": [4, 16]}])
    assert project.build()[0] == 0 and project.described()["options"] == {"xla_cpu_enable_fast_math": True}
    project.target(function="copied", inputs=[{"shape": [4]}], options={"xla_no_such_option": 1}, static={})
    assert "xla_no_such_option" in project.build()[1]


def test_a_package_that_cannot_be_used_here_says_why(project: Project) -> None:
    assert project.build()[0] == 0
    with zipfile.ZipFile(project.package) as stream:
        executable = stream.read("executable")
    for name, change in (
        ("jaxlib", {"jaxlib": "0.1.2"}),
        ("processor", {"processor": "flags:fpu no_such_set"}),
        ("device", {"device_kind": "Z100"}),
        ("format", {"format": 99}),
    ):
        with zipfile.ZipFile(project.folder / f"{name}.jax", "w") as stream:
            stream.writestr("description.json", json.dumps({**project.described(), **change}))
            stream.writestr("executable", executable)
    (project.folder / "torn.jax").write_bytes(project.package.read_bytes()[:900])
    code = (
        "from buildd.loader import load_jax\n"
        "for name in ('jaxlib', 'processor', 'device', 'format', 'torn'):\n"
        "    try: load_jax(name + '.jax')\n"
        "    except RuntimeError as error: print(error)\n"
    )
    said = project.python(code).stdout.splitlines()
    words = ("jaxlib 0.1.2", "no_such_set", "compiled for Z100", "format 99", "damaged")
    assert len(said) == len(words) and all(word in line for word, line in zip(words, said, strict=True)), said


@needs_plugin
def test_without_timings_a_package_for_a_gpu_is_untuned_and_says_so(project: Project) -> None:
    project.target(device="cuda", topology="h100.txtpb")
    for _ in range(2):  # the second time from the store
        status, said = project.build()
        assert status == 0 and "warning: compiled untuned (" in said, said
    found = project.described()
    assert (found["device_kind"], found["tuned"]) == ("NVIDIA H100 80GB HBM3", False) and " of " in found["missing"]
    call = "from buildd.loader import load_jax; load_jax('build/step/step.jax'"
    assert "is untuned: " in project.python(f"{call})").stderr
    assert "JAX has no such device here" in project.python(f"{call}, untuned=True)").stderr
    # Timings are another key.
    with zipfile.ZipFile(project.folder / "some.autotune", "w"):
        pass
    project.target(device="cuda", topology="h100.txtpb", autotune="some.autotune")
    assert "hit step/step.jax" not in project.build()[1]
    # XLA tunes nothing of a copy.
    project.target(device="cuda", topology="h100.txtpb", function="copied", inputs=[{"shape": [4]}], static={})
    status, said = project.build()
    assert status == 0 and "warning" not in said and project.described()["tuned"] is True, said
    project.target(
        device="cuda",
        topology="h100.txtpb",
        function="copied",
        inputs=[{"shape": [4]}],
        static={},
        options={"xla_gpu_autotune_level": 0},
    )
    status, said = project.build()
    assert status == 0 and "untuned:" in said and project.described()["tuned"] is False, said


@needs_plugin
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("gpu_device_info { nothing: 1 }", "h100.txtpb: error: cannot be used"),
        ('{"format": 1}', "is not a file of `buildd topology`"),
        ('{"jaxlib": "0.1.2", "topology": ""}', "was made by jaxlib 0.1.2"),
    ],
)
def test_a_topology_that_is_none_is_named(project: Project, content: str, message: str) -> None:
    project.target(device="cuda", topology="h100.txtpb")
    (project.folder / "h100.txtpb").write_text(content)
    status, said = project.build()
    assert status == 1 and message in said, said
