"""Scripts in front of a compiler: what they call is cached, and they do what they do without the shims."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.native.programs import find_compilers, is_sound
from buildd.shims import interposition, shim_folders
from buildd.shims.interposition import LAUNCHER
from tests.support.foreign_project import ForeignProject, kept_up
from tests.support.serving import short_folder
from tests.support.toolkit import copy_toolkit, small_toolkit
from tests.support.user import User

GXX = shutil.which("g++") or ""
pytestmark = pytest.mark.skipif(not GXX, reason="no g++ (Debian: apt install g++)")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, tmp_path: Path, request: pytest.FixtureRequest) -> ForeignProject:
    name = re.sub(r"\W+", "-", request.node.name)
    made = ForeignProject(user, tmp_path / name)
    made.write("a.cpp", f'int a = A; char const *test = "{name}";\n')
    return made


def wrap(project: ForeignProject, text: str, name: str = "g++") -> Path:
    """Put a script of this name first on the project's PATH."""
    script = project.write(f"../bin/{name}", text)
    script.chmod(0o755)
    project.search(str(script.parent.resolve()))
    return script.resolve()


WRAPPERS = {
    "exec": f'#!/bin/sh\nexec {GXX} -DA=1 "$@"\n',
    "call": f'#!/bin/bash\nset -e\nextra="-DA=1"\n{GXX} $extra "$@"\n',
    "next": '#!/bin/sh\nPATH=${PATH#*:}\nexec g++ -DA=1 "$@"\n',
    "env": f'#!/usr/bin/env bash\n{GXX} -DA="${{VALUE-1}}" "${{@}}"\n',
    "python": f"#!{sys.executable}\nimport subprocess, sys\n"
    f"sys.exit(subprocess.call(['{GXX}', '-DA=1', *sys.argv[1:]]))\n",
}


@pytest.mark.parametrize("how", ["name", "path", "launcher"])
@pytest.mark.parametrize("text", WRAPPERS.values(), ids=WRAPPERS)
def test_the_compiler_behind_a_wrapper_hits(project: ForeignProject, text: str, how: str) -> None:
    script = wrap(project, text)
    launcher = f"{project.shims}/{LAUNCHER}"
    called = {"name": ("g++",), "path": ("sh", "-c", f'{script} "$@"; exit', "sh"), "launcher": (launcher, str(script))}
    plain = project.plainly(*called[how][how == "launcher" :], "-c", "a.cpp", "-o", "plain.o")
    assert plain.returncode == 0, plain.stderr
    for _ in range(2):
        (project.folder / "a.o").unlink(missing_ok=True)
        project.good(*called[how], "-c", "a.cpp", "-o", "a.o")
        assert (project.folder / "a.o").read_bytes() == (project.folder / "plain.o").read_bytes()
    assert project.counts() == (1, 1)
    assert project.figures().passed_through == {}


@pytest.mark.parametrize(
    "ending", ["-real", *(pytest.param(other, marks=pytest.mark.slow) for other in (".orig", ".distrib"))]
)
def test_a_compiler_that_its_wrapper_moved_aside(project: ForeignProject, ending: str) -> None:
    """By hand, as images of CUDA do with a gcc of their own, and by dpkg-divert."""
    for name in ("gcc", "g++"):
        (project.write("../own/.keep", "").parent / f"{name}{ending}").symlink_to(shutil.which(name) or "")
    project.write("c.c", "#include <c_only.h>\nint const a = A;\n")
    project.write("include/c_only.h", "")
    script = wrap(project, f'#!/bin/sh\nexec {project.folder.parent}/own/g++{ending} "$@"\n')
    wrap(project, f'#!/bin/sh\nexec {project.folder.parent}/own/gcc{ending} "$@"\n', "gcc")
    environ = {**project.environ, "C_INCLUDE_PATH": "include"}
    for _ in range(2):
        for tool, source in ((str(script), "a.cpp"), ("gcc", "c.c")):
            done = project.call("sh", "-c", f"{tool} -DA=1 -MMD -c {source} -o a.o; exit $?", environ=environ)
            assert done.returncode == 0, done.stderr
    assert "c_only.h" not in (project.folder / "a.d").read_text(), "a system header for C"
    assert project.counts() == (2, 2) and project.figures().passed_through == {}


