"""Generator of kind "hip": compiles each source with hipcc for AMD, one action per source, and links the objects.

Knows clang's HIP flags, not where hipcc is. Also compiles the sources that `array_kernel` generates.
"""

from __future__ import annotations

import hashlib
import os
import re

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
from codegen.compilers import hipcc
from codegen.compilers.compiler import Compiler
from codegen.context import Context, Part
from codegen.errors import RequestError, nearest
from codegen.flags import inspect, refuse_defines, refuse_own, refuse_rejected
from codegen.plan import Argument, Discovery, Place, Ref, Resources, Steps
from codegen.project.target import HipTarget, OutputKind, Target
from codegen.search import include_folders, library_folders
from codegen.steps.decomposition import complaint, hip_decomposition
from codegen.variables.aitemplate_flags import aitemplate_flags

RESOURCES = Resources(memory_bytes=600 << 20, wall_s=3.0)
OUTPUTS = (
    OutputKind.SHARED,
    OutputKind.STATIC,
    OutputKind.EXECUTABLE,
    OutputKind.OBJECT,
    OutputKind.CODE_OBJECT,
)
_ARCH = re.compile(r"(gfx[0-9a-f]{3,4})((?::(?:sramecc|xnack)[+-])*)")


def plan_hip(context: Context, target: HipTarget) -> Part:
    """Return the part of a target of kind "hip". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    own = own_sources(context, target)
    recipe, notices = hip_recipe(context, target, options_of(target, aitemplate=own.aitemplate))
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


def hip_recipe(context: Context, target: Target, options: Options) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for compiling and linking a target with hipcc, and notices for the user."""
    refuse_own(options.flags, target.name, target.at("flags"))
    refuse_defines(options.define, target.name, target.at("define"))
    compiler = context.toolchains.hip()
    asked = asked_archs(context, target, amd=True)
    needs_arch(target, asked, "gfx90a")
    archs = architectures(asked, compiler.archs, arch_place(context, target), compiler.archs_without_library)
    flags = options.flags
    variables = aitemplate_flags(context.variables, "hip", aitemplate_shaped=options.aitemplate, own=flags)
    if variables.optimization is not None:
        flags = (*(flag for flag in flags if not flag.startswith("-O")), *variables.optimization)
    flags = (*flags, *variables.flags)
    base: tuple[Argument, ...] = (
        *(f"--offload-arch={arch}" for arch in archs),
        *(("-fPIC",) if options.output is not OutputKind.EXECUTABLE else ()),
        *(("-fgpu-rdc",) if options.rdc else ()),
        *(_path_maps() if options.map_paths else ()),
        *(f"-D{name}" for name in options.define),
        *options.include,
        *flags,
    )
    defines = tuple(f"-D{name}" for name in options.define)
    effects = inspect((*flags, *defines, *hipcc.flags_in(compiler.environment, hipcc.COMPILE_FLAGS)))
    if options.map_paths:
        effects = msgspec.structs.replace(effects, path_sensitive=False)
    relocatable = options.rdc or any(context.parts[name].device_link for name in target.deps if name in context.parts)
    project = context.settings.name

    def unit(source: str) -> tuple[Argument, ...]:
        # By default clang derives this name from the absolute path. It becomes part of symbols, so it must be unique in
        # the linked program. buildd derives it from the relative path, so that another checkout makes the same bytes.
        owner = "" if source in options.shared else f"{project}\0{target.name}"
        name = f"{owner}\0{source}".encode(errors="surrogateescape")
        return (f"-cuid={hashlib.blake2b(name, digest_size=8).hexdigest()}", *_language(source))

    if options.output is OutputKind.CODE_OBJECT:
        step = Step(folder="code-object", suffix=".hsaco", options=("--genco", *base), link=False)
    else:
        step = Step(folder="obj", suffix=".o", options=("-c", *base))
    recipe = Recipe(
        label="hipcc",
        compiler=compiler,
        steps=(step,),
        discovery=Discovery.CLANG,
        compile_effects=effects,
        resources=RESOURCES,
        link_options=(
            # Needed even without device code to link: otherwise hipcc looks for a GPU.
            *(f"--offload-arch={arch}" for arch in archs),
            *(("-fgpu-rdc", "--hip-link") if relocatable else ()),
            Ref(place=Place.DEPFILE, prefix="-Wl,--dependency-file="),
            *options.link_flags,
        ),
        link_tail=tuple(f"-l{name}" for name in options.libraries),
        link_effects=inspect((*options.link_flags, *hipcc.flags_in(compiler.environment, "HIPCC_LINK_FLAGS_APPEND"))),
        whole_archive=(("-Wl,--whole-archive",), ("-Wl,--no-whole-archive",)),
        soname=lambda name: (f"-Wl,-soname,{name}",),
        runpath=lambda folder: (f"-Wl,-rpath,{folder}",),
        per_source=unit,
        search=include_folders(
            options.include,
            (*flags, *hipcc.flags_in(compiler.environment, hipcc.COMPILE_FLAGS)),
            dict(compiler.tool.roots),
            compiler.environment,
        ),
        library_search=library_folders(
            (*options.link_flags, *hipcc.flags_in(compiler.environment, "HIPCC_LINK_FLAGS_APPEND")),
            compiler.environment,
            dict(compiler.tool.roots),
        ),
        device_link=options.rdc,
        decompose=None
        if effects.uncacheable
        else lambda step, extension: _decompose(context, target, compiler, step, extension),
    )
    notices = tuple(f"{target.name}: {line}" for line in variables.applied)
    return recipe, notices


