"""Generator of kind "gemm": a CUTLASS kernel for each architecture, and one entry point that picks among them.

Knows no rules of CUTLASS (`gemm_spec`) and no flags of nvcc beyond those that its headers need (`cuda` has them).
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from functools import cache

import jinja2

from codegen import nvcc
from codegen.compiled import asked_archs, needs_arch, needs_output, plan_compiled
from codegen.context import Context, Part
from codegen.cuda import NvccOptions, Unit, nvcc_recipe
from codegen.gemm_spec import GemmKernel, formula, kernel_for
from codegen.plan import GeneratedFile, Place, Ref, Resources
from codegen.target import GemmTarget, OutputKind

RESOURCES_2X = Resources(memory_bytes=1 << 30, wall_s=8.0)
RESOURCES_3X = Resources(memory_bytes=2200 << 20, wall_s=20.0)
OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.OBJECT)
_FLAGS = ("-std=c++17", "--expt-relaxed-constexpr", "-DNDEBUG")
_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")


def plan_gemm(context: Context, target: GemmTarget) -> Part:
    """The share of the plan of a target of kind "gemm". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    asked = asked_archs(context, target, amd=False)
    needs_arch(target, asked, "sm_80")
    archs = nvcc.normalised(asked, target.where)
    kernels = [kernel_for(target, arch) for arch in archs]
    cutlass = context.toolchains.cutlass()
    folder = f"{context.build}/{target.name}/gen"
    files = generated(target, kernels, folder)
    resources = {True: RESOURCES_3X, False: RESOURCES_2X}
    units = [Unit(files[0].path, archs[:1])]
    units += [
        Unit(file.path, (kernel.arch,), resources[kernel.three])
        for file, kernel in zip(files[1:], kernels, strict=True)
    ]
    own_level = () if any(flag.startswith("-O") for flag in target.flags) else ("-O3",)
    options = NvccOptions(
        output=target.output,
        include=(Ref(place=Place.ROOT, name="cutlass", prefix="-I", suffix="/include"),),
        define=target.define,
        flags=(*_FLAGS, *own_level, *target.flags),
        map_paths=target.map_paths,
    )
    recipe, notices = nvcc_recipe(context, target, options, roots=(("cutlass", cutlass),), units=units)
    return plan_compiled(
        context,
        target,
        recipe,
        tuple(file.path for file in files),
        target.output,
        target.output_name,
        files=files,
        notices=notices,
    )


def generated(target: GemmTarget, kernels: list[GemmKernel], folder: str) -> tuple[GeneratedFile, ...]:
    """The sources: first the entry point, then one for each kernel. Equal specs give equal bytes."""
    symbol = re.sub(r"\W", "_", target.name)
    sizes = " x ".join(str(getattr(target, name) or name) for name in ("m", "n", "k"))
    title = f"{target.name}: GEMM {sizes}, {target.dtype}, {target.layout}, epilogue {target.epilogue}"
    names = {kernel.arch: f"{symbol}_{kernel.arch.replace('_', '')}" for kernel in kernels}
    # The highest that fits comes first: sm_90a before sm_80 on an sm_90.
    ordered = sorted(kernels, key=lambda kernel: (_capability(kernel.arch), kernel.three), reverse=True)
    dispatch = _template("gemm_dispatch.cu.j2").render(
        title=title,
        formula=formula(target),
        symbol=symbol,
        kernels=[{"symbol": names[kernel.arch], "condition": _condition(kernel)} for kernel in ordered],
    )
    files = [GeneratedFile(path=f"{folder}/{symbol}.cu", content=dispatch.encode())]
    for kernel in kernels:
        template = _template("gemm_sm90.cu.j2" if kernel.three else "gemm_sm80.cu.j2")
        values = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        text = template.render(title=f"{title}, {kernel.arch}", symbol=names[kernel.arch], **values)
        files.append(GeneratedFile(path=f"{folder}/{names[kernel.arch]}.cu", content=text.encode()))
    return tuple(files)


def _capability(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _condition(kernel: GemmKernel) -> str:
    """Each object has PTX of its architecture, so that later GPUs can run it too; that of sm_90a runs on 9.0 only."""
    number = _capability(kernel.arch)
    return f"found == {number}" if kernel.three else f"found >= {number}"


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(name)
