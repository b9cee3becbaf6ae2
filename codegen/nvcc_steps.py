"""`nvcc --dryrun` -> the steps of one compile as actions, and those actions for a given source.

Pure, and strict: whatever it does not know for sure (a program, a quote, a temporary file in an unexpected place) is
`NotUnderstood`, and nvcc then runs whole. Knows nvcc's steps and which of their arguments are files, not what the other
arguments mean; does not know how steps are run, nor where nvcc is.

The shape, since CUDA 11.5: host preprocess, cudafe++; preprocess and cicc per virtual architecture, ptxas per real one;
fatbinary; host compile, whose input includes the stub of the last cicc and that includes fatbinary's output. nvcc's
device passes wait for cudafe++ only because it writes the file with the module's id. Here that is written beforehand,
and nothing else stands between the two. The host compile waits for no ptxas either: it takes in a fatbin of the same
form (`FRAME`), and who carries the steps out puts the real one into the object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from codegen.closure import which
from codegen.plan import BARE, Action, Argument, Discovery, Kept, Output, Place, Ref, Steps
from codegen.step_kinds import FOLDER, IMAGE, OBJECT, SOURCE, STEM, USED, Kind, NotUnderstood

_LISTS = "#$ -- Filter Dependencies -- > "
"""nvcc itself writes the depfile, of what the preprocessors read."""
_TEMPORARY = re.compile(r"(?:[^=,]*/)?(tmpxft_[0-9a-f]+_[0-9a-f]+-[0-9]+_" + STEM + r"\.[\w.]+)")
_QUOTED = re.compile(r'"((?:[^"$`\\]|\\["\\])*)"')
_WORD = re.compile(rf"((?:[A-Za-z0-9_@%+:,./=^-]|{_QUOTED.pattern.replace('((', '(?:(')})+)(?: +|$)")
_DEVICE_PATHS = re.compile(r"-{1,2}g|-{1,2}G|.*(line-?info|src-in-ptx|source-in-ptx|debug).*")
"""Options of cicc with which the folder that it runs in gets into its output."""
_DEBUG = re.compile(r"-g(?!no-).*")
"""Options of gcc with which names of step files get into its output."""
_LINES = re.compile(
    r"-g(?!no-).*|-f(sanitize|instrument|profile|auto-profile|plugin|module|opt-info|dump|callgraph|compare-debug).*"
    r"|-fdirectives-only|-ftest-coverage|--coverage|-p|-pg|-CC?|-P|-traditional.*|-save-temps.*|-Wa,.*"
)
"""Options of gcc with which line numbers may get into its output, or the text is not as it usually is."""


class _Role(Enum):
    """What a temporary file is to the step that names it."""

    INPUT = "input"
    MODULE = "module"
    INCLUDED = "included"
    """Only its bare name is written into the output, for `#include`."""
    MADE = "made"
    STUB = "stub"
    UNUSED = "unused"
    """Written, and read by no step."""


_ROLES = {
    (Kind.PREPROCESS, "-o"): _Role.MADE,
    (Kind.CUDAFE, "--gen_c_file_name"): _Role.MADE,
    (Kind.CUDAFE, "--stub_file_name"): _Role.INCLUDED,
    (Kind.CUDAFE, "--module_id_file_name"): _Role.MODULE,
    (Kind.CICC, "-o"): _Role.MADE,
    (Kind.CICC, "--stub_file_name"): _Role.STUB,
    (Kind.CICC, "--gen_c_file_name"): _Role.UNUSED,
    (Kind.CICC, "--gen_device_file_name"): _Role.UNUSED,
    (Kind.CICC, "--include_file_name"): _Role.INCLUDED,
    (Kind.CICC, "--module_id_file_name"): _Role.MODULE,
    (Kind.PTXAS, "-o"): _Role.MADE,
    (Kind.FATBINARY, "--image3"): _Role.INPUT,
    (Kind.FATBINARY, "--image"): _Role.INPUT,
    (Kind.FATBINARY, "--embedded-fatbin"): _Role.MADE,
}
_TWINS = {
    Kind.PREPROCESS: _Role.MADE,
    Kind.CUDAFE: _Role.MADE,
    Kind.CICC: _Role.STUB,
    Kind.FATBINARY: _Role.MADE,
}
"""The files that later steps read and that have a `BARE` twin."""
_READERS = (Kind.CUDAFE, Kind.CICC, Kind.HOST)
"""The steps that are filed by twins."""
_HEADERS_NAME = "headers.ii"
_DEVICE_CODE = f"{FOLDER}/{STEM}.device.fatbin.c"
_IMAGES = re.compile(r"--image3=kind=(elf|ptx),sm=\w+,file=")
_HEADERS = b"""\
#if __has_include("crt/host_runtime.h") && __has_include("fatbinary_section.h")
#define __NV_CUBIN_HANDLE_STORAGE__ static
#if !defined(__CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__)
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#endif
#include "crt/host_runtime.h"
#include "fatbinary_section.h"
#else
__CUDA_ARCH__ __CUDA_ARCH_LIST__
#endif
"""
"""The beginning of a stub and of a fatbin: all that the host compile still includes."""
_POSITIONAL = (Kind.CUDAFE, Kind.CICC, Kind.PTXAS, Kind.HOST)
"""Steps with one input that no option names."""
_PROGRAMS = {kind.value: kind for kind in (Kind.CUDAFE, Kind.CICC, Kind.PTXAS, Kind.FATBINARY)}


@dataclass(frozen=True, slots=True)
class _File:
    """A word that names a temporary file: `prefix` and the name that nvcc gave it."""

    role: _Role
    prefix: str
    name: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A command line that was read."""

    kind: Kind
    words: tuple[str | _File, ...]

    def files(self, *roles: _Role) -> list[str]:
        return [word.name for word in self.words if isinstance(word, _File) and word.role in roles]

    def one(self, role: _Role) -> str:
        files = self.files(role)
        if len(files) != 1:
            raise NotUnderstood(f"{self.kind.value} with {len(files)} files of role {role.value}")
        return files[0]

    def option(self, name: str) -> str:
        """The one value of an option, glued or not."""
        words = [word if isinstance(word, str) else "" for word in self.words]
        glued = [word.removeprefix(name + "=") for word in words if word.startswith(name + "=")]
        apart = [value for word, value in pairwise(words) if word == name]
        if len(glued + apart) != 1:
            raise NotUnderstood(f"{self.kind.value} with {len(glued + apart)} times {name}")
        return (glued + apart)[0]


