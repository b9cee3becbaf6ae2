"""Generator of kind "gemm": a CUTLASS kernel for each architecture, and one entry point that picks among them.

Knows no rules of CUTLASS (`gemm_spec`), not which kernel is best (`gemm_decision`), and no flags of nvcc beyond those
that its headers need (`cuda` has them). A kernel's text and place say nothing of its target, so that all targets with
this kernel share one result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import fields

import msgspec

from codegen import nvcc
from codegen.compiled import asked_archs, generated_options, needs_arch, needs_output, plan_compiled
from codegen.context import Context, Part
from codegen.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.gemm_decision import chosen, unmeasured
from codegen.gemm_spec import ARCH_100, GemmKernel, formula, is_plain, kernel_for, output_type, tolerance
from codegen.plan import GeneratedFile, Resources
from codegen.rendering import TEMPLATES, template
from codegen.target import GemmTarget, OutputKind

RESOURCES_3X = Resources(memory_bytes=2200 << 20, wall_s=20.0)
OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.OBJECT)
_INVALID_PROBLEM = -4
"""-cutlass::Status::kErrorInvalidProblem, without the headers that say so."""
_LINKAGE = '__attribute__((weak, visibility("hidden"))) '
"""Of a kernel in a target: it may be linked beside the same one of another target."""
MEASURE = os.path.join(TEMPLATES, "measure.cu")
"""The program that checks and times a kernel."""


def plan_gemm(context: Context, target: GemmTarget) -> Part:
    """The share of the plan of a target of kind "gemm". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    asked = asked_archs(context, target, amd=False)
    needs_arch(target, asked, "sm_80")
    archs = nvcc.normalised(asked, target.where)
    choices = [chosen(context, target, arch) for arch in archs]
    kernels = [kernel_for(choice.target, arch) for choice, arch in zip(choices, archs, strict=True)]
    cutlass = context.toolchains.cutlass()
    files = generated(target, kernels, context.build)
    resources = {True: RESOURCES_3X, False: RESOURCES_2X}
    units = [Unit(files[0].path, archs[:1])]
    units += [
        Unit(file.path, (kernel.arch,), resources[kernel.three])
        for file, kernel in zip(files[1:], kernels, strict=True)
    ]
    options = generated_options(target, include=(CUTLASS_INCLUDE,), flags=CUTLASS_FLAGS)
    roots = (("cutlass", cutlass),)
    recipe, notices = nvcc_recipe(context, target, options, roots=roots, units=units)
    part = plan_compiled(
        context,
        target,
        recipe,
        tuple(file.path for file in files),
        target.output,
        target.output_name,
        files=files,
        notices=(*notices, *(choice.notice for choice in choices if choice.notice)),
        read=tuple(dict.fromkeys(path for choice in choices for path in choice.read)),
    )
    by_arch = {arch: (choice,) for arch, choice in zip(archs, choices, strict=True)}
    part = msgspec.structs.replace(part, unmeasured=unmeasured(target.name, archs, by_arch))
    if not context.variables.is_on("AIT_ENABLE_STANDALONE"):
        return part
    if not is_plain(msgspec.structs.replace(target, grouped=False)):
        notice = f"{target.name}: AIT_ENABLE_STANDALONE has no program for its batches, epilogue or type"
        return msgspec.structs.replace(part, notices=(*part.notices, notice))
    test = _standalone(target, context.build)
    recipe, _ = nvcc_recipe(context, target, options, roots=roots, units=[Unit(test.path, archs[:1]), *units])
    # The objects are those of the library; what is new is one source and a link.
    program = plan_compiled(
        context,
        msgspec.structs.replace(target, name=f"{target.name}-test"),
        recipe,
        (test.path, *(file.path for file in files)),
        OutputKind.EXECUTABLE,
        "",
        files=(test,),
    )
    return part.beside(program)


def symbol_of(name: str) -> str:
    """What the functions of a target of this name begin with."""
    return re.sub(r"\W", "_", name)


