"""Generator of kind "gemm": makes a CUTLASS kernel for each architecture, and one entry point that selects among them.

Knows no rules of CUTLASS (`spec`), not which kernel is best (`decision`), and only those flags of nvcc that CUTLASS's
headers need (`cuda` has the others). A kernel's text and path do not depend on its target, so all targets with this
kernel share one result. A kernel for sm_90a has two sources: the kernel, and its launch code, which only the host
compiler compiles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import fields

import msgspec

from codegen.arrays.array_kernel import STORAGE, is_hip
from codegen.compiled.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.compiled.hip import hip_recipe
from codegen.compiled.recipe import asked_archs, generated_options, needs_output, plan_compiled
from codegen.compilers import nvcc
from codegen.context import Context, Part
from codegen.gemm.arch_rules import ARCH_3X
from codegen.gemm.cutlass_headers import Headers, lighter_headers
from codegen.gemm.decision import chosen, chosen_for_all, unmeasured
from codegen.gemm.kernel import ARCH_100, GemmKernel
from codegen.gemm.spec import formula, is_plain, kernel_for, output_type, tolerance
from codegen.plan import GeneratedFile, Resources
from codegen.project.target import GemmTarget, OutputKind
from codegen.rendering import TEMPLATES, template

RESOURCES_3X = Resources(memory_bytes=2200 << 20, wall_s=20.0)
_RESOURCES_LIGHT = Resources(memory_bytes=1400 << 20, wall_s=14.0)
"""Resources of a kernel with buildd's own epilogue."""
_RESOURCES_LAUNCH = Resources(memory_bytes=700 << 20, wall_s=5.0)
OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.OBJECT)
_WHOLE = "gemm_sm90_whole.cu.j2"
_LENIENT = "-Xcompiler=-fpermissive,-w"
"""CUTLASS uses names that only device code has, and a type with the name of a member. nvcc's front end accepts both."""
_PARAMS_BYTES = 2048
"""Room for the parameters of every 3.x kernel, whose size the host pass does not know; about 1800 bytes are used."""
_MISALIGNED = -1
_INVALID_PROBLEM = -4
"""-cutlass::Status::kErrorInvalidProblem, without its headers."""
_LINKAGE = '__attribute__((weak, visibility("hidden"))) '
"""Linkage of a kernel: a program may link the same kernel from two targets."""
MEASURE = os.path.join(TEMPLATES, "measure.cu")
"""The program that checks and times a kernel."""


def plan_gemm(context: Context, target: GemmTarget) -> Part:
    """Return the part of a target of kind "gemm". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    if is_hip(context, target):
        return _plan_amd(context, target)
    asked = asked_archs(context, target, amd=False)
    archs = nvcc.normalised(asked, target.at("arch"))
    choices = [chosen(context, target, arch) for arch in archs]
    kernels = [kernel_for(choice.target, arch) for choice, arch in zip(choices, archs, strict=True)]
    cutlass = context.toolchains.cutlass()
    entry = entry_file(target, kernels, context.build)
    sources, headers = kernel_sources(context, kernels)
    units = [Unit(entry.path, archs[:1]), *(unit for _, unit in sources)]
    files = (entry, *(file for file, _ in sources))
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
        files=(*files, *headers.files),
        notices=(*notices, *(choice.notice for choice in choices if choice.notice)),
        read=tuple(dict.fromkeys((*headers.read, *(path for choice in choices for path in choice.read)))),
    )
    by_arch = {arch: (choice,) for arch, choice in zip(archs, choices, strict=True)}
    part = msgspec.structs.replace(part, unmeasured=unmeasured(target.name, archs, by_arch))
    if not context.variables.is_on("AIT_ENABLE_STANDALONE"):
        return part
    if not is_plain(msgspec.structs.replace(target, grouped=False)):
        notice = f"{target.name}: AIT_ENABLE_STANDALONE does not support its batches, epilogue or type"
        return msgspec.structs.replace(part, notices=(*part.notices, notice))
    test = _standalone(target, context.build)
    recipe, _ = nvcc_recipe(context, target, options, roots=roots, units=[Unit(test.path, archs[:1]), *units])
    # The program uses the library's objects and adds one source and a link.
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


def _plan_amd(context: Context, target: GemmTarget) -> Part:
    """Return the part of a target for AMD's GPUs: one plain HIP kernel serves all of them."""
    archs = asked_archs(context, target, amd=True)
    kernel_for(target, archs[0])  # checks the target's own keys first
    found = chosen_for_all(context, target, archs)
    kernel = kernel_for(found.target, archs[0])
    entry = entry_file(target, [kernel], context.build)
    ((source, _),) = sources_of(kernel, context.build)
    recipe, notices = hip_recipe(context, target, generated_options(target, shared=(source.path,)))
    if context.variables.is_on("AIT_ENABLE_STANDALONE"):
        notices += (f"{target.name}: AIT_ENABLE_STANDALONE does not support AMD's GPUs",)
    part = plan_compiled(
        context,
        target,
        recipe,
        (entry.path, source.path),
        target.output,
        target.output_name,
        files=(entry, source),
        notices=(*notices, *found.notices),
        read=found.read,
    )
    return msgspec.structs.replace(part, unmeasured=unmeasured(target.name, archs, found.choices))


def symbol_of(name: str) -> str:
    """Return the prefix of the functions of a target."""
    return re.sub(r"\W", "_", name)