def test_a_launcher_that_cmake_wrote_down_looks_through_without_buildd_run(project: ForeignProject) -> None:
    script = wrap(project, WRAPPERS["exec"])
    launcher = f"{project.shims}/{LAUNCHER}"
    tree = {**project.plain, "BUILDD_BUILD_ID": project.environ["BUILDD_BUILD_ID"]}
    for _ in range(2):
        done = project.call(launcher, str(script), "-c", "a.cpp", "-o", "a.o", environ=tree)
        assert done.returncode == 0, done.stderr
    assert project.counts() == (1, 1)
    off = {**tree, "BUILDD_INTERPOSE": "0"}
    assert project.call(launcher, str(script), "-c", "a.cpp", "-o", "a.o", environ=off).returncode == 0
    assert project.counts() == (1, 1)
    assert project.figures().passed_through == {"wrapper": 1}


def test_a_folder_of_installed_launchers_looks_through(user: User, project: ForeignProject) -> None:
    script = wrap(project, WRAPPERS["exec"])
    folder = project.folder / "launchers"
    status, said = user.buildd("install-launchers", str(folder))
    assert status == 0, said
    path = f"{folder}:{script.parent}:{user.environ['PATH']}"
    installed = {**project.plain, "PATH": path, "BUILDD_BUILD_ID": project.environ["BUILDD_BUILD_ID"]}
    for _ in range(2):
        assert project.call("g++", "-c", "a.cpp", "-o", "a.o", environ=installed).returncode == 0
    assert project.counts() == (1, 1)
    assert all(name.exists() for name in shim_folders.programs(user.store, installed))


def test_a_wrapper_sees_its_callers_variables_and_changes_its_mind(project: ForeignProject) -> None:
    """Neither could be in a key: buildd sends the variables of its table, and nobody can list what a script reads."""
    wrap(project, f'#!/bin/sh\necho x >> calls\nexec {GXX} -DA="$MINE$(wc -l < calls)" "$@"\n')
    made = []
    for mine in ("1", "1", "2"):
        environ = {**project.environ, "MINE": mine}
        assert project.call("g++", "-c", "a.cpp", "-o", "a.o", environ=environ).returncode == 0
        made.append((project.folder / "a.o").read_bytes())
    assert len(set(made)) == 3
    assert project.counts() == (0, 3)


def test_a_wrapper_says_what_it_says(project: ForeignProject) -> None:
    wrap(project, f'#!/bin/sh\necho "compiling $# words"\necho careful >&2\n{GXX} -DA=1 "$@"\necho done\nexit 3\n')
    plain = project.plainly("g++", "-c", "a.cpp", "-Wall")
    for _ in range(2):
        done = project.call("g++", "-c", "a.cpp", "-Wall")
        assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    assert plain.stdout == b"compiling 3 words\ndone\n"
    assert plain.returncode == 3
    assert project.counts() == (1, 1)


def test_a_wrapper_may_need_a_terminal(project: ForeignProject) -> None:
    wrap(project, f'#!/bin/sh\n[ -t 0 ] || exit 9\nexec {GXX} -DA=1 "$@"\n')
    assert project.call("g++", "-c", "a.cpp").returncode == 9
    keyboard, screen = pty.openpty()
    try:
        program = str(project.shims / "g++")
        done = subprocess.run(
            [program, "-c", "a.cpp"], cwd=project.folder, env=project.environ, stdin=screen, timeout=60, check=False
        )
        assert done.returncode == 0
    finally:
        os.close(keyboard)
        os.close(screen)
    assert project.counts() == (0, 1)


