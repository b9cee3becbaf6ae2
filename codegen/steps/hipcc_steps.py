"""Reads the output of `hipcc -###` into the steps of one compile, as actions.

Pure, and as strict as `nvcc_steps`. clang since 11 runs these steps: a device compile and a device link for each
architecture; a bundle of their outputs; the host compile, which includes the bundle as data. Here the host compile
includes a frame instead, so it does not wait for the devices; the runner of the steps puts the real bundle into the
object. clang compiles the source itself each time; buildd preprocesses it first, so that a compile is keyed by the text
it sees. clang makes the same object from preprocessed text but prints other messages: it shows macros expanded. So its
steps are `silent`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from codegen.compilers.hipcc import clang_commands
from codegen.plan import BARE, RULES, Action, Argument, Discovery, Kept, Output, Place, Ref, Steps
from codegen.steps.step_kinds import (
    BUNDLE_FRAME,
    FOLDER,
    MAIN,
    OBJECT,
    PLACEHOLDER,
    SOURCE,
    STEM,
    USED,
    NotUnderstood,
    StepKind,
)

Words = tuple[str, ...]

_VALUED = ("-I", "-isystem", "-internal-isystem", "-internal-externc-isystem", "-idirafter", "-iquote", "-c-isystem")
_PREPROCESSOR = {*_VALUED, "-cxx-isystem", "-isysroot", "-iprefix", "-iwithprefix", "-D", "-U", "-include"}
"""Options with a value that only the preprocessor uses."""
_FOLDERS = re.compile(r"-f(debug|coverage)-(compilation-dir|prefix-map)=.*")
"""Options without effect unless there is debug information."""
_REFUSED = re.compile(
    # Options that put line numbers or paths into the output, read or write other files, or change the text.
    r"-debug-info.*|-dwarf.*|-split-dwarf.*|-gcodeview.*|-gpubnames|-g.*-(prefix-map|column-info).*|-f(sanitize|profile|xray"
    r"|coverage-mapping|plugin|pass-plugin|module|instrument|embed|thinlto|stack-usage|time|crash|diagnostics-format"
    r"|build-session|implicit-module|test-module|pch).*"
    r"|-load|-plugin.*|-add-plugin|-include-pch|-token-cache|-P|-CC?|-d[A-Z]|-traditional.*|-opt-record.*|-stats-file.*"
    r"|-R.*|-rewrite.*|-frewrite.*|-verify.*|-dependency.*|-M.*|-sys-header-deps|-header-include.*|-H|-serialize-.*"
    r"|-Wdocumentation.*|-Wpragma-pack.*|-Wmisleading-indentation|-diagnostic-.*|-emit-(?!obj$).*|-S|-E|-fsyntax-only|-print.*|-time.*|-main-file-name=.*|-working-directory.*"
)
_ROOT = re.compile(PLACEHOLDER)
_EXPECTED = re.compile(r' ".*"|.*clang version .*|(Target|Thread model|InstalledDir|Configuration file): .*|')
"""Lines of -### that do not describe a command."""
_BUNDLE = re.compile(r"-(type|targets|input|output)=.*|-bundle-align=\d+|-compress|-compression-level=\d+", re.DOTALL)
_HOST = "host"
_LAST = 3
"""Number of words at the end of a compile's command line: `-x hip` and the source."""


def decompose(text: str, name: str, *, source: str, identity: str) -> Steps:
    """Return the steps of a compile.

    Args:
        text: output of `hipcc -### -c ... -cuid=UNIT -o OBJECT source`.
        source: path of the source, which exists, because clang checks.
        name: name of the `Steps`.
        identity: identity of the project.

    Raises:
        NotUnderstood: hipcc must run whole.
    """
    said = next((line for line in text.splitlines() if not _EXPECTED.fullmatch(line)), "")
    if said:
        raise NotUnderstood(f"hipcc says: {said}")
    commands = clang_commands(text)
    if len(commands) < 2:
        raise NotUnderstood(f"{len(commands)} commands")
    *devices, bundle, host = commands
    return Steps(
        name=name,
        identity=identity,
        actions=tuple(_Writer(devices, bundle, host, source).actions()),
        silent=True,
    )


