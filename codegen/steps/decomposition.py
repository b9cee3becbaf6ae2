"""Decides for a set of flags whether nvcc or hipcc compiles in steps, or whole and why; a dry run gives the steps.

Knows the conditions for a dry run; `nvcc_steps` and `hipcc_steps` read its output. Knows no target and no source: the
answer serves every compile with these flags, regardless of the names of its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

import codegen
from codegen.compilers.closure import Environment, handed_to
from codegen.plan import Argument, Knowledge, Place, Probe, Ref, Steps, Tool
from codegen.steps import hipcc_steps, nvcc_steps
from codegen.steps.step_kinds import OBJECT, SOURCE, STEM, UNIT, NotUnderstood, placeholder

_COMPLAINT = re.compile(r"^(?:nvcc fatal\s*|clang[^:\n]*: error): ([^\n]+)$", re.M)
_ENDED, _SAYS = "ended with status", ": "
_EMPTY = str(Path(codegen.__file__).with_name("templates") / "empty" / STEM)
"""Empty sources, without their extension, because clang refuses a source that does not exist."""


def decomposition(
    knowledge: Knowledge,
    tool: Tool,
    program: Argument,
    environment: Environment,
    options: Iterable[Argument],
    *,
    extension: str,
    clang: bool,
    identity: str,
) -> Steps | str:
    """Return the steps, or the reason why nvcc must run whole.

    Args:
        tool: nvcc's tool, with a root "cuda".
        program: the first word of the compiles' command lines.
        options: options of a compile to an object, without source and output.
        extension: file extension of the sources.
        clang: the host compiler is clang.
        identity: see `Steps`.

    Raises:
        ProbesNeeded: the dry run is not answered yet.
    """
    roots = dict(tool.roots)
    called = program if isinstance(program, str) else roots[program.name] + program.suffix
    is_own = isinstance(program, Ref) and program.name == "cuda"
    nvcc = called if is_own else f"{roots['cuda']}/bin/nvcc"
    words = _words(_without_threads(options))
    for why, holds in (
        (f"a source of type {extension}", _language(words, extension) != "cu"),
        ("the host compiler is not gcc", clang),
        ("nvcc is a wrapper", called != nvcc and os.path.realpath(handed_to(called)) != os.path.realpath(nvcc)),
    ):
        if holds:
            return why
    probe = Probe(
        argv=(nvcc, "--dryrun", *words, "-o", OBJECT, SOURCE + extension),
        environment=environment,
        # The dry run also asks the host compiler for its version.
        files=tuple(file.path for file in tool.files),
    )
    name = " ".join((tool.name, *words))
    read = partial(nvcc_steps.decompose, name=name, extension=extension, root=roots["cuda"], identity=identity)
    return _read(knowledge, probe, read)


def hip_decomposition(
    knowledge: Knowledge,
    tool: Tool,
    program: Argument,
    environment: Environment,
    options: Iterable[Argument],
    *,
    extension: str,
    identity: str,
) -> Steps | str:
    """Return the steps, or the reason why hipcc must run whole. Arguments as for `decomposition`.

    Raises:
        ProbesNeeded: the dry run is not answered yet.
    """
    roots = dict(tool.roots)
    called = program if isinstance(program, str) else roots[program.name] + program.suffix
    source = _EMPTY + extension
    words = _words(options)
    for why, holds in (
        (f"a source of type {extension}", not os.path.exists(source)),
        ("-fuse-cuid", any(word.startswith("-fuse-cuid") for word in words)),
    ):
        if holds:
            return why
    probe = hip_probe(called, environment, words, source, tuple(file.path for file in tool.files))
    name = " ".join((tool.name, *words))
    return _read(knowledge, probe, partial(hipcc_steps.decompose, name=name, source=source, identity=identity))


def hip_probe(
    called: str, environment: Environment, words: Iterable[str], source: str, files: tuple[str, ...]
) -> Probe:
    """Return the probe for hipcc's dry run.

    Args:
        called: absolute path of hipcc.
        files: files that the answer depends on.
    """
    argv = (called, "-###", *words, f"-cuid={UNIT}", "-o", OBJECT, source)
    return Probe(argv=argv, environment=environment, files=files)


def hip_ahead(called: str, environment: Environment, options: Iterable[Argument], extension: str) -> Probe:
    """Return `hip_probe` before any file of the tool is known."""
    return hip_probe(called, environment, _words(options), _EMPTY + extension, ())


def _read(knowledge: Knowledge, probe: Probe, decompose: Callable[[str], Steps]) -> Steps | str:
    """Return the steps of a dry run, or why they are not understood. Raises ProbesNeeded."""
    (answer,) = knowledge.ask(probe)
    try:
        if answer.status != 0:
            said = f"{os.path.basename(probe.argv[0])} {probe.argv[1]} {_ENDED} {answer.status}"
            complaint = _COMPLAINT.search(answer.stderr)
            raise NotUnderstood(f"{said}{_SAYS}{complaint[1]}" if complaint else said)
        return decompose(answer.stdout + answer.stderr)
    except NotUnderstood as reason:
        return f"not understood: {reason}"


def complaint(reason: Steps | str) -> str:
    """Return what the compiler said when it refused the dry run; empty if it did not refuse it."""
    if not isinstance(reason, str):
        return ""
    return reason.partition(_ENDED)[2].partition(_SAYS)[2]


def _words(options: Iterable[Argument]) -> list[str]:
    return [
        item
        if isinstance(item, str)
        else item.prefix + (placeholder(item.name) if item.place is Place.ROOT else "") + item.suffix
        for item in options
    ]


def _language(words: Iterable[str], extension: str) -> str:
    """Return the language of a source by nvcc's -x, else by its name."""
    named = extension.removeprefix(".")
    for before, word in pairwise(("", *words)):
        option, _, value = word.partition("=")
        if option in ("-x", "--x"):
            named = value
        elif before in ("-x", "--x"):
            named = word
    return named


def _without_threads(options: Iterable[Argument]) -> list[Argument]:
    """Return the options without -t, which changes the order of the steps but not the result."""
    kept: list[Argument] = []
    waiting = False
    for option in options:
        if waiting:
            waiting = False
        elif option in ("-t", "--threads"):
            waiting = True
        elif not isinstance(option, str) or not re.fullmatch(r"(-t|--threads)=.*|-t\d+", option):
            kept.append(option)
    return kept
