"""Recorded output of `nvcc --dryrun` (tests/data/dryruns), decomposed into steps without an nvcc."""

from __future__ import annotations

import msgspec

from codegen.plan import Action, Output, Steps
from codegen.steps.nvcc_steps import decompose
from tests.support.paths import DATA

RECORDED = DATA / "dryruns"

ROOT = "/usr/local/cuda"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def found(name: str, path: str) -> str:
    folder = "/usr/bin" if name == "gcc" else f"{ROOT}/nvvm/bin" if name == "cicc" else f"{ROOT}/bin"
    return name if name.startswith("/") else f"{folder}/{name}"


def read(text: str, identity: str = "p") -> Steps:
    return decompose(text, "s", extension=".cu", root=ROOT, identity=identity, find=found)


def compile_action(source: str = "src/a.cu", made: str = "build/t/obj/src/a.cu.o", **more: object) -> Action:
    return msgspec.structs.replace(
        Action(
            name="t/src/a.cu.o",
            kind="nvcc",
            tool="nvcc",
            argv=("nvcc", "-c", source),
            inputs=(source, "plugin.so"),
            outputs=(Output(name="object", path=made),),
            environment=(("HOME", "/home"), ("PATH", "/bin")),
        ),
        **more,
    )
