"""Says why the result of a command holds for one folder alone, and whether --map-paths helps. Decides nothing."""

from __future__ import annotations

from itertools import pairwise

from buildd.builds.active_build import ActiveBuild
from buildd.keys import checkout_paths
from buildd.native.bare_text import bare_text_of
from buildd.scheduling.delivery import Delivery
from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import Compile, Family, Makes
from codegen.compilers.temporary_roots import Roots
from codegen.flags import inspect


def unmapped(build: ActiveBuild, delivery: Delivery, holds_path: bool, holds_id: bool) -> str:
    """Why --map-paths is no way to a result that another folder has, or will have; empty if it is one, or if there is
    no such folder.

    Args:
        holds_path: the result contains the path of a folder that has another name in the next build.
        holds_id: the object contains an id that its compiler makes of the source's path.
    """
    missing = build.misses.get(0)
    if not (holds_path or (missing is not None and missing.elsewhere)):
        return ""
    compile = delivery.compile
    if compile.objects:
        return "--map-paths has no effect on a link"
    if compile.makes is Makes.RULES:
        return "a list of headers names them by their paths: --map-paths does not help"
    if holds_id:
        hip = compile.family is Family.HIPCC
        nvcc = "gives the module an id" if compile.relocatable else "names a kernel in an anonymous namespace by an id"
        what = "clang gives the object an id" if hip else f"nvcc {nvcc}"
        return f"{what} that it makes of the source's path: --map-paths does not help"
    if _is_debug(compile):
        return "-G writes the folder's path into the device code: --map-paths does not help"
    if folder := _named_in_source(build, delivery):
        return f"the source itself names {folder}: --map-paths does not help"
    macro = _macro_with_folder(compile, delivery.roots)
    return f"the macro {macro} holds the folder's path: --map-paths does not help" if macro else ""


def way_to_share(build: ActiveBuild) -> str:
    """The next step after a miss whose inputs another folder's result has; empty if there is none.

    Nothing to do is left if the build maps its paths already.
    """
    missing = build.misses.get(0)
    mapped = build.request.environment.get(temporary_roots.MAP_PATHS, "")
    if missing is None or not missing.elsewhere or mapped not in ("", temporary_roots.NOT_MAPPED):
        return ""
    return "next: call both builds with `buildd run --map-paths`, in a folder above the sources"


def holds_here(build: ActiveBuild, delivery: Delivery) -> str:
    """Why no result of another checkout could be found; empty if one would have been."""
    compile = delivery.compile
    if compile.makes is Makes.HEADER:
        return f"it contains the path of each header that it includes: it holds for {build.project} alone"
    if build.inputs.lookup.precompiled_of(build.plan.actions[0]).present:
        return "a precompiled header holds for one folder alone, and so do the objects of sources that read it"
    # A source that CMake wrote for a unity build names the checkout around the build folder, which may be no root.
    run_folder = build.request.environment.get(checkout_roots.RUN_FOLDER, "")
    if folder := _named_in_source(build, delivery, checkout_roots.folders_above(build.project, run_folder)):
        return f"the source itself names {folder}: its object holds for that folder alone, also with --map-paths"
    if not delivery.roots and (flag := checkout_roots.hiding_flag(compile, build.project, run_folder, compile.flags)):
        return (
            f"with {flag} the result may show its folder where buildd does not find it: it holds for that folder alone"
        )
    if compile.objects or not inspect(compile.flags).path_sensitive or delivery.roots:
        return ""
    if compile.family is Family.HIPCC:
        return f"with -g hipcc's result holds for {build.project} alone, also with --map-paths"
    if compile.family is not Family.NVCC:
        return ""
    if _is_debug(compile):
        return f"with -G nvcc's result holds for {build.project} alone, also with --map-paths"
    return (
        f"with -g or -lineinfo nvcc's result holds for {build.project} alone; with --map-paths it serves"
        " other checkouts too, unless a kernel lies in an anonymous namespace"
    )


def _is_debug(compile: Compile) -> bool:
    """Whether nvcc writes debug information of device code."""
    return compile.family is Family.NVCC and not {*compile.flags}.isdisjoint(("-G", "--device-debug"))


def _macro_with_folder(compile: Compile, roots: Roots) -> str:
    """The macro whose definition on the command line holds the path of a root's folder; empty if there is none."""
    for before, word in pairwise(("", *compile.flags)):
        definition = word if before == "-D" else word.removeprefix("-D") if word.startswith("-D") else ""
        name, _, value = definition.partition("=")
        if any(folder in value for _, folder in roots):
            return name
    return ""


def _named_in_source(build: ActiveBuild, delivery: Delivery, above: Roots = ()) -> str:
    """The folder of the checkout that the source's own text names, as CMake's unity sources do; empty if none.

    Args:
        above: folders that count beside the roots.
    """
    compile = delivery.compile
    if compile.objects or not delivery.roots:
        return ""
    roots = tuple(dict.fromkeys((*delivery.roots, *above)))
    snapshot = build.inputs.lookup.snapshot
    names = checkout_paths.held(snapshot, bare_text_of(build.store.folder), roots, (compile.source,), by_content=False)
    return max((folder for name, folder in roots if name in (names or ())), key=len, default="")
