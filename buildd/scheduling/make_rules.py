"""Depfiles as compilers write them: which names, in which order, how they are quoted, where lines end.

Knows no build and no file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from buildd.keys.depfiles import without_dot
from codegen.compilers.depfile import Depfile, HeaderFolders, Rule, quoted

_MOST_COLUMNS, _MOST_CLANG_COLUMNS = 72, 75


def make_rule(
    depfile: Depfile, source: str, paths: Iterable[str], folders: HeaderFolders, *, clang: bool = False
) -> Rule:
    """The names in a depfile as gcc writes it: none begins with "./", also no target.

    Args:
        paths: files that the tool read, as it spelled them, with or without the source.
        folders: those that decide which headers -MMD leaves out.
        clang: as clang writes it: targets as they are, and the source stands in its place among the others.
    """
    source, *files = (without_dot(path) for path in (source, *paths))
    # A list of a sanitizer stands before it.
    place = files.index(source) if clang and source in files else 0
    before, after = ([path for path in part if path != source] for part in (files[:place], files[place:]))
    if not depfile.system:
        before, after = user_files(before, folders), user_files(after, folders)
    targets = depfile.targets if clang else tuple(map(without_dot, depfile.targets))
    names = tuple(map(quoted, (*before, source, *after)))
    return Rule(targets, names, len(before), depfile.phony, clang)


def written(rule: Rule) -> bytes:
    """The content of a depfile with this rule."""
    text = (_clang_lines if rule.clang else _gcc_lines)(rule.targets, rule.files)
    if rule.phony:
        text += "".join(f"{name}:\n" for index, name in enumerate(rule.files) if index != rule.source)
    return os.fsencode(text)


def nvcc_rules(depfile: Depfile, source: str, files: Sequence[str]) -> bytes:
    """A depfile as nvcc writes it: names as in its preprocessor's line markers, quoted for make only where they have a
    blank.

    Args:
        files: without the source.
    """
    source, *names = (path.replace("\\", "/").replace(" ", "\\ ") for path in (source, *files))
    text = " ".join(depfile.targets) + " : " + " \\\n    ".join((source, *names)) + "\n"
    if depfile.phony:
        text += "".join(f"\n{name}:\n" for name in names)
    return os.fsencode(text)


def user_files(paths: Iterable[str], folders: HeaderFolders) -> list[str]:
    """The paths that are no system headers."""
    return [path for path in paths if not folders.is_system(_plain(path))]


def _gcc_lines(targets: Iterable[str], files: Iterable[str]) -> str:
    """A rule with the line breaks of gcc's (libcpp/mkdeps.cc, `make_write_name`); rule.c makes the same."""
    text, column = "", 0
    for names, end in ((targets, ":"), (files, "\n")):
        for name in names:
            columns = _columns(name)
            if column and column + columns > _MOST_COLUMNS:
                text, column = f"{text} \\\n", 0
            if text:
                text, column = f"{text} ", column + 1
            text, column = text + name, column + columns
        text, column = text + end, column + 1
    return text


def _clang_lines(targets: Iterable[str], files: Iterable[str]) -> str:
    """A rule with the line breaks of clang's (lib/Frontend/DependencyFile.cpp); rule.c makes the same."""
    text, column = "", 0
    for name in targets:
        columns = _columns(name)
        breaks = column > 0 and column + columns + 2 > _MOST_CLANG_COLUMNS
        text += ("" if not column else " \\\n  " if breaks else " ") + name
        column = columns + 2 if breaks else column + columns + (column > 0)
    text, column = f"{text}:", column + 1
    for name in files:
        columns = _columns(name)
        if column + columns + 3 > _MOST_CLANG_COLUMNS:
            text, column = f"{text} \\\n ", 2
        text, column = f"{text} {name}", column + columns + 1
    return f"{text}\n"


def _columns(name: str) -> int:
    return len(name) if name.isascii() else len(os.fsencode(name))


def _plain(path: str) -> str:
    """A path without "..", by which clang's own folders name the headers of gcc."""
    return os.path.normpath(path) if "/../" in path and path.startswith("/") else path
