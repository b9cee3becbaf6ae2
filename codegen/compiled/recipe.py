"""Plans the way from sources to objects to a library, an executable or one file per source, for both CUDA and HIP.

Knows no compiler's flags: a `Recipe` has them. The actions of a target share everything except the source's own name,
so planning 10,000 sources takes a fraction of a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codegen.compilers.compiler import Compiler
from codegen.context import Context, Part
from codegen.errors import RequestError
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
    Resources,
    Steps,
    Tool,
)
from codegen.project.target import CompiledTarget, GeneratedTarget, OutputKind, Target
from codegen.sources import output_stem
from codegen.steps.text_use import is_older, spelled, text_use

MANY_OBJECTS = 500
"""nvcc passes its link command to a shell as one string, which Linux limits to 128 KiB: more objects go through an
archive."""

LINK_RESOURCES = Resources(memory_bytes=300 << 20, wall_s=0.5)
ARCHIVE_RESOURCES = Resources(memory_bytes=64 << 20, wall_s=0.1)

_OBJECT = Ref(place=Place.OUTPUT, name="object")


class Step(Frozen, frozen=True):
    """One kind of output that each source has."""

    folder: str
    suffix: str
    """Suffix of the output: ".o", ".sm_90a.cubin"."""
    options: tuple[Argument, ...]
    link: bool = True
    """The output is an object that can be linked."""
    only: tuple[str, ...] | None = None
    """The sources that have this output; None means all."""
    resources: Resources | None = None
    """Replaces the recipe's resources."""


@dataclass(frozen=True, slots=True)
class Options:
    """A target's settings for its compiler, other than its sources."""

    output: OutputKind
    include: tuple[Argument, ...] = ()
    """Include folders as options: "-Iinclude"."""
    define: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    rdc: bool = False
    map_paths: bool = False
    aitemplate: bool = False
    """AITemplate's defaults apply, see `own_sources`."""
    shared: tuple[str, ...] = ()
    """Sources that other targets may share: their text does not depend on this target."""


def options_of(target: CompiledTarget, *, aitemplate: bool = False) -> Options:
    """Return the options of a target with the project's own sources."""
    return Options(
        aitemplate=aitemplate,
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
    """Return the options of a target with generated sources. Equal kernels have equal options in every target, so they
    share results.

    Args:
        include, flags: additions that these sources need.
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
    """The way a target's sources are compiled and linked."""

    label: str
    """Kind of the compile actions: "nvcc", "hipcc"."""
    compiler: Compiler
    steps: tuple[Step, ...]
    discovery: Discovery
    compile_effects: FlagEffects
    resources: Resources
    link_options: tuple[Argument, ...] = ()
    link_tail: tuple[Argument, ...] = ()
    """Words after the objects: libraries."""
    link_effects: FlagEffects = field(default_factory=FlagEffects)
    linker: Compiler | None = None
    """Replaces `compiler` for linking, if the linking tool has another identity."""
    whole_archive: tuple[tuple[Argument, ...], tuple[Argument, ...]] = ((), ())
    """Words before and after an archive that is linked whole."""
    soname: Callable[[str], tuple[Argument, ...]] = lambda name: ()
    runpath: Callable[[str], tuple[Argument, ...]] = lambda folder: ()
    per_source: Callable[[str], tuple[Argument, ...]] | None = None
    search: tuple[str, ...] = ()
    """Include folders of the flags."""
    decompose: Callable[[Step, str], Steps | str] | None = None
    """Returns the steps of compiles with an output `Step` and a source extension (".cu"), or the reason why they run
    whole."""
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
    """Return the part of one compiled target.

    Args:
        sources: sources relative to the project, including generated ones.
        files: generated sources.
        read: folders that were listed to find the sources.
        objects: objects made by other recipes of this target, which are also linked.
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
        flags = spelled(start, environment)
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
                    text=text_use(
                        source,
                        flags + spelled(own, ()) if own else flags,
                        clang=recipe.compiler.clang,
                        nvcc_whole=recipe.label == "nvcc" and not isinstance(steps, Steps),
                    ),
                    older=is_older(source, (*flags, *spelled(own, ()))),
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
    """Return a source as a word that no tool reads as an option."""
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
    """Return the outputs of the targets in `deps` for a link, each once and after everything that needs it."""
    found = [item for name in target.deps if name in context.parts for item in context.parts[name].link]
    return tuple(reversed(dict.fromkeys(reversed(found))))


def _default_name(output: OutputKind, name: str) -> str:
    return {OutputKind.SHARED: f"lib{name}.so", OutputKind.STATIC: f"lib{name}.a"}.get(output, name)


def asked_archs(context: Context, target: Target, *, amd: bool) -> tuple[str, ...]:
    """Return the request's architectures of this vendor, else the target's: --arch sm_90 does not change HIP targets.

    With AIT_BUILD_DOCS a CUDA target without architecture is built for sm_80, as AITemplate does without a GPU.
    """
    asked = tuple(arch for arch in context.request.arch if arch.startswith("gfx") == amd) or target.arch
    return asked or (("sm_80",) if not amd and context.variables.is_on("AIT_BUILD_DOCS") else ())


def arch_place(context: Context, target: Target) -> str:
    """Return the place to look at if an architecture is wrong; empty if the request names it, not the target."""
    return "" if context.request.arch else target.at("arch")


def needs_arch(target: Target, archs: tuple[str, ...], example: str) -> None:
    """Raise RequestError if no architecture is named: keys do not depend on this machine's GPU."""
    if not archs:
        raise RequestError(
            "bad-arch",
            f'target "{target.name}" names no architecture',
            file=target.where,
            next_step=f'add arch = ["{example}"], or pass --arch {example}',
        )


def needs_output(target: Target, output: OutputKind, allowed: tuple[OutputKind, ...]) -> None:
    if output not in allowed:
        raise RequestError(
            "bad-project",
            f'target "{target.name}" cannot have the output "{output.value}"',
            file=target.at("output"),
            next_step="choose one of: " + ", ".join(kind.value for kind in allowed),
        )
