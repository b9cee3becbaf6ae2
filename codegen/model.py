"""Generator of kind "model": operations of the other generated kinds as one library, and a driver that runs them.

Knows how its parts are compiled and linked; what they are is known elsewhere (`model_spec`, `model_text`). A kernel is
compiled as a target of its own kind compiles it, so that models, and targets of a single kernel, share results.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from codegen import nvcc
from codegen.compiled import asked_archs, generated_options, needs_output, plan_compiled
from codegen.context import Context, Part
from codegen.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.cutlass_headers import Headers
from codegen.gemm import kernel_sources, symbol_of
from codegen.gemm_choice import is_open
from codegen.gemm_decision import Choice, chosen, unmeasured
from codegen.gemm_spec import GemmKernel, is_measurable, kernel_for
from codegen.hip import hip_recipe
from codegen.model_ops import GemmLaunch, PlainLaunch
from codegen.model_spec import Model, read_model
from codegen.model_text import Streams, texts_of
from codegen.plain import is_hip
from codegen.plain import kernel_file as plain_kernel_file
from codegen.plan import GeneratedFile, RequestError
from codegen.target import GemmTarget, ModelTarget, OutputKind
from codegen.tensors import Sizes

OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What is compiled, by what it needs; each once however many operations it has."""

    plain: tuple[GeneratedFile, ...]
    cutlass: tuple[GeneratedFile, ...]
    units: tuple[Unit, ...]
    """One for each of `cutlass`."""
    headers: Headers


def plan_model(context: Context, target: ModelTarget) -> Part:
    """The share of the plan of a target of kind "model". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    hip = is_hip(context, target)
    archs = () if hip else nvcc.normalised(asked_archs(context, target, amd=False), target.where)
    model = read_model(target, archs)
    choices = _choices(context, target, model, archs)
    kernels = {
        name: tuple(kernel_for(choice.target, arch) for choice, arch in zip(found, archs, strict=True))
        for name, found in choices.items()
    }
    symbol = symbol_of(target.name)
    if symbol[:1].isdigit():
        raise RequestError(
            "bad-model",
            f'"{target.name}" cannot be a model\'s name: its functions in C begin with it',
            file=target.where,
            next_step="begin it with a letter or _",
        )
    texts = texts_of(target.name, symbol, model, kernels, _streams(context), hip=hip)
    sources = _sources(context, model, kernels, archs, hip=hip)
    folder, ending = f"{context.build}/{target.name}/gen", "hip" if hip else "cu"
    header = GeneratedFile(path=f"{folder}/{symbol}.h", content=texts.header())
    driver = GeneratedFile(path=f"{folder}/{symbol}.{ending}", content=texts.driver())
    objects = _objects(context, target, sources, driver, hip=hip)
    every = [choice for found in choices.values() for choice in found]
    by_arch = {arch: [found[index] for found in choices.values()] for index, arch in enumerate(archs)}
    objects = msgspec.structs.replace(
        objects,
        files=(header, *objects.files),
        notices=tuple(dict.fromkeys((*objects.notices, *(one.notice for one in every if one.notice)))),
        read=tuple(dict.fromkeys((*objects.read, *(path for choice in every for path in choice.read)))),
        unmeasured=unmeasured(target.name, archs, by_arch),
    )
    library = _linked(context, target, objects.link, hip=hip)
    part = msgspec.structs.replace(objects.beside(library), link=library.link, device_link=library.device_link)
    if not context.variables.is_on("AIT_ENABLE_STANDALONE"):
        return part
    test = GeneratedFile(
        path=f"{context.build}/{target.name}-test/gen/{symbol}_test.{ending}", content=texts.standalone()
    )
    named = msgspec.structs.replace(target, name=f"{target.name}-test", output=OutputKind.EXECUTABLE, output_name="")
    include = (f"-I{folder}",)
    return part.beside(_linked(context, named, objects.link, test, include, hip=hip))


def _streams(context: Context) -> Streams:
    """What AITemplate's variables say. Raises RequestError: "bad-variable"."""
    variables = context.variables
    if variables.text("AIT_MULTISTREAM_MODE") != "1":
        return Streams()
    extra, most = (variables.number(f"AIT_MULTISTREAM_{name}") for name in ("EXTRA_STREAMS", "MAX_MEM_PARALLEL_OPS"))
    assert extra is not None and most is not None, "they have defaults"
    for name, value, least in (("EXTRA_STREAMS", extra, 0), ("MAX_MEM_PARALLEL_OPS", most, 1)):
        if value < least:
            raise RequestError(
                "bad-variable",
                f'AIT_MULTISTREAM_{name}="{value}" cannot be read; accepted: {least} or more',
                next_step=f"unset AIT_MULTISTREAM_{name} or give it another value",
            )
    return Streams(extra, most)


