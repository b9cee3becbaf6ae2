"""Expands source patterns into files, and names the outputs made from them.

Knows no target kind. Globs are expanded here and not by `glob` for two reasons: a file added to a listed folder changes
the plan, so the listed folders must be known; and outputs in the build folder must not become sources.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import translate

from codegen.errors import RequestError, nearest

MOST_FOLDERS = 100_000
"""Folders that the globs of one list may look into."""
_MAGIC = re.compile(r"[*?\[]")


def leaves_root(path: str) -> bool:
    """Tell whether a path is absolute or escapes the folder that it is relative to."""
    return os.path.isabs(path) or os.path.normpath(path).split(os.sep, 1)[0] == os.pardir


def expand(folder: str, patterns: tuple[str, ...], exclude: str, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that match the patterns, and the folders (absolute) that were listed.

    Patterns keep their order, the matches of one glob are sorted, and each file appears once.

    Args:
        folder: the project's folder.
        patterns: files, or globs with *, ?, [...] and ** for any depth.
        exclude: a folder, relative to the project, that globs do not enter.
        where: "buildd.toml:12", for errors.

    Raises:
        RequestError: a file is missing, a name is not UTF-8, or a glob matches nothing, looks into too many folders or
            into one that cannot be read.
    """
    files: dict[str, None] = {}
    listed: dict[str, None] = {}
    for pattern in patterns:
        path = os.path.normpath(pattern)
        if _MAGIC.search(path):
            try:
                matches = sorted(_glob(folder, path, exclude, listed))
            except _TooWideError as error:
                raise RequestError(
                    "missing-source",
                    f'the pattern "{pattern}" looks into {error}',
                    file=where,
                    next_step="name the folder that the sources are in",
                ) from error
            except OSError as error:
                raise RequestError(
                    "missing-source",
                    f'the pattern "{pattern}" looks into {error.filename}, which cannot be read: {error.strerror}',
                    file=where,
                    next_step="name a folder that you may read, or change this folder's permissions",
                ) from error
            if not matches:
                raise RequestError(
                    "missing-source",
                    f'no file matches "{pattern}" in {folder}',
                    file=where,
                    next_step="correct or remove the pattern",
                )
            files.update(dict.fromkeys(matches))
        else:
            absolute = os.path.join(folder, path)
            if not os.path.isfile(absolute):
                what = "is not a regular file" if os.path.exists(absolute) else "does not exist"
                what = "is a folder" if os.path.isdir(absolute) else what
                raise RequestError(
                    "missing-source",
                    f'source "{pattern}" {what} ({absolute})',
                    file=where,
                    next_step="correct `sources`, or restore the file",
                )
            files[path] = None
    for path in files:
        if not path.isascii():
            _check_utf8(path, where)
    return tuple(files), tuple(listed)


def check_folders(folder: str, paths: Iterable[str], exclude: str, where: str) -> None:
    """Raise RequestError for a folder of headers that does not exist: a compiler ignores it and misses the headers.

    Args:
        exclude: a folder, relative to the project, that builds fill.
    """
    for path in paths:
        wanted = os.path.normpath(path)
        if os.path.isdir(os.path.join(folder, wanted)) or f"{wanted}/".startswith(f"{exclude}/"):
            continue
        above, name = os.path.split(wanted)
        try:
            near = [entry.name for entry in os.scandir(os.path.join(folder, above)) if entry.is_dir()]
        except OSError:
            near = []
        exists = os.path.exists(os.path.join(folder, wanted))
        raise RequestError(
            "missing-folder",
            f'"{path}" of `include` is no folder'
            if exists
            else f'there is no folder "{path}", which `include` names{nearest(name, near)}',
            file=where,
            next_step="correct or remove it",
        )


def _check_utf8(path: str, where: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise RequestError(
            "bad-path", f'the name of source "{shown}" is not UTF-8', file=where, next_step="rename the file"
        ) from error


class _TooWideError(Exception):
    """A glob looks into more than a project can have."""


def _glob(folder: str, pattern: str, exclude: str, listed: dict[str, None]) -> list[str]:
    """Return matches relative to `folder`. As in a shell, * does not match a leading dot; ** does not follow links."""
    start = os.sep if os.path.isabs(pattern) else ""
    level = [start]
    parts = [part for part in pattern.split(os.sep) if part]
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        following: dict[str, None] = {}
        if part == "**":
            for base in level:
                if os.path.realpath(os.path.join(folder, base)) == os.sep:
                    raise _TooWideError("every folder of this machine")
                following.update(dict.fromkeys(_below(folder, base, exclude, listed)))
            if last:
                return [path for base in following for path in _entries(folder, base, "*", True, exclude, listed)]
        elif _MAGIC.search(part):
            for base in level:
                following.update(dict.fromkeys(_entries(folder, base, part, last, exclude, listed)))
        else:
            for base in level:
                path = os.path.join(base, part)
                absolute = os.path.join(folder, path)
                if os.path.isfile(absolute) if last else os.path.isdir(absolute):
                    following[path] = None
                else:
                    listed[os.path.join(folder, base).rstrip(os.sep) or os.sep] = None
        level = list(following)
    return level


def _entries(folder: str, base: str, pattern: str, files: bool, exclude: str, listed: dict[str, None]) -> list[str]:
    match = re.compile(translate(pattern)).match
    absolute = os.path.join(folder, base).rstrip(os.sep) or os.sep
    listed[absolute] = None
    found = []
    try:
        with os.scandir(absolute) as entries:
            for entry in entries:
                name = entry.name
                if match(name) and (name[0] != "." or pattern[0] == "."):
                    path = os.path.join(base, name)
                    if (entry.is_file() if files else entry.is_dir()) and path != exclude:
                        found.append(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return found


def _below(folder: str, base: str, exclude: str, listed: dict[str, None]) -> list[str]:
    """Return `base` and every folder below it."""
    found = [base]
    for path in found:
        absolute = os.path.join(folder, path).rstrip(os.sep) or os.sep
        listed[absolute] = None
        if len(listed) > MOST_FOLDERS:
            raise _TooWideError(f"more than {MOST_FOLDERS} folders")
        try:
            with os.scandir(absolute) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in sorted(names):
            child = os.path.join(path, name)
            if name[0] != "." and child != exclude:
                found.append(child)
    return found


def output_stem(source: str) -> str:
    """Return the path of a source's outputs, without suffix, below its target's build folder, also for sources outside
    the project."""
    if source.isascii() and source[:1] not in "./" and ".." not in source:
        return source
    parts = os.path.normpath(source).split(os.sep)
    return "/".join("__" if part == os.pardir else part for part in parts if part)