def _decompose(context: Context, target: Target, compiler: Compiler, step: Step, extension: str) -> Steps | str:
    if not step.link:
        return "not an object"
    found = hip_decomposition(
        context.knowledge,
        compiler.tool,
        compiler.program,
        compiler.environment,
        (*step.options, *_language(extension)),
        extension=extension,
        identity=context.settings.name or os.path.basename(context.folder),
    )
    flags = getattr(target, "flags", ())
    refuse_rejected(complaint(found), flags, "hipcc", target.name, target.at("flags"))
    return found


def architectures(
    asked: tuple[str, ...], known: tuple[str, ...], where: str, without_library: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the requested architectures, sorted, each once.

    Args:
        asked: "gfx90a", "gfx90a:xnack-".
        known: architectures that the compiler compiles for.
        without_library: architectures that clang knows, and its device libraries do not.

    Raises:
        RequestError: a name is not an AMD GPU, or this compiler does not know it.
    """
    for name in asked:
        if name.startswith(("sm_", "compute_")):
            raise RequestError(
                "bad-arch",
                f'"{name}" is an architecture of NVIDIA\'s, and this target is compiled for AMD',
                file=where,
                next_step='name it in a target of its own, with kind = "cuda" if the sources are yours',
            )
        match = _ARCH.fullmatch(name)
        if match is None or (known and match[1] not in known):
            what = "is not an AMD architecture" if match is None else "is not known to this hipcc"
            begun = [each for each in known if name.startswith("gfx") and each.startswith(name)]
            choice = ", ".join(begun or known) + " (suffixes such as :xnack+ are allowed)"
            if match is not None and match[1] in without_library:
                raise RequestError(
                    "bad-arch",
                    f'"{name}" is known to this hipcc, but its ROCm has no device library for it '
                    f"(oclc_isa_version_{match[1].removeprefix('gfx')}.bc)",
                    file=where,
                    next_step=f"install a newer ROCm and set ROCM_PATH to its folder, or choose one of {choice}",
                )
            what += "; it is the beginning of some names" if begun else nearest(name, known)
            raise RequestError("bad-arch", f'"{name}" {what}', file=where, next_step=f"choose one of {choice}")
    return tuple(sorted(set(asked)))


def _language(source: str) -> tuple[Argument, ...]:
    """Return the flags that mark a source as HIP. hipcc recognises HIP sources by a few suffixes only."""
    known = (".c", ".cpp", ".cxx", ".cc", ".C", ".cu", ".cuh", ".hip")
    return () if source.endswith(known) else ("-x", "hip")


def _path_maps() -> tuple[Argument, ...]:
    return (
        Ref(place=Place.ROOT, name="project", prefix="-ffile-prefix-map=", suffix="=."),
        "-fdebug-compilation-dir=.",
    )
