"""Depfiles of compiles below shims, beside those that the plain compilers write, and what a file's appearance does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
CLANG = next((name for name in ("clang++", *(f"clang++-{n}" for n in range(30, 10, -1))) if shutil.which(name)), "")
ASKS = """\
#if __has_include("y.h") && __has_include(<z z.h>) && !__has_include("none.h")
int y;
#endif
#include "h.h"
#include "inc/../h.h"
#include <s.h>
#if __has_include(<cstddef>)
int c;
#endif
"""
FILES = {
    "h.h": "#pragma once\n",
    "y.h": "",
    "inc/z z.h": "",
    "sys/s.h": '#pragma once\n#include "in.h"\n',
    "sys/in.h": "",
    "inc/b.h": "",
    "device.h": "",
}
KERNEL = '#ifdef __CUDA_ARCH__\n#include "device.h"\n#endif\n__global__ void k(int *x) { *x = 1; }\n'
FORMS = ("-MD", "-MMD -MP", "-MD -MP -MF o.d -MT t$1", "-MMD -MF o.d -MQ t$1")


def furnished(project: ForeignProject, source: str, text: str) -> ForeignProject:
    for name, content in {**FILES, source: text}.items():
        project.write(name, content)
    return project


@pytest.fixture
def places(kept_user: User, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[ForeignProject, ForeignProject]:
    name = re.sub(r"\W+", "-", request.node.name)
    return ForeignProject(kept_user, tmp_path / name), ForeignProject(kept_user, tmp_path / "other/place" / name)


def rules(project: ForeignProject, command: str, *, plain: bool, exact: bool = False) -> dict[str, object]:
    """Status, words and depfiles of a command."""
    words = [word.replace("@", str(project.folder)) for word in command.split()]
    done = project.call(*words, environ=project.plain if plain else project.environ)
    found: dict[str, object] = {"status": done.returncode, "said": done.stderr}
    for path in project.folder.glob("*.d"):
        text = path.read_text()
        lines = text.replace("\\\n", " ").splitlines()
        found[path.name] = text if exact else [line.split() for line in lines if line.strip()]
        path.unlink()
    return found


def same_everywhere(places: tuple[ForeignProject, ForeignProject], command: str, *, exact: bool = False) -> None:
    """A command writes the same as without us: on a miss, on a hit, and in another folder."""
    for project in (places[0], places[0], places[1]):
        theirs = rules(project, command, plain=True, exact=exact)
        assert [name for name in theirs if name.endswith(".d")] or theirs["status"], theirs
        assert rules(project, command, plain=False, exact=exact) == theirs, (command, project.folder)


@pytest.mark.parametrize("compiler", ["g++", CLANG])
def test_depfiles_of_files_that_a_source_only_asks_for(
    places: tuple[ForeignProject, ForeignProject], compiler: str
) -> None:
    if not compiler:
        pytest.skip("no clang (Debian: apt install clang)")
    for project in places:
        furnished(project, "a.cpp", ASKS)
    for form in FORMS:
        same_everywhere(places, f"{compiler} -c @/a.cpp -I@/inc -isystem sys {form} -o o.o")
    same_everywhere(places, f"{compiler} -c a.cpp -Iinc -isystem ./sys -MMD")
    for project in places:
        project.write("a.cpp", '#include "h.h"\n#include "gone.h"\n')
    same_everywhere(places, f"{compiler} -c a.cpp -MD")


@pytest.mark.parametrize("compiler", ["g++", CLANG])
def test_a_folder_of_the_users_in_a_system_folder(places: tuple[ForeignProject, ForeignProject], compiler: str) -> None:
    """As with -I/usr/include/node: the headers there are no system headers."""
    if not compiler:
        pytest.skip("no clang (Debian: apt install clang)")
    for project in places:
        furnished(project, "a.cpp", "#include <m.h>\n#include <s.h>\n")
        project.write("sys/mine/m.h", '#include "n.h"\n')
        project.write("sys/mine/n.h", "")
    for folders in (
        "-isystem sys -I sys/mine",
        "-isystem sys -iquote sys/mine -isystem sys/mine",
        "-isystem @/sys -I@/sys/mine",
    ):
        same_everywhere(places, f"{compiler} -c a.cpp {folders} -MMD -MP -o o.o")


@pytest.mark.parametrize("compiler", ["g++", CLANG])
def test_a_file_that_was_asked_for_in_vain_appears(
    places: tuple[ForeignProject, ForeignProject], compiler: str
) -> None:
    if not compiler:
        pytest.skip("no clang (Debian: apt install clang)")
    project = furnished(places[0], "a.cpp", ASKS)
    appears(project, f"{compiler} -c a.cpp -Iinc -isystem sys -MD -o o.o")


def appears(project: ForeignProject, command: str) -> None:
    (project.folder / "y.h").unlink()
    before = rules(project, command, plain=False)
    assert rules(project, command, plain=False) == before
    misses = project.counts()[1]
    project.write("y.h", "")
    after = rules(project, command, plain=False)
    assert project.counts()[1] == misses + 1, "it would have been found with the file away"
    assert after == rules(project, command, plain=True)


@pytest.mark.parametrize("compiler", ["g++", CLANG])
def test_a_depfile_keeps_its_mode_and_its_other_names(
    places: tuple[ForeignProject, ForeignProject], compiler: str
) -> None:
    if not compiler:
        pytest.skip("no clang (Debian: apt install clang)")
    project = furnished(places[0], "a.cpp", f"{ASKS}int keeps_its_mode;\n")
    command = f"{compiler} -c a.cpp -Iinc -isystem sys -MD -o o.o".split()
    written, other = project.folder / "o.d", project.folder / "other"

    def left(mode: int, *, plain: bool) -> tuple[int, str, int]:
        written.write_text("old\n")
        written.chmod(mode)
        other.unlink(missing_ok=True)
        other.hardlink_to(written)
        assert project.call(*command, environ=project.plain if plain else project.environ).returncode == 0
        return written.stat().st_mode, other.read_text(), written.stat().st_nlink

    for mode in (0o600, 0o664):  # a miss, then a hit
        assert left(mode, plain=False) == left(mode, plain=True)
    assert project.counts() == (1, 1)


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
def test_clang_warns_of_one_of_two_depfiles_itself(places: tuple[ForeignProject, ForeignProject]) -> None:
    project = furnished(places[0], "a.cpp", ASKS)
    command = f"{CLANG} -c a.cpp -Iinc -isystem sys -MD -MMD"
    assert rules(project, command, plain=False) == rules(project, command, plain=True)


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
def test_a_sanitizers_list_stands_before_the_source(places: tuple[ForeignProject, ForeignProject]) -> None:
    for project in places:
        furnished(project, "a.cpp", ASKS.replace("<cstddef>", "<none>"))
    for form in ("-MD", "-MMD -MP"):
        same_everywhere(places, f"{CLANG} -c a.cpp -Iinc -isystem sys -fsanitize=address {form}")


@pytest.mark.cuda
def test_nvccs_depfile_to_the_byte(kept_user: User, request: pytest.FixtureRequest) -> None:
    project = furnished(ForeignProject.with_nvcc(kept_user, request.node.name), "k.cu", ASKS + KERNEL)
    project.write("sys/s.h", "#include <b.h>\n")  # what a system header includes is one too
    for form in ("-MMD -MP", "-MD -MF o.d -MT t$1"):
        command = f"nvcc -c k.cu -Iinc -isystem sys {form}"
        theirs = rules(project, command, plain=True, exact=True)
        for when in ("miss or hit of another form", "hit"):
            assert rules(project, command, plain=False, exact=True) == theirs, (form, when)
    assert project.counts() == (3, 1), "both forms share one result"


@pytest.mark.cuda
@pytest.mark.parametrize("broken", ['__global__ void b() { asm("bar;"); }', 'asm("foo");'], ids=["ptxas", "as"])
def test_nvccs_depfile_of_a_compile_that_fails_after_the_preprocessor(
    kept_user: User, request: pytest.FixtureRequest, broken: str
) -> None:
    name = re.sub(r"\W+", "-", request.node.name)
    project = furnished(ForeignProject.with_nvcc(kept_user, name), "k.cu", f"{ASKS}{KERNEL}{broken}\n")
    command = "nvcc -c k.cu -Iinc -isystem sys -MD -MP"
    theirs, ours = (rules(project, command, plain=plain, exact=True) for plain in (True, False))
    assert theirs["status"] == ours["status"] != 0
    assert theirs["k.d"] == ours.get("k.d")


@pytest.mark.cuda
@pytest.mark.slow
def test_depfiles_of_all_that_nvcc_makes(kept_user: User, request: pytest.FixtureRequest) -> None:
    project = furnished(ForeignProject.with_nvcc(kept_user, request.node.name), "k.cu", ASKS + KERNEL)
    for form in (
        *(
            "-ptx -MMD",
            "-optix-ir -MMD",
            "-ptx -o o.ptx -MD",
            "-cubin -arch=sm_80 -MMD",
            "-dc -MMD -o o.o",
            "-c -MMD -MT a -MT b",
        ),
        *("-c -MD -include inc/b.h", "-c -MMD -Xcompiler=-imacros,inc/b.h", "-c -MMD -MP -MF o.d -MF p.d"),
        *("-c -MD -MMD --generate-dependency-targets", "-c -MMD -MD"),
        "-c -MD -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90]",
    ):
        command = f"nvcc k.cu -Iinc -isystem sys {form}"
        theirs = rules(project, command, plain=True, exact=True)
        for when in ("miss", "hit"):
            assert rules(project, command, plain=False, exact=True) == theirs, (form, when)
    appears(project, "nvcc -c k.cu -Iinc -isystem sys -MMD -MP")


@pytest.mark.cuda
def test_device_code_of_nvcc_for_a_link_or_for_optix(kept_user: User, request: pytest.FixtureRequest) -> None:
    """Nothing can be searched for in these files, so another checkout finds none of them."""
    place = ForeignProject.with_nvcc(kept_user, request.node.name)
    other = ForeignProject(kept_user, place.folder / "far/away")
    for project in (place, other):
        project.write("v.h", "#define V 3\n")
        project.write("k.cu", '#include "v.h"\nextern "C" __global__ void k(int *p) { *p = V; }\n')
    for number, (form, made) in enumerate((("-ltoir -dlto", "k.ltoir"), ("-optix-ir", "k.optixir")), 1):
        command = f"nvcc k.cu -MD -arch=sm_80 {form}"
        theirs, contents = rules(place, command, plain=True, exact=True), []
        for value in (3, 3, 4, 3):
            place.write("v.h", f"#define V {value}\n")
            (place.folder / made).unlink(missing_ok=True)
            assert rules(place, command, plain=False, exact=True) == theirs
            contents.append((place.folder / made).read_bytes())
        assert contents[0] == contents[1] == contents[3] != contents[2]
        assert other.call(*command.split()).returncode == 0
        assert (place.counts(), other.counts()) == ((2 * number, 2 * number), (0, number))


@pytest.mark.hip
def test_hipccs_depfile_lists_what_the_hosts_pass_finds(places: tuple[ForeignProject, ForeignProject]) -> None:
    text = ASKS + '#ifdef __HIP_DEVICE_COMPILE__\n#include "device.h"\n#endif\n__attribute__((global)) void k(int *);\n'
    project = furnished(places[0], "k.hip", text)
    for environ in (project.plain, project.environ):
        environ["HIP_PLATFORM"] = "amd"
    command = "hipcc --offload-arch=gfx90a -c k.hip -Iinc -isystem sys -MD -MP"
    theirs = rules(project, command, plain=True)
    for when in ("miss", "hit"):
        assert rules(project, command, plain=False) == theirs, when


@pytest.mark.hip
def test_device_code_of_hipcc_alone(places: tuple[ForeignProject, ForeignProject]) -> None:
    for place, counts in ((places[0], (0, 1)), (places[1], (1, 1)), (places[0], (2, 1))):
        place.write("inc/v.h", "#define V 3\n")
        place.write("k.cpp", '#include "v.h"\nextern "C" __attribute__((global)) void k(int *p) { *p = V; }\n')
        command = "hipcc --genco --offload-arch=gfx90a -nogpuinc -x hip -Iinc -MD k.cpp -o k.hsaco"
        plain = place.plainly(*command.split())
        assert plain.returncode == 0, plain.stderr
        kept = (place.folder / "k.hsaco").read_bytes(), (place.folder / "k.d").read_text().split()
        done = place.call(*command.split())
        assert done.returncode == 0, done.stderr
        assert (place.folder / "k.hsaco").read_bytes() == kept[0]
        assert (place.folder / "k.d").read_text().split() == kept[1]
        assert place.counts() == counts
    places[0].write("inc/v.h", "#define V 4\n")
    before = places[0].counts()
    assert places[0].call(*command.split()).returncode == 0
    assert places[0].counts() == (before[0], before[1] + 1)
