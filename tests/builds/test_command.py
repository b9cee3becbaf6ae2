"""Command lines for people."""

from __future__ import annotations

from pathlib import Path

from buildd.builds.command import shown
from codegen.plan import Action, Output, Place, Ref, Tool


def test_a_worker_that_reads_its_standard_input_is_repeated_by_a_build(tmp_path: Path) -> None:
    fields = {
        "name": "add/sm_90.cubin",
        "kind": "triton",
        "tool": "t",
        "argv": ("python", "worker.py", Ref(place=Place.OUTPUT, name="cubin")),
        "environment": (),
        "outputs": (Output(name="cubin", path="build/add.cubin"),),
    }
    tool = Tool(name="t", files=())
    assert shown(Action(**fields), tool, project="/p") == "cd /p && python worker.py build/add.cubin"
    assert shown(Action(**fields, payload=b"{}"), tool, project="/p") == "cd /p && buildd build add"


def test_a_link_is_repeated_without_the_list_that_only_buildd_reads() -> None:
    action = Action(
        name="ops/libops.so",
        kind="nvcc",
        tool="nvcc",
        argv=(
            "nvcc",
            Ref(place=Place.DEPFILE, prefix="-Xlinker=--dependency-file="),
            "-o",
            Ref(place=Place.OUTPUT, name="library"),
            Ref(place=Place.INPUT, name="build/ops/obj/a b.o"),
        ),
        environment=(),
        inputs=("build/ops/obj/a b.o",),
        outputs=(Output(name="library", path="build/ops/libops.so"),),
    )
    assert (
        shown(action, Tool(name="nvcc", files=()), project="/p")
        == "cd /p && nvcc -o build/ops/libops.so 'build/ops/obj/a b.o'"
    )
