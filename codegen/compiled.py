"""Sources -> objects -> a library, an executable or files a source: what CUDA and HIP have in common.

Knows no compiler's flags: a `Recipe` brings them. A target of 10,000 sources shares everything but the source's own
name between its actions, so planning it takes a fraction of a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codegen.context import Context, Part
from codegen.flags import FlagEffects
from codegen.plan import (
    Action,
    Argument,
    Discovery,
    Frozen,
    GeneratedFile,
    NamedArtifact,
    Output,
    Place,
    Ref,
    RequestError,
    Resources,
    Steps,
    Tool,
)
from codegen.sources import output_stem
from codegen.target import CompiledTarget, GeneratedTarget, OutputKind, Target
from codegen.toolchain import Compiler

MANY_OBJECTS = 500
"""nvcc hands its link line to a shell in one string, which Linux bounds to 128 KiB: more go through an archive."""

LINK_RESOURCES = Resources(memory_bytes=300 << 20, wall_s=0.5)
ARCHIVE_RESOURCES = Resources(memory_bytes=64 << 20, wall_s=0.1)

_OBJECT = Ref(place=Place.OUTPUT, name="object")


class Step(Frozen, frozen=True):
    """One result that each source has."""

    folder: str
    suffix: str
    """Of the result: ".o", ".sm_90a.cubin"."""
    options: tuple[Argument, ...]
    link: bool = True
    """It is an object that can be linked."""
    only: tuple[str, ...] | None = None
    """The sources that have this result; None means all."""
    resources: Resources | None = None
    """In place of the recipe's."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a target says to its compiler, apart from its sources."""

    output: OutputKind
    include: tuple[Argument, ...] = ()
    """As options: "-Iinclude"."""
    define: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    rdc: bool = False
    map_paths: bool = False
    shared: tuple[str, ...] = ()
    """The sources that other targets may have too: their code says nothing of this one."""


def options_of(target: CompiledTarget) -> Options:
    """Of a target with sources of the project's."""
    return Options(
        output=target.output,
        include=tuple(f"-I{os.path.normpath(path)}" for path in target.include),
        define=target.define,
        flags=target.flags,
        link_flags=target.link_flags,
        libraries=target.libraries,
        rdc=target.rdc,
        map_paths=target.map_paths,
    )


