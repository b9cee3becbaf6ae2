"""Notes about the compiler calls of a program, for the commands that ask for them by a variable of the call.

BUILDD_RECORD: each call that was carried out, with the files that another machine would not have, for `buildd warm
--manifest`. BUILDD_PROVE: each call that would compile, for `buildd warm --prove -- COMMAND`. Knows the files of notes;
decides nothing about a compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from buildd.hooks.proof import FOLDER as PROVE
from buildd.hooks.proof import NEEDED
from buildd.hooks.triton_record import FOLDER as RECORD
from buildd.hooks.triton_record import ROOT
from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import Compile, Family, PassThrough, Reason
from codegen.reach import read_regular
from protocol import messages as m

CALLS, FILES = "calls", "files"
"""Folders below RECORD: a file for each call, and the content of each file, by its digest."""
WOULD_COMPILE = "would-compile"
"""Code of a `Done` that tells the caller to fail instead of running the tool."""
MOST_FILE_BYTES = 16 << 20
_PACKAGES = ("site-packages", "dist-packages")
_SYSTEM = ("/usr/", "/opt/", "/lib/", "/lib64/", "/bin/", "/etc/", "/nix/store/", "/gnu/store/")
_COMPILES_NOTHING = frozenset(
    {
        Reason.LINK,
        Reason.PREPROCESS,
        Reason.DEPENDENCIES_ONLY,
        Reason.NO_SOURCE,
        Reason.QUERY,
        Reason.INSIDE_NVCC,
        Reason.WRAPPER,  # the call that it makes is looked up by itself
    }
)

RAN = "ran"
"""Beginning of the names of the files, in the folder of a proof, that get one byte for each call that ran."""
QUERY, TRIAL = "query", "trial"
"""The calls that a proof lets run: questions to the compiler, and calls that try it out."""


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiler call that a program made.

    Args:
        command: the words; the first one is the tool's path.
        folder: where it was called.
        variables: those that a compiler may read, but not PATH.
        output: the absolute path of what it made; empty if it only listed what a source includes.
        files: path -> SHA-256 of each file that it read and that no installation brings.
    """

    command: tuple[str, ...]
    folder: str
    variables: dict[str, str]
    output: str
    files: dict[str, str]


class Needed(msgspec.Struct, frozen=True, array_like=True):
    """Something that would be compiled.

    Args:
        what: "nvcc", "Triton kernel", "Inductor graph" ...
        name: of the source, kernel or graph.
        why: in words; empty if unknown.
    """

    what: str
    name: str
    why: str = ""


def is_installed(path: str, tool: str, root: str) -> bool:
    """Whether a file comes from the system, a toolkit or a package, which another machine has to have too.

    Args:
        path: normalized.
        tool: the compiler's path.
        root: the folder where `buildd run` was called.
    """
    if any(part in _PACKAGES for part in path.split("/")):
        return True
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(tool)))
    if len(toolkit) > 1 and path.startswith(f"{toolkit}/"):
        return True
    return path.startswith(_SYSTEM) and not (len(root) > 1 and path.startswith(f"{root}/"))