def _standalone(target: GemmTarget, build: str) -> GeneratedFile:
    """Return the source of a target's test and benchmark (AIT_ENABLE_STANDALONE)."""
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


def entry_file(target: GemmTarget, kernels: list[GemmKernel], build: str) -> GeneratedFile:
    """Return the source of the entry point. Equal specs give equal bytes.

    Args:
        build: the folder of all outputs.
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
        hip=kernels[0].amd,
        kernels=[{"symbol": kernels[0].name}] if kernels[0].amd else newest_first(kernels),
        **interface(kernels[0]),
    )
    # Host code only: the host compiler finishes it before nvcc would have started.
    return GeneratedFile(path=f"{build}/{target.name}/gen/{symbol}.cpp", content=dispatch.encode())


def kernel_sources(context: Context, kernels: Iterable[GemmKernel]) -> tuple[list[tuple[GeneratedFile, Unit]], Headers]:
    """Return the sources of kernels with their units, and the headers that they include before CUTLASS's."""
    kernels, build = list(kernels), context.build
    headers = Headers()
    if any(_template(kernel) == _WHOLE for kernel in kernels):
        headers = lighter_headers(context.toolchains.cutlass(), build)
    split = context.variables.is_on("BUILDD_SPLIT_KERNELS")
    found = [source for kernel in kernels for source in sources_of(kernel, build, headers.include, split=split)]
    return found, headers


def sources_of(
    kernel: GemmKernel, build: str, include: tuple[str, ...] = (), *, split: bool = True
) -> list[tuple[GeneratedFile, Unit]]:
    """Return the sources of one kernel, which do not depend on a target.

    Args:
        include: include options for 3.x kernels.
        split: the launch code of a 3.x kernel is a separate source. The host half of CUTLASS takes half as long to
            compile as the device half, so the host compiler alone compiles it in parallel.
    """
    path, archs, whole = f"{build}/kernels/{kernel.name}", (kernel.arch,), _template(kernel)
    resources = (_RESOURCES_LIGHT if kernel.light else RESOURCES_3X) if kernel.three else RESOURCES_2X
    if kernel.amd:
        texts = [(whole, Unit(f"{path}.hip", archs))]
    elif whole != _WHOLE:
        texts = [(whole, Unit(f"{path}.cu", archs, resources))]
    elif not split:
        texts = [(whole, Unit(f"{path}.cu", archs, resources, include))]
    else:
        device = Unit(f"{path}.cu", archs, resources, include)
        launch = Unit(f"{path}.cpp", archs, _RESOURCES_LAUNCH, (*include, _LENIENT))
        texts = [("gemm_sm90.cu.j2", device), ("gemm_sm90.cpp.j2", launch)]
    return [
        (GeneratedFile(path=unit.source, content=_text(name, kernel, kernel.name, _LINKAGE)), unit)
        for name, unit in texts
    ]


def is_of_split(action: str) -> bool:
    """Tell whether an action compiles a kernel's source that could also contain the launch code."""
    return f"/kernels/gemm_{ARCH_3X.replace('_', '')}_" in action


def newest_first(kernels: Iterable[GemmKernel]) -> list[dict[str, str]]:
    """Return the kernels' names and conditions: the entry point takes the highest that fits, sm_90a before sm_80 on an
    sm_90."""
    ordered = sorted(kernels, key=lambda kernel: (_capability(kernel.arch), kernel.three), reverse=True)
    return [{"symbol": kernel.name, "condition": _condition(kernel)} for kernel in ordered]


def kernel_text(kernel: GemmKernel, symbol: str, linkage: str = "") -> bytes:
    """Return one source with a kernel and its launch code, which defines SYMBOL_run and SYMBOL_workspace_bytes."""
    return _text(_template(kernel), kernel, symbol, linkage)


def _text(name: str, kernel: GemmKernel, symbol: str, linkage: str) -> bytes:
    values = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    values |= {"both": kernel.both, "light": kernel.light}
    named = {"title": kernel.name, "symbol": symbol, "linkage": linkage, "params_bytes": _PARAMS_BYTES}
    more = plain_words(kernel, hip=True) if kernel.amd else {}
    return template(name).render(**named, **more, **values).encode()


def plain_words(kernel: GemmKernel, *, hip: bool) -> dict[str, object]:
    """Return the additional variables of a plain kernel's template."""
    types = sorted({kernel.element_a, kernel.element_d})
    return {
        "a": kernel.element_a,
        "output": kernel.element_d,
        "types": types,
        "read": types,
        "written": [kernel.element_d],
        "storage": STORAGE,
        "hip": hip,
        "api": "hip" if hip else "cuda",
        "invalid_problem": _INVALID_PROBLEM,
        "misaligned": _MISALIGNED,
    }


def _template(kernel: GemmKernel) -> str:
    if kernel.amd:
        return "gemm_plain.j2"
    if kernel.grouped:
        return "gemm_grouped.cu.j2"
    if kernel.arch == ARCH_100:
        return "gemm_sm100.cu.j2"
    return _WHOLE if kernel.three else "gemm_sm80.cu.j2"


def interface(kernel: GemmKernel) -> dict[str, str]:
    """Return the parameters of a kernel's functions, up to alpha, and the arguments that pass them on."""
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
    """Return the condition for a kernel. Each object has PTX of its architecture for later GPUs; PTX of sm_90a runs on
    9.0 only."""
    number = _capability(kernel.arch)
    return f"found == {number}" if kernel.three else f"found >= {number}"