def test_a_wrapper_that_calls_itself_does_so_with_us(project: ForeignProject) -> None:
    """By its name, and by its path: without us, too, it never comes to an end unless it counts."""
    script = wrap(project, "")
    for again in ("g++", str(script)):
        script.write_text(f'#!/bin/sh\n[ "${{DEPTH-0}}" -lt 30 ] || exit 7\nDEPTH=$((DEPTH+1)) {again} "$@"\n')
        assert project.plainly("g++", "-c", "a.cpp").returncode == 7
        assert project.call("g++", "-c", "a.cpp").returncode == 7
    script.write_text('#!/bin/sh\necho again\nexec g++ "$@"\n')
    endless = project.start("g++", "-c", "a.cpp")
    assert endless.stdout is not None
    for _ in range(30):
        assert endless.stdout.readline() == b"again\n"
    endless.send_signal(signal.SIGINT)
    endless.communicate(timeout=20)
    assert endless.returncode == -signal.SIGINT
    assert project.counts() == (0, 0)


def test_a_wrapper_is_edited_or_leads_elsewhere(project: ForeignProject) -> None:
    script = wrap(project, WRAPPERS["exec"])
    before = script.stat()
    made = []
    for text in (WRAPPERS["exec"], WRAPPERS["exec"].replace("A=1", "A=2")):
        script.write_text(text)
        os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns))
        project.good("g++", "-c", "a.cpp", "-o", "a.o")
        made.append((project.folder / "a.o").read_bytes())
    assert made[0] != made[1]
    assert project.counts() == (0, 2)


# ---------------------------------------------------------------- the real nvcc

KERNEL = """\
#include <cstdio>
__global__ void TEST(int *p) { *p = A; }
int main() { TEST<<<1, 1>>>(nullptr); std::puts("made"); }
"""


@pytest.fixture
def toolkit(user: User) -> Path:
    """A toolkit whose bin/ is ours to change."""
    folder = user.folder / "cuda"
    if not folder.exists():
        copy_toolkit(small_toolkit(), folder)
    return folder


def cuda_project(project: ForeignProject, name: str) -> None:
    project.write(name, KERNEL.replace("TEST", re.sub(r"\W", "_", project.folder.name)))


NVCC_WRAPPERS = {
    "hand-made": '#!/bin/sh\nexec {cuda}/bin/nvcc -DA=1 "$@"\n',
    "conda": '#!/bin/bash\nfor word in "$@"; do\n  [ "$word" = -ccbin ] && exec "$CUDA_ROOT/bin/nvcc" "$@"\ndone\n'
    'exec "$CUDA_ROOT/bin/nvcc" -ccbin "$MY_CXX" -DA=1 "$@"\n',
    "bazel": "#!{python}\nimport os, sys\nwords = [word for word in sys.argv[1:] if word != '-no-canonical']\n"
    "os.execv('{cuda}/bin/nvcc', ['{cuda}/bin/nvcc', '-DA=1', *words])\n",
    "nixpkgs": '#!/bin/bash -e\nexport NVCC_APPEND_FLAGS="-DA=1"\nexec -a "$0" "{aside}" "$@"\n',
}
NVCC_CORE = ("conda", "nixpkgs")
"""The wrappers that the core tests call: words from two places, and a variable under another name of the program."""


