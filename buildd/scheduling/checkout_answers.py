"""Tells in which folder the same command of another checkout has the same answer, so that its shim needs no daemon.

The result must be one that the daemon would find from there: no path of the folder reaches it (`buildd.keys.filing`).
All that the compile has read or searched lies below the folder, or in a place that every checkout names alike. Knows a
compile that was carried out or found; `answer_questions` knows how another checkout asks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from buildd.builds.active_build import ActiveBuild
from buildd.files.stamp_set import Stamps
from buildd.keys import checkout_paths
from buildd.keys.checkout_paths import installed_folders
from buildd.native.bare_text import bare_text_of
from buildd.scheduling.delivery import Delivery
from buildd.store.answer_questions import OWN, question_elsewhere
from buildd.store.answers import Answer
from codegen.compilers import checkout_roots
from codegen.compilers.command_parser import Family, Makes
from codegen.compilers.depfile import Rule
from codegen.compilers.temporary_roots import PREFIX_MAP
from codegen.plan import Action, Ref
from codegen.reach import split
from protocol import messages as m


def folder_of(
    build: ActiveBuild, delivery: Delivery, used: Sequence[str], read: Sequence[str], stamps: Stamps, tool: Stamps
) -> str:
    """The checkout's folder; empty if the answer holds for this folder alone.

    Args:
        used: the discovered inputs.
        read: the files that the tool read, as it spelled them.
        stamps: those of the answer.
        tool: those of the tool among them.
    """
    compile, (action,) = delivery.compile, build.plan.actions
    lookup = build.inputs.lookup
    known = lookup.lines.input_set(action)
    if known is None or compile.family is not Family.GCC or compile.makes is not Makes.OBJECT or delivery.ids.differ:
        return ""
    if checkout_roots.moving(known.roots) or checkout_roots.others(delivery.roots):
        return ""
    if compile.read:
        return ""  # a response file may name the folder: its words are in no question
    files = [*map(os.fsdecode, stamps.paths)]
    places = {*files}.difference(map(os.fsdecode, tool.paths))
    places |= {each.path for each in stamps.folders} - {each.path for each in tool.folders}
    fixed = _fixed(build, action)
    folder = _common(build, action, map(_plain, places), fixed)
    if not folder or not _moves(folder, files, stamps) or not _maps_alike(action, fixed):
        return ""
    project = build.inputs.snapshot.project
    reached = {*(split(path)[0] for path in files), *(each.path for each in stamps.folders if each.there is not None)}
    real = _above((project, *map(_plain, reached)))
    absolute = build.inputs.snapshot.absolute
    if not all(_leads_alike(absolute(path), folder, real) for path in (*read, *action.search)):
        return ""
    components = lookup.first_level(action, build.tool(action))[1]
    names = (name for name, _ in (*components, *known.files, *known.folders))
    if any(folder in text for text in (*names, *(value for _, value in components))):
        return ""
    return folder if _is_unseen(build, action, folder, used, read) else ""


def _fixed(build: ActiveBuild, action: Action) -> tuple[str, ...]:
    """The searched folders that the key names by their paths, each with a final slash."""
    own = [folder for _, folder in checkout_roots.without_environments(build.tool(action).roots)]
    tops = tuple(f"{top}/" for top in (*own, build.inputs.snapshot.project))
    searched = (f"{each}/" for each in map(os.path.normpath, filter(os.path.isabs, action.search)))
    return tuple(each for each in searched if not each.startswith(tops))


def _common(build: ActiveBuild, action: Action, places: Iterable[str], fixed: tuple[str, ...]) -> str:
    """The folder that has all places in it that do not have the same path in every checkout; empty if there is none.

    Args:
        fixed: `_fixed`.
    """
    tool, project = build.tool(action), build.inputs.snapshot.project
    own = [folder for _, folder in checkout_roots.without_environments(tool.roots)]
    # Of a folder that does not exist, the one above it is looked at.
    above = {os.path.dirname(each) for each in tool.search}
    alike = (*installed_folders(tool), *fixed)
    moving = [path for path in places if not f"{path}/".startswith(alike) and path not in above]
    moving += [os.path.normpath(os.path.join(project, each)) for each in action.search if not os.path.isabs(each)]
    folder = os.path.commonpath((project, *own, *moving))
    if not checkout_roots.is_plain(folder) or f"{folder}/".startswith(
        (*(f"{top}/" for top in checkout_roots.SYSTEM), *fixed)
    ):
        return ""
    return folder


def _moves(folder: str, files: Iterable[str], stamps: Stamps) -> bool:
    """Whether shims can tell in another checkout that all files and folders are the same there.

    Args:
        files: the paths of the stamps.
    """
    top = f"{folder}/"
    own = [path for path in files if path.startswith(top)]
    searched = [each for each in stamps.folders if f"{each.path}/".startswith(top)]
    # A folder is found by its names alone: its time is another one there.
    if any(each.there is None and each.stamp != 0 for each in searched):
        return False
    places = {os.path.dirname(path) for path in own}.union(each.path for each in searched)
    if any(map(os.path.islink, own)):
        return False
    return all(os.path.realpath(place) == os.path.normpath(place) for place in places)


def _maps_alike(action: Action, fixed: tuple[str, ...]) -> bool:
    """Whether the flags map the same paths in every checkout.

    Another checkout may lie in a folder that is mapped here by its absolute path. A folder that all of them name alike
    may lie in another checkout, or beside it with a path that begins as the checkout's does.
    """
    words = (word.prefix + word.suffix if isinstance(word, Ref) else word for word in action.argv)
    if fixed and any(PREFIX_MAP in word for word in words):
        return False
    maps = (
        word.partition(PREFIX_MAP)[2].partition("=")[0]
        for word in action.argv
        if isinstance(word, str) and PREFIX_MAP in word
    )
    return all(old and not os.path.isabs(old) for old in maps)


def _plain(path: str) -> str:
    """`os.path.normpath`, at a tenth of its time for most paths: a compile has hundreds."""
    return os.path.normpath(path) if "/." in path or "//" in path or path.endswith("/") else path


def _above(places: Iterable[str]) -> set[str]:
    """The folders that lead to some places, with these."""
    found: set[str] = set()
    for place in places:
        while place not in found:
            found.add(place)
            place = os.path.dirname(place)
    return found


def _leads_alike(path: str, folder: str, real: Collection[str]) -> bool:
    """Whether a path leads below the checkout's folder in every checkout, or in none.

    Args:
        path: as the tool spells it, behind the working folder.
        real: folders that shims reach without links.
    """
    top = f"{folder}/"
    if not path.startswith(top):
        return not f"{_plain(path)}/".startswith(top)
    at = folder
    for part in path[len(top) :].split("/"):
        if part == ".." and (at == folder or at not in real):
            return False
        at = os.path.normpath(os.path.join(at, part))
    return True


def _is_unseen(build: ActiveBuild, action: Action, folder: str, used: Sequence[str], read: Collection[str]) -> bool:
    """Whether no file leads to the folder by its path, or out of it by `..`.

    Args:
        read: the files that the tool read, as it spelled them.
    """
    lookup, tool = build.inputs.lookup, build.tool(action)
    if folder in dict(tool.roots).values():
        return True  # it was filed or found as a root of its own
    roots = (("checkout", folder),)
    bare, paths = bare_text_of(build.store.folder), (*action.inputs, *used)
    by_content = not lookup.holds_for_bare(action)
    if checkout_paths.held(lookup.snapshot, bare, roots, paths, by_content=by_content) != set():
        return False
    files = lookup.files
    return not checkout_paths.left(files, roots, read) and not checkout_paths.escaping(
        files, action, tool, roots, paths
    )


def for_any(answer: Answer, request: m.Request, rule: Rule | None, folder: str) -> Answer:
    """The answer for every checkout; the same one where a text could not be told from the folder's path.

    Args:
        rule: the depfile's, if it has one.
        folder: `folder_of` it.
    """
    elsewhere = question_elsewhere(request, folder)
    said = [_moved(text, folder) for text in (answer.stdout, answer.stderr)]
    names = (*(rule.targets + rule.files if rule else ()), answer.output, answer.depfile)
    mixed = any(folder in name.removeprefix(folder) or chr(OWN[0]) in name for name in names)
    if not elsewhere or mixed or said[0] is None or said[1] is None:
        return answer
    return replace(answer, folder=folder, elsewhere=elsewhere, rule=rule, stdout=said[0], stderr=said[1])


def _moved(text: bytes, folder: str) -> bytes | None:
    """What a tool said, with OWN in place of the folder's path; None if another word may have the path in it."""
    if OWN in text or checkout_roots.names_held(text, (("checkout", folder),)):
        return None
    return checkout_roots.replaced(text, [(os.fsencode(folder), OWN)])
