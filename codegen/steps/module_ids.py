"""The ids of a module: the one with which its steps run, and the one of its object in this checkout.

nvcc makes symbols of the id. It must be unique in a program, and objects of two checkouts may be linked into one. So
the steps run with an id that all checkouts share, and the object gets its checkout's own id when it is delivered: both
ids have the same length, and no other byte of PTX, device code or object depends on them. Device code inside of an
object is compressed, so it gets the own id before it is put there.

clang has an id of HIP's modules (`-cuid`), too, and since 17 a symbol in each object that is named after its digest.
Other objects see that symbol alone, so it is the only one that gets the own id. Pure; knows no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from blake3 import blake3

from codegen.compilers.checkout_roots import is_apart, nameless, naming
from codegen.compilers.temporary_roots import Roots, named
from codegen.plan import Action, Argument, Steps

NAMED = ".named"
"""Suffix of a step file's path: the same file with the module's own id."""
UNIT_FLAG = "-cuid="
HIP_SYMBOL = "__hip_cuid_"
"""How the symbol's name begins; up to sixteen hexadecimal digits follow."""
HIP_DIGITS = 12
"""Number of the digits that are the module's id. clang leaves out zeros at the beginning."""
_DEVICE_CODE = re.compile(r"\.(cubin|ptx|fatbin|ltoir|optixir)\Z")


@dataclass(frozen=True, slots=True)
class ModuleIds:
    """The two ids; they are equal if no other checkout can have the module."""

    shared: bytes = b""
    own: bytes = b""
    unit: str = ""
    """HIP: the value of -cuid. The other two are then how the object's symbol begins."""

    @property
    def differ(self) -> bool:
        """Whether an object must get its own id."""
        return self.shared != self.own

    def named(self, content: bytes) -> bytes:
        """Return an object, a text or device code with the own id."""
        return content.replace(self.shared, self.own) if self.differ else content


NO_IDS = ModuleIds()
"""The ids of an object whose bytes depend on no id that other checkouts have."""


def ends_of(action: Action, project: str) -> tuple[str, str]:
    """Return the paths that identify a module in a program: its source's and its object's.

    Args:
        project: see `ids_of`.
    """
    made = action.outputs[0]
    # Device code alone has the step files and the module's id of the object beside it: each finds the other's steps.
    return os.path.join(project, action.inputs[0]), os.path.join(project, _DEVICE_CODE.sub(".o", made.path))


def ids_of(steps: Steps, action: Action, project: str, roots: Roots, content: str) -> ModuleIds:
    """Return the ids of an action's module.

    Args:
        action: an action with these steps.
        project: base folder of relative paths, if the result may contain its path; empty if the folder is a root.
        roots: folders that may be others in the next build, see `temporary_roots` and `checkout_roots`.
        content: digest of the source if there are temporary folders: others may have a source of the same name.
    """
    given = [word.removeprefix(UNIT_FLAG) for word in action.argv if _is_unit(word)]
    if given:
        return ModuleIds(unit=given[-1])
    source, made = ends_of(action, project)
    identities = (steps.identity, content) if content else (steps.identity,)
    # nvcc names modules after their sources alone. A source outside of all checkouts, as in an installed package, is
    # one for all of them.
    places = [root for root in roots if not is_apart(root[0])]
    own = module_id(identities, named(source, nameless(action, roots)), named(made, tuple(places)))
    if steps.silent:
        # The object's path is not in the first-level key of HIP's.
        unit = hashed(module_id((steps.identity,), named(source, roots), ""))
        shared, own = (f"{HIP_SYMBOL}{digits[:HIP_DIGITS]}" for digits in (unit, hashed(own)))
        return ModuleIds(shared.encode(), own.encode(), unit)
    if not naming(action, source, roots):
        return ModuleIds(own.encode(), own.encode())
    # A stored object is searched for this id: it depends on nothing but what the object's first-level key holds, which
    # may leave comments of the source out. If it is made otherwise, raise FORMAT of `buildd.keys.action_key`.
    return ModuleIds(module_id((steps.identity,), named(source, roots), named(made, roots)).encode(), own.encode())


def _is_unit(word: Argument) -> TypeGuard[str]:
    return isinstance(word, str) and word.startswith(UNIT_FLAG)


def module_id(identities: Sequence[str], source: str, made: str) -> str:
    """Return a module id in the form of cudafe++'s own. It becomes part of global symbols, so it must be unique in a
    program. It must not depend on content that may change, or every step would run again after every edit."""
    digest = hashed("\0".join((*identities, source, made)))
    name = re.sub(r"[^A-Za-z0-9]", "_", os.path.basename(source))
    return f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}"


def hashed(text: str) -> str:
    """Return sixteen hexadecimal digits of a text's digest."""
    return blake3(text.encode(errors="surrogateescape")).hexdigest()[:16]
