"""Determines a compiler's closure from probes: the files that run when the compiler is called.

Knows no search order (`toolchain` has already found the compiler) and no target. A file that cannot be found is left
out: it cannot run either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from codegen.errors import RequestError
from codegen.plan import Answer, Knowledge, Probe, ToolFile
from codegen.reach import open_regular
from codegen.search import without_variables

Environment = tuple[tuple[str, str], ...]

OTHER_CACHES = ("ccache", "sccache")
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""The loaders that ldd calls. ldd is a shell script that takes five times as long."""
_SYSTEM_LIBRARIES = re.compile(
    r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z|zstd|lzma|tinfo|edit|bsd|md|ffi|xml2|jansson|icu\w+|crypt))[.-]"
)
"""Shared libraries whose version does not affect a compiler's output; a different version must not cost a hit."""


def which(name: str, path: str) -> str:
    """Return the executable with a name on a PATH; empty if there is none. Does not use this process's own PATH."""
    if "/" in name:
        return name if os.access(name, os.X_OK) and os.path.isfile(name) else ""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if folder and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return ""


def is_other_cache(path: str) -> bool:
    """Tell whether a program is ccache or sccache, perhaps under a compiler's name: distributions put a folder of such
    links before all others on PATH."""
    return os.path.basename(os.path.realpath(path)) in OTHER_CACHES


def which_compiler(name: str, path: str) -> str:
    """`which`, past other caches' links of that name."""
    folders = path.split(os.pathsep)
    return which(name, os.pathsep.join(f for f in folders if f and not is_other_cache(os.path.join(f, name))))


BINUTILS = ("as", "ld", "ld.bfd", "ld.gold", "ld.lld")
"""Programs that gcc and clang look for on PATH if none of their own folders has them."""
TOOLKIT = ("cicc", "ptxas", "fatbinary", "cudafe++", "nvlink", "bin2c")
"""Programs that nvcc looks for on PATH if its own folder does not have them."""


def callers_folders(path: str, hosts: Iterable[str], programs: Iterable[str], usual: str) -> tuple[str, ...]:
    """Return the folders of the caller's PATH, in its order, in which a tool finds what it calls; none if it finds the
    same on the usual PATH, so that keys do not depend on the rest of the caller's.

    Args:
        hosts: names of compilers.
        programs: names of other programs. One behind another link is the same.
    """
    wanted, is_other = set(), False
    for names, by_link in ((hosts, False), (programs, True)):
        for name in names:
            if not (found := which_compiler(name, path)):
                continue
            wanted.add(os.path.abspath(os.path.dirname(found)))
            own = which(name, usual)
            others = (found, own) if by_link else (os.path.dirname(found), os.path.dirname(own))
            is_other = is_other or not own or os.path.realpath(others[0]) != os.path.realpath(others[1])
    folders = dict.fromkeys(os.path.abspath(folder) for folder in path.split(os.pathsep) if folder)
    return tuple(folder for folder in folders if folder in wanted) if is_other else ()


def is_script(path: str) -> bool:
    try:
        with open_regular(path) as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def script_files(path: str, environment: Mapping[str, str], depth: int = 4) -> tuple[str, ...]:
    """Return a program and, if it is a script, the programs it calls: files that its text names absolutely or beside
    it.

    A probe's answer depends on both: a wrapper's bytes stay the same when the program it calls is replaced.
    """
    found: dict[str, None] = {path: None}
    if depth == 0 or not is_script(path):
        return tuple(found)
    try:
        with open_regular(path) as stream:
            text = stream.read(1 << 18).decode(errors="replace").partition("\n")[2]
    except OSError:
        return tuple(found)
    text = re.sub(r"\$\{?(\w+)\}?", lambda name: environment.get(name[1], name[0]), text)
    here = os.path.dirname(os.path.realpath(path))
    names = [name for name in re.findall(r"/[^\s\"'`$;:|&<>(){}=,]+", text)]
    names += [os.path.join(here, name.lstrip("/")) for name in names if name.count("/") == 1]
    names += [os.path.join(here, f"{name}.pm") for name in re.findall(r"^use (\w+);", text, re.MULTILINE)]
    for name in names:
        name = os.path.normpath(name)
        if name not in found and os.path.isfile(name) and (os.access(name, os.X_OK) or name.startswith(here)):
            found.update(dict.fromkeys(script_files(name, environment, depth - 1)))
    return tuple(found)


