"""Makes the plan for a request: reads the project, orders its targets and calls the generator of each target's kind.

Knows no tool. A generator is a function `(Context, its target) -> Part`, see `context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import msgspec

from codegen.compilers import native_archs
from codegen.compilers.nvcc import normalised
from codegen.compilers.toolchain import Toolchains
from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.gemm.capability import guessing_notice
from codegen.plan import GeneratedFile, Knowledge, Plan, Tool, Unwanted
from codegen.project.project_file import Project, load_project
from codegen.project.target import (
    Conv2dTarget,
    CudaTarget,
    ElementwiseTarget,
    ExtensionTarget,
    GemmTarget,
    HipTarget,
    JaxTarget,
    ModelTarget,
    RecordedTarget,
    RowwiseTarget,
    Target,
    TorchTarget,
    TritonTarget,
)
from codegen.variables.aitemplate_flags import recompiles
from codegen.variables.settings import Settings, user_values
from protocol.messages import Request

ItemT = TypeVar("ItemT")

__all__ = ["Context", "Part", "make_plan"]


def make_plan(request: Request, knowledge: Knowledge) -> Plan:
    """Return the plan for a request. Reads files, runs nothing.

    Args:
        request: the client's request.
        knowledge: answers to the probes asked for so far.

    Raises:
        ProbesNeeded: run these probes, add their answers to `knowledge`, and call again.
        Unwanted: `knowledge` says that nobody waits any more.
        RequestError: the request cannot become a plan.
    """
    context, project = context_for(request, knowledge)
    parts: dict[str, Part] = {}
    context = replace(context, parts=parts)
    variables, toolchains = context.variables, context.toolchains
    for target in project.targets:
        if knowledge.is_unwanted():
            raise Unwanted
        parts[target.name] = _generate(context, target)
    _check_outputs(parts)
    asked = project.asked
    tools = _tools(parts)
    read = (
        *project.read,
        *(path for part in parts.values() for path in part.read),
        *(file.path for tool in tools for file in tool.files),
    )
    files = _gathered([part.files for part in parts.values()])
    if variables.is_on("AIT_ENABLE_CUDA_SOURCE_NAVIGATION_FIX"):
        files = tuple(part for file in files for part in _navigable(file))
    unmeasured = _gathered([part.unmeasured for part in parts.values()])
    plan = Plan(
        targets=asked,
        actions=_gathered([part.actions for part in parts.values()]),
        tools=tools,
        steps=tuple(dict.fromkeys(_gathered([part.steps for part in parts.values()]))),
        files=files,
        artifacts=_gathered([parts[name].artifacts for name in asked]),
        notices=tuple(
            dict.fromkeys(
                (
                    *toolchains.notices,
                    *(line for part in parts.values() for line in part.notices),
                    *guessing_notice(unmeasured),
                    *variables.notices,
                )
            )
        ),
        read=tuple(dict.fromkeys(read)),
        recompile=recompiles(variables),
        unmeasured=unmeasured,
        native=context.native,
    )
    return _with_cmake_project(plan, context) if variables.is_on("AIT_USE_CMAKE_COMPILATION") else plan


def _navigable(file: GeneratedFile) -> tuple[GeneratedFile, ...]:
    """Return a generated source as two files: a header, which editors read as C++, and a source that includes it."""
    if not file.path.endswith((".cu", ".hip")):
        return (file,)
    header = f"{file.path}.h"
    source = f'#include "{os.path.basename(header)}"\n'
    return GeneratedFile(path=header, content=file.content), GeneratedFile(path=file.path, content=source.encode())


def _with_cmake_project(plan: Plan, context: Context) -> Plan:
    from codegen.cmake_project import cmake_project

    file = cmake_project(plan, context.folder, context.settings.name, context.build)
    folder = os.path.dirname(file.path)
    command = f"buildd run -- cmake -S {folder} -B {folder}/out"
    notice = f"AIT_USE_CMAKE_COMPILATION=1: {file.path} is written; configure it with {command}"
    return msgspec.structs.replace(plan, files=(*plan.files, file), notices=(*plan.notices, notice))


def context_for(request: Request, knowledge: Knowledge) -> tuple[Context, Project]:
    """Return the generators' context for a request, and the request's project. Raises RequestError."""
    if not os.path.isabs(request.project) or not os.path.isdir(request.project):
        raise RequestError(
            "bad-project",
            f"the project folder does not exist: {request.project or '(none given)'}",
            next_step="give an existing folder with -C DIR",
        )
    project = load_project(request)
    variables = Settings(
        request_env=request.environment,
        project_values=project.environment,
        user_values=user_values(request.environment),
    )
    variables.check()
    request = msgspec.structs.replace(request, environment=variables.merged())
    toolchains = Toolchains(request, project.settings, knowledge)
    request, targets, native = native_archs.resolved(request, project.targets, toolchains)
    project = replace(project, targets=targets)
    _check_archs(request, targets)
    context = Context(
        request=request,
        folder=request.project,
        build=project.settings.build_dir,
        settings=project.settings,
        variables=variables,
        knowledge=knowledge,
        toolchains=toolchains,
        parts={},
        native=native,
    )
    return context, project


def _generate(context: Context, target: Target) -> Part:
    """Call the generator of a target's kind. Imports it on first use: the CLI plans in process and must start fast."""
    match target:
        case CudaTarget():
            from codegen.compiled.cuda import plan_cuda

            return plan_cuda(context, target)
        case HipTarget():
            from codegen.compiled.hip import plan_hip

            return plan_hip(context, target)
        case GemmTarget():
            from codegen.gemm.gemm import plan_gemm

            return plan_gemm(context, target)
        case Conv2dTarget():
            from codegen.gemm.conv2d import plan_conv2d

            return plan_conv2d(context, target)
        case RowwiseTarget():
            from codegen.arrays.rowwise import plan_rowwise

            return plan_rowwise(context, target)
        case ElementwiseTarget():
            from codegen.arrays.elementwise import plan_elementwise

            return plan_elementwise(context, target)
        case ModelTarget():
            from codegen.models.model import plan_model

            return plan_model(context, target)
        case TritonTarget():
            from codegen.python.triton_kernel import plan_triton

            return plan_triton(context, target)
        case RecordedTarget():
            from codegen.python.triton_recorded import plan_recorded

            return plan_recorded(context, target)
        case TorchTarget():
            from codegen.python.torch_model import plan_torch

            return plan_torch(context, target)
        case JaxTarget():
            from codegen.python.jax_function import plan_jax

            return plan_jax(context, target)
        case ExtensionTarget():
            from codegen.python.extension import plan_extension

            return plan_extension(context, target)
    raise AssertionError(f"no generator for {type(target).__name__}")


