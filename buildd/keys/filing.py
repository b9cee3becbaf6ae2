"""Filing: the key and input set under which a run is stored after its end, or the reason why it is not stored.

Knows the look-up before the run, stamps and what makes a result unsound; stores nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.digests import Fact
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import appeared_since
from buildd.files.traits import Traits
from buildd.keys import action_key, checkout_paths, include_search, once_only, path_sight, precompiled
from buildd.keys.checkout_paths import compilers_own
from buildd.keys.file_names import Names
from buildd.keys.lookup import Lookup, Missing
from buildd.keys.macro_words import shows_types
from buildd.keys.questions import NOTHING, Questions, answer, path_of
from buildd.keys.request_files import RequestFiles, input_folders
from buildd.keys.text_digests import filed_digest, is_bare
from buildd.native.bare_text import bare_text_of
from buildd.store.store import InputSet
from codegen.compilers import checkout_roots
from codegen.compilers.command_parser import may_precompile
from codegen.plan import MAPPED, Action, Discovery, TextUse, Tool
from codegen.reach import Reach, reach_of, read_regular, regular_file
from protocol.messages import Digest

PROJECT = "project"
"""The root that a tool has whose result may depend on where the project lies."""


@dataclass(frozen=True, slots=True)
class Filing:
    """What a finished run is stored under, or why it is not stored."""

    input_set: InputSet | None
    unstored: str = ""
    stale: tuple[str, ...] = ()
    """Inputs that changed while the tool ran."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A file that a tool read and that is not the same file for every process, such as /dev/stdin."""

    path: str
    reach: Reach


def read_apart(lookup: Lookup, read: Iterable[str], looked: dict[str, os.stat_result]) -> Apart | None:
    """The first file of a run that is not the same for every process, or that includes such a file.

    Args:
        lookup: the look-ups of the request that ran the tool.
        read: the files that the tool said it read, as it spelled them.
        looked: receives what lstat says of them now, for `file_run`.
    """
    snapshot, known = lookup.snapshot, lookup.reached
    paths, looked_ns = tuple(read), snapshot.files.now_ns()
    found: list[Apart] = []
    for path in paths:
        place = snapshot.absolute(path)
        if (status := regular_file(place, known)) is not None:
            looked[path] = status
        elif (reach := reach_of(place, known)) is not Reach.EVERYONE:
            found.append(Apart(path, reach))
    if found:
        return next((apart for apart in found if apart.reach is Reach.CALLER), found[0])
    names = [lookup.normal(path) for path in paths]
    snapshot.see(
        names, {name: looked[path] for name, path in zip(names, paths, strict=True) if path in looked}, looked_ns
    )
    for path in names:
        fact = None if snapshot.is_produced(path) else snapshot.fact(path)
        if fact is not None and fact.has(Traits.PROCESS):
            return Apart(path, Reach.CALLER)
    return None


