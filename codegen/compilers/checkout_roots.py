"""Treats the folders of a checkout as roots, so that the same compile in another checkout has the same key.

Knows which folders a command line mentions by absolute path, and the forms in which a folder's path can stand in a
file; reads no file. A root's folder is left out of the key only if its path cannot reach the result:
`buildd.keys.filing` binds a result to the folders that it depends on. Folders of one build alone: `temporary_roots`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from codegen.compilers import temporary_roots
from codegen.compilers.command_parser import Compile, Family, Makes
from codegen.compilers.temporary_roots import Roots
from codegen.flags import inspect
from codegen.flags import words as flag_words
from codegen.plan import Action, Ref

RUN_FOLDER = "BUILDD_RUN_FOLDER"
"""Variable with the folder where `buildd run` was called."""
_HERE = "checkout"
_RUN = f"{_HERE}-run"
_APART = f"{_HERE}-apart"
"""Folders of a build that lies in none of the checkout's folders, as a cache below the user's home."""
ENVIRONMENT = f"{_HERE}-environment"
"""Virtual environments: see `environment_roots`."""
_LEVEL = re.compile(rf"{_HERE}(-\d+)?")
_PLAIN = re.compile(r"[\w/.+@~-]+", re.ASCII)
"""A path that stands in objects, texts and symbols in no other form than those that `names_in` searches for."""
_HIDES = re.compile(
    r"-frecord-.*|-grecord-.*|-fplugin.*|-fembed-bitcode.*|-f(no-)?unique-internal-linkage-names"
    r"|-fpseudo-probe-for-profiling"
    r"|.*(__FILE__|__BASE_FILE__|builtin_FILE|source_location).*"
    r"|-fmessage-length=0*[1-9].*|-Wmissing-include-dirs|-S"
)
"""Flags that put an unknown part of the command line or a digest of a path into an object, or mention the path of the
source. With -S, gcc writes a long path in pieces.
Also flags with which messages depend on a path's length, or on folders that no file is found in."""
SYSTEM = ("/usr", "/lib", "/lib64", "/opt")
"""Folders that belong to no checkout; shims look for none in them (shims/answer.c)."""
_ID_OR_PACKED = re.compile(rb"__hip_cuid_|__static__[0-9a-f]{8}|\.(intern|static)\.[0-9a-f]{8}|CCOB")
_EXPORTS = re.compile(r"shared|dynamic|(^|,)-E(,|$)")
"""Words of a command whose result may show its symbols to other libraries of one process."""
_MAPPING = re.compile(r"-f[a-z]+-prefix-map=([^=]*)=.*")
_OF_DEBUG = re.compile(r"-f(?:file|debug)-prefix-map=([^=]*)=.*")
OF_MACROS = ("-ffile-prefix-map=", "-fmacro-prefix-map=")
OF_ALL = (*OF_MACROS, "-fdebug-prefix-map=")
_WORD, _LETTER = re.compile(rb"[\w.]"), re.compile(rb"\w")
_BEFORE = rb"[\s'\"`(<\[=:,;\x80-\xff]"
_AFTER = rb"[/\s'\"`)>\]:,;\x80-\xff]"


