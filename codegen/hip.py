"""Generator of kind "hip": sources through hipcc for AMD, one action a source, and what is linked of them.

Knows clang's HIP flags, not where hipcc is. Also compiles what `plain` generates.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex

import msgspec

from codegen.aitemplate_flags import aitemplate_flags
from codegen.compiled import Options, Recipe, Step, asked_archs, needs_arch, needs_output, options_of, plan_compiled
from codegen.context import Context, Part
from codegen.decomposition import hip_decomposition
from codegen.flags import inspect, refuse_own
from codegen.plan import Argument, Discovery, Place, Ref, RequestError, Resources, Steps
from codegen.project import nearest
from codegen.search import include_folders, library_folders
from codegen.sources import expand
from codegen.target import HipTarget, OutputKind, Target
from codegen.toolchain import Compiler

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
    """The share of the plan of a target of kind "hip". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    sources, listed = expand(context.folder, target.sources, context.build, target.where)
    recipe, notices = hip_recipe(context, target, options_of(target))
    return plan_compiled(
        context, target, recipe, sources, target.output, target.output_name, notices=notices, read=listed
    )


def hip_recipe(context: Context, target: Target, options: Options) -> tuple[Recipe, tuple[str, ...]]:
    """How hipcc compiles and links a target, and what to tell the user."""
    refuse_own(options.flags, target.name, target.where)
    compiler = context.toolchains.hip()
    asked = asked_archs(context, target, amd=True)
    needs_arch(target, asked, "gfx90a")
    archs = architectures(asked, compiler.archs, target.where)
    variables = aitemplate_flags(context.variables, "hip", aitemplate_shaped=False)
    flags = options.flags
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
    effects = inspect((*flags, *defines, *_environment_flags(compiler, "HIPCC_COMPILE_FLAGS_APPEND")))
    if options.map_paths:
        effects = msgspec.structs.replace(effects, path_sensitive=False)
    relocatable = options.rdc or any(context.parts[name].device_link for name in target.deps if name in context.parts)
    project = context.settings.name

    def unit(source: str) -> tuple[Argument, ...]:
        # clang makes this name out of the absolute path by itself. It gets into symbols, so it has to be unique in the
        # linked program; of the relative path, so that another checkout makes the same bytes.
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
            # Also without device code to link: hipcc would look for a GPU otherwise.
            *(f"--offload-arch={arch}" for arch in archs),
            *(("-fgpu-rdc", "--hip-link") if relocatable else ()),
            Ref(place=Place.DEPFILE, prefix="-Wl,--dependency-file="),
            *options.link_flags,
        ),
        link_tail=tuple(f"-l{name}" for name in options.libraries),
        link_effects=inspect((*options.link_flags, *_environment_flags(compiler, "HIPCC_LINK_FLAGS_APPEND"))),
        whole_archive=(("-Wl,--whole-archive",), ("-Wl,--no-whole-archive",)),
        soname=lambda name: (f"-Wl,-soname,{name}",),
        runpath=lambda folder: (f"-Wl,-rpath,{folder}",),
        per_source=unit,
        search=include_folders(
            options.include,
            (*flags, *_environment_flags(compiler, "HIPCC_COMPILE_FLAGS_APPEND")),
            dict(compiler.tool.roots),
        ),
        library_search=library_folders(
            (*options.link_flags, *_environment_flags(compiler, "HIPCC_LINK_FLAGS_APPEND")),
            compiler.environment,
            dict(compiler.tool.roots),
        ),
        device_link=options.rdc,
        decompose=None
        if effects.uncacheable
        else lambda step, extension: _decompose(context, compiler, step, extension),
    )
    notices = tuple(f"{target.name}: {line}" for line in variables.applied)
    return recipe, notices


def _decompose(context: Context, compiler: Compiler, step: Step, extension: str) -> Steps | str:
    if not step.link:
        return "not an object"
    return hip_decomposition(
        context.knowledge,
        compiler.tool,
        compiler.program,
        compiler.environment,
        (*step.options, *_language(extension)),
        extension=extension,
        identity=context.settings.name or os.path.basename(context.folder),
    )


def architectures(asked: tuple[str, ...], known: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Asked architectures, sorted, each once.

    Args:
        asked: "gfx90a", "gfx90a:xnack-".
        known: those that the compiler lists.

    Raises:
        RequestError: not an AMD GPU, or not one of this compiler's.
    """
    for name in asked:
        match = _ARCH.fullmatch(name)
        if match is None or (known and match[1] not in known):
            what = "is not an AMD architecture" if match is None else "is not known to this hipcc"
            raise RequestError(
                "bad-arch",
                f'"{name}" {what}{nearest(name, known)}',
                file=where,
                next_step="it knows " + ", ".join(known) + " (with :xnack+ and the like behind)",
            )
    return tuple(sorted(set(asked)))


def _language(source: str) -> tuple[Argument, ...]:
    """hipcc tells HIP by these endings; other files are named as HIP."""
    known = (".c", ".cpp", ".cxx", ".cc", ".C", ".cu", ".cuh", ".hip")
    return () if source.endswith(known) else ("-x", "hip")


def _path_maps() -> tuple[Argument, ...]:
    return (
        Ref(place=Place.ROOT, name="project", prefix="-ffile-prefix-map=", suffix="=."),
        "-fdebug-compilation-dir=.",
    )


def _environment_flags(compiler: Compiler, name: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(dict(compiler.environment).get(name, "")))
    except ValueError as error:
        raise RequestError("bad-variable", f"{name} cannot be read: {error}", next_step="close its quotes") from error
