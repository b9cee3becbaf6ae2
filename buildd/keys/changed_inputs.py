"""Names the inputs that keep a stored result from being a hit: a few of them, and how many there are.

Knows stamps and digests by way of the snapshot, and nothing of keys.
"""

from __future__ import annotations

from buildd.files.snapshot import Snapshot
from buildd.keys import questions
from buildd.keys.file_names import Names
from buildd.keys.text_digests import Stands, stands
from buildd.store.store import InputSet
from codegen.plan import Action
from protocol.messages import Digest

_MOST_NAMED = 3


def reason(snapshot: Snapshot, path: str) -> str:
    """Why a file is not what an input set holds, in words."""
    return f"input {path}: {'no longer there' if snapshot.digest(path) is None else 'content changed'}"


def reasons(first: str, snapshot: Snapshot, action: Action, known: InputSet, names: Names) -> tuple[str, ...]:
    """Why an input set does not match: the first reason that was found and, if it is an input, those that differ too.

    Args:
        first: why `known` does not match, in words.
    """
    if not first.startswith("input "):
        return (first,)
    files = ((names.path(name), digest) for name, digest in known.files)
    changed = (reason(snapshot, path) for path, digest in files if _differs(snapshot, action, path, digest))
    told = tuple(dict.fromkeys((first, *changed)))
    rest = len(told) - _MOST_NAMED
    more = (f"{rest} more {'input' if rest == 1 else 'inputs'} changed",) if rest > 0 else ()
    return (*told[:_MOST_NAMED], *more)


def _differs(snapshot: Snapshot, action: Action, path: str, digest: Digest) -> bool:
    return not questions.is_question(path) and stands(snapshot, action, path, digest) is Stands.NO