def _standalone(target: GemmTarget, build: str) -> GeneratedFile:
    """The source of a test and benchmark of a target (AIT_ENABLE_STANDALONE)."""
    symbol = symbol_of(target.name)
    with open(MEASURE, encoding="utf-8") as file:
        text = template("gemm_standalone.cu.j2").render(
            title=f"{target.name}-test",
            symbol=symbol,
            measure=file.read(),
            sizes=(target.m, target.n, target.k),
            dtype=target.dtype,
            output=output_type(target),
            layout=target.layout,
            epilogue=target.epilogue,
            grouped=target.grouped,
            rows_apart=target.layout[0] == "r",
            bias=target.epilogue.startswith("bias"),
            tolerance=tolerance(target),
        )
    return GeneratedFile(path=f"{build}/{target.name}-test/gen/{symbol}_test.cu", content=text.encode())


def generated(target: GemmTarget, kernels: list[GemmKernel], build: str) -> tuple[GeneratedFile, ...]:
    """The sources: first the entry point, then one for each kernel. Equal specs give equal bytes.

    Args:
        build: folder of all outputs.
    """
    symbol = symbol_of(target.name)
    sizes = " x ".join(str(getattr(target, name) or name) for name in ("m", "n", "k"))
    title = f"{target.name}: GEMM {sizes}, {target.dtype}, {target.layout}, epilogue {target.epilogue}"
    dispatch = template("gemm_dispatch.cpp.j2").render(
        title=title,
        formula=formula(target),
        symbol=symbol,
        fixed=[(name, size) for name in ("m", "n", "k") if (size := getattr(target, name))],
        invalid_problem=_INVALID_PROBLEM,
        grouped=target.grouped,
        kernels=newest_first(kernels),
        **interface(kernels[0]),
    )
    return (
        # Host code alone: the host compiler is done with it before nvcc would have begun.
        GeneratedFile(path=f"{build}/{target.name}/gen/{symbol}.cpp", content=dispatch.encode()),
        *(kernel_file(kernel, build) for kernel in kernels),
    )


def kernel_file(kernel: GemmKernel, build: str) -> GeneratedFile:
    """The source of a kernel, which says nothing of a target."""
    return GeneratedFile(path=f"{build}/kernels/{kernel.name}.cu", content=kernel_text(kernel, kernel.name, _LINKAGE))


def newest_first(kernels: Iterable[GemmKernel]) -> list[dict[str, str]]:
    """Their names, and when each is to be taken: the highest that fits, sm_90a before sm_80 on an sm_90."""
    ordered = sorted(kernels, key=lambda kernel: (_capability(kernel.arch), kernel.three), reverse=True)
    return [{"symbol": kernel.name, "condition": _condition(kernel)} for kernel in ordered]


def kernel_text(kernel: GemmKernel, symbol: str, linkage: str = "") -> bytes:
    """The source of a kernel, which defines SYMBOL_run and SYMBOL_workspace_bytes."""
    source = template(_template(kernel))
    values = {field.name: getattr(kernel, field.name) for field in fields(kernel)} | {"both": kernel.both}
    return source.render(title=kernel.name, symbol=symbol, linkage=linkage, **values).encode()


def _template(kernel: GemmKernel) -> str:
    if kernel.grouped:
        return "gemm_grouped.cu.j2"
    if kernel.arch == ARCH_100:
        return "gemm_sm100.cu.j2"
    return "gemm_sm90.cu.j2" if kernel.three else "gemm_sm80.cu.j2"


def interface(kernel: GemmKernel) -> dict[str, str]:
    """Parameters of a kernel's functions, up to alpha, and the words that pass them on."""
    if kernel.grouped:
        operands = ("const void* const* a", "const void* const* b", "const void* const* c", "void* const* d")
        sizes: tuple[str, ...] = ("const int* sizes", "int groups")
        space: tuple[str, ...] = ("int groups",)
    else:
        bias = ("const void* bias",) if kernel.both else ()
        operands = ("const void* a", "const void* b", "const void* c", *bias, "void* d")
        space = sizes = ("int m", "int n", "int k", *(("int batch",) if kernel.batched else ()))
    words = {"operands": (*operands, *sizes), "space": space}
    parameters = {f"{name}_parameters": ", ".join(given) for name, given in words.items()}
    passed = {name: ", ".join(word.rpartition(" ")[2] for word in given) for name, given in words.items()}
    return parameters | {f"{name}_arguments": text for name, text in passed.items()}


def _capability(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _condition(kernel: GemmKernel) -> str:
    """Each object has PTX of its architecture, so that later GPUs can run it too; that of sm_90a runs on 9.0 only."""
    number = _capability(kernel.arch)
    return f"found == {number}" if kernel.three else f"found >= {number}"