@pytest.mark.cuda
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in NVCC_CORE else pytest.mark.slow) for kind in NVCC_WRAPPERS]
)
def test_nvcc_behind_a_wrapper_compiles_in_steps(project: ForeignProject, toolkit: Path, kind: str) -> None:
    cuda_project(project, "k.cu")
    project.user.environ |= {"CUDA_ROOT": str(toolkit), "MY_CXX": GXX}
    aside = project.folder.parent / "cuda" / "bin" / ".nvcc-wrapped"
    if kind == "nixpkgs":
        nvcc = copy_toolkit(toolkit, project.folder.parent / "cuda")
        nvcc.rename(aside)
        nvcc.write_text(NVCC_WRAPPERS[kind].format(aside=aside))
        nvcc.chmod(0o755)
        project.search(str(nvcc.parent))
    else:
        wrap(project, NVCC_WRAPPERS[kind].format(cuda=toolkit, python=sys.executable), "nvcc")
    plain = project.plainly("nvcc", "-arch=sm_80", "-c", "k.cu", "-o", "plain.o")
    assert plain.returncode == 0, plain.stderr
    for _ in range(2):
        project.good("nvcc", "-arch=sm_80", "-c", "k.cu", "-o", "k.o")
    assert project.counts() == (1, 1)
    assert project.figures().passed_through == {}
    text = (project.folder / "k.cu").read_text()
    project.write("k.cu", f"{text}int more() {{ return 1; }}\n")
    before = project.status().counters
    project.good("nvcc", "-arch=sm_80", "-c", "k.cu", "-o", "k.o")
    after = project.status().counters
    assert project.counts() == (1, 2)
    assert after["whole"] == before["whole"]
    assert after["step_hits"] > before["step_hits"], "the device code is the same"


@pytest.mark.cuda
def test_a_conda_environment_holds_the_host_compiler_and_names_it_in_a_variable(
    project: ForeignProject, toolkit: Path
) -> None:
    cuda_project(project, "k.cu")
    nvcc = copy_toolkit(toolkit, project.folder.parent / "env")
    host = nvcc.with_name("x86_64-conda-linux-gnu-c++")
    host.symlink_to(GXX)
    project.search(str(nvcc.parent))
    environ = {**project.environ, "NVCC_PREPEND_FLAGS": f" -ccbin={host}", "NVCC_APPEND_FLAGS": "--threads 2"}
    before = project.status().counters
    for tool in (nvcc.name, host.name):
        name = "k.cu" if tool == nvcc.name else "a.cpp"
        for _ in range(2):
            done = project.call(tool, "-DA=1", "-c", name, "-o", f"{name}.o", environ=environ)
            assert done.returncode == 0 and not done.stdout, done.stderr
    assert project.counts() == (2, 2)
    assert project.figures().passed_through == {}
    assert project.status().counters["whole"] == before["whole"] + 1, "C++"


HOST_WRAPPERS = {
    "script": '#!/bin/sh\nexec {gxx} $MINE "$@"\n',
    "program": "#include <unistd.h>\n#include <string.h>\n#include <stdlib.h>\nint main(int count, char **words)\n{{\n"
    '\tchar *all[count + 2];\n\tall[0] = "{gxx}";\n\tall[1] = getenv("MINE") ? getenv("MINE") : "-DA=1";\n'
    "\tmemcpy(all + 2, words + 1, count * sizeof *words);\n\treturn execv(all[0], all);\n}}\n",
}


@pytest.mark.cuda
@pytest.mark.parametrize("named", ["option", "variable", "flags", "path"])
@pytest.mark.parametrize("kind", HOST_WRAPPERS)
def test_a_wrapper_as_host_compiler(project: ForeignProject, toolkit: Path, kind: str, named: str) -> None:
    """OpenMPI's mpicxx, the compilers of Spack and Nix: they may read any variable and any file. nvcc runs as without
    buildd."""
    cuda_project(project, "k.cu")
    text = (project.folder / "k.cu").read_text()
    project.write("k.cu", f'#ifndef MARK\n#define MARK "none"\n#endif\n{text}char const *mark = MARK;\n')
    host = "gcc" if named == "path" else "g++"
    wrapper = project.folder.parent / "bin" / ("gcc" if named == "path" else "mpicxx")
    source = project.write("../bin/wrapper.c", HOST_WRAPPERS[kind].format(gxx=shutil.which(host)))
    if kind == "script":
        source.rename(wrapper).chmod(0o755)
    else:
        assert project.plainly(GXX, "-x", "c", str(source), "-o", str(wrapper)).returncode == 0
    project.search(f"{wrapper.parent if named == 'path' else toolkit}:{toolkit}/bin")
    variables = {"variable": {"NVCC_CCBIN": str(wrapper)}, "flags": {"NVCC_PREPEND_FLAGS": f"-ccbin={wrapper}"}}
    option = ("-ccbin", str(wrapper)) if named == "option" else ()
    for mine in ("five", "six"):
        environ = {**project.environ, **variables.get(named, {}), "MINE": f'-DMARK="{mine}"'}
        done = project.call("nvcc", *option, "-DA=1", "-arch=sm_80", "-c", "k.cu", "-o", "k.o", environ=environ)
        assert done.returncode == 0, done.stderr
        assert mine.encode() in (project.folder / "k.o").read_bytes()
    assert project.figures().passed_through == {"host-wrapper": 2}