def decompose(
    text: str, name: str, *, extension: str, root: str, identity: str, find: Callable[[str, str], str] = which
) -> Steps:
    """The steps of a compile.

    Args:
        text: what `nvcc --dryrun -c ... -o OBJECT SOURCE.extension` printed. Folders of the tool's roots may stand in
            it as `placeholder` spells them.
        name: for the `Steps`.
        root: the toolkit's folder.
        identity: of the project.
        find: the file that a program's name means on a PATH.

    Raises:
        NotUnderstood: then nvcc has to run whole.
    """
    variables: dict[str, str] = {}
    said: list[str] = []
    steps: list[_Step] = []
    for line in text.splitlines():
        if not line.startswith("#$ "):
            said.append(line + "\n")
        elif line.startswith(_LISTS):
            continue
        elif assignment := re.fullmatch(r"(\w+)=(.*)", line[3:]):
            variables[assignment[1]] = assignment[2].strip()
        elif (words := _words(line[3:], variables)) and os.path.basename(words[0]) != "rm":
            steps.append(_read(words, SOURCE + extension))
    if not {"PATH", "LD_LIBRARY_PATH"} <= variables.keys():
        raise NotUnderstood("no PATH is named")
    writer = _Writer(steps, variables, root, SOURCE + extension, find)
    return Steps(name=name, identity=identity, actions=tuple(writer.actions()), said="".join(said))


# ---------------------------------------------------------------- reading


def _words(line: str, variables: Mapping[str, str]) -> list[str]:
    """The words of a command line that nvcc would hand to a shell; only what every shell reads in one way."""
    line = re.sub(r'^"\$(\w+)', lambda name: '"' + variables.get(name[1], name[0]), line.strip())
    words: list[str] = []
    end = 0
    while match := _WORD.match(line, end):
        words.append(_QUOTED.sub(lambda part: re.sub(r"\\(.)", r"\1", part[1]), match[1]))
        end = match.end()
    if end != len(line):
        raise NotUnderstood(f"a shell would read more than words in: {line[end:]}")
    return words