class _Writer:
    def __init__(self, devices: list[Words], bundle: Words, host: Words, source: str) -> None:
        if not devices or len(devices) % 2:
            raise NotUnderstood(f"{len(devices)} commands for devices")
        self._bundle = bundle
        self._host = _compile(host, source)
        fronts = [_compile(front, source) for front in devices[::2]]
        self._devices = list(zip(fronts, devices[1::2], strict=True))
        self._archs = [_named(_value(front, "-target-cpu"), front) for front, _ in self._devices]
        if len(set(self._archs)) != len(self._archs):
            raise NotUnderstood("two device compiles for one architecture")
        linked = []
        for front, link in self._devices:
            _program(link, "lld", "ld.lld")
            files = [word for word in link[1:] if word.endswith(".o") or "/" in word]
            if "-fcuda-is-device" not in front or files != [_value(link, "-o"), _value(front, "-o")]:
                raise NotUnderstood("a device link of an unexpected file")
            linked.append(_value(link, "-o"))
        _program(bundle, "clang-offload-bundler")
        other = next((word for word in bundle[1:] if not _BUNDLE.fullmatch(word)), "")
        if other:
            raise NotUnderstood(f"clang-offload-bundler {other}")
        taken = [word.removeprefix("-input=") for word in bundle if word.startswith("-input=")]
        made = [word.removeprefix("-output=") for word in bundle if word.startswith("-output=")]
        if taken != ["/dev/null", *linked] or made != [_value(self._host, _TAKES)] or "-type=o" not in bundle:
            raise NotUnderstood("a bundle of unexpected files")
        if "-fcuda-is-device" in self._host or _value(self._host, "-o") != OBJECT:
            raise NotUnderstood("the host compile reads an unexpected file")
        self._bundled = made[0]

    def actions(self) -> Iterator[Action]:
        """Yield the template's actions."""
        made = []
        for arch, (front, link) in zip(self._archs, self._devices, strict=True):
            compiled, linked = _file(f"{arch}.o"), _file(f"{arch}.out")
            yield self._preprocess(front, arch)
            yield self._compiled(front, arch, compiled, StepKind.DEVICE)
            read = Ref(place=Place.INPUT, name=compiled)
            linker = [read if word == _value(front, "-o") else word for word in _made(link)]
            yield _step(StepKind.DEVICE_LINK, arch, linker, (compiled,), (Output(name="made", path=linked),))
            made.append(linked)
        data = _file("hipfb")
        words = tuple(word for word in self._bundle if not word.startswith(("-input=", "-output=")))
        yield _step(
            StepKind.BUNDLE,
            "",
            (
                *words,
                "-input=/dev/null",
                *(Ref(place=Place.INPUT, name=path, prefix="-input=") for path in made),
                Ref(place=Place.OUTPUT, name="made", prefix="-output="),
            ),
            tuple(made),
            (Output(name="made", path=data), Output(name=BARE, path=f"{data}.{BARE}")),
        )
        yield self._preprocess(self._host, _HOST)
        yield self._compiled(self._host, "", f"{FOLDER}/{OBJECT}", StepKind.HOST, BUNDLE_FRAME)

    def _preprocess(self, front: Words, what: str) -> Action:
        path = _file(f"{what}.hipi")
        words = _without(front, _TAKES)
        argv = ["-E" if word == "-emit-obj" else word for word in words]
        lists: tuple[Argument, ...] = ("-sys-header-deps", "-header-include-file", Ref(place=Place.DEPFILE))
        if what == _HOST:  # hipcc's depfile lists what this pass reads
            lists += ("-dependency-file", Ref(place=Place.DEPFILE, suffix=RULES), "-MT", "inputs")
        return _step(
            StepKind.PREPROCESS,
            what,
            (*_made(argv[:-_LAST]), *lists, *argv[-_LAST:]),
            (),
            (Output(name="made", path=path), Output(name=BARE, path=f"{path}.{BARE}")),
        )

    def _compiled(self, front: Words, what: str, made: str, kind: StepKind, data: str = "") -> Action:
        text = _file(f"{what or _HOST}.hipi")
        words: list[Argument] = list(_without(front[:-_LAST], *_PREPROCESSOR))
        words += ["-x", "hip-cpp-output", Ref(place=Place.INPUT, name=text)]
        if data:
            words[words.index(_TAKES) + 1] = Ref(place=Place.INPUT, name=data)
        host = kind is StepKind.HOST
        return _step(
            kind,
            what,
            _made(words, "object" if host else "made"),
            (text, data) if host else (text,),
            (Output(name="object", path=made), Output(name=BARE, path=f"{data}{USED}"))
            if host
            else (Output(name="made", path=made),),
            equivalents=(text, data) if host else (text,),
        )


