"""Variables that name a build's own folders, as cargo sets them for the scripts of crates."""

from __future__ import annotations

import shutil

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install gcc)")


def test_a_library_path_of_a_build_folder_keeps_no_checkout_apart(kept_user: User) -> None:
    objects, counts = [], []
    for name in ("one", "two"):
        project = ForeignProject(kept_user, kept_user.folder / "crates" / name)
        project.write("c.c", "int of_a_crate(void) { return 1; }\n")
        project.write("target/deps/libserde-0123456789abcdef.so", "")
        project.plain["LD_LIBRARY_PATH"] = project.environ["LD_LIBRARY_PATH"] = (
            f"{project.folder}/target/deps:{project.folder}/target"
        )
        before = project.counts()
        project.good("gcc", "-O1", "-c", "c.c", "-o", "c.o")
        after = project.counts()
        counts.append((after[0] - before[0], after[1] - before[1]))
        objects.append((project.folder / "c.o").read_bytes())
    assert counts == [(0, 1), (1, 0)] and objects[0] == objects[1]
    # A library that comes there may be loaded by the compiler: no shim answers by itself.
    project.good("gcc", "-O1", "-c", "c.c", "-o", "c.o")
    hits = project.counts()[0]
    project.write("target/libmpc.so.3", "no library")
    done = project.call("gcc", "-O1", "-c", "c.c", "-o", "c.o")
    assert done.returncode == project.plainly("gcc", "-O1", "-c", "c.c", "-o", "c.o").returncode
    assert project.counts()[0] == hits


@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
def test_an_architecture_in_hipccs_variable_is_seen(kept_user: User) -> None:
    project = ForeignProject(kept_user, kept_user.folder / "appended")
    project.write("k.hip", "#include <hip/hip_runtime.h>\n__global__ void k(int *p) { *p = 1; }\n")
    before = project.counts()
    project.environ["HIPCC_COMPILE_FLAGS_APPEND"] = "--offload-arch=gfx90a"
    for _ in range(2):
        project.good("hipcc", "-c", "k.hip", "-o", "k.o")
    assert project.counts() == (before[0] + 1, before[1] + 1)
    made = (project.folder / "k.o").read_bytes()
    project.plain["HIPCC_COMPILE_FLAGS_APPEND"] = "--offload-arch=gfx90a"
    assert project.plainly("hipcc", "-c", "k.hip", "-o", "k.o").returncode == 0
    assert (project.folder / "k.o").read_bytes() == made
    project.environ["HIPCC_COMPILE_FLAGS_APPEND"] = "--offload-arch=native"
    project.call("hipcc", "-c", "k.hip", "-o", "k.o")
    assert project.counts() == (before[0] + 1, before[1] + 1)


def test_objects_that_come_and_go_beside_the_sources_ask_no_daemon(kept_user: User) -> None:
    """As Automake's, in a subfolder that is searched for headers. A header that comes there counts."""
    project = ForeignProject(kept_user, kept_user.folder / "beside")
    project.write("lib/x.h", "#define X 1\n")
    commands = []
    for name in ("a", "b"):
        project.write(f"lib/{name}.c", f'#include <x.h>\n#include "y.h"\nint beside_{name} = X + Y;\n')
        listing = f"-MT lib/{name}.o -MD -MP -MF lib/{name}.Tpo"
        commands.append(f"gcc -I. -I./lib -Iinc {listing} -c -o lib/{name}.o lib/{name}.c".split())
    project.write("inc/y.h", "#define Y 1\n")

    def seen() -> tuple[int, int]:
        """Hits by shims alone, and misses, so far."""
        return project.notes.figures()[0], project.counts()[1]

    def ran() -> tuple[int, int]:
        before = seen()
        for path in (project.folder / "lib").glob("*.o"):
            path.unlink()
        for command in commands:
            project.good(*command)
        return seen()[0] - before[0], seen()[1] - before[1]

    ran()
    until(lambda: ran() == (2, 0), "hits by the shim alone, once the files are old enough")
    project.write("lib/unnamed.h", "")
    assert ran() == (2, 0)
    project.write("lib/y.h", "#define Y 2\n")
    assert ran() == (0, 2)
    made = (project.folder / "lib/a.o").read_bytes()
    assert project.plainly(*commands[0]).returncode == 0
    assert (project.folder / "lib/a.o").read_bytes() == made


def test_files_that_come_and_go_in_other_folders_of_the_build_ask_no_daemon(kept_user: User) -> None:
    """As Kbuild's objects in a folder of headers, and libtool's `.lo` above its objects. A header counts there too."""
    project = ForeignProject(kept_user, kept_user.folder / "around")
    project.write("lib/x.h", "#define X 1\n")
    project.write("inc/y.h", "#define Y 1\n")
    project.write("app/a.c", '#include <x.h>\n#include "y.h"\nint around = X + Y;\n')
    project.write("app/.libs/kept", "")
    command = ["gcc", "-I.", "-Ilib", "-Iinc", "-MD", "-MF", "app/.deps.a", "-c", "-o", "app/.libs/a.o", "app/a.c"]

    def ran() -> tuple[int, int]:
        """Hits by shims alone, and misses."""
        before = project.notes.figures()[0], project.counts()[1]
        project.good(*command)
        return project.notes.figures()[0] - before[0], project.counts()[1] - before[1]

    ran()
    until(lambda: ran() == (1, 0), "a hit by the shim alone, once the files are old enough")
    for path in ("lib/b.o", "app/a.lo", "b.o", "inc/z.h"):
        project.write(path, "")
        assert ran() == (1, 0), path
    project.write("lib/y.h", "#define Y 2\n")
    assert ran() == (0, 1)
    made = (project.folder / "app/.libs/a.o").read_bytes()
    assert project.plainly(*command).returncode == 0
    assert (project.folder / "app/.libs/a.o").read_bytes() == made


def test_an_include_that_leaves_a_mapped_folder_is_the_same_file_nowhere_else(kept_user: User) -> None:
    """The folder above may be one to both, and it has another file at the place where the include leads."""
    project = ForeignProject(kept_user, kept_user.folder / "left")
    project.write("inc/i.h", "")
    made = []
    for place, number in (("one", 1), ("deep/er/two", 2)):
        top = project.folder / place
        source = project.write(f"{place}/src/a.c", '#include <i.h>\n#include "../../x.h"\nint of_left = X;\n')
        (top.parent / "x.h").write_text(f"#define X {number}\n")
        command = ["gcc", f"-I{project.folder}/inc", "-c", str(source), "-o", f"{top}/a.o"]
        folders = {"BUILDD_MAP_PATHS": str(top), "BUILDD_RUN_FOLDER": str(project.folder)}
        done = project.call(*command, environ={**project.environ, **folders}, cwd=top)
        assert done.returncode == 0, done.stderr
        made.append((top / "a.o").read_bytes())
        assert project.plainly(*command, cwd=top).returncode == 0
        assert made[-1] == (top / "a.o").read_bytes()
    assert made[0] != made[1]