_BLANK = r"(?:(?:\\\n)*[ \t](?:[ \t]|\\\n)*)"
"""Between two words of a command, which may go on in the next line. Without a blank the shell joins the words."""
_EXEC = re.compile(
    r"#! ?/\S*/(?:env )?(?:ba|da|)sh\n(?:[ \t]*(?:#[^\n\0]*)?\n)*"
    rf"""[ \t]*exec{_BLANK}(?P<quote>["']?)(?P<program>/[\w./+-]+)(?P=quote)"""
    rf"""(?P<words>(?:{_BLANK}[\w./+=:@%,-]+)*){_BLANK}"\$@"[ \t\n]*"""
)
"""A shell script that does nothing but `exec`, perhaps with words of its own before its caller's."""
_ADDED = re.compile(r"-B ?/\S+|-isystem ?/\S+|-D(?!__)\w+(?:=[A-Za-z0-9.+-]*)?|-m64|-pthread|-pipe")
"""What such words may be: the compiler's answers to probes show where they make it look, and no other rule for a
command depends on them."""


def _read_exec(script: str) -> tuple[str, tuple[str, ...]]:
    """Return the program that a shell script does nothing but exec, and the options that it puts before its caller's
    arguments; an empty program for any other file, and for other options."""
    try:
        with open_regular(script) as stream:
            text = stream.read(1 << 12).decode(errors="replace")
    except OSError:
        return "", ()
    found = _EXEC.fullmatch(text)
    words = re.findall(r"(?:-B|-isystem)\s+[^-\s]\S*|\S+", found["words"].replace("\\\n", "")) if found else []
    options = [" ".join(word.split()) for word in words]
    if found is None or not all(map(_ADDED.fullmatch, options)):
        return "", ()
    return found["program"], tuple(options)


def handed_to(script: str) -> str:
    """Return the program that shell scripts do nothing but exec, with their caller's arguments alone; empty for any
    other file."""
    program, options = _behind(script)
    return "" if options or program == script else program


def _behind(driver: str) -> tuple[str, tuple[str, ...]]:
    """Return the program behind scripts that do nothing but exec, empty if one of them does more, and the options that
    they add."""
    added: list[str] = []
    for _ in range(4):  # as many as `script_files` follows
        if not driver or not is_script(driver):
            break
        driver, options = _read_exec(driver)
        added += options
    return ("" if is_script(driver) else driver), tuple(added)


class Files:
    """The files of a tool. A file behind several links appears once, and each role is used once."""

    def __init__(self, files: Iterable[ToolFile] = ()) -> None:
        self._files: dict[str, ToolFile] = {}
        self._roles: set[str] = set()
        self.extend(files)

    def add(self, role: str, path: str) -> None:
        real = os.path.realpath(path)
        if real in self._files:
            return
        unique, count = role, 2
        while unique in self._roles:
            unique, count = f"{role} {count}", count + 1
        self._roles.add(unique)
        self._files[real] = ToolFile(role=unique, path=path)

    def extend(self, files: Iterable[ToolFile]) -> None:
        for file in files:
            self.add(file.role, file.path)

    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self._files.values())

    def all(self) -> tuple[ToolFile, ...]:
        return tuple(self._files.values())


CAPABILITIES = ("glibc-hwcaps", "x86-64-v4", "x86-64-v3", "x86-64-v2", "tls", "haswell", "avx512_1", "x86_64")
"""Folders that the loader prefers on a processor that has what they are named for. Source: glibc 2.36, ld.so(8)."""


def loading_folders(environment: Environment) -> tuple[str, ...]:
    """Return the folders of LD_LIBRARY_PATH, each after those within it that the loader prefers.

    An empty or relative entry names the working folder, which nobody fills with a compiler's libraries.
    """
    found: dict[str, None] = {}

    def look(folder: str, depth: int = 4) -> None:
        for name in CAPABILITIES if depth else ():
            inner = os.path.join(folder, name)
            if os.path.isdir(inner):
                look(inner, depth - 1)
        found[folder] = None

    for folder in re.split("[:;]", dict(environment).get("LD_LIBRARY_PATH", "")):
        if folder.startswith("/"):
            look(folder)
    return tuple(found)