def host_script(project: ForeignProject, words: str, name: str = "host-g++") -> Path:
    script = project.write(f"../bin/{name}", f'#!/bin/sh\n# ours\nexec {words} "$@"\n')
    script.chmod(0o755)
    return script.resolve()


@pytest.mark.cuda
@pytest.mark.parametrize("named", ["option", pytest.param("path", marks=pytest.mark.slow)])
def test_a_host_compiler_by_a_script_that_adds_options_of_its_own(
    project: ForeignProject, toolkit: Path, named: str
) -> None:
    """As in images with a gcc in a folder of its own: its script says where its parts and headers are."""
    cuda_project(project, "k.cu")
    project.write("k.cu", "#include <place.h>\n" + (project.folder / "k.cu").read_text() + "char const *from = FROM;\n")
    first, second = (project.folder.parent / name for name in ("first", "second"))
    first.mkdir()
    project.write("../second/place.h", '#define FROM "second"\n')
    project.search(f"{project.folder.parent}/bin:{toolkit}/bin")
    options = f"-B/usr/bin/ \\\n  -isystem {first} -DA=1"

    def compiled(text: str, plain: str = "plain.o") -> bool:
        """Whether the compile ran; its object holds the text, and is nvcc's own."""
        host = ("-ccbin", str(script)) if named == "option" else ()
        command = (*host, "-isystem", str(second), "-arch=sm_80", "-c", "k.cu", "-o")
        before = project.counts()
        project.good("nvcc", *command, "k.o")
        assert project.plainly("nvcc", *command, plain).returncode == 0
        assert text.encode() in (project.folder / "k.o").read_bytes()
        assert text.encode() in (project.folder / plain).read_bytes()
        return project.counts()[1] > before[1]

    script = host_script(project, f"{GXX} {options}", "g++")
    host_script(project, f"{shutil.which('gcc')} {options}", "gcc")
    assert compiled("second") and not compiled("second")
    project.write("../first/place.h", '#define FROM "first"\n')
    assert compiled("first"), "the script's folder comes before the command's"
    assert not compiled("first")
    host_script(project, f"{GXX} {options} -DMORE", "g++")
    host_script(project, f"{shutil.which('gcc')} {options} -DMORE", "gcc")
    assert compiled("first"), "another script"
    assert project.figures().passed_through == {}


@pytest.mark.cuda
@pytest.mark.parametrize("words", ["{gxx} -ffile-prefix-map=/x=/y", "{gxx} -I/x", "{gxx} -DA=__FILE__", "{other}"])
def test_a_script_whose_options_or_next_script_may_do_more_is_not_followed(
    project: ForeignProject, toolkit: Path, words: str
) -> None:
    cuda_project(project, "k.cu")
    project.search(f"{toolkit}/bin")
    other = host_script(project, f"{GXX} $MINE", "other")
    script = host_script(project, words.format(gxx=GXX, other=other))
    for _ in range(2):
        project.call("nvcc", "-ccbin", str(script), "-DA=1", "-arch=sm_80", "-c", "k.cu", "-o", "k.o")
    assert project.counts() == (0, 0) and project.figures().passed_through == {"host-wrapper": 2}