def file_run(
    lookup: Lookup,
    action: Action,
    tool: Tool,
    missing: Missing,
    read: Iterable[str] | None,
    private: tuple[str, ...],
    started_ns: int,
    *,
    named: Collection[str] = (),
    expanded: bool = False,
    shows_lines: bool = False,
    seen_there: frozenset[str] | None = None,
    asked: Questions = NOTHING,
    looked: Mapping[str, os.stat_result] = {},
) -> Filing:
    """The input set that a run which just ended is stored under, or why the run is not stored.

    Args:
        lookup: the look-ups of the request that ran the action.
        action: the action that ran.
        tool: its tool.
        missing: the answer of the look-up before the run.
        read: the files that the tool said it read, as it spelled them; None where it said nothing.
        private: folders of the job's own files; no file below them is an input.
        started_ns: when the run began, by the file system's clock.
        named: roots whose folder the result contains.
        expanded: the result names a root if the text after preprocessing does.
        shows_lines: the tool's messages name lines of its sources, which they may quote with their comments.
        seen_there: if it ran on another machine: the files (absolute) that its search could find there. A file that
            only this machine has counts as one that appeared since.
        asked: what the tool said that it asked of the file system, other than files' contents.
        looked: what `read_apart` has seen of the files since the run ended.
    """
    if why := action.uncacheable or asked.unstored:
        return Filing(None, why)
    snapshot, files = lookup.snapshot, lookup.files
    moved: dict[str, bool] = {}
    stale = [
        path
        for path, digest in missing.inputs
        if snapshot.digest(path) != digest or not snapshot.untouched(path, path, started_ns, moved)
    ]
    if stale:
        return Filing(None, stale=tuple(stale))
    if read is None and action.discovery.value != "none":
        return Filing(None, "the tool did not say which files it read")
    used, stale = _used(files, action, read or (), private, started_ns, moved, looked)
    if stale:
        return Filing(None, stale=tuple(stale))
    mine = _private(private)
    asked_here = {
        question: answer
        for spelled, answer in asked.answers
        if not snapshot.absolute(question := _question(files, spelled)).startswith(mine)
    }
    if stale := [path_of(each) for each, known in asked_here.items() if answer(snapshot, each) != known]:
        return Filing(None, stale=tuple(stale))
    names = files.names_of(tool)
    taken = lookup.precompiled_of(action)
    skipped = once_only.skipped(files, action, tool, used, precompiled=bool(taken.present))
    if stale := [path for path in skipped if not snapshot.untouched(path, path, started_ns, moved)]:
        return Filing(None, stale=tuple(stale))
    used += skipped
    stale = list(_appeared(snapshot, taken.absent))
    stale += [path for path, _ in taken.present if not snapshot.untouched(path, path, started_ns, moved)]
    if stale:
        return Filing(None, stale=tuple(stale))
    if taken.computed or precompiled.defines(snapshot, used, taken.guards):
        return Filing(None, "the name of its first include is computed")
    for path, digest in taken.present:
        if digest is None or not precompiled.is_known(lookup.store, digest):
            return Filing(None, f"{path} was not made through buildd, or is a folder of precompiled headers")
    # The macros in a precompiled header cannot be searched for __FILE__.
    sensitive = {name for name, _ in tool.roots if taken.present and not name.startswith(MAPPED)}.union(named)
    moving = checkout_roots.checkouts(tool.roots)
    # The object shows the path in an assertion. Another macro may hand the path to something that computes with it.
    mentions = later = types = False
    # nvcc's front ends know no mapping, and compute with the real path of `__builtin_FILE`.
    unmapped = {name for name, _ in tool.roots if name.startswith(MAPPED)} if "cuda" in dict(tool.roots) else set()
    clocked = ""
    is_clang = action.discovery.is_clang
    # No preprocessor reads the objects of a link.
    declared = () if action.discovery is Discovery.GCC_LINKER and _are_objects(action.inputs) else action.inputs
    for path in (*declared, *used):
        fact = None if snapshot.is_produced(path) else snapshot.fact(path)
        if fact is None or fact.traits is Traits.NONE or fact.traits is Traits.ONCE:  # most headers
            continue
        if Traits.TIME in fact.traits and not (action.kind == "torch" and path.endswith(".py")):
            clocked = clocked or path
        reason = unsound_reason(snapshot, path, fact, action, tool)
        if reason:
            return Filing(None, reason)
        if fact.traits & (Traits.PATHS | Traits.ASSERT):
            root = names.root(path)
            sensitive.update(() if root.startswith(MAPPED) or checkout_roots.is_checkout(root) else (root,))
            if unmapped and Traits.PATHS_LATER in fact.traits:
                # A mapped folder is one of the tool's roots, too.
                is_users = root.startswith(MAPPED) or root in dict(checkout_roots.without_environments(moving))
                sensitive |= unmapped if is_users or not compilers_own(path, tool) else set()
            if moving and fact.traits & Traits.PATHS and not compilers_own(path, tool):
                mentions = mentions or not expanded
                later = later or Traits.PATHS_LATER in fact.traits
        if moving and Traits.TYPE_NAMES in fact.traits and not compilers_own(path, tool):
            types = shows_types(action)
    # Before version 16, clang does not read the variable.
    if clocked and (is_clang or not any(name == "SOURCE_DATE_EPOCH" for name, _ in action.environment)):
        own = [path for path in (*declared, *used) if not compilers_own(path, tool)]
        # A precompiled header hands its macros on to sources that do not name it.
        if may_precompile(action.argv, action.inputs) or path_sight.sees_clock(
            snapshot, bare_text_of(lookup.store.folder), action, own
        ):
            way = "" if is_clang else " (set SOURCE_DATE_EPOCH to have it stored)"
            return Filing(None, f"{clocked} mentions __DATE__ or __TIME__{way}")
    if mentions or later or types:
        shown: dict[str, list[str]] = {path: [] for path in (*action.inputs, *used) if not compilers_own(path, tool)}
        for spelled in read or ():
            if (path := files.normals.get(spelled) or files.normal(spelled)) in shown:
                shown[path].append(spelled)
        above = path_sight.holding_roots(snapshot, shown, moving)
        if types and path_sight.sees_types(snapshot, bare_text_of(lookup.store.folder), action, shown):
            sensitive |= above  # clang 14 maps no such path
        holding = above - checkout_roots.mapped_in(action, moving) if mentions or later else set()
        if not later and not sensitive.issuperset(holding):
            bare = bare_text_of(lookup.store.folder)
            holding = path_sight.seen_roots(snapshot, bare, action, shown, moving).intersection(holding)
        sensitive |= holding
    told = checkout_paths.told_roots(action, tool)
    if any_moving := checkout_roots.moving(tool.roots):
        by_content = shows_lines or action.text is TextUse.CONTENT
        bare = bare_text_of(lookup.store.folder)
        held = checkout_paths.held(snapshot, bare, any_moving, (*action.inputs, *used), by_content=by_content)
        if held is None:
            return Filing(None, "an input was changed just now")
        sensitive.update(held, checkout_paths.left(files, any_moving, read or ()), checkout_paths.behind_links(tool))
        # Of a root that it is not told, the tool knows no path: it searches from the working folder.
        escaping = checkout_paths.escaping(files, action, tool, any_moving, (*action.inputs, *used))
        sensitive.update(escaping.intersection(told))
        sensitive.update(checkout_paths.beside(snapshot, action, tool, used))
    if action.discovery is Discovery.REPORTED:
        sensitive.update(
            PROJECT for path in (*used, *map(path_of, asked_here)) if checkout_paths.is_outside(path, action, tool)
        )
    survey = files.survey(used, action, tool)
    # The tool searched earlier: files that the search finds now, or that __has_include sees now, may be newer.
    unsure = [path for path in survey.present if appeared_since(snapshot.absolute(path), started_ns, moved)]
    if unsure:
        read_now = {_real(snapshot.absolute(path)) for path in used}
        unsure = [path for path in unsure if _real(snapshot.absolute(path)) not in read_now]
    if seen_there is not None:
        unsure += [path for path in survey.present if _real(snapshot.absolute(path)) not in seen_there]
    unsure += [folder for folder, asked in survey.asked if not snapshot.listed_since(folder, started_ns, asked)]
    if unsure:
        return Filing(None, stale=tuple(unsure))
    files.discovered[action.name] = tuple(used)
    files.bare.discard(action.name)
    files.folders.update(survey.folders)
    links = _links(files, action, tool, read or ())
    files.folders.update((folder, snapshot.folder_stamp(folder)) for folder, _ in links)
    files.ask(asked_here)
    # Python names each module by its absolute path.
    placed = () if action.discovery is Discovery.REPORTED else read or ()
    as_it_is = checkout_paths.elsewhere_too(files, tool, placed, told)
    inputs = sorted(_filed(snapshot, names, action, used, shows_lines, as_it_is))
    filed = [(names.path(name), digest) for name, digest in inputs]
    asked_here |= once_only.questions(snapshot, action, tool, filed, skipped)
    files.twins[action.name] = once_only.twins(snapshot, action, filed, asked_here).paths
    inputs += sorted((names.name(each), known) for each, known in asked_here.items())
    if any(map(is_bare, inputs)):
        files.bare.add(action.name)
    bound = tuple((name, folder) for name, folder in tool.roots if name in sensitive)
    return Filing(
        InputSet(
            files=tuple(inputs),
            folders=input_folders(survey, names, links),
            roots=bound,
            key=action_key.result_digest(missing.first, inputs, bound),
        )
    )