def libraries(knowledge: Knowledge, programs: Iterable[str], environment: Environment) -> tuple[ToolFile, ...]:
    """Return the shared libraries that the programs load and that can affect their output (LLVM, BFD, ISL, MPFR
    ...)."""
    programs = tuple(dict.fromkeys(program for program in programs if program and not is_script(program)))
    answers = _loaded(knowledge, programs, environment)
    found: dict[str, str] = {}
    # The answer is cached; a library that appears later in one of these folders would be loaded instead.
    folders = loading_folders(environment)
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", "\n".join(answer.stdout for answer in answers), re.MULTILINE):
        if not _SYSTEM_LIBRARIES.match(name):
            rivals = [os.path.join(folder, name) for folder in folders]
            for place in (path, *(rival for rival in rivals if os.path.isfile(rival))):
                found.setdefault(os.path.normpath(place), name)
    return tuple(ToolFile(role=f"library {name}", path=path) for path, name in found.items())


def _loaded(knowledge: Knowledge, programs: tuple[str, ...], environment: Environment) -> tuple[Answer, ...]:
    """Return the loader's answers about programs, one probe for each, so that they run in parallel."""
    ldd = which("ldd", dict(environment).get("PATH", "") + ":/usr/bin:/bin")
    loader = _LOADERS.get(os.uname().machine, "")

    def ask(words: tuple[str, ...], programs: Iterable[str]) -> tuple[Answer, ...]:
        # One probe per program: they run in parallel.
        return knowledge.ask(
            *(Probe(argv=(*words, p), environment=environment, files=(p, "/etc/ld.so.cache")) for p in programs)
        )

    if not os.access(loader, os.X_OK):
        return ask((ldd,), programs) if ldd else ()
    answers = ask((loader, "--list"), programs)
    strangers = [program for program, answer in zip(programs, answers, strict=True) if answer.status != 0]
    return (*answers, *ask((ldd,), strangers)) if ldd and strangers else answers


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """gcc or clang as the host compiler of nvcc: its files and its search folders."""

    files: tuple[ToolFile, ...]
    search: tuple[str, ...]
    clang: bool
    version: str
    libraries: tuple[str, ...] = ()
    """Folders that it searches for libraries by default."""
    programs: tuple[str, ...] = ()
    """Folders that it searches for its own programs."""
    wrapper: str = ""
    """The driver, or a program of its, that is a script or program which calls another one: it may read any variable
    and any file."""
    before: tuple[str, ...] = ()
    """Those of `search` that a script in front of the driver names with -isystem. The driver searches them before
    folders that a command names in this way."""


_PROGRAMS = ("cc1plus", "cc1", "collect2", "as", "ld", "lto-wrapper", "lto1")


def host_compiler(
    knowledge: Knowledge,
    programs: tuple[str, ...],
    environment: Environment,
    path: str,
    *,
    options: tuple[str, ...] = (),
) -> HostCompiler:
    """Return the closure of a host compiler.

    Args:
        programs: absolute paths of the drivers: first the one that compiles, then others (g++ for linking).
        environment: environment of the probes; CPATH and similar variables change the search folders.
        path: PATH for tools that the driver does not find beside itself.
        options: those that say where the driver finds its parts.
    """
    driver = programs[0]
    called = (driver, *options)
    behind, added = _behind(driver)
    before = {os.path.normpath(word.removeprefix("-isystem").strip()) for word in added if "-isystem" in word}
    inputs = script_files(driver, dict(environment))
    (answer,) = knowledge.ask(Probe(argv=(*called, "-print-search-dirs"), environment=environment, files=inputs))
    folders = search_dirs(answer.stdout)
    # An answer is valid until another program or a specs file appears in a folder that the driver searches.
    places = [os.path.join(folder, name) for folder in folders["programs"] for name in _PROGRAMS]
    places += [os.path.join(folder, "specs") for folder in (*folders["install"], *folders["libraries"])]
    inputs = tuple(dict.fromkeys((*inputs, *places)))
    verbose = Probe(
        argv=(*called, "-v", "-E", "-x", "c++", "-", "-o", "/dev/null"), environment=environment, files=inputs
    )
    probes = [verbose]
    probes += [
        Probe(argv=(*called, f"-print-prog-name={name}"), environment=environment, files=inputs) for name in _PROGRAMS
    ]
    probes.append(Probe(argv=(*called, "-print-file-name=liblto_plugin.so"), environment=environment, files=inputs))
    answers = knowledge.ask(*probes)
    text = _checked(answers[0], driver, "the host compiler").stderr
    named: list[tuple[str, str]] = []
    for role, answer in zip((*_PROGRAMS, "lto-plugin"), answers[1:], strict=True):
        found = answer.stdout.strip()
        found = found if found.startswith("/") else which(found, path)
        if found and os.path.isfile(found):
            named.append((role, found))
    real = [which(name, path) for name in re.findall(r"^COLLECT_GCC=(\S+)", text, re.MULTILINE)]
    specs = re.findall(r"^Reading specs from (\S+)", text, re.MULTILINE)
    clang = re.search(r"^.*clang version (\S+)", text, re.MULTILINE)
    gcc = re.search(r"^gcc version (\S+)", text, re.MULTILINE)
    version = f"clang {clang[1]}" if clang else f"gcc {gcc[1]}" if gcc else ""
    files = Files()
    for program in programs:
        for index, file in enumerate(script_files(program, dict(environment))):
            name = os.path.basename(program)
            files.add(f"host {name}" if index == 0 else f"host {name} script {index}", file)
    for role, program in (*(("driver", file) for file in real if file), *(("specs", file) for file in specs), *named):
        for index, file in enumerate(script_files(program, dict(environment))):
            files.add(f"host {role}" if index == 0 else f"host {role} script {index}", file)
    files.extend(libraries(knowledge, files.paths(), environment))
    return HostCompiler(
        files.all(),
        without_variables(search_folders(text), environment),
        clang is not None,
        version,
        folders["libraries"],
        folders["programs"],
        before=tuple(folder for folder in search_folders(text) if folder in before),
        wrapper=driver
        if _calls_another(behind, text)
        else next(filter(_does_more_than_exec, (*programs[1:], *(file for role, file in named if role != "ld"))), ""),
    )