@pytest.mark.cuda
@pytest.mark.parametrize("how", ["bare", "relative", "variable", "flags"])
def test_host_compiler_of_the_caller(project: ForeignProject, toolkit: Path, how: str) -> None:
    cuda_project(project, "k.cu")
    project.write("mine/.keep", "")
    (project.folder / "mine" / "my-g++").symlink_to(GXX)
    project.search(f"{project.folder}/mine:{toolkit}/bin")
    named = "mine/my-g++" if how == "relative" else "my-g++"
    variables = {"variable": {"NVCC_CCBIN": named}, "flags": {"NVCC_APPEND_FLAGS": f"-ccbin {named}"}}
    option = ("-ccbin", named) if how in ("bare", "relative") else ()
    for _ in range(2):
        environ = {**project.environ, **variables.get(how, {})}
        done = project.call("nvcc", *option, "-DA=1", "-arch=sm_80", "-c", "k.cu", "-o", "k.o", environ=environ)
        assert done.returncode == 0, done.stderr
    assert project.counts() == (1, 1) and project.figures().passed_through == {}


def own_assembler(project: ForeignProject, kind: str) -> Path:
    """A folder with an assembler: a script, a program of its own, or a link to the usual one."""
    usual = shutil.which("as")
    assert usual is not None
    folder = project.folder.parent / f"as-{kind}"
    folder.mkdir()
    if kind == "link":
        (folder / "as").symlink_to(usual)
    elif kind == "program":
        (folder / "as").write_bytes(Path(usual).read_bytes() + b"other")
        (folder / "as").chmod(0o755)
    else:
        (folder / "as").write_text(f'#!/bin/sh\necho mine >&2\nexec {usual} "$@"\n')
        (folder / "as").chmod(0o755)
    return folder


@pytest.mark.parametrize("tool", ["gcc", pytest.param("nvcc", marks=pytest.mark.cuda)])
def test_assembler_of_the_caller(project: ForeignProject, request: pytest.FixtureRequest, tool: str) -> None:
    """gcc finds as and ld on PATH: those of Spack, EasyBuild and modules lie in folders of their own."""
    folder = f"{request.getfixturevalue('toolkit')}/bin" if tool == "nvcc" else ""
    cuda_project(project, "k.cu")
    project.write("k.c", "int k;\n")
    command = ("nvcc", "-DA=1", "-arch=sm_80", "-c", "k.cu") if tool == "nvcc" else ("gcc", "-c", "k.c")
    project.search(folder)
    first = project.call(*command, "-o", "k.o")
    assert first.returncode == 0 and project.counts() == (0, 1), first.stderr
    for kind, counts in (("link", (1, 1)), ("program", (1, 2)), ("script", (1, 2))):
        project.search(f"{own_assembler(project, kind)}:{folder}")
        done = project.call(*command, "-o", "k.o")
        assert done.returncode == 0 and project.counts() == counts, (kind, done.stderr)
        assert (b"mine\n" in done.stderr) == (kind == "script")
    reason = "host-wrapper" if tool == "nvcc" else "wrapper"
    assert project.figures().passed_through == {reason: 1}


def test_a_relative_folder_on_path_is_the_callers(project: ForeignProject) -> None:
    """The daemon runs elsewhere. The folder's content counts, and another working folder has another one."""
    for place in ("one", "two"):
        project.write(f"{place}/k.c", "int k;\n")
        (project.folder / place / "mine").mkdir()
    project.search("mine")

    def says_mine(place: str) -> bool:
        done = project.call("gcc", "-c", "k.c", "-o", "k.o", cwd=project.folder / place)
        assert done.returncode == 0, done.stderr
        return b"mine" in done.stderr

    assert not says_mine("one") and not says_mine("one")
    (own_assembler(project, "script") / "as").rename(project.folder / "one/mine/as")
    assert says_mine("one") and not says_mine("two")
    (project.folder / "one/mine/as").rename(project.folder / "two/mine/as")
    assert not says_mine("one") and says_mine("two")