def _gathered(groups: Iterable[tuple[ItemT, ...]]) -> tuple[ItemT, ...]:
    return tuple(item for group in groups for item in group)


def _check_archs(request: Request, targets: Iterable[Target]) -> None:
    """Raise RequestError for an architecture that no target takes: it would be ignored silently."""
    kinds = tuple(targets)
    for arch in request.arch:
        if not any(_takes(target, amd=arch.startswith("gfx")) for target in kinds):
            raise RequestError(
                "bad-arch",
                f'no target of this request can be built for "{arch}"',
                next_step="drop this architecture, or name targets of the other vendor",
            )
    normalised((arch for arch in request.arch if not arch.startswith("gfx")), where="")


def _takes(target: Target, *, amd: bool) -> bool:
    """Tell whether a requested architecture of this vendor applies to a target."""
    match target:
        case TritonTarget():
            return True
        case GemmTarget() | RowwiseTarget() | ElementwiseTarget() | ModelTarget():
            return not target.arch or any(arch.startswith("gfx") == amd for arch in target.arch)
    return isinstance(target, HipTarget if amd else CudaTarget | Conv2dTarget | ExtensionTarget)


def _check_outputs(parts: dict[str, Part]) -> None:
    """Raise RequestError if two actions write the same file or have the same name."""
    owners: dict[str, tuple[str, str]] = {}
    names: set[str] = set()
    contents: dict[str, bytes] = {}
    for target, part in parts.items():
        for action in part.actions:
            for output in action.outputs:
                other = owners.setdefault(output.path, (target, action.name))
                if other != (target, action.name):
                    raise _conflict(output.path, other[0], target)
            if action.name in names:
                raise _conflict(action.name, target, target)
            names.add(action.name)
        for file in part.files:
            other = owners.setdefault(file.path, (target, ""))
            # Several targets may use the same kernel file.
            if other != (target, "") and contents.get(file.path) != file.content:
                raise _conflict(file.path, other[0], target)
            contents[file.path] = file.content


def _conflict(path: str, first: str, second: str) -> RequestError:
    who = f'target "{first}"' if first == second else f'targets "{first}" and "{second}"'
    return RequestError(
        "output-conflict",
        f"{path} would be written twice by {who}",
        next_step="give one of them another output_name, or remove a source that is listed twice under different names",
    )


def _tools(parts: dict[str, Part]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for part in parts.values():
        for tool in part.tools:
            tools.setdefault(tool.name, tool)
    return tuple(tools.values())
