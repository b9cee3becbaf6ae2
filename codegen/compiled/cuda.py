"""Generator of kind "cuda": compiles each source with nvcc, one action per source, and links the objects.

Knows nvcc's flags, not where nvcc is. Also compiles the sources that `gemm` and `array_kernel` generate.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from codegen.compiled.own_sources import own_sources
from codegen.compiled.recipe import (
    Options,
    Recipe,
    Step,
    arch_place,
    asked_archs,
    needs_arch,
    needs_output,
    options_of,
    plan_compiled,
)
from codegen.compilers import nvcc
from codegen.compilers.compiler import Compiler
from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.flags import FlagEffects, inspect, refuse_defines, refuse_own, refuse_rejected
from codegen.plan import Argument, Discovery, Place, Ref, Resources, Steps
from codegen.project.target import CudaTarget, OutputKind, Target
from codegen.search import include_folders, library_folders
from codegen.steps.decomposition import complaint, decomposition
from codegen.variables.aitemplate_flags import AITemplateFlags, aitemplate_flags

RESOURCES = Resources(memory_bytes=700 << 20, wall_s=3.0)
OUTPUTS = (
    OutputKind.SHARED,
    OutputKind.STATIC,
    OutputKind.EXECUTABLE,
    OutputKind.OBJECT,
    OutputKind.PTX,
    OutputKind.CUBIN,
    OutputKind.FATBIN,
)
_BINDIR = ("-ccbin", "--compiler-bindir")
RESOURCES_2X = Resources(memory_bytes=1 << 30, wall_s=8.0)
"""Resources of a source with a CUTLASS 2.x kernel."""
CUTLASS_FLAGS = ("--expt-relaxed-constexpr", "-DNDEBUG")
CUTLASS_INCLUDE = Ref(place=Place.ROOT, name="cutlass", prefix="-I", suffix="/include")


@dataclass(frozen=True, slots=True)
class Unit:
    """A source that is compiled for only some of the target's architectures, or with its own flags."""

    source: str
    archs: tuple[str, ...]
    resources: Resources = RESOURCES
    flags: tuple[str, ...] = ()
    """Flags before the target's own."""


def plan_cuda(context: Context, target: CudaTarget) -> Part:
    """Return the part of a target of kind "cuda". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    own = own_sources(context, target)
    recipe, notices = nvcc_recipe(context, target, options_of(target, aitemplate=own.aitemplate))
    return plan_compiled(
        context,
        target,
        recipe,
        own.compiled,
        target.output,
        target.output_name,
        notices=notices,
        read=own.read,
        objects=own.objects,
    )


def nvcc_recipe(
    context: Context,
    target: Target,
    options: Options,
    *,
    roots: tuple[tuple[str, str], ...] = (),
    units: Sequence[Unit] = (),
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for compiling and linking a target with nvcc, and notices for the user.

    Args:
        roots: more named folders that `options` refer to.
        units: sources with their own architectures; if empty, all sources have all architectures of the target.
    """
    refuse_own(options.flags, target.name, target.at("flags"))
    refuse_defines(options.define, target.name, target.at("define"))
    flags, host = _without_bindir(options.flags, target)
    variables = aitemplate_flags(context.variables, "cuda", aitemplate_shaped=options.aitemplate, own=flags)
    if variables.optimization is not None:
        flags = tuple(flag for flag in flags if not flag.startswith("-O") and not flag.startswith("--optimize"))
        flags = (*flags, *variables.optimization)
    flags = (*flags, *variables.flags)
    asked_host = context.request.toolchain.get("host_compiler", "")
    host = asked_host or host or variables.host_compiler or context.settings.host_compiler
    compiler = context.toolchains.cuda(host)
    asked = asked_archs(context, target, amd=False)
    needs_arch(target, asked, "sm_80")
    found = nvcc.architectures(asked, compiler.archs, arch_place(context, target))
    relocatable = options.rdc or any(context.parts[name].device_link for name in target.deps if name in context.parts)
    reports = not nvcc.asks_for_report((*flags, *_environment_flags(compiler)))
    base: tuple[Argument, ...] = (
        *((nvcc.REPORT,) if reports else ()),
        *(("-ccbin", host) if host else ()),
        *(("-Xcompiler=-fPIC",) if options.output is not OutputKind.EXECUTABLE else ()),
        *(_path_maps() if options.map_paths else ()),
        *(f"-D{name}" for name in options.define),
        *options.include,
        *flags,
    )
    effective = (*flags, *(f"-D{name}" for name in options.define), *_environment_flags(compiler))
    effects = _effects(effective, options.map_paths)
    if roots:
        tool = msgspec.structs.replace(
            compiler.tool,
            name="+".join((compiler.tool.name, *(name for name, _ in roots))),
            roots=(*compiler.tool.roots, *roots),
        )
        compiler = msgspec.structs.replace(compiler, tool=tool)
    link_effects = inspect((*options.link_flags, *_environment_flags(compiler)))
    gencode = nvcc.gencode(found, device_lto=variables.device_lto)
    recipe = Recipe(
        label="nvcc",
        compiler=compiler,
        steps=_all_steps(options, found, base, variables, units),
        discovery=Discovery.CLANG if compiler.clang else Discovery.GCC,
        compile_effects=effects,
        resources=RESOURCES,
        link_options=(
            *(("-ccbin", host) if host else ()),
            # Without relocatable device code nvlink has nothing to do, and its stub would include headers that the
            # linker's dependency file does not list.
            *(("-rdc=true", *gencode) if relocatable else ("-nodlink",)),
            *(("-dlto",) if variables.device_lto else ()),
            Ref(place=Place.DEPFILE, prefix="-Xlinker=--dependency-file="),
            *compiler.library_flags,
            *options.link_flags,
        ),
        link_tail=tuple(f"-l{name}" for name in options.libraries),
        link_effects=link_effects,
        linker=context.toolchains.device_linker(host) if relocatable else None,
        whole_archive=(("-Xlinker=--whole-archive",), ("-Xlinker=--no-whole-archive",)),
        soname=lambda name: (f"-Xlinker=-soname={name}",),
        runpath=lambda folder: ("-Xlinker=-rpath", f"-Xlinker={folder}"),
        search=(
            *include_folders(
                options.include,
                (*(flag for unit in units for flag in unit.flags), *flags, *_environment_flags(compiler)),
                dict(compiler.tool.roots),
                compiler.environment,
            ),
            *compiler.before,
        ),
        library_search=(
            *library_folders(
                (*options.link_flags, *_environment_flags(compiler), *compiler.library_flags),
                compiler.environment,
                dict(compiler.tool.roots),
            ),
            *compiler.libraries,
        ),
        device_link=options.rdc,
        reports=reports,
        decompose=None
        if effects.uncacheable
        else lambda step, extension: _decompose(context, target, compiler, step, extension),
    )
    notices = tuple(f"{target.name}: {line}" for line in variables.applied)
    return recipe, notices


