"""Headers of which compilers read one alone although they are two files, because their text is the same.

After a `#pragma once` or an `#import`, gcc takes a header for one that it has read if their contents and their times,
in seconds, are equal. It lists the first one alone. clang does so if one is a link to the other, and lists both. So a
result depends on times and links that no key has, and perhaps on a file that no list has. Knows the request's files;
knows no store.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from buildd.keys.checkout_paths import installed
from buildd.keys.request_files import RequestFiles
from codegen.plan import Action, Discovery, Tool
from codegen.reach import read_regular
from protocol.messages import Digest

_MOST = 1 << 15
_ONCE = re.compile(rb"(?:#|%:)\s*pragma\s+once\b|_Pragma\s*\(\s*L?\"\s*once")
_IMPORT = re.compile(rb"^\s*(?:#|%:)\s*import\b", re.MULTILINE)
_INCLUDED = re.compile(rb"(?:include|include_next|import)\s*(?:<([^>\n]+)>|\"([^\"\n]+)\")")


@dataclass(frozen=True, slots=True)
class _Text:
    is_once: bool
    imports: bool
    names: frozenset[str]
    """Of the files that it includes, inactive ones too."""


_EMPTY = _Text(is_once=False, imports=False, names=frozenset())
_texts: OrderedDict[Digest, _Text] = OrderedDict()
"""By the file's digest: all compiles of a project read the same headers."""
_lock = threading.Lock()


def doubles(files: RequestFiles, action: Action, tool: Tool, read: Iterable[str]) -> tuple[str, str] | None:
    """Two files of which the compiler may read one alone; None if there are none.

    Files that came with the tool or the system are no such pair: nobody edits them.

    Args:
        read: the files that the tool read, without those of its links.
    """
    is_clang = action.discovery.is_clang
    if not is_clang and action.discovery not in (Discovery.GCC, Discovery.GCC_LINKER):
        return None
    snapshot = files.snapshot
    digests = {path: digest for path in read if (digest := snapshot.digest(path)) and not snapshot.is_produced(path)}
    own = [path for path in digests if not installed(path, tool)]
    texts = [_text_of(snapshot.absolute(path), digests[path]) for path in own]
    imports = any(text.imports for text in texts)
    once = {digests[path]: path for path, text in zip(own, texts, strict=True) if text.is_once or imports}
    for path, digest in digests.items():
        if once.get(digest, path) != path:
            return path, once[digest]
    if is_clang:
        return None
    # The other one may be where an include of its name leads.
    ends = {os.path.basename(path) for path in once.values()}
    names = {name for text in texts for name in text.names if os.path.basename(name) in ends}
    folders = dict.fromkeys((*map(os.path.dirname, own), *map(files.searched, action.search)))
    for path in dict.fromkeys(os.path.normpath(os.path.join(folder, name)) for folder in folders for name in names):
        folder, name = os.path.split(path)
        if path not in digests and name in (snapshot.listing(folder or ".") or ()):
            other = once.get(snapshot.digest(path) or Digest(""))
            if other is not None and files.normal(path) not in digests:
                return other, path
    return None


def _text_of(path: str, digest: Digest) -> _Text:
    with _lock:
        known = _texts.get(digest)
    if known is None:
        try:
            content = read_regular(path)
        except OSError:
            return _EMPTY
        if blake3(content).hexdigest() != digest:
            return _EMPTY
        names = frozenset(os.fsdecode(quoted or angled) for angled, quoted in _INCLUDED.findall(content))
        known = _Text(_ONCE.search(content) is not None, _IMPORT.search(content) is not None, names)
        with _lock:
            _texts[digest] = known
            while len(_texts) > _MOST:
                _texts.popitem(last=False)
    return known
