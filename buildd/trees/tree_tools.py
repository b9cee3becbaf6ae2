"""Opens the build tree that a command line names, and sets up the environment that its tool runs in.

Finds ninja and make, and knows the environment of `buildd run`; does not read the trees.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from buildd.client.foreign_build import offered_jobserver, paths_below, variables
from buildd.client.run_settings import complete
from buildd.errors import BuilddError
from buildd.trees.make_tree import MakeTree
from buildd.trees.ninja_tree import NinjaTree
from buildd.trees.tree import Tree, TreeError
from protocol.errors import ProtocolError


def tree_of(ninja: str | None, make: str | None, targets: Iterable[str], environ: Mapping[str, str]) -> Tree:
    """The tree that a command line names, not yet described.

    Args:
        ninja: folder of a build.ninja; None for a tree of make's.
        make: folder of a Makefile.

    Raises: TreeError.
    """
    tool, step = ("make", "install it (Debian: make)") if ninja is None else ("ninja", "pip install ninja")
    if shutil.which(tool, path=environ["PATH"]) is None:
        raise TreeError(f"{tool} is not installed", next_step=step)
    if ninja is not None:
        return NinjaTree(os.path.abspath(ninja), targets, environ)
    return MakeTree(os.path.abspath(make or "."), targets, environ)


@contextmanager
def with_compilers(
    environ: Mapping[str, str], jobs: int | None, note: Callable[[str], None], map_paths: bool | None = None
) -> Iterator[dict[str, str]]:
    """The environment in which compilers go through the daemon and, if `jobs` is given, tools share a jobserver.

    Args:
        jobs: the most jobs at once.
        note: gets the reason why compilers run without the daemon, and what is wrong with variables.
        map_paths: as for `buildd run`.
    """
    inside = {**environ, "PATH": environ.get("PATH", os.defpath)}
    for line in complete(inside, says=True):
        note(line)
    provide_ninja(inside)
    try:
        inside.update(variables(inside, "", jobs) | paths_below(os.getcwd(), map_paths))
        sharing = offered_jobserver(inside, jobs)
    except (ProtocolError, BuilddError, OSError) as error:
        note(f"{getattr(error, 'message', error)}; compilers run without the cache")
        yield inside
        return
    with sharing:
        yield inside


def provide_ninja(environ: dict[str, str]) -> bool:
    """Put ninja on PATH: if PATH has none, append the folder of PyPI's package. False if there is neither."""
    path = environ.get("PATH", os.defpath)
    if shutil.which("ninja", path=path) is not None:
        return True
    found = _packaged_ninja()
    if found:
        environ["PATH"] = f"{path}{os.pathsep}{found}"
    return bool(found)


def _packaged_ninja() -> str:
    """The folder with the program of PyPI's package `ninja` in this Python; empty if it is not installed."""
    spec = importlib.util.find_spec("ninja")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for place in (f"{folder}/data/bin", os.path.join(folder, os.pardir, os.pardir, os.pardir, os.pardir, "bin")):
            if os.access(f"{place}/ninja", os.X_OK):
                return os.path.normpath(place)
    return ""