def _real(path: str) -> str:
    """A path that may have `..` in it, as `RequestFiles.normal` names its file."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name) if "/.." in folder else path


def _appeared(snapshot: Snapshot, absent: Iterable[str]) -> Iterator[str]:
    """Those files that are there now, of some that this request has looked for and not found."""
    folders: dict[str, list[str]] = {}
    for path in absent:
        folder, name = os.path.split(path)
        folders.setdefault(folder or ".", []).append(name)
    for folder, names in folders.items():
        # A dozen names in each folder: most folders answer for all of theirs at one look.
        if not snapshot.has_same_names(folder):
            yield from (
                path for name in names if os.path.lexists(snapshot.absolute(path := os.path.join(folder, name)))
            )


def _filed(
    snapshot: Snapshot, names: Names, action: Action, used: Iterable[str], shows_lines: bool, as_it_is: Container[str]
) -> Iterator[tuple[str, Digest]]:
    """The files of an input set, by name. The first-level key does not hold all of a declared source's text.

    Args:
        as_it_is: those that have their absolute path for a name.
    """
    declared = action.inputs if shows_lines and action.text is not TextUse.CONTENT else ()
    for path in (*used, *declared):
        digest = filed_digest(snapshot, action, path, by_content=shows_lines)
        name = snapshot.absolute(path) if path in as_it_is else names.name(path)
        yield name, digest or Digest(action_key.MISSING)


def foresee(lookup: Lookup, action: Action, tool: Tool) -> None:
    """List the searched folders before a run, so that `file_run` notices changes in them during the run."""
    for folder in (*action.search, *tool.search):
        include_search.look_above(lookup.snapshot, lookup.files.searched(folder))


def _used(
    files: RequestFiles,
    action: Action,
    read: Iterable[str],
    private: tuple[str, ...],
    started_ns: int,
    moved: dict[str, bool],
    looked: Mapping[str, os.stat_result],
) -> tuple[list[str], list[str]]:
    """The discovered files that are not declared, and those among them that changed since the run began."""
    normals, untouched, absolute = files.normals, files.snapshot.untouched, files.snapshot.absolute
    declared = set(action.inputs)
    if _are_objects(action.inputs):  # how a link spells an object is in no result
        declared.update(map(files.normal, action.inputs))
    used: dict[str, str] = {}
    mine = _private(private)
    for spelled in read:
        path = normals.get(spelled) or files.normal(spelled)
        if path in used or path in declared or absolute(path).startswith(mine):
            continue
        used[path] = spelled
    files.snapshot.see(used)
    # A file that is gone now was there when the tool read it: it counts as changed.
    stale = [
        path for path, spelled in used.items() if not untouched(path, spelled, started_ns, moved, looked.get(spelled))
    ]
    return list(used), stale


def _private(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.realpath(folder) + "/" for folder in folders if folder)


def _question(files: RequestFiles, spelled: str) -> str:
    """A question about a path by the one name of that path."""
    path = path_of(spelled)
    name = files.normal(path)
    return ("." if name == files.snapshot.project else name) + spelled[len(path) :]


def _are_objects(paths: Iterable[str]) -> bool:
    return all(path.endswith((".o", ".obj")) for path in paths)


def unsound_reason(snapshot: Snapshot, path: str, fact: Fact, action: Action, tool: Tool) -> str:
    """Why a used file makes it impossible to look the result up; empty where it does not."""
    if action.kind == "torch" and path.endswith(".py"):
        return ""  # a module of a library was imported: words in it that an assembler would obey have no effect
    if Traits.TIMESTAMP in fact.traits:
        return f"{path} mentions __TIMESTAMP__"
    if Traits.PASTED in fact.traits:
        return f"{path} has parts of which ## may make __DATE__, __TIME__ or __TIMESTAMP__"
    if Traits.AGE in fact.traits:
        return f"{path} has a #pragma that compares the time of a file"
    if Traits.EMBED in fact.traits:
        return f"{path} embeds another file (.incbin, .include or #embed)"
    if Traits.THIN in fact.traits:
        return f"{path} is a thin archive: no linker lists the objects that it names"
    if Traits.SEARCHES in fact.traits and action.discovery in (Discovery.LINKER, Discovery.GCC_LINKER):
        return f"{path} names a folder for the linker to search"
    if Traits.HAS_INCLUDE in fact.traits and not checkout_paths.installed(path, tool):
        try:
            text = read_regular(snapshot.absolute(path))
            if blake3(text).hexdigest() != fact.digest:
                return f"{path} was changed just now"
            if include_search.asks_computed(text):
                return f"{path} asks __has_include for a computed name"
        except OSError:
            return f"{path} cannot be read"
    return ""


def _links(files: RequestFiles, action: Action, tool: Tool, read: Iterable[str]) -> list[tuple[str, str]]:
    """Folders that files were read in through links, each with the folder that the link leads to.

    A file that the tool found through a linked search folder, without another link below it, is left out: the key holds
    the link of the search folder itself.
    """
    led = [(folder.rstrip("/"), to) for folder in (*action.search, *tool.search) if (to := files.leads_to(folder))]
    found = []
    for folder in dict.fromkeys(map(files.folder_of, read)):
        to = files.leads_to(folder)
        if to and not any(_under(folder, top) and to == real + folder[len(top) :] for top, real in led):
            found.append((folder, files.searched(folder)))
    return found


def _under(folder: str, top: str) -> bool:
    return folder == top or folder.startswith(f"{top}/")