def roots_of(
    compile: Compile,
    folder: str,
    run_folder: str,
    flags: Sequence[str],
    temporary: Roots,
    installed: Sequence[str] = (),
    *,
    clang: bool = False,
) -> Roots:
    """Return the folders of the checkout that a compile mentions: its working folder, the folder that its source has in
    common with it, those between the two, and the folder of a build that lies elsewhere. A name says how many levels a
    folder is above the working folder.

    Args:
        folder: the working folder of the compile.
        run_folder: value of RUN_FOLDER.
        flags: all flags of the tool, also those from its environment.
        temporary: temporary folders that the compile mentions, and mapped ones.
        installed: folders that belong to the tool or the system.
        clang: the compiler is clang.
    """
    nvcc, is_apart = compile.family is Family.NVCC, any(is_in(folder, known) for _, known in temporary)
    kernels = nvcc or compile.family is Family.HIPCC
    shows = inspect(flags).path_sensitive
    if not may_move(compile, flags, clang=clang) or (shows and (nvcc or is_apart)):
        return ()
    mapped = mapped_folders(flags)
    if is_apart:
        candidates = {_RUN: run_folder}
    else:
        source = folder if compile.objects else os.path.dirname(os.path.join(folder, compile.source))
        top = os.path.commonpath((folder, os.path.normpath(source)))
        if is_in(top, run_folder):
            top = run_folder
        levels = len(folder.split("/")) - len(top.split("/")) if top != "/" else 0
        candidates = {_HERE: folder, _RUN: run_folder}
        # Also the folders between: make compiles below a build folder, and that folder's name is no part of the source.
        above = folder
        for level in range(1, levels + 1):
            above = os.path.dirname(above)
            candidates[f"{_HERE}-{level}"] = above
        for old in (each.rstrip("/") for each in mapped):
            # A folder for all of a machine's users says nothing.
            if is_in(folder, old) and old != folder and old.count("/") > 1:
                candidates[f"{_HERE}-{folder.count('/') - old.count('/')}"] = old
        # A run that began far from the sources says nothing of what is one build.
        own = [path for path in candidates.values() if is_in(folder, path)]
        known = (*own, *(path for _, path in temporary), *installed, *SYSTEM)
        candidates |= _apart(compile, known)
    found = {name: path for name, path in candidates.items() if path.startswith("/") and is_plain(path)}
    if any(_is_cut(path, old) and old.rstrip("/") not in found.values() for old in mapped for path in found.values()):
        return ()  # the result shows a part of the path
    # nvcc and clang name modules after absolute paths, and so after this folder; -g and gcc's -flto show it.
    shows_here = kernels or shows or is_packed(flags)
    if shows_here and _HERE in candidates and _HERE not in found:
        return ()
    if list(found.values()).count(run_folder) > 1:
        del found[_RUN]
    roots = sorted_roots((*temporary, *found.items()))
    named = {a.name for a in temporary_roots.referring(compile.arguments, roots) if isinstance(a, Ref)}
    if shows_here:
        named.add(_HERE)
    if kernels and not named.intersection(name for name in found if name.startswith(_APART)):
        named.add(f"{_APART}-0")  # an object is known by its path
    return tuple((name, path) for name, path in found.items() if name in named)


def may_move(compile: Compile, flags: Sequence[str], *, clang: bool) -> bool:
    """Tell whether it can be found out which folders' paths reach what a compile makes. Args: as `roots_of`."""
    if compile.cuda:
        return False
    if compile.family is Family.HIPCC and (compile.makes is not Makes.OBJECT or temporary_roots.hides_folders(flags)):
        return False
    lists = compile.makes is Makes.RULES
    links = compile.family is Family.GCC and compile.makes is Makes.LINKED
    if not (compile.makes is Makes.OBJECT or compile.objects or lists or links):
        return False
    # Whether gcc's object contains a folder's path is known without a look at it.
    if is_packed(flags) and (clang or compile.family is not Family.GCC or compile.makes is not Makes.OBJECT):
        return False
    return not _hidden_and_mapped(flag_words(flags))[0]


def hiding_flag(compile: Compile, folder: str, run_folder: str, flags: Sequence[str]) -> str:
    """Return the flag without which folders of the checkout would be roots of a compile; empty if there is none. See
    `roots_of`."""
    words = flag_words(flags)
    hiding = [word for word in words if _HIDES.fullmatch(word)]
    others = [word for word in words if word not in hiding]
    return hiding[0] if hiding and roots_of(compile, folder, run_folder, others, ()) else ""


def folders_above(folder: str, top: str) -> Roots:
    """Return the folders above a folder, up to TOP; none if it does not lie there."""
    if not is_in(folder, top):
        return ()
    parts = folder.split("/")
    levels = range(1, len(parts) - len(top.rstrip("/").split("/")) + 1)
    found = ((f"{_HERE}-{level}", "/".join(parts[:-level])) for level in levels)
    return tuple((name, above) for name, above in found if above)


def is_plain(folder: str) -> bool:
    """Tell whether a folder's path is found in whatever contains it: no link leads to it, and no form of text writes it
    otherwise."""
    return has_one_spelling(folder) and os.path.realpath(folder) == folder


def has_one_spelling(folder: str) -> bool:
    """Tell whether no form of text writes a folder's path otherwise."""
    return folder != "/" and _PLAIN.fullmatch(folder) is not None


