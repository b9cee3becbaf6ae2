"""Generator of kind "model": puts operations of the other generated kinds into one library with a driver that runs
them.

Knows how a model's parts are compiled and linked, not what they contain (`spec`, `source_text`). A kernel is compiled
as in a target of its own kind, so that models and single-kernel targets share results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from codegen.arrays.array_kernel import is_hip
from codegen.arrays.array_kernel import kernel_file as plain_kernel_file
from codegen.compiled.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.compiled.hip import hip_recipe
from codegen.compiled.recipe import asked_archs, generated_options, needs_output, plan_compiled
from codegen.compilers import nvcc
from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.gemm.conv2d import conv2d_kernel
from codegen.gemm.convolution import ImplicitGemm, conv_of, implicit_gemm
from codegen.gemm.cutlass_headers import Headers
from codegen.gemm.decision import Choice, ChosenForAll, chosen, chosen_for_all, unmeasured
from codegen.gemm.gemm import kernel_sources, symbol_of
from codegen.gemm.kernel import GemmKernel
from codegen.gemm.kernel_options import Sizes as ProblemSizes
from codegen.gemm.kernel_options import is_open
from codegen.gemm.spec import is_measurable, kernel_for
from codegen.models.operations import GemmLaunch, PlainLaunch
from codegen.models.source_text import Streams, texts_of
from codegen.models.spec import Model, read_model
from codegen.models.tensors import Sizes
from codegen.plan import GeneratedFile
from codegen.project.target import Conv2dTarget, GemmTarget, ModelTarget, OutputKind

OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a model, grouped by their needs; each once, however many operations use it."""

    plain: tuple[GeneratedFile, ...]
    cutlass: tuple[GeneratedFile, ...]
    units: tuple[Unit, ...]
    """One unit for each source in `cutlass`."""
    headers: Headers


def plan_model(context: Context, target: ModelTarget) -> Part:
    """Return the part of a target of kind "model". Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    hip = is_hip(context, target)
    archs = () if hip else nvcc.normalised(asked_archs(context, target, amd=False), target.at("arch"))
    chosen_ones = _chosen(context, target, read_model(target, archs), archs)
    model, kernels = chosen_ones.model, chosen_ones.kernels
    symbol = symbol_of(target.name)
    if symbol[:1].isdigit():
        raise RequestError(
            "bad-model",
            f'"{target.name}" is not a valid name of a model: its C functions begin with the name',
            file=target.where,
            next_step="begin the name with a letter or _",
        )
    texts = texts_of(target.name, symbol, model, kernels, _streams(context), hip=hip)
    sources = _sources(context, model, kernels, archs, hip=hip)
    folder, ending = f"{context.build}/{target.name}/gen", "hip" if hip else "cu"
    header = GeneratedFile(path=f"{folder}/{symbol}.h", content=texts.header())
    driver = GeneratedFile(path=f"{folder}/{symbol}.{ending}", content=texts.driver())
    objects = _objects(context, target, sources, driver, hip=hip)
    objects = msgspec.structs.replace(
        objects,
        files=(header, *objects.files),
        notices=tuple(dict.fromkeys((*objects.notices, *chosen_ones.notices))),
        read=tuple(dict.fromkeys((*objects.read, *chosen_ones.read))),
        unmeasured=unmeasured(target.name, archs, chosen_ones.by_arch),
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
    """Return the streams that AITemplate's variables ask for. Raises RequestError: "bad-variable"."""
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


def gemms_of(target: ModelTarget, model: Model) -> Iterator[tuple[GemmTarget, ProblemSizes]]:
    """Yield a model's GEMMs and convolutions as separate targets, each with its largest sizes."""
    for op in model.ops:
        if isinstance(op.launch, GemmLaunch):
            yield _gemm_target(target, op.launch, model.sizes), _largest_of(op.launch, model.sizes)
        elif isinstance(op.launch, PlainLaunch) and op.launch.conv is not None:
            conv, image = _conv_target(target, op.launch, op.launch.conv, model.sizes)
            yield implicit_gemm(conv), image


def nameless(gemm: GemmTarget) -> GemmTarget:
    """Return a GEMM without its name: equal computations are then equal."""
    bare = msgspec.structs.replace(gemm, name="", where="", lines=(), profile=False)
    if not isinstance(bare, ImplicitGemm):
        return bare
    return msgspec.structs.replace(
        bare, conv=msgspec.structs.replace(bare.conv, name="", where="", lines=(), profile=False)
    )