def generated_options(
    target: GeneratedTarget,
    *,
    include: tuple[Argument, ...] = (),
    flags: tuple[str, ...] = (),
    shared: tuple[str, ...] = (),
) -> Options:
    """Of a target with sources of ours. Equal for equal kernels, whatever they are part of: so they share results.

    Args:
        include, flags: that these sources need.
    """
    level = () if any(flag.startswith("-O") for flag in target.flags) else ("-O3",)
    return Options(
        output=target.output,
        include=include,
        define=target.define,
        flags=("-std=c++17", *flags, *level, *target.flags),
        map_paths=target.map_paths,
        shared=shared,
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a target's sources are compiled and linked."""

    label: str
    """Kind of the compile actions: "nvcc", "hipcc"."""
    compiler: Compiler
    steps: tuple[Step, ...]
    discovery: Discovery
    compile_effects: FlagEffects
    resources: Resources
    link_options: tuple[Argument, ...] = ()
    link_tail: tuple[Argument, ...] = ()
    """After the objects: libraries."""
    link_effects: FlagEffects = field(default_factory=FlagEffects)
    linker: Compiler | None = None
    """In place of `compiler`, where another tool identity links."""
    whole_archive: tuple[tuple[Argument, ...], tuple[Argument, ...]] = ((), ())
    """Around an archive of which everything is wanted."""
    soname: Callable[[str], tuple[Argument, ...]] = lambda name: ()
    runpath: Callable[[str], tuple[Argument, ...]] = lambda folder: ()
    per_source: Callable[[str], tuple[Argument, ...]] | None = None
    search: tuple[str, ...] = ()
    """Include folders of the flags."""
    decompose: Callable[[Step, str], Steps | str] | None = None
    """How the compiles of a step with sources of an extension (".cu") are carried out, or why as one process."""
    library_search: tuple[str, ...] = ()
    """Library folders of the flags."""
    device_link: bool = False
    reports: bool = False
    """The compiles report on each kernel; see `Action.reports`."""


def plan_compiled(
    context: Context,
    target: Target,
    recipe: Recipe,
    sources: tuple[str, ...],
    output: OutputKind,
    output_name: str,
    *,
    files: tuple[GeneratedFile, ...] = (),
    notices: tuple[str, ...] = (),
    read: tuple[str, ...] = (),
    objects: tuple[str, ...] = (),
) -> Part:
    """The share of the plan of one compiled target.

    Args:
        sources: relative to the project; generated ones too.
        files: generated sources.
        read: folders that were listed to find the sources.
        objects: that other recipes of this target make, and that are linked too.
    """
    folder = f"{context.build}/{target.name}"
    actions, by_step, stepwise = _compile(target, recipe, sources, folder)
    linkable = [*(path for step, paths in by_step for path in paths if step.link), *objects]
    tools: list[Tool] = [recipe.compiler.tool]
    links = _dependencies(context, target)
    if output not in (OutputKind.SHARED, OutputKind.EXECUTABLE, OutputKind.STATIC):
        artifacts = tuple(
            NamedArtifact(target=target.name, name=path.removeprefix(folder + "/"), path=path)
            for _, paths in by_step
            for path in paths
        )
        return Part(
            actions=tuple(actions),
            tools=tuple(tools),
            steps=stepwise,
            files=files,
            artifacts=artifacts,
            notices=notices,
            read=read,
            link=(*linkable, *links) if output is OutputKind.OBJECT else (),
            device_link=recipe.device_link,
        )
    name = output_name or _default_name(output, target.name)
    path = f"{folder}/{name}"
    if output is OutputKind.STATIC or len(linkable) > MANY_OBJECTS:
        archiver = context.toolchains.archiver()
        tools.append(archiver.tool)
        archive = path if output is OutputKind.STATIC else f"{folder}/obj/{target.name}.objects.a"
        actions.append(_archive(target, archiver, linkable, archive))
    if output is not OutputKind.STATIC:
        linked: list[Argument] = [Ref(place=Place.INPUT, name=item) for item in linkable]
        inputs = linkable
        if len(linkable) > MANY_OBJECTS:
            before, after = recipe.whole_archive
            linked = [*before, Ref(place=Place.INPUT, name=archive), *after]
            inputs = [archive]
        if recipe.linker is not None:
            tools.append(recipe.linker.tool)
        actions.append(_link(context, target, recipe, output, path, name, linked, inputs, links))
    return Part(
        actions=tuple(actions),
        tools=tuple(tools),
        steps=stepwise,
        files=files,
        artifacts=(
            NamedArtifact(target=target.name, name=name, path=path),
            *(
                NamedArtifact(target=target.name, name=item.removeprefix(folder + "/"), path=item)
                for step, paths in by_step
                if not step.link
                for item in paths
            ),
        ),
        notices=notices,
        read=read,
        link=(path, *links) if output is OutputKind.STATIC else (path,) if output is OutputKind.SHARED else (),
        device_link=recipe.device_link and output is OutputKind.STATIC,
    )


def _compile(
    target: Target, recipe: Recipe, sources: tuple[str, ...], folder: str
) -> tuple[list[Action], list[tuple[Step, list[str]]], tuple[Steps, ...]]:
    effects = recipe.compile_effects
    tool, environment = recipe.compiler.tool.name, recipe.compiler.environment
    search = tuple(dict.fromkeys(recipe.search))
    actions: list[Action] = []
    by_step: list[tuple[Step, list[str]]] = []
    stepwise: dict[str, Steps] = {}
    for step in recipe.steps:
        by_extension: dict[str, Steps | str] = {}
        start = (recipe.compiler.program, *step.options)
        paths: list[str] = []
        for source in sources if step.only is None else step.only:
            stem = output_stem(source.removeprefix(folder + "/")) + step.suffix
            path = f"{folder}/{step.folder}/{stem}"
            own = recipe.per_source(source) if recipe.per_source else ()
            paths.append(path)
            extension = os.path.splitext(source)[1]
            if extension not in by_extension:
                by_extension[extension] = recipe.decompose(step, extension) if recipe.decompose is not None else ""
            steps = by_extension[extension]
            if isinstance(steps, Steps):
                stepwise[steps.name] = steps
            actions.append(
                Action(
                    name=f"{target.name}/{stem}",
                    kind=recipe.label,
                    tool=tool,
                    argv=(*start, *own, "-o", _OBJECT, _as_argument(source)),
                    environment=environment,
                    inputs=(source, *effects.inputs),
                    outputs=(Output(name="object", path=path),),
                    discovery=recipe.discovery,
                    search=search,
                    path_sensitive=effects.path_sensitive,
                    uncacheable=effects.uncacheable,
                    steps=steps.name if isinstance(steps, Steps) else "",
                    whole=steps if isinstance(steps, str) else "",
                    reports=recipe.reports,
                    resources=step.resources or recipe.resources,
                    timeout_s=target.timeout_s,
                )
            )
        by_step.append((step, paths))
    return actions, by_step, tuple(stepwise.values())


def _as_argument(source: str) -> str:
    """A file whose name looks like an option is still a file."""
    return f"./{source}" if source.startswith(("-", "@")) else source


def _archive(target: Target, archiver: Compiler, objects: list[str], path: str) -> Action:
    return Action(
        name=f"{target.name}/{path.rpartition('/')[2]}",
        kind="ar",
        tool=archiver.tool.name,
        # D: no time stamps, owners or modes; equal objects make equal bytes.
        argv=(
            archiver.program,
            "rcsD",
            Ref(place=Place.OUTPUT, name="library"),
            *(Ref(place=Place.INPUT, name=item) for item in objects),
        ),
        environment=archiver.environment,
        inputs=tuple(objects),
        outputs=(Output(name="library", path=path),),
        resources=ARCHIVE_RESOURCES,
        timeout_s=target.timeout_s,
    )


def _link(
    context: Context,
    target: Target,
    recipe: Recipe,
    output: OutputKind,
    path: str,
    name: str,
    linked: Iterable[Argument],
    inputs: Iterable[str],
    links: tuple[str, ...],
) -> Action:
    shared = [item for item in links if item.endswith(".so")]
    folders = dict.fromkeys(item.rpartition("/")[0].rpartition("/")[2] for item in shared)
    effects = recipe.link_effects
    linker = recipe.linker or recipe.compiler
    return Action(
        name=f"{target.name}/{name}",
        kind="link",
        tool=linker.tool.name,
        argv=(
            linker.program,
            *(("-shared",) if output is OutputKind.SHARED else ()),
            *recipe.link_options,
            *(recipe.soname(name) if output is OutputKind.SHARED else ()),
            *(argument for folder in folders for argument in recipe.runpath(f"$ORIGIN/../{folder}")),
            "-o",
            Ref(place=Place.OUTPUT, name="linked"),
            *linked,
            *(Ref(place=Place.INPUT, name=item) for item in links),
            *recipe.link_tail,
        ),
        environment=linker.environment,
        inputs=(*inputs, *links, *effects.inputs),
        outputs=(Output(name="linked", path=path, executable=True),),
        discovery=Discovery.LINKER,
        search=recipe.library_search,
        path_sensitive=effects.path_sensitive,
        uncacheable=effects.uncacheable,
        resources=LINK_RESOURCES,
        timeout_s=target.timeout_s,
    )


def _dependencies(context: Context, target: Target) -> tuple[str, ...]:
    """What the targets in `deps` bring to a link, in order, each once and behind everything that needs it."""
    found = [item for name in target.deps if name in context.parts for item in context.parts[name].link]
    return tuple(reversed(dict.fromkeys(reversed(found))))


def _default_name(output: OutputKind, name: str) -> str:
    return {OutputKind.SHARED: f"lib{name}.so", OutputKind.STATIC: f"lib{name}.a"}.get(output, name)


def asked_archs(context: Context, target: Target, *, amd: bool) -> tuple[str, ...]:
    """The request's architectures of this vendor, else the target's: --arch sm_90 leaves HIP targets as they are.

    With AIT_BUILD_DOCS a CUDA target that names none is for sm_80, as AITemplate takes it where there is no GPU.
    """
    asked = tuple(arch for arch in context.request.arch if arch.startswith("gfx") == amd) or target.arch
    return asked or (("sm_80",) if not amd and context.variables.is_on("AIT_BUILD_DOCS") else ())


def needs_arch(target: Target, archs: tuple[str, ...], example: str) -> None:
    """Raises RequestError where no architecture is named: the GPU that happens to be here is not part of a key."""
    if not archs:
        raise RequestError(
            "bad-arch",
            f'target "{target.name}" names no architecture',
            file=target.where,
            next_step=f'add arch = ["{example}"], or ask with --arch {example}',
        )


def needs_output(target: Target, output: OutputKind, allowed: tuple[OutputKind, ...]) -> None:
    if output not in allowed:
        raise RequestError(
            "bad-project",
            f'target "{target.name}" cannot have the output "{output.value}"',
            file=target.where,
            next_step="possible: " + ", ".join(kind.value for kind in allowed),
        )