def _calls_another(driver: str, text: str) -> bool:
    """Tell whether a driver is a wrapper, by what it says with -v: gcc names itself as it was called, and clang the
    program that it runs for the front end, which is itself.

    Args:
        driver: the program behind scripts that do nothing but exec; empty if there is none.
    """
    if not driver:
        return True
    called = re.findall(r"^COLLECT_GCC=(\S+)", text, re.MULTILINE)
    fronts = re.findall(r'^ "?(/[^"\n]+?)"? -cc1 ', text, re.MULTILINE)
    own = os.path.realpath(driver)
    return any(name != driver for name in called) or any(os.path.realpath(front) != own for front in fronts)


def scripted_linker(files: Iterable[ToolFile]) -> str:
    """Return the linker among a tool's files if it is a script that may read any variable and any file: its links
    cannot be cached. A compile calls no linker."""
    linkers = (file.path for file in files if file.role == "host ld")
    return next(filter(_does_more_than_exec, linkers), "")


def _does_more_than_exec(driver: str) -> bool:
    return is_script(driver) and not _behind(driver)[0]


def search_dirs(text: str) -> dict[str, tuple[str, ...]]:
    """Return the folders from -print-search-dirs of gcc or clang: "install", "programs" and "libraries"."""
    found: dict[str, tuple[str, ...]] = {"install": (), "programs": (), "libraries": ()}
    for name, value in re.findall(r"^(install|programs|libraries): =?(.*)$", text, re.MULTILINE):
        found[name] = tuple(dict.fromkeys(os.path.normpath(part) for part in value.split(":") if part.startswith("/")))
    return found


def search_folders(verbose: str) -> tuple[str, ...]:
    """Return the include folders from `-v -E` of gcc or clang, in order. Missing folders come first: the compiler would
    find a header that appears there, but it does not print their place in the order."""
    missing = re.findall(r'^ignoring nonexistent directory "(.*)"', verbose, re.MULTILINE)
    listed = re.search(
        r"#include <\.\.\.> search starts here:\n(.*?)^End of search list", verbose, re.MULTILINE | re.DOTALL
    )
    found = [line.strip() for line in listed[1].splitlines()] if listed else []
    quoted = re.search(r'#include "\.\.\." search starts here:\n(.*?)^#include <', verbose, re.MULTILINE | re.DOTALL)
    before = [line.strip() for line in quoted[1].splitlines()] if quoted else []
    return tuple(dict.fromkeys(os.path.normpath(folder) for folder in (*missing, *before, *found) if folder))


def _checked(answer: Answer, program: str, what: str) -> Answer:
    if answer.status != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise RequestError(
            "compiler-not-found",
            f"{what} {program} does not work: {said[-1] if said else f'exit status {answer.status}'}",
            file=program,
            next_step=f"run `{program} -v` and repair the installation",
        )
    return answer