def _read(words: list[str], source: str) -> _Step:
    program = os.path.basename(words[0])
    kind = _PROGRAMS.get(program)
    if kind is None and "-x c++" in " ".join(words):
        modes = [word for word in words if word in ("-E", "-c")]
        kind = {"-E": Kind.PREPROCESS, "-c": Kind.HOST}.get(modes[0] if modes else "")
    if kind is None:
        raise NotUnderstood(f"the step {program}")
    if words.count(source) != {Kind.PREPROCESS: 1, Kind.HOST: 0}.get(kind, words.count(source)):
        raise NotUnderstood(f"{kind.value} of another file")
    read: list[str | _File] = []
    for index, word in enumerate(words):
        if "tmpxft_" not in word:
            read.append(word)
            continue
        option, equals, value = word.partition("=")
        prefix = word[: len(word) - len(value.rpartition("file=")[2])] if equals else ""
        match = _TEMPORARY.fullmatch(word[len(prefix) :])
        role = _ROLES.get((kind, option)) if equals else _ROLES.get((kind, words[index - 1]))
        if role is None and not equals and kind in _POSITIONAL:
            role = _Role.INPUT
        if match is None or role is None:
            raise NotUnderstood(f"{kind.value} {words[index - 1]} {word}")
        read.append(_File(role, prefix, match[1]))
    step = _Step(kind, tuple(read))
    if kind in _POSITIONAL:
        step.one(_Role.INPUT)
    return step


def _sees_lines(step: _Step) -> bool:
    pattern = _LINES if step.kind in (Kind.PREPROCESS, Kind.HOST) else _DEVICE_PATHS
    return any(pattern.fullmatch(word) for word in step.words if isinstance(word, str))


# ---------------------------------------------------------------- writing