def record(request: m.Request, compile: Compile, roots: temporary_roots.Roots, listed: bytes) -> None:
    """Note a call that was carried out, if somebody records. The caller has not gone on: its files are there.

    Args:
        listed: the output DEPENDENCIES.
    """
    folder = request.environment.get(RECORD, "")
    if not os.path.isabs(folder) or compile.objects:
        return  # a link is short, and its result holds for one folder
    root, tool = request.environment.get(ROOT, ""), request.command[0]
    read, _ = temporary_roots.read(listed, roots)
    files: dict[str, str] = {}
    try:
        for path in (compile.source, *compile.read, *read):
            place = os.path.normpath(os.path.join(request.project, path)) if path else ""
            if place and place not in files and not is_installed(place, tool, root):
                files[place] = _keep(Path(folder, FILES), place)
        if _names_folder(request, compile, roots, files):
            raise ValueError("its result holds for its own folder alone")
        call = RecordedCall(
            command=request.command,
            folder=request.project,
            variables=dict(sorted(_variables(request).items())),
            output=os.path.normpath(os.path.join(request.project, compile.output)) if compile.output else "",
            files=dict(sorted(files.items())),
        )
        text = msgspec.json.encode(call)
        _write(Path(folder, CALLS), hashlib.sha256(text).hexdigest(), text)
    except (OSError, ValueError) as error:
        problem = msgspec.json.encode({"problem": f"{os.path.basename(tool)} {compile.source}: {error}"})
        with contextlib.suppress(OSError):  # the recording has ended
            _append(Path(folder, "calls.jsonl"), problem)


def is_proving(request: m.Request) -> bool:
    """Whether the caller wants a compile to be looked up, and not to run."""
    return os.path.isabs(request.environment.get(PROVE, ""))


def is_compile(command: Sequence[str], why: PassThrough) -> bool:
    """Whether a call that buildd does not take may compile something."""
    names_source = any(not word.startswith("-") or word == "-" for word in command[1:])
    return why.reason not in _COMPILES_NOTHING and names_source


def are_wanted(request: m.Request) -> bool:
    """Whether somebody wants a note about this call."""
    return bool(request.environment.get(RECORD) or request.environment.get(PROVE))


def need(request: m.Request, name: str, reasons: Iterable[str]) -> m.Done:
    """Note a call that would compile; the end of its request."""
    why = "; ".join(reasons)
    needed = Needed(os.path.basename(request.command[0]), name, why)
    with contextlib.suppress(OSError):  # the caller still fails
        _append(Path(request.environment[PROVE], NEEDED), msgspec.json.encode(needed))
    return m.Done(outcome=m.Outcome.REFUSED, code=WOULD_COMPILE, message=f"{name}: {why}")


def note_ran(request: m.Request, kind: str) -> None:
    """Count a call that a proof let run."""
    with contextlib.suppress(OSError), open(Path(request.environment[PROVE], f"{RAN}-{kind}"), "ab", 0) as file:
        file.write(b".")


def ran(folder: Path, kind: str) -> int:
    """How many calls of a kind a proof let run."""
    try:
        return (folder / f"{RAN}-{kind}").stat().st_size
    except OSError:
        return 0


def _names_folder(request: m.Request, compile: Compile, roots: temporary_roots.Roots, files: Iterable[str]) -> bool:
    """Whether the key of a call names a folder that another machine has elsewhere."""
    if roots:
        return checkout_roots.always_bound(compile.flags, roots)
    folders = {request.project, *map(os.path.dirname, files)}
    return compile.family is not Family.GCC or any(folder in word for word in request.command[1:] for folder in folders)


def _variables(request: m.Request) -> dict[str, str]:
    ours = {temporary_roots.MAP_PATHS}
    return {
        name: value
        for name, value in request.environment.items()
        if name in ours or (name not in ("PATH", "LD_PRELOAD") and not name.startswith("BUILDD_"))
    }


def _keep(folder: Path, path: str) -> str:
    if os.path.getsize(path) > MOST_FILE_BYTES:
        raise ValueError(f"{path} is larger than {MOST_FILE_BYTES >> 20} MiB")
    content = read_regular(path)
    digest = hashlib.sha256(content).hexdigest()
    _write(folder, digest, content)
    return digest


def _write(folder: Path, name: str, content: bytes) -> None:
    place = folder / name
    if place.exists():
        return
    folder.mkdir(exist_ok=True)
    aside = folder / f".{os.urandom(8).hex()}"
    aside.write_bytes(content)
    aside.rename(place)


def _append(place: Path, line: bytes) -> None:
    with open(place, "ab", buffering=0) as file:
        file.write(line + b"\n")
