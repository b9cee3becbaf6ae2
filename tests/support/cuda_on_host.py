"""Programs of CUDA without kernels, compiled by the real nvcc and linked with a runtime that is the host's memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from codegen.generate import make_plan
from codegen.plan import Knowledge
from tests.support.carry_out import answered, request_for
from tests.support.paths import FAKES


def on_the_host(folder: Path, source: bytes, *more: Path) -> Path:
    """A program of CUDA without kernels; more: objects or sources in C."""
    (folder / "measure.cu").write_bytes(source)
    spec = {"kind": "cuda", "sources": ["measure.cu"], "arch": ["sm_80"], "flags": ["-std=c++17"], "output": "object"}
    request, knowledge = request_for(folder, file="", specs={"measure": spec}), Knowledge()
    plan = answered(lambda: make_plan(request, knowledge), knowledge)
    roots = dict(plan.tools[0].roots)
    nvcc = [f"{roots['cuda']}/bin/nvcc", "-std=c++17", "-arch=sm_80", "-cudart=none", "-nodlink", "-O1"]
    subprocess.run(["gcc", "-O1", "-c", "-o", folder / "cudart.o", FAKES / "fake-cudart.c"], check=True)
    subprocess.run([*nvcc, "-c", "-o", folder / "measure.o", folder / "measure.cu"], check=True)
    stubs = "".join(
        f"int {name}(void) {{ return 0; }}\n"
        for name in ("__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd", "__cudaUnregisterFatBinary")
    )
    (folder / "stubs.c").write_text(stubs)
    objects = [*(str(folder / name) for name in ("measure.o", "cudart.o", "stubs.c")), *map(str, more)]
    subprocess.run(["gcc", "-o", folder / "measure", *objects, "-lstdc++", "-ldl", "-lm", "-w"], check=True)
    return folder / "measure"