def _gemm_target(target: ModelTarget, launch: GemmLaunch, sizes: Sizes) -> GemmTarget:
    """Return a GEMM of a model as a separate target, with its largest sizes if the model is to be measured."""
    gemm = msgspec.structs.replace(
        launch.target, arch=target.arch, flags=target.flags, define=target.define, map_paths=target.map_paths
    )
    if not (target.profile and is_measurable(gemm) and is_open(gemm)):
        return gemm
    return msgspec.structs.replace(gemm, profile=_largest_of(launch, sizes))


def _largest_of(launch: GemmLaunch, sizes: Sizes) -> ProblemSizes:
    """Return the largest problem of a model's GEMM in a target's order: the number of problems, m, n, k."""
    m, n, k, *batch = (sizes.most(dims) for dims in launch.sizes)
    return (*batch, m, n, k)


def _conv_target(
    target: ModelTarget, launch: PlainLaunch, conv: Conv2dTarget, sizes: Sizes
) -> tuple[Conv2dTarget, ProblemSizes]:
    """Return a convolution of a model as a separate target, and its largest x."""
    image = (sizes.most(launch.groups[0]), *conv.shape[1:])
    found = msgspec.structs.replace(
        conv, arch=target.arch, flags=target.flags, define=target.define, map_paths=target.map_paths
    )
    if target.profile and is_open(implicit_gemm(found)):
        found = msgspec.structs.replace(found, profile=image)
    return found, image


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A model with its chosen kernels."""

    model: Model
    kernels: dict[str, tuple[GemmKernel, ...]]
    """Name of a GEMM -> its kernel for each architecture."""
    by_arch: dict[str, list[Choice]]
    notices: list[str]
    read: list[str]


def _chosen(context: Context, target: ModelTarget, model: Model, archs: tuple[str, ...]) -> _Chosen:
    """Choose the kernels of a model. Equal GEMMs are decided once."""
    known: dict[GemmTarget, tuple[Choice, ...]] = {}
    convs: dict[GemmTarget, ChosenForAll] = {}
    found = _Chosen(model, {}, {arch: [] for arch in archs}, [], [])
    ops = []
    for op in model.ops:
        if isinstance(op.launch, GemmLaunch):
            gemm = _gemm_target(target, op.launch, model.sizes)
            same = msgspec.structs.replace(gemm, name="", where="", lines=())
            if same not in known:
                known[same] = tuple(chosen(context, gemm, arch) for arch in archs)
                found.notices.extend(choice.notice for choice in known[same] if choice.notice)
                found.read.extend(path for choice in known[same] for path in choice.read)
                for arch, choice in zip(archs, known[same], strict=True):
                    found.by_arch[arch].append(choice)
            found.kernels[op.name] = tuple(
                kernel_for(choice.target, arch) for choice, arch in zip(known[same], archs, strict=True)
            )
        elif isinstance(op.launch, PlainLaunch) and op.launch.conv is not None:
            conv, _ = _conv_target(target, op.launch, op.launch.conv, model.sizes)
            same = nameless(implicit_gemm(conv))
            if same not in convs:
                convs[same] = chosen_for_all(context, implicit_gemm(conv), archs)
                found.notices.extend(convs[same].notices)
                found.read.extend(convs[same].read)
                for arch, choices in convs[same].choices.items():
                    found.by_arch[arch].extend(choices)
            op = replace(op, launch=replace(op.launch, kernel=conv2d_kernel(conv_of(convs[same].target), archs)))
        ops.append(op)
    return replace(found, model=replace(model, ops=tuple(ops)))


def _sources(
    context: Context, model: Model, kernels: dict[str, tuple[GemmKernel, ...]], archs: tuple[str, ...], *, hip: bool
) -> _Sources:
    plain: dict[str, GeneratedFile] = {}
    cutlass: dict[str, tuple[GeneratedFile, Unit]] = {}
    gemms: dict[str, GemmKernel] = {}
    for op in model.launched:
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
    """Return the part with all compiles. A standalone test links the same objects a second time."""
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
    """Return the part that links the objects into a library or program, with at most one more source."""
    options = generated_options(target, include=include)
    recipe, _ = hip_recipe(context, target, options) if hip else nvcc_recipe(context, target, options)
    files = () if source is None else (source,)
    paths = tuple(file.path for file in files)
    return plan_compiled(
        context, target, recipe, paths, target.output, target.output_name, files=files, objects=objects
    )
