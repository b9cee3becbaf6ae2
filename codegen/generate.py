"""Request -> Plan: reads the project, orders its targets and hands each to its kind's generator.

Knows no tool. A generator is a function `(Context, its target) -> Part`, see `context`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import msgspec

from codegen.aitemplate_flags import recompiles
from codegen.capability import guessing_notice
from codegen.context import Context, Part
from codegen.environment import Settings as Variables
from codegen.environment import user_values
from codegen.plan import GeneratedFile, Knowledge, Plan, RequestError, Tool
from codegen.project import Project, load_project
from codegen.target import (
    Conv2dTarget,
    CudaTarget,
    ElementwiseTarget,
    ExtensionTarget,
    GemmTarget,
    HipTarget,
    ModelTarget,
    RecordedTarget,
    RowwiseTarget,
    Target,
    TorchTarget,
    TritonTarget,
)
from codegen.toolchain import Toolchains
from protocol.messages import Request

ItemT = TypeVar("ItemT")

__all__ = ["Context", "Part", "make_plan"]


def make_plan(request: Request, knowledge: Knowledge) -> Plan:
    """The plan for a request. Reads files, runs nothing.

    Args:
        request: what the client asked.
        knowledge: answers of the probes that were asked for so far.

    Raises:
        ProbesNeeded: run these, tell `knowledge` the answers, and call again.
        RequestError: the request cannot become a plan.
    """
    context, project = context_for(request, knowledge)
    parts: dict[str, Part] = {}
    context = replace(context, parts=parts)
    variables, toolchains = context.variables, context.toolchains
    for target in project.targets:
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
    )
    return _with_cmake_project(plan, context) if variables.is_on("AIT_USE_CMAKE_COMPILATION") else plan


def _navigable(file: GeneratedFile) -> tuple[GeneratedFile, ...]:
    """A generated source as a header, which editors take for C++, and a source that includes it."""
    if not file.path.endswith(".cu"):
        return (file,)
    header = f"{file.path}.h"
    source = f'#include "{os.path.basename(header)}"\n'
    return GeneratedFile(path=header, content=file.content), GeneratedFile(path=file.path, content=source.encode())


def _with_cmake_project(plan: Plan, context: Context) -> Plan:
    from codegen.cmake_project import cmake_project

    file = cmake_project(plan, context.folder, context.settings.name, context.build)
    folder = os.path.dirname(file.path)
    notice = f"AIT_USE_CMAKE_COMPILATION=1: {file.path} is written; buildd run -- cmake -S {folder} -B {folder}/out"
    return msgspec.structs.replace(plan, files=(*plan.files, file), notices=(*plan.notices, notice))


def context_for(request: Request, knowledge: Knowledge) -> tuple[Context, Project]:
    """What generators are given for a request, and the project that it is about. Raises RequestError."""
    if not os.path.isabs(request.project) or not os.path.isdir(request.project):
        raise RequestError(
            "bad-project", f"there is no folder {request.project or '(none named)'}", next_step="name it with -C DIR"
        )
    project = load_project(request)
    _check_archs(request, project.targets)
    variables = Variables(
        request_env=request.environment,
        project_values=project.environment,
        user_values=user_values(request.environment),
    )
    variables.check()
    merged = {**variables.user_values, **project.environment, **request.environment}
    request = msgspec.structs.replace(request, environment=merged)
    toolchains = Toolchains(request, project.settings, knowledge)
    context = Context(
        request=request,
        folder=request.project,
        build=project.settings.build_dir,
        settings=project.settings,
        variables=variables,
        knowledge=knowledge,
        toolchains=toolchains,
        parts={},
    )
    return context, project


def _generate(context: Context, target: Target) -> Part:
    """Generators are imported when their kind is first asked for: the CLI plans in process, and has to start fast."""
    match target:
        case CudaTarget():
            from codegen.cuda import plan_cuda

            return plan_cuda(context, target)
        case HipTarget():
            from codegen.hip import plan_hip

            return plan_hip(context, target)
        case GemmTarget():
            from codegen.gemm import plan_gemm

            return plan_gemm(context, target)
        case Conv2dTarget():
            from codegen.conv2d import plan_conv2d

            return plan_conv2d(context, target)
        case RowwiseTarget():
            from codegen.rowwise import plan_rowwise

            return plan_rowwise(context, target)
        case ElementwiseTarget():
            from codegen.elementwise import plan_elementwise

            return plan_elementwise(context, target)
        case ModelTarget():
            from codegen.model import plan_model

            return plan_model(context, target)
        case TritonTarget():
            from codegen.triton_kernel import plan_triton

            return plan_triton(context, target)
        case RecordedTarget():
            from codegen.triton_recorded import plan_recorded

            return plan_recorded(context, target)
        case TorchTarget():
            from codegen.torch_model import plan_torch

            return plan_torch(context, target)
        case ExtensionTarget():
            from codegen.extension import plan_extension

            return plan_extension(context, target)
    raise AssertionError(f"no generator for {type(target).__name__}")


def _gathered(groups: Iterable[tuple[ItemT, ...]]) -> tuple[ItemT, ...]:
    return tuple(item for group in groups for item in group)


def _check_archs(request: Request, targets: Iterable[Target]) -> None:
    """An architecture of the request that no target takes would be passed over in silence."""
    kinds = tuple(targets)
    for arch in request.arch:
        if not any(_takes(target, amd=arch.startswith("gfx")) for target in kinds):
            raise RequestError(
                "bad-arch",
                f'no target of this request can be made for "{arch}"',
                next_step="leave it out, or name targets of the other vendor",
            )


def _takes(target: Target, *, amd: bool) -> bool:
    """Whether an architecture of this vendor that is asked for says what a target is made for."""
    match target:
        case TritonTarget():
            return True
        case GemmTarget() | RowwiseTarget() | ElementwiseTarget() | ModelTarget():
            return not target.arch or any(arch.startswith("gfx") == amd for arch in target.arch)
    return isinstance(target, HipTarget if amd else CudaTarget | Conv2dTarget | ExtensionTarget)


def _check_outputs(parts: dict[str, Part]) -> None:
    """Two actions must not write one file, nor have one name."""
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
            # Kernels that several targets use are one file.
            if other != (target, "") and contents.get(file.path) != file.content:
                raise _conflict(file.path, other[0], target)
            contents[file.path] = file.content


def _conflict(path: str, first: str, second: str) -> RequestError:
    who = f'target "{first}"' if first == second else f'targets "{first}" and "{second}"'
    return RequestError(
        "output-conflict",
        f"{path} would be written twice by {who}",
        next_step="give one of them another output_name, or remove the source that is listed under two names",
    )


def _tools(parts: dict[str, Part]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for part in parts.values():
        for tool in part.tools:
            tools.setdefault(tool.name, tool)
    return tuple(tools.values())