def test_a_script_in_place_of_ld_is_not_followed(project: ForeignProject) -> None:
    """It may read any file; a compile calls no linker."""
    project.write("m.c", "int main(void) { return 0; }\n")
    script = project.write("../ld/ld", f'#!/bin/sh\necho mine >&2\nexec {shutil.which("ld")} "$@"\n')
    script.chmod(0o755)
    project.search(str(script.parent))
    for _ in range(2):
        assert b"mine" not in project.good("gcc", "-c", "m.c", "-o", "m.o").stderr
        assert b"mine" in project.good("gcc", "m.c", "-o", "m").stderr
    assert project.counts() == (1, 1) and project.figures().passed_through == {"wrapper": 2}


@pytest.mark.cuda
def test_a_relative_host_compiler_is_each_folders_own(project: ForeignProject, toolkit: Path) -> None:
    cuda_project(project, "one/k.cu")
    project.write("two/k.cu", (project.folder / "one/k.cu").read_text())
    project.write("one/my-g++", f'#!/bin/sh\nexec {GXX} -DA=1 "$@"\n').chmod(0o755)
    project.write("two/my-g++", f'#!/bin/sh\nexec {GXX} -DA=2 "$@"\n').chmod(0o755)
    project.search(f"{toolkit}/bin")
    command = ("nvcc", "-ccbin", "./my-g++", "-arch=sm_80", "-c", "k.cu", "-o", "k.o")
    for folder in ("one", "two", "one"):
        done = project.call(*command, cwd=project.folder / folder)
        assert done.returncode == 0, done.stderr
    assert project.counts() == (1, 2) and project.figures().passed_through == {}
    one, two = ((project.folder / folder / "k.o").read_bytes() for folder in ("one", "two"))
    assert one != two