class _Writer:
    """Steps as actions, their files under names that do not change with the list of architectures: an added one must
    not make the others' steps look new."""

    def __init__(
        self, steps: list[_Step], variables: Mapping[str, str], root: str, source: str, find: Callable[[str, str], str]
    ) -> None:
        self._steps = steps
        self._variables = variables
        self._root = root
        self._source = source
        self._find = find
        by_kind: dict[Kind, list[_Step]] = {kind: [] for kind in Kind}
        for step in steps:
            by_kind[step.kind].append(step)
        for kind in (Kind.CUDAFE, Kind.FATBINARY, Kind.HOST):
            if len(by_kind[kind]) != 1:
                raise NotUnderstood(f"{len(by_kind[kind])} times {kind.value}")
        (front,), (binary,), (host,) = (by_kind[kind] for kind in (Kind.CUDAFE, Kind.FATBINARY, Kind.HOST))
        if front.words.count("--gen_module_id_file") != 1 or any(
            "--gen_module_id_file" in step.words for step in steps if step is not front
        ):
            raise NotUnderstood("who writes the module's id")
        self._names = {front.one(_Role.MODULE): "module_id", front.one(_Role.MADE): "cudafe1.cpp"}
        self._names[front.one(_Role.INPUT)] = "cpp4.ii"
        self._names[front.one(_Role.INCLUDED)] = "cudafe1.stub.c"
        self._names[binary.one(_Role.MADE)] = "fatbin.c"
        for step in by_kind[Kind.CICC]:
            arch = step.option("-arch")
            self._names.setdefault(step.one(_Role.INPUT), f"{arch}.cpp1.ii")
            made = step.one(_Role.MADE)
            self._names.setdefault(made, f"{arch}.{made.rpartition('.')[2]}")
            self._names.setdefault(step.one(_Role.STUB), f"{arch}/cudafe1.stub.c")
            if step.one(_Role.INCLUDED) != binary.one(_Role.MADE) or step.one(_Role.MODULE) not in self._names:
                raise NotUnderstood("cicc of another fatbin or module")
        for step in by_kind[Kind.PTXAS]:
            arch = self._names.get(step.one(_Role.INPUT), "").partition(".")[0]
            self._names.setdefault(step.one(_Role.MADE), f"{arch}.{step.option('-arch')}.cubin")
        if len(set(self._names.values())) != len(self._names):
            raise NotUnderstood("two files for one architecture")
        self._names[_HEADERS_NAME] = _HEADERS_NAME
        self._module = front.one(_Role.MODULE)
        self._lines = any(_sees_lines(step) for step in steps)
        self._stub, self._fatbin = front.one(_Role.INCLUDED), binary.one(_Role.MADE)
        images = [word.prefix for word in binary.words if isinstance(word, _File) and word.role is _Role.INPUT]
        self._framed = (
            not self._lines
            and bool(images)
            and all(_IMAGES.fullmatch(image) for image in images)
            and not any(str(word).startswith(("--device-c", "-link", "--link")) for word in binary.words)
            and not any(str(word).startswith("-flto") for word in host.words)
        )
        if host.one(_Role.INPUT) != front.one(_Role.MADE) or host.option("-o") != OBJECT:
            raise NotUnderstood("host compile of another file")
        written = [name for step in steps for name in step.files(_Role.MADE, _Role.STUB)]
        read = [name for step in steps for name in step.files(_Role.INPUT)] + [self._stub, self._fatbin]
        if len(set(written)) != len(written) or not set(read) <= set(written) <= set(self._names):
            raise NotUnderstood("which step makes what another reads")

    def _path(self, name: str) -> str:
        folder, _, role = self._names[name].rpartition("/")
        return "/".join(part for part in (FOLDER, folder, f"{STEM}.{role}") if part)

    def actions(self) -> Iterator[Action]:
        """The template."""
        for step in self._steps:
            made = self.action(step)
            if step.kind is Kind.HOST and not self._lines:
                yield self._headers(step)
            if step.kind is Kind.FATBINARY and self._framed:
                yield self._frame(step)
            yield made

    def _frame(self, binary: _Step) -> Action:
        """What the host compile takes in instead of the fatbin."""
        (image, *_) = (word.prefix for word in binary.words if isinstance(word, _File) and word.role is _Role.INPUT)
        argv: list[Argument] = [self._program(str(binary.words[0]))]
        argv += [self._symbolic(word) for word in binary.words[1:] if isinstance(word, str)]
        argv.append(Ref(place=Place.INPUT, name=IMAGE, prefix=re.sub(r"=kind=\w+,sm=\w+,", "=kind=ptx,sm=80,", image)))
        argv += [
            self._file(word, False) for word in binary.words if isinstance(word, _File) and word.role is _Role.MADE
        ]
        path = self._path(self._fatbin)
        return Action(
            name=Kind.FRAME.value,
            kind=Kind.FRAME.value,
            tool="",
            argv=tuple(argv),
            environment=self._environment(),
            inputs=(IMAGE,),
            outputs=(Output(name=_Role.MADE.value, path=path), Output(name=BARE, path=f"{path}.{BARE}")),
        )

    def _headers(self, host: _Step) -> Action:
        """What shows whether the list of architectures can reach the host code."""
        argv: list[Argument] = [self._program(str(host.words[0]))]
        for word in host.words[1:]:
            if isinstance(word, _File):
                argv.append("-")
            elif word == OBJECT:
                argv.append(Ref(place=Place.OUTPUT, name=_Role.MADE.value))
            else:
                argv.append("-E" if word == "-c" else self._symbolic(word))
        return Action(
            name=Kind.HEADERS.value,
            kind=Kind.HEADERS.value,
            tool="",
            argv=(*argv, "-w"),
            environment=self._environment(),
            payload=_HEADERS,
            outputs=(Output(name=_Role.MADE.value, path=self._path(_HEADERS_NAME)),),
            discovery=Discovery.GCC,
        )

    def _environment(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, self._variables[name]) for name in ("LD_LIBRARY_PATH", "PATH"))

    def action(self, step: _Step) -> Action:
        """A step of the template."""
        # Else the name of the private folder would stand in the stub.
        apart = step.kind is Kind.CICC and not any(_DEVICE_PATHS.fullmatch(str(word)) for word in step.words)
        argv: list[Argument] = [self._program(str(step.words[0]))]
        for before, word in pairwise(step.words):
            if isinstance(word, _File):
                argv.append(self._file(word, apart))
            elif before == "--orig_src_path_name":
                argv.append(Ref(place=Place.ROOT, name="project", suffix=f"/{self._source}"))
            elif word == OBJECT:
                argv.append(Ref(place=Place.OUTPUT, name="object"))
            elif word != "--gen_module_id_file":
                argv.append(self._symbolic(word))
        inputs = [self._path(name) for name in step.files(_Role.INPUT, _Role.MODULE)]
        outputs = [
            Output(name=word.role.value, path=self._path(word.name))
            for word in step.words
            if isinstance(word, _File) and word.role in (_Role.MADE, _Role.STUB)
        ]
        texts = [path for path in inputs if step.kind in _READERS and path != self._path(self._module)]
        if step.kind is Kind.HOST:
            texts += [self._path(self._stub), self._path(self._fatbin)]
            inputs += texts[1:]
            outputs = [Output(name="object", path=f"{FOLDER}/{OBJECT}")]
            if not self._lines:
                inputs += [self._path(_HEADERS_NAME)]
                outputs += [Output(name=BARE, path=f"{self._path(self._fatbin)}{USED}")]
            if any(_DEBUG.fullmatch(str(word)) for word in step.words):
                argv += [
                    Ref(
                        place=Place.INPUT,
                        name=path,
                        prefix="-fdebug-prefix-map=",
                        suffix=f"={os.path.basename(path)}",
                    )
                    for path in inputs
                ]
        elif step.kind in _TWINS and not self._lines:
            if step.kind is Kind.FATBINARY and self._framed:
                outputs = [Output(name=_Role.MADE.value, path=_DEVICE_CODE)]
                outputs += [Output(name=BARE, path=f"{_DEVICE_CODE}.{BARE}")]
            else:
                outputs += [Output(name=BARE, path=f"{self._path(step.one(_TWINS[step.kind]))}.{BARE}")]
        what = step.option("-arch") if step.kind in (Kind.CICC, Kind.PTXAS) else ""
        if step.kind is Kind.PREPROCESS:
            what = self._names[step.one(_Role.MADE)].removesuffix(".cpp1.ii").replace("cpp4.ii", "host")
        return Action(
            name=f"{step.kind.value} {what}".rstrip(),
            kind=step.kind.value,
            tool="",
            argv=tuple(argv),
            environment=self._environment(),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            discovery=Discovery.GCC if step.kind in (Kind.PREPROCESS, Kind.HOST) else Discovery.NONE,
            kept=Kept.NOTHING if step.kind in (Kind.PREPROCESS, Kind.FATBINARY) else Kept.FILES,
            apart=apart,
            twins=() if self._lines else tuple(texts),
        )

    def _program(self, name: str) -> Argument:
        path = os.path.normpath(self._find(name, self._variables["PATH"]) or "/")
        if path == "/":
            raise NotUnderstood(f"no {name} on the PATH")
        return self._symbolic(path)

    def _file(self, file: _File, apart: bool) -> Argument:
        path = self._path(file.name) if file.role is not _Role.UNUSED else f"{STEM}.{file.name.rpartition('.')[2]}"
        name = os.path.basename(path)
        match file.role:
            case _Role.INPUT | _Role.MODULE:
                return Ref(place=Place.INPUT, name=path, prefix=file.prefix)
            case _Role.MADE:
                return Ref(place=Place.OUTPUT, name=file.role.value, prefix=file.prefix)
            case _Role.STUB:
                return name if apart else Ref(place=Place.OUTPUT, name=file.role.value)
            case _Role.UNUSED:
                return Ref(place=Place.TEMPORARY, suffix=f"/unused.{name}")
            case _Role.INCLUDED:
                return name

    def _symbolic(self, word: str) -> Argument:
        """A word with the folder of a root as a reference."""
        found = list(re.finditer(rf"{re.escape(self._root)}(?=/)|/buildd_root_([+\w-]+?)_(?=\W|$)", word))
        if not found:
            return word
        if len(found) > 1:
            raise NotUnderstood(f"two folders in {word}")
        (match,) = found
        return Ref(place=Place.ROOT, name=match[1] or "cuda", prefix=word[: match.start()], suffix=word[match.end() :])
