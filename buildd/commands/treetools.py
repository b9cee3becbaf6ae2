"""Where the tools of other build trees are, and what they find when they run under us.

Knows ninja's and make's places and `buildd run`'s environment; not what the trees hold.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from buildd.commands.run import offered_jobserver, variables
from buildd.errors import BuilddError
from buildd.maketree import MakeTree
from buildd.ninjatree import NinjaTree
from buildd.trees import Tree, TreeError
from protocol.errors import ProtocolError


def tree_of(ninja: str | None, make: str | None, targets: Iterable[str], environ: Mapping[str, str]) -> Tree:
    """The tree that a command line names, not yet described.

    Args:
        ninja: folder of a build.ninja; else
        make: folder of a Makefile.

    Raises: TreeError.
    """
    tool, step = ("make", "install it (Debian: make)") if ninja is None else ("ninja", "pip install ninja")
    if shutil.which(tool, path=environ["PATH"]) is None:
        raise TreeError(f"there is no {tool}", next_step=step)
    if ninja is not None:
        return NinjaTree(os.path.abspath(ninja), targets, environ)
    return MakeTree(os.path.abspath(make or "."), targets, environ)


@contextmanager
def with_compilers(
    environ: Mapping[str, str], jobs: int | None, note: Callable[[str], None]
) -> Iterator[dict[str, str]]:
    """The environment in which compilers go through the daemon, and tools share a jobserver where a width is given.

    Args:
        jobs: the width.
        note: is told why it must go without.
    """
    inside = {**environ, "PATH": environ.get("PATH", os.defpath)}
    provide_ninja(inside)
    try:
        inside.update(variables(inside, "", jobs))
        sharing = offered_jobserver(inside, jobs)
    except (ProtocolError, BuilddError, OSError) as error:
        note(f"{getattr(error, 'message', error)}; compilers run as they are, past the cache")
        yield inside
        return
    with sharing:
        yield inside


def provide_ninja(environ: dict[str, str]) -> bool:
    """Have a PATH with ninja: where it has none, PyPI's is put behind it. False where there is neither."""
    path = environ.get("PATH", os.defpath)
    if shutil.which("ninja", path=path) is not None:
        return True
    found = _packaged_ninja()
    if found:
        environ["PATH"] = f"{path}{os.pathsep}{found}"
    return bool(found)


def _packaged_ninja() -> str:
    """The folder of PyPI's package `ninja` beside us; empty where there is none."""
    spec = importlib.util.find_spec("ninja")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for place in (f"{folder}/data/bin", os.path.join(folder, os.pardir, os.pardir, os.pardir, os.pardir, "bin")):
            if os.access(f"{place}/ninja", os.X_OK):
                return os.path.normpath(place)
    return ""