@lru_cache(maxsize=256)  # the sources of a build have the same flags
def _hidden_and_mapped(words: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return whether a word hides what the result shows, and the folders that the words map."""
    mapped = (match[1] for word in words if (match := _MAPPING.fullmatch(word)))
    return any(map(_HIDES.fullmatch, words)), tuple(mapped)


def mapped_folders(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the folders that the user's own flags map."""
    return _hidden_and_mapped(flag_words(flags))[1]


def is_packed(flags: Sequence[str]) -> bool:
    """Tell whether a flag makes the object's content unreadable. gcc's object then contains the working folder."""
    return any(map(temporary_roots.PACKED.fullmatch, flag_words(flags)))


def _is_cut(path: str, old: str) -> bool:
    """Tell whether a mapping of OLD leaves a part of a folder's path."""
    return path.startswith(old) and path != old.rstrip("/")


def shown_parts(flags: Sequence[str], roots: Roots) -> str:
    """Return what the user's own mappings leave of the roots' paths: with -ffile-prefix-map=/p=. a result may contain
    build of /p/build."""
    mapped = mapped_folders(flags)
    parts = {path[len(old.rstrip("/")) :] for old in mapped for _, path in roots if _is_cut(path, old)}
    return " ".join(sorted(parts))


def is_mapped(flags: Sequence[str], roots: Roots) -> bool:
    """Tell whether the user's own mappings keep the paths of a checkout's folders out of debug information, and nothing
    else shows them. An assembler may compress debug information: a path is not found in it."""
    old = [match[1] for word in flag_words(flags) if (match := _OF_DEBUG.fullmatch(word))]
    own = [path for _, path in without_environments(roots)]
    are_below = all(any(is_in(path, each.rstrip("/")) for each in old if each.startswith("/")) for path in own)
    return bool(own) and are_below and temporary_roots.shows_in_debug_alone(flags)


def mapped_in(action: Action, roots: Roots, options: Sequence[str] = OF_MACROS) -> set[str]:
    """Return the checkout's folders in place of whose path an action writes another one, as its own flags say.

    Args:
        options: the options that count; without any, those that map __FILE__.
    """
    folders = dict(roots)
    old = [
        folders[word.name]
        for word in action.argv
        if isinstance(word, Ref) and word.name in folders
        if word.prefix.endswith(tuple(options)) and word.suffix.startswith(("=", "/="))
    ]
    return {name for name, path in checkouts(roots) if any(is_in(path, each) for each in old)}


def _apart(compile: Compile, known: Sequence[str]) -> dict[str, str]:
    """Return the folders of a build that lies in no known folder: what the output has in common with each folder that
    the command names. A name says how many levels a folder is above the output. A list of includes may have no output;
    it has one folder, for all that the command names."""
    if compile.objects or (compile.output and not compile.output.startswith("/")):
        return {}
    output = os.path.dirname(os.path.normpath(compile.output)) if compile.output else ""
    mentioned = [path for path in temporary_roots.folders_in(compile.arguments) if path != compile.source]
    others = [path for path in mentioned if not any(is_in(path, each) for each in known)]
    if any(is_in(output, each) for each in known) or not (output or others):
        return {}
    shared = [os.path.commonpath((output, path)) for path in others] if output else [os.path.commonpath(others)]
    # A folder for all of a machine's users says nothing.
    found = [path for path in (output, *shared) if path.count("/") > 1]
    return {f"{_APART}-{output.count('/') - path.count('/')}" if output else _APART: path for path in found}


def sorted_roots(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return roots with nested folders first: their paths are not the outer folder's."""
    return tuple(sorted(roots, key=lambda root: (-len(root[1]), root)))


def is_checkout(name: str) -> bool:
    """Tell whether a root is a folder of a checkout."""
    return name.startswith(_HERE)


def is_level(name: str) -> bool:
    """Tell whether a root's name says how many levels it is above the working folder."""
    return _LEVEL.fullmatch(name) is not None


def is_apart(name: str) -> bool:
    """Tell whether a root is a folder of a build that lies elsewhere."""
    return name.startswith(_APART)


def is_environment(name: str) -> bool:
    """Tell whether a root is a virtual environment."""
    return name.startswith(ENVIRONMENT)


def always_bound(flags: Sequence[str], roots: Roots) -> bool:
    """Tell whether a result holds for the checkout's folders alone: a flag puts the working folder into it, or the
    folders that the command names."""
    shows = any(name == _HERE for name, _ in roots) and inspect(flags).path_sensitive
    return (shows and not is_mapped(flags, roots)) or (bool(checkouts(roots)) and is_packed(flags))


def checkouts(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return those of the roots that are folders of a checkout, or virtual environments: their paths are searched for
    in the same way."""
    return tuple(root for root in roots if is_checkout(root[0]))


def without_environments(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return those of the roots that are folders of a checkout."""
    return tuple(root for root in checkouts(roots) if not is_environment(root[0]))


def moving(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return those of a tool's roots that may be other folders in the next build: `checkouts`, and those of
    `temporary_roots`."""
    return tuple(root for root in roots if is_checkout(root[0]) or temporary_roots.is_moving(*root))


def others(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return the roots whose name is the same in every build, because their folder is of one build alone or mapped."""
    return tuple(root for root in roots if not is_checkout(root[0]))


def of_one_build(roots: Iterable[tuple[str, str]]) -> Roots:
    """Return the roots whose folder is of one build alone. Objects of two other folders may be linked into one program,
    also if the user had both folders mapped."""
    return tuple(root for root in others(roots) if root[0] != temporary_roots.BUILD)


def nameless(action: Action, roots: Roots) -> Roots:
    """Return the roots whose folder is in no module's name. That is all of them for an object that only one command
    links, the one which compiled it, unless others may see the symbols of what it makes: no object of another checkout
    is in such a program."""
    words = (word for word in action.argv if isinstance(word, str))
    alone = temporary_roots.is_part(action.outputs[0].path) and not any(map(_EXPORTS.search, words))
    return roots if alone else of_one_build(roots)


def naming(action: Action, source: str, roots: Roots) -> set[str]:
    """Return the roots whose folder is in the name of a module: its source, an absolute path, leads into them, or
    through them with `..`; its object lies in a build elsewhere. A folder of one build alone has one name in all
    builds."""
    passing = nameless(action, roots)
    made = action.outputs[0].path
    is_passing = temporary_roots.is_below(source, passing)
    return {
        root[0]
        for root in roots
        if root not in passing
        and (is_checkout(root[0]) or not is_passing)
        and any(is_in(path, root[1]) for path in (source, os.path.normpath(source), made if is_apart(root[0]) else ""))
    }


def names_in(content: bytes, roots: Roots) -> set[str]:
    """Return the roots that an object or device code mentions in any form."""
    found = temporary_roots.names_in(content, others(roots))
    for name, folder in searched_whole(roots):
        # gcc names a constructor after the source's path, with other characters replaced.
        symbols = (re.sub(f"[^A-Za-z0-9{kept}]", "_", folder) for kept in ("", "."))
        symbol = re.compile(rb"_GLOBAL__\w{1,24}?(?:%s)" % b"|".join(re.escape(each.encode()) for each in symbols))
        if folder.encode() in content or symbol.search(content):
            found.add(name)
    return found


def searched_whole(roots: Roots) -> Roots:
    """Return those of the roots that a text mentions only by their whole path. The others have a random part, which no
    text makes up."""
    return tuple(root for root in roots if is_checkout(root[0]) or root[0] in temporary_roots.SEARCHED_WHOLE)


def names_in_text(text: bytes, roots: Roots, *, preprocessed: bool = False) -> set[str]:
    """Return the roots that a text mentions.

    Args:
        preprocessed: the text's line markers do not count.
    """
    found = temporary_roots.names_in(text, others(roots), lines=preprocessed)
    for name, folder in searched_whole(roots):
        path = folder.encode()
        place = text.find(path)
        while place >= 0:
            is_part = (place and _WORD.match(text, place - 1)) or _LETTER.match(text, place + len(path))
            is_marker = preprocessed and text.startswith(b"#", text.rfind(b"\n", 0, place) + 1)
            if not (is_part or is_marker):
                found.add(name)
                break
            place = text.find(path, place + 1)
    return found


def holds_id(content: bytes) -> bool:
    """Tell whether an object of HIP has a symbol with its module's id, which clang makes of the source's path, or
    packed device code, in which neither an id nor a path is found."""
    return _ID_OR_PACKED.search(content) is not None


def names_held(text: bytes, roots: Roots) -> set[str]:
    """Return the checkout's roots that a tool's output mentions in a way in which `replaced` could not tell them from
    another word."""
    held = set()
    for name, folder in checkouts(roots):
        path = re.escape(folder.encode())
        clean = re.compile(rb"(?:^|(?<=%s))%s(?=%s|$)" % (_BEFORE, path, _AFTER))
        if len(clean.findall(text)) != text.count(folder.encode()):
            held.add(name)
    return held


def replaced(text: bytes, moves: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a tool's output with the present names of moved folders."""
    if not moves:
        return text
    now = dict(moves)
    longest_first = sorted(now, key=len, reverse=True)
    # In one pass: a present name may contain an old one.
    pattern = re.compile(b"(?:%s)(?![A-Za-z0-9_])" % b"|".join(map(re.escape, longest_first)))
    return pattern.sub(lambda match: now[match[0]], text)


def is_in(path: str, folder: str) -> bool:
    return folder not in ("", "/") and (path == folder or path.startswith(f"{folder}/"))