@pytest.mark.cuda
def test_a_compiled_wrapper_is_looked_through(project: ForeignProject, toolkit: Path) -> None:
    cuda_project(project, "k.cu")
    (project.folder.parent / "bin").mkdir()
    made = project.folder.parent / "bin" / "nvcc"
    project.write(
        "wrapper.c",
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int main(int count, char **words)\n{\n"
        '\tchar *flag;\n\tasprintf(&flag, "-DA=%s", getenv("MINE"));\n\tsetenv("NVCC_APPEND_FLAGS", flag, 1);\n'
        f'\treturn execv(words[0] = "{toolkit}/bin/nvcc", words);\n}}\n',
    )
    assert project.plainly(GXX, "-x", "c", "wrapper.c", "-o", str(made)).returncode == 0
    project.search(str(made.parent))
    outputs = []
    for mine in ("1", "2", "1"):
        environ = {**project.environ, "MINE": mine}
        done = project.call("nvcc", "-arch=sm_80", "-c", "k.cu", "-o", "k.o", environ=environ)
        assert done.returncode == 0, done.stderr
        outputs.append((project.folder / "k.o").read_bytes())
    assert outputs[0] == outputs[2] != outputs[1]
    assert project.counts() == (1, 2)


@pytest.mark.cuda
def test_a_wrapper_that_makes_cuda_of_cpp_compiles_in_steps(project: ForeignProject, toolkit: Path) -> None:
    """The shape of Kokkos' nvcc_wrapper: a C++ compiler to CMake, CUDA to nvcc, and the rules by a second call."""
    cuda_project(project, "k.cpp")
    text = f"""\
#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in
  -MD) lists=1 ;;
  -MF) rules=$2; shift ;;
  -o) made=$2; shift ;;
  -c) ;;
  *) words="$words $1" ;;
  esac
  shift
done
command="nvcc -ccbin {GXX} -arch=sm_80 -DA=1 -x cu $words"
TMPDIR=${{TMPDIR:-/tmp}} $command -c -o $made && [ "$lists" ] && $command -M -o $rules
"""
    script = wrap(project, text, "cuda_wrapper")
    project.search(f"{script.parent}:{toolkit}/bin")
    launcher = f"{project.shims}/{LAUNCHER}"
    command = (str(script), "-c", "k.cpp", "-o", "k.o", "-MD", "-MF", "k.d")
    plain = project.plainly(*command)
    assert plain.returncode == 0, plain.stderr
    before = project.status().counters
    for _ in range(2):
        project.good(launcher, *command)
    after = project.status().counters
    assert project.counts() == (2, 2)
    assert after["whole"] == before["whole"] + 1, "the rules"
    assert after["step_misses"] > before["step_misses"]


def test_a_folder_of_gccs_own_parts(project: ForeignProject) -> None:
    """conda's Python compiles extensions with -B .../compiler_compat."""
    project.write("compat/include/x.h", "#define X 1\n")
    project.write("b.cpp", "#include <x.h>\nint b = X;\n")
    objects = []
    for value in (1, 1, 2):
        project.write("compat/include/x.h", f"#define X {value}\n")
        project.good(GXX, "-B", f"{project.folder}/compat", "-c", "b.cpp", "-o", "b.o")
        objects.append((project.folder / "b.o").read_bytes())
    assert objects[0] == objects[1] != objects[2] and project.counts() == (1, 2)
    # What gcc finds there is part of the tool.
    assembler = project.write("compat/as", f'#!/bin/sh\nexec {shutil.which("as")} "$@"\n')
    assembler.chmod(0o755)
    project.good(GXX, "-B", f"{project.folder}/compat", "-c", "b.cpp", "-o", "b.o")
    assert project.counts() == (1, 3) and project.figures().passed_through == {}


def test_a_wrapper_that_needs_a_variable_does_not_keep_the_shim_from_being_compiled(tmp_path: Path) -> None:
    """A site's or Spack's gcc, first on PATH: the next compiler makes the shim."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "gcc").write_text("#!/bin/sh\n: ${SITE:?must be set}\nexit 1\n")
    (scripts / "gcc").chmod(0o755)
    path = f"{scripts}:{os.environ['PATH']}"
    first, *others = find_compilers(path)
    assert first == str(scripts / "gcc") and os.path.realpath(shutil.which("gcc") or "") in map(
        os.path.realpath, others
    )
    (tmp_path / "store").mkdir(mode=0o700)
    made = shim_folders.program(tmp_path / "store", path)
    assert made == shim_folders.program(tmp_path / "store", path) and is_sound(made)
    assert interposition.library(tmp_path / "store", path) is not None


def test_a_shim_without_static_libraries_calls_a_wrapper_once(tmp_path: Path) -> None:
    """Such a shim loads the library that has compilers run under shims, too: the wrapper would be called for ever."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, text in (
        ("gcc", f'case " $* " in *" -static "*) exit 1;; esac\nexec {shutil.which("gcc")} "$@"\n'),
        ("g++", f'echo called >> {tmp_path}/calls\nexec {GXX} "$@"\n'),
    ):
        (scripts / name).write_text(f"#!/bin/sh\n{text}")
        (scripts / name).chmod(0o755)
    (tmp_path / "a.cpp").write_text("int a;\n")
    with short_folder() as folder:
        user = User(folder, {"PATH": f"{scripts}:{os.environ['PATH']}"})
        lent = {*user.store.rglob("*.launcher")}
        try:
            with kept_up(user):
                command = ("run", "--", "sh", "-c", f"cd {tmp_path} && g++ -c a.cpp")
                status, said = user.buildd(*command, timeout_s=60)
                assert (status, (tmp_path / "calls").read_text()) == (0, "called\n"), said
                assert "1 miss" in said and (tmp_path / "a.o").exists()
                (launcher,) = {*user.store.rglob("*.launcher")} - lent
                assert b"/ld-linux" in launcher.read_bytes() or b"/ld-musl" in launcher.read_bytes()
        finally:
            assert user.end() == []