def gemm_target(target: ModelTarget, launch: GemmLaunch, sizes: Sizes) -> GemmTarget:
    """A GEMM of a model as a target of its own; where the model is to be measured, with its largest sizes."""
    gemm = msgspec.structs.replace(
        launch.target, arch=target.arch, flags=target.flags, define=target.define, map_paths=target.map_paths
    )
    if not (target.profile and is_measurable(gemm) and is_open(gemm)):
        return gemm
    return msgspec.structs.replace(gemm, profile=largest_of(launch, sizes))


def largest_of(launch: GemmLaunch, sizes: Sizes) -> tuple[int, ...]:
    """The largest problem that a GEMM of a model may be asked, as targets have it: how many, m, n, k."""
    m, n, k, *batch = (sizes.most(dims) for dims in launch.sizes)
    return (*batch, m, n, k)


def _choices(
    context: Context, target: ModelTarget, model: Model, archs: tuple[str, ...]
) -> dict[str, tuple[Choice, ...]]:
    """GEMM -> its kernel for each architecture. Equal ones are asked for once."""
    known: dict[tuple[object, str], Choice] = {}
    found = {}
    for op in model.ops:
        if not isinstance(op.launch, GemmLaunch):
            continue
        gemm = gemm_target(target, op.launch, model.sizes)
        same = msgspec.structs.replace(gemm, name="", where="")
        for arch in archs:
            if (same, arch) not in known:
                known[same, arch] = chosen(context, gemm, arch)
        found[op.name] = tuple(known[same, arch] for arch in archs)
    return found


def _sources(
    context: Context, model: Model, kernels: dict[str, tuple[GemmKernel, ...]], archs: tuple[str, ...], *, hip: bool
) -> _Sources:
    plain: dict[str, GeneratedFile] = {}
    cutlass: dict[str, tuple[GeneratedFile, Unit]] = {}
    gemms: dict[str, GemmKernel] = {}
    for op in model.ops:
        if isinstance(op.launch, PlainLaunch):
            file = plain_kernel_file(op.launch.kernel, context.build, hip=hip)
            if op.launch.kernel.cutlass:
                cutlass[file.path] = file, Unit(file.path, archs, RESOURCES_2X)
            else:
                plain[file.path] = file
        else:
            gemms |= {kernel.name: kernel for kernel in kernels[op.name]}
    sources, headers = kernel_sources(context, gemms.values())
    cutlass |= {file.path: (file, unit) for file, unit in sources}
    return _Sources(
        plain=tuple(file for _, file in sorted(plain.items())),
        cutlass=tuple(file for _, (file, _) in sorted(cutlass.items())),
        units=tuple(unit for _, (_, unit) in sorted(cutlass.items())),
        headers=headers,
    )


def _objects(context: Context, target: ModelTarget, sources: _Sources, driver: GeneratedFile, *, hip: bool) -> Part:
    """All compiles; what they make is linked twice where there is a standalone test too."""
    alone = msgspec.structs.replace(target, deps=())
    files = (driver, *sources.plain)
    if hip:
        shared = tuple(file.path for file in sources.plain)
        recipe, notices = hip_recipe(context, alone, generated_options(target, shared=shared))
    else:
        recipe, notices = nvcc_recipe(context, alone, generated_options(target))
    paths = tuple(file.path for file in files)
    part = plan_compiled(context, alone, recipe, paths, OutputKind.OBJECT, "", files=files, notices=notices)
    link = part.link
    if sources.cutlass:
        options = generated_options(target, include=(CUTLASS_INCLUDE,), flags=CUTLASS_FLAGS)
        roots = (("cutlass", context.toolchains.cutlass()),)
        recipe, _ = nvcc_recipe(context, alone, options, roots=roots, units=sources.units)
        paths = tuple(file.path for file in sources.cutlass)
        texts, read = (*sources.cutlass, *sources.headers.files), sources.headers.read
        more = plan_compiled(context, alone, recipe, paths, OutputKind.OBJECT, "", files=texts, read=read)
        part, link = part.beside(more), (*link, *more.link)
    kept = tuple(artifact for artifact in part.artifacts if artifact.path not in link)
    return msgspec.structs.replace(part, link=link, artifacts=kept)


def _linked(
    context: Context,
    target: ModelTarget,
    objects: tuple[str, ...],
    source: GeneratedFile | None = None,
    include: tuple[str, ...] = (),
    *,
    hip: bool,
) -> Part:
    """The objects as a library or program, with at most one source more."""
    options = generated_options(target, include=include)
    recipe, _ = hip_recipe(context, target, options) if hip else nvcc_recipe(context, target, options)
    files = () if source is None else (source,)
    paths = tuple(file.path for file in files)
    return plan_compiled(
        context, target, recipe, paths, target.output, target.output_name, files=files, objects=objects
    )
