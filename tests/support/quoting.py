"""Options and names of files with characters that shells read, and what the host compiler gets of them.

Compares the steps that a dry run is read as with the calls that nvcc itself makes of a recording host compiler. Knows
how builds quote, and nothing of a daemon.
"""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from codegen.compilers.command_parser import PassThrough
from codegen.foreign.command_line import parse
from codegen.plan import Action, Argument, Output, Plan, Steps
from codegen.steps.expansion import expand
from codegen.steps.nvcc_steps import decompose
from codegen.steps.step_kinds import OBJECT, SOURCE, NotUnderstood, StepKind
from tests.support.paths import FAKES
from tests.support.toolkit import small_toolkit

_RECORDING = FAKES / "recording-g++"
_TOGETHER = 6
"""Options in one run of nvcc: it takes a second."""


@dataclass(slots=True)
class Compared:
    """What a comparison came upon.

    Args:
        options, names: how many were understood, and therefore compared.
        differing: a line for each step whose arguments are not those of nvcc.
    """

    options: int = 0
    names: int = 0
    differing: list[str] = field(default_factory=list)


def compare(chance: random.Random, folder: Path, *, options: int, names: int) -> Compared:
    """Compare random options and names; those that are refused or not understood are left out.

    Args:
        folder: an empty folder.
    """
    found = Compared()
    asked = [("--compiler-options", "'-fPIC'"), *(_option(chance, number) for number in range(options))]
    understood = [arguments for arguments in asked if dry_run(arguments, folder)]
    found.options = len(understood)
    for first in range(0, len(understood), _TOGETHER):
        together = tuple(word for some in understood[first : first + _TOGETHER] for word in some)
        found.differing += differences(together, "a.cu", folder)
    for name in ("a b.cu", "a'&;b.cu", *(_name(chance) for _ in range(names))):
        try:
            parse((str(_nvcc()), "-c", name, "-o", "a.o"), str(folder))
        except PassThrough:
            continue
        found.names += 1
        found.differing += differences((), name, folder)
    return found


def differences(arguments: tuple[str, ...], source: str, folder: Path) -> list[str]:
    """A line for each step that gets other arguments than nvcc gives."""
    steps = dry_run(arguments, folder)
    if steps is None:
        return [f"{arguments} together are not understood"]
    calls = _calls_of_nvcc(arguments, source, folder)
    plan = _expanded(steps, source, str(folder))
    host = [step for step in plan.actions if step.kind in (StepKind.PREPROCESS.value, StepKind.HOST.value)]
    if len(calls) != len(host):
        return [f"{arguments} {source!r}: {len(host)} steps, {len(calls)} calls"]
    found = ((step, _difference(step, call)) for step, call in zip(host, calls, strict=True))
    return [f"{arguments} {source!r}: {step.kind}: {text}" for step, text in found if text]


def dry_run(arguments: tuple[str, ...], folder: Path) -> Steps | None:
    """The steps of a compile with these options; None if nvcc refuses them, or they are not understood."""
    more = ("-arch=sm_80", "-c", "-o", OBJECT, SOURCE + ".cu")
    command = (str(_nvcc()), "--dryrun", "-ccbin", str(_RECORDING), *arguments, *more)
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    try:
        text = done.stderr.decode(errors="surrogateescape")
        root = str(small_toolkit())
        return None if done.returncode else decompose(text, "s", extension=".cu", root=root, identity="p")
    except NotUnderstood:
        return None


def _nvcc() -> Path:
    return small_toolkit() / "bin/nvcc"


def _value(chance: random.Random) -> str:
    """A value as builds write them: most are quoted in pairs, some are anything."""
    pieces = (*"ab1 ,$\\/.=\t", '\\"', "\\'", "\\$", "\\\\", "é", "(", ";", "~", "*", "&&", "\n", "$HOME", "`id`")
    inner = "".join(chance.choices(pieces, k=4))
    style = chance.randrange(7)
    if style == 0:
        return f"'{inner}'"
    if style == 1:
        return f'"{inner}"'
    if style == 2:
        return f"\\'{inner}\\'"
    if style == 3:
        return f'\\"{inner}\\"'
    if style == 4:
        return inner.replace(" ", "")
    return "".join(chance.choices("ab1'\" \\$", k=4)) if style == 5 else inner


def _option(chance: random.Random, number: int) -> tuple[str, ...]:
    name = f"M{number}="
    return chance.choice(
        [
            lambda: (f"-D{name}{_value(chance)}",),
            lambda: ("-D", name + _value(chance)),
            lambda: ("-I" + _value(chance),),
            lambda: ("-isystem", "/x/" + _value(chance)),
            lambda: ("-Xcompiler", f"-D{name}{_value(chance)}"),
            lambda: ("-Xcompiler", chance.choice(("'{}'", '"{}"', "\\'{}\\'")).format(f"-D{name}{_value(chance)}")),
            lambda: (f"-Xcompiler=-D{name}{_value(chance)}",),
            lambda: ("--compiler-options", chance.choice(("'-fPIC'", '"-fPIC"', "'-fPIC','-O2'", "-fPIC '-O2'"))),
        ]
    )()


def _name(chance: random.Random) -> str:
    """The name of a source, with odd characters in it."""
    odd = "".join(chance.choices((*" '\"$\\,;&()=~*#%!{}\t\n", "é", "$HOME", "`id`", ".", "@"), k=2))
    return f"a{odd}b.cu"


def _calls_of_nvcc(arguments: tuple[str, ...], source: str, folder: Path) -> list[list[str]]:
    """The arguments of each call of the host compiler."""
    recorded = folder / "recorded"
    recorded.unlink(missing_ok=True)
    (folder / source).write_text("")
    options = ("-arch=sm_80", "-c", "-o", str(folder / "a.o"), source)
    subprocess.run(
        (str(_nvcc()), "-ccbin", str(_RECORDING), *arguments, *options),
        cwd=folder,
        env={**os.environ, "RECORDED": str(recorded), "TMPDIR": str(folder)},
        capture_output=True,
        check=False,
    )
    calls = recorded.read_text(errors="surrogateescape").split("\1\0")[:-1]
    return [call.split("\0")[:-1] for call in calls]


def _expanded(steps: Steps, source: str, folder: str) -> Plan:
    made = Output(name="object", path="a.o")
    action = Action(name="a.o", kind="nvcc", tool="nvcc", argv=("nvcc", source), inputs=(source,), outputs=(made,))
    return expand(steps, action, folder)


def _spelled(item: Argument) -> str | None:
    """None for a file of a step."""
    if isinstance(item, str):
        return item
    return f"{item.prefix}{small_toolkit()}{item.suffix}" if item.place.value == "root" else None


def _difference(step: Action, call: list[str]) -> str:
    """The first argument that is not nvcc's; empty if all are."""
    argv = [_spelled(item) for item in step.argv[1:] if not str(item).startswith("-frandom-seed=")]
    if len(argv) != len(call):
        return f"{len(argv)} arguments, nvcc gives {len(call)}"
    pairs = zip(argv, call, strict=True)
    return next((f"{one!r}, nvcc gives {two!r}" for one, two in pairs if one is not None and one != two), "")
