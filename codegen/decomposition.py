"""How nvcc or hipcc compiles with one set of flags: in steps, as a dry run of just these flags has them, or whole, and
why.

Knows what has to be true before a dry run is asked for; reading it is `nvcc_steps`' and `hipcc_steps`'. Knows no target
and no source: the answer serves every compile with these flags, whatever it is called and whatever its depfile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from codegen import hipcc_steps, nvcc_steps
from codegen.closure import Environment, hands_over
from codegen.plan import Argument, Knowledge, Place, Probe, Steps, Tool
from codegen.step_kinds import OBJECT, SOURCE, STEM, UNIT, NotUnderstood, placeholder

_EMPTY = str(Path(__file__).with_name("templates") / "empty" / STEM)
"""Sources that clang finds, without their extension."""


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
    """The steps, or why nvcc has to run whole.

    Args:
        tool: with a root "cuda".
        program: how the compiles call nvcc.
        options: of a compile to an object, without its source and its output.
        extension: of the sources.
        clang: it is the host compiler.
        identity: see `Steps`.

    Raises:
        ProbesNeeded: the dry run.
    """
    roots = dict(tool.roots)
    nvcc = f"{roots['cuda']}/bin/nvcc"
    called = program if isinstance(program, str) else roots[program.name] + program.suffix
    for why, holds in (
        (f"a source of type {extension}", extension != ".cu"),
        ("the host compiler is not gcc", clang),
        ("nvcc is a wrapper", called != nvcc and not hands_over(called, nvcc)),
    ):
        if holds:
            return why
    words = _words(_without_threads(options))
    probe = Probe(
        argv=(nvcc, "--dryrun", *words, "-o", OBJECT, SOURCE + extension),
        environment=environment,
        # It asks the host compiler for its version, too.
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
    """The same for hipcc.

    Args: as of `decomposition`.

    Raises:
        ProbesNeeded: the dry run.
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
    """The dry run.

    Args:
        called: absolute path of hipcc.
        files: that its answer stands on.
    """
    argv = (called, "-###", *words, f"-cuid={UNIT}", "-o", OBJECT, source)
    return Probe(argv=argv, environment=environment, files=files)


def hip_ahead(called: str, environment: Environment, options: Iterable[Argument], extension: str) -> Probe:
    """The same before any file of the tool is known."""
    return hip_probe(called, environment, _words(options), _EMPTY + extension, ())


def _read(knowledge: Knowledge, probe: Probe, decompose: Callable[[str], Steps]) -> Steps | str:
    """The steps of a dry run, or why they are not understood. Raises ProbesNeeded."""
    (answer,) = knowledge.ask(probe)
    try:
        if answer.status != 0:
            raise NotUnderstood(f"{os.path.basename(probe.argv[0])} {probe.argv[1]} ended with status {answer.status}")
        return decompose(answer.stdout + answer.stderr)
    except NotUnderstood as reason:
        return f"not understood: {reason}"


def _words(options: Iterable[Argument]) -> list[str]:
    return [
        item
        if isinstance(item, str)
        else item.prefix + (placeholder(item.name) if item.place is Place.ROOT else "") + item.suffix
        for item in options
    ]


def _without_threads(options: Iterable[Argument]) -> list[Argument]:
    """Options without -t, which changes the order of the steps, and nothing in the result."""
    kept: list[Argument] = []
    waiting = False
    for option in options:
        if waiting:
            waiting = False
        elif option in ("-t", "--threads"):
            waiting = True
        elif not isinstance(option, str) or not option.startswith(("-t=", "--threads=")):
            kept.append(option)
    return kept