def _decompose(context: Context, target: Target, compiler: Compiler, step: Step, extension: str) -> Steps | str:
    if not step.link:
        return "not an object"
    found = decomposition(
        context.knowledge,
        compiler.tool,
        compiler.program,
        compiler.environment,
        step.options,
        extension=extension,
        clang=compiler.clang,
        identity=context.settings.name or os.path.basename(context.folder),
    )
    flags = getattr(target, "flags", ())
    refuse_rejected(complaint(found), flags, "nvcc", target.name, target.at("flags"))
    return found


def _all_steps(
    options: Options,
    archs: tuple[str, ...],
    base: tuple[Argument, ...],
    variables: AITemplateFlags,
    units: Sequence[Unit],
) -> tuple[Step, ...]:
    if not units:
        return _steps(options, archs, base, variables)
    return tuple(
        msgspec.structs.replace(step, only=(unit.source,), resources=unit.resources)
        for unit in units
        for step in _steps(options, unit.archs, (*unit.flags, *base), variables)
    )


def _steps(
    options: Options, archs: tuple[str, ...], base: tuple[Argument, ...], variables: AITemplateFlags
) -> tuple[Step, ...]:
    gencode = nvcc.gencode(archs, device_lto=variables.device_lto)
    mode = {OutputKind.PTX: "-ptx", OutputKind.CUBIN: "-cubin"}.get(options.output)
    if mode is not None:
        return tuple(
            Step(
                folder=mode[1:],
                suffix=f".{arch}{mode.replace('-', '.')}",
                options=(mode, *nvcc.single(arch, mode == "-ptx"), *base),
                link=False,
            )
            for arch in archs
        )
    if options.output is OutputKind.FATBIN:
        return (Step(folder="fatbin", suffix=".fatbin", options=("-fatbin", *gencode, *base), link=False),)
    rdc = ("-rdc=true",) if options.rdc else ()
    steps = [Step(folder="obj", suffix=".o", options=("-c", *rdc, *gencode, *base))]
    if variables.keep_ptx:
        steps += [
            Step(
                folder="ptx", suffix=f".{arch}.ptx", options=("-ptx", *nvcc.single(arch, True), *rdc, *base), link=False
            )
            for arch in archs
        ]
    return tuple(steps)


def _path_maps() -> tuple[Argument, ...]:
    """Return the flags that map paths: the host compiler writes both folders into debug information and __FILE__."""
    return (
        Ref(place=Place.ROOT, name="project", prefix="-Xcompiler=-ffile-prefix-map=", suffix="=."),
        Ref(place=Place.ROOT, name="cuda", prefix="-Xcompiler=-ffile-prefix-map=", suffix="=/cuda"),
    )


_DEVICE_PATHS = ("-G", "--device-debug", "-lineinfo", "--generate-line-info", "-src-in-ptx", "--source-in-ptx")


def _effects(flags: Iterable[str], map_paths: bool) -> FlagEffects:
    """Return the flags' effects. Path maps affect only the host compiler's output; the device's line tables keep
    absolute paths."""
    flags = tuple(flags)
    effects = inspect(flags)
    if map_paths and effects.path_sensitive and not any(flag in _DEVICE_PATHS for flag in flags):
        return msgspec.structs.replace(effects, path_sensitive=False)
    return effects


def _environment_flags(compiler: Compiler) -> tuple[str, ...]:
    """Return the flags that nvcc reads from its environment; they act like flags on the command line."""
    found: list[str] = []
    for name, value in compiler.environment:
        if name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
            try:
                found += shlex.split(value)
            except ValueError as error:
                raise RequestError(
                    "bad-variable", f"{name} cannot be read: {error}", next_step="close its quotes"
                ) from error
    return tuple(found)


def _without_bindir(flags: tuple[str, ...], target: Target) -> tuple[tuple[str, ...], str]:
    """Return the flags without -ccbin, and its value: -ccbin decides which tools run."""
    kept: list[str] = []
    host = ""
    waiting = False
    for flag in flags:
        name, _, value = flag.partition("=")
        if waiting:
            host, waiting = flag, False
        elif name in _BINDIR:
            host, waiting = value, not value
        else:
            kept.append(flag)
    if waiting:
        raise RequestError(
            "bad-flag",
            f'target "{target.name}": -ccbin without a compiler',
            file=target.at("flags"),
            next_step="add a compiler",
        )
    return tuple(kept), host