_TAKES = "-fcuda-include-gpubinary"


def _compile(command: Words, source: str) -> Words:
    """Return a compile's words without those that depend on the working folder."""
    _program(command, "clang", "clang++", *(f"clang-{major}" for major in range(11, 40)))
    if command[1:2] != ("-cc1",) or command[-_LAST:] != ("-x", "hip", source) or command.count(source) != 1:
        raise NotUnderstood("a compile of an unexpected file")
    if command.count("-emit-obj") != 1 or command.count("-main-file-name") != 1:
        raise NotUnderstood("a compile to an unexpected output")
    words = [word for word in command if not _FOLDERS.fullmatch(word)]
    words[words.index("-main-file-name") + 1] = MAIN
    words[-1] = SOURCE + os.path.splitext(source)[1]
    refused = next((word for word in words if _REFUSED.fullmatch(word) and word != "-emit-obj"), "")
    if refused:
        raise NotUnderstood(f"clang {refused}")
    return tuple(words)


def _program(command: Words, *names: str) -> None:
    if not command or os.path.basename(command[0]) not in names:
        raise NotUnderstood(f"the step {os.path.basename(command[0]) if command else 'that is missing'}")


def _value(words: Words, option: str) -> str:
    if words.count(option) != 1 or words[-1] == option:
        raise NotUnderstood(f"{words.count(option)} times {option}")
    return words[words.index(option) + 1]


def _named(arch: str, front: Words) -> str:
    """Return an architecture with its features as part of a file name."""
    features = [word for word in front if re.fullmatch(r"[+-](xnack|sramecc)", word)]
    return "".join((arch, *(f"_{feature[1:]}_{'on' if feature[0] == '+' else 'off'}" for feature in features)))


def _without(words: Words, *options: str) -> Words:
    """Return words without these options and their values, glued or separate."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not (word[:2] in ("-I", "-D", "-U") and word[:2] in options):
            kept.append(word)
    return tuple(kept)


def _file(name: str) -> str:
    return f"{FOLDER}/{STEM}.{name}"


def _made(words: Iterable[Argument], name: str = "made") -> tuple[Argument, ...]:
    """Return words with the action's output after `-o`."""
    found: list[Argument] = []
    for word in words:
        found.append(Ref(place=Place.OUTPUT, name=name) if found and found[-1] == "-o" else word)
    return tuple(found)


def _symbolic(word: str) -> Argument:
    """Return a word with a root's folder replaced by a reference."""
    found = list(_ROOT.finditer(word))
    if not found:
        return word
    if len(found) > 1:
        raise NotUnderstood(f"two folders in {word}")
    (match,) = found
    return Ref(place=Place.ROOT, name=match[1], prefix=word[: match.start()], suffix=word[match.end() :])


def _step(
    kind: StepKind,
    what: str,
    argv: Iterable[Argument],
    inputs: tuple[str, ...],
    outputs: tuple[Output, ...],
    equivalents: tuple[str, ...] = (),
) -> Action:
    return Action(
        name=f"{kind.value} {what}".rstrip(),
        kind=kind.value,
        tool="",
        argv=tuple(_symbolic(word) if isinstance(word, str) else word for word in argv),
        inputs=inputs,
        outputs=outputs,
        discovery=Discovery.NONE
        if kind is not StepKind.PREPROCESS
        else Discovery.CLANG_RULES
        if what == _HOST
        else Discovery.CLANG,
        kept=Kept.DIGESTS if kind is StepKind.PREPROCESS else Kept.FILES,
        equivalents=equivalents,
    )
