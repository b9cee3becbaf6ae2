"""Commands with several sources, and commands that compile and link: each source is found again."""

from __future__ import annotations

import glob
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import copy_toolkit, small_toolkit
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ (Debian: apt install g++)")
CLANG = next((name for name in ("clang++", *(f"clang++-{n}" for n in range(30, 10, -1))) if shutil.which(name)), "")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, tmp_path: Path, request: pytest.FixtureRequest) -> ForeignProject:
    name = re.sub(r"\W+", "-", request.node.name)
    made = ForeignProject(user, tmp_path / name)
    made.write("a.cpp", f'#include <cstdio>\nint b();\nint main() {{ std::printf("{name} %d\\n", b()); }}\n')
    made.write("b.cpp", f'const char *name = "{name}";\nint b() {{ return 4; }}\n')
    return made


def outcome(project: ForeignProject, command: str, environ: dict[str, str]) -> tuple[object, ...]:
    """Status, words and files of a command; names of temporary files are another each time."""
    kept = {path.name for path in project.folder.iterdir()}
    done = project.call("sh", "-c", command, environ=environ)
    made = {path.name: path.read_bytes() for path in project.folder.iterdir() if path.name not in kept}
    for name in made:
        (project.folder / name).unlink()
    words = re.sub(rb"[\w./-]*\b(cc\w+|a|b)\.o", b"OBJECT", done.stdout + b"|" + done.stderr)
    depfiles = {name: b" ".join(made[name].replace(b"\\\n", b" ").split()) for name in made if name.endswith(".d")}
    return done.returncode, words, {**made, **depfiles}


def left_behind(project: ForeignProject) -> list[str]:
    return glob.glob(f"/tmp/buildd-parts-*{project.folder}")


@pytest.mark.parametrize(
    ("command", "misses", "hits"),
    [
        ("g++ -c a.cpp b.cpp", 2, 2),
        ("g++ -O2 -MD -MP -c a.cpp b.cpp", 2, 2),
        ("g++ -O1 -g a.cpp b.cpp -o prog", 3, 1),  # at once, with the link
        ("g++ b.cpp a.cpp", 3, 1),
        ("g++ -x c++ a.cpp b.cpp -o prog -lm", 3, 1),
        ("g++ -fPIC -shared -Wl,-soname,x b.cpp a.cpp -o x.so", 3, 1),
        ("/usr/bin/g++ -c b.cpp -o ../b.o && g++ a.cpp ../b.o -o prog", 3, 2),
        ("g++ -Wall -DX -c a.cpp b.cpp -DX=2", 2, 2),
    ],
)
def test_each_source_is_found_again_and_the_link(project: ForeignProject, command: str, misses: int, hits: int) -> None:
    right = outcome(project, command, project.plain)
    assert right[0] == 0, right
    for _ in range(2):
        assert outcome(project, command, project.environ) == right
    found, ran = project.counts()
    # What answers for the whole command is published after its end: on a busy machine its parts are found once more.
    assert ran == misses and found in {hits, misses}
    assert left_behind(project) == []


@pytest.mark.parametrize(
    "command",
    [
        "g++ -c bad.cpp b.cpp",
        "g++ -c b.cpp bad.cpp",
        "g++ bad.cpp b.cpp -o prog",
        "g++ b.cpp -x c++ a.cpp",
        "g++ b.cpp none.cpp",
        "g++ b.cpp none.o",
        "g++ a.cpp b.cpp -o none/prog",
        "g++ -c a.cpp b.cpp -o both.o",
        "g++ -S a.cpp b.cpp",
        "g++ -MD -MF x.d -c a.cpp b.cpp",
        "g++ -c a.cpp notes.txt",
        "g++ a.cpp b.cpp notes.txt",
        "g++ -save-temps a.cpp b.cpp",
        "g++ b.cpp b.cpp",
    ],
)
def test_what_fails_or_is_odd_does_what_it_does_without_us(project: ForeignProject, command: str) -> None:
    project.write("bad.cpp", "int bad(\n")
    project.write("notes.txt", "/* GNU ld script */\n")
    right = outcome(project, command, project.plain)
    for _ in range(2):
        assert outcome(project, command, project.environ) == right
    assert left_behind(project) == []


@pytest.mark.parametrize(
    ("command", "results"),
    [
        ("g++ @/a.cpp -O1 -I@ -DONE -o @/prog", 1),
        ("g++ @/a.cpp @/b.cpp -I@ -L@/lib -lm -o @/prog", 3),
        ("gcc -shared -fPIC @/c.c -L@/lib -lz0 -o @/libc.so", 1),
    ],
)
def test_a_second_checkout_finds_a_command_that_compiles_and_links(
    user: User, tmp_path: Path, request: pytest.FixtureRequest, command: str, results: int
) -> None:
    unique = re.sub(r"\W", "_", request.node.name)
    places = [ForeignProject(user, tmp_path / f"{name}_{unique}") for name in ("one", "some/where/else/two")]
    for place in places:
        place.write(
            "a.cpp",
            f"int b();\nint {unique};\n#ifdef ONE\nint b() {{ return 1; }}\n#endif\nint main() {{ return b(); }}\n",
        )
        place.write("b.cpp", f"int b() {{ return 4; }}\nint {unique}_2;\n")
        place.write("c.c", f"int z0(void);\nint {unique}(void) {{ return z0(); }}\n")
        place.write("z.c", "int z0(void) { return 7; }\n")
        place.write("lib/none", "")
        assert place.plainly("gcc", "-shared", "-fPIC", "z.c", "-o", "lib/libz0.so").returncode == 0
    for place in places:
        words = [word.replace("@", str(place.folder)) for word in command.split()]
        right = outcome(place, " ".join(words), place.plain)
        assert right[0] == 0 and outcome(place, " ".join(words), place.environ) == right
    assert places[0].counts() == (0, results) and places[1].counts() == (results, 0)
    # Another library of that name is another link.
    if "-lz0" in command:
        places[1].write("z.c", "int z0(void) { return 8; }\nint more;\n")
        places[1].plainly("gcc", "-shared", "-fPIC", "z.c", "-o", "lib/libz0.so")
        assert outcome(places[1], " ".join(words), places[1].environ)[0] == 0
        assert places[1].counts() == (results, 1)


def test_a_program_with_the_folders_name_in_it_is_bound_to_the_folder(user: User, tmp_path: Path) -> None:
    places = [ForeignProject(user, tmp_path / name) for name in ("here", "there")]
    for place in places:
        place.write("a.cpp", "#include <cstdio>\nint main() { std::puts(__FILE__); }\n")
        place.write("b.cpp", "int b_of_a_bound_program;\n")
        for sources in ("a.cpp", "a.cpp b.cpp"):
            words = [f"{place.folder}/{name}" for name in sources.split()]
            assert place.call("g++", *words, "-o", "prog").returncode == 0
            said = subprocess.run([place.folder / "prog"], capture_output=True, text=True, check=True).stdout
            assert said == f"{place.folder}/a.cpp\n"


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
@pytest.mark.parametrize(
    "flags",
    (
        "-shared -fPIC -L . -L@ -lm",
        "-Werror -s -Wl,-O1 -Xlinker -s",
        "-rdynamic -no-pie -fPIE -l m",
        "-Wa,--noexecstack",
    ),
)
def test_clang_calls_no_option_unused_that_it_uses(project: ForeignProject, flags: str) -> None:
    for sources in ("a.cpp b.cpp", "b.cpp a.cpp -Wall -DX=1 -I."):
        command = f"{CLANG} {flags.replace('@', str(project.folder))} {sources} -o prog"
        right = outcome(project, command, project.plain)
        assert right[0] == 0, right
        for _ in range(2):
            assert outcome(project, command, project.environ) == right


def test_compiles_side_by_side_say_their_words_in_order(project: ForeignProject) -> None:
    for number in range(5):
        project.write(f"w{number}.cpp", f"int w{number}(int unused) {{ int also; return 0; }}\n")
    project.write("w3.cpp", "int w3( {\n")
    for links in ("", "-c"):
        command = f"g++ {links} -Wall -Wextra w0.cpp w1.cpp w2.cpp w3.cpp w4.cpp"
        right = outcome(project, command, project.plain)
        assert right[0] == 1 and right[1]
        for _ in range(2):
            assert outcome(project, command, project.environ) == right


def test_a_command_in_parts_that_is_interrupted_leaves_nothing(project: ForeignProject) -> None:
    slow = project.write("fifo.cpp", '#include "pipe"\n')
    subprocess.run(["mkfifo", slow.with_name("pipe")], check=True)
    process = project.start("g++", "b.cpp", "fifo.cpp", "-o", "prog")
    # g++ waits for the other end of the pipe.
    with open(slow.with_name("pipe"), "wb"):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode != 0
    assert left_behind(project) == []


# ---------------------------------------------------------------- the real nvcc

FIRST = """\
#include <cstdio>
__global__ void NAME(int *p) { *p = 1; }
int other();
int main() { NAME<<<1, 1>>>(nullptr); std::printf("%d\\n", other()); }
"""
SECOND = """\
static __device__ int counter;
__global__ void NAME_2(int *p) { *p = counter++; }
int other() { NAME_2<<<1, 1>>>(nullptr); return 7; }
"""


@pytest.fixture
def cuda(user: User, project: ForeignProject) -> ForeignProject:
    toolkit = user.folder / "cuda"
    if not toolkit.exists():
        copy_toolkit(small_toolkit(), toolkit)
    project.search(f"{toolkit}/bin")
    name = re.sub(r"\W", "_", project.folder.name)
    project.write("k.cu", FIRST.replace("NAME", name))
    project.write("m.cu", SECOND.replace("NAME", name))
    return project


@pytest.mark.cuda
def test_a_link_by_nvcc_in_a_try_compile_is_found_by_the_next_configure_step(cuda: ForeignProject) -> None:
    """CMake's folder has another name each time, and so has its target."""
    source = (cuda.folder / "k.cu").read_text().replace("int other();", "int other() { return 3; }")
    made = {}
    for number, name in enumerate(("aB3dE6", "fG7hI8")):
        place, target = f"CMakeFiles/CMakeScratch/TryCompile-{name}", f"cmTC_{number}a"
        objects = f"CMakeFiles/{target}.dir"
        folder = cuda.write(f"{place}/src.cu", source).parent
        (folder / objects).mkdir(parents=True)
        began = cuda.counts()
        for command in (
            f"nvcc -arch=sm_80 -rdc=true -c {folder}/src.cu -o {objects}/src.cu.o",
            f"nvcc -arch=sm_80 -dlink {objects}/src.cu.o -o {objects}/cmake_device_link.o",
            f"nvcc -arch=sm_80 {objects}/src.cu.o -o {target}",
        ):
            assert cuda.call(*command.split(), cwd=folder).returncode == 0
        made[name] = (folder / target).read_bytes()
        assert cuda.counts() == (began[0] + 3 * number, began[1] + 3 * (1 - number))
        shutil.rmtree(cuda.folder / "CMakeFiles")
    assert len({*made.values()}) == 1


@pytest.mark.cuda
@pytest.mark.parametrize(
    "flags",
    [
        "-rdc=true",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("-Xcompiler -fPIC -shared", marks=pytest.mark.slow),
    ],
)
def test_nvcc_with_two_sources_runs_in_steps_and_hits(cuda: ForeignProject, flags: str) -> None:
    command = ("nvcc", "-arch=sm_80", *flags.split(), "k.cu", "m.cu", "-o", "prog")
    before = cuda.status().counters
    for _ in range(2):
        (cuda.folder / "prog").unlink(missing_ok=True)
        cuda.good(*command)
    after = cuda.status().counters
    hits, misses = cuda.counts()
    assert hits in (1, 3), "the second time, perhaps without the daemon"
    assert misses == 3, "two compiles, one link"
    assert after["whole"] == before["whole"]
    if "-shared" not in flags:
        assert subprocess.run([cuda.folder / "prog"], capture_output=True, timeout=60).stdout == b"7\n"
    assert cuda.plainly(*command[:-1], "plain").returncode == 0
    symbols = [
        subprocess.run(["nm", "-C", cuda.folder / name], capture_output=True).stdout for name in ("prog", "plain")
    ]
    # nvcc and buildd choose other ids for the modules.
    kept = [sorted(re.sub(rb"[0-9a-f]{8,}|tmpxft\w*", b"", text).splitlines()) for text in symbols]
    assert kept[0] == kept[1]
    cuda.write("m.cu", (cuda.folder / "m.cu").read_text().replace("return 7", "return 8"))
    cuda.good(*command)
    assert cuda.counts() == (hits + 1, misses + 2)


@pytest.mark.cuda
def test_nvcc_compiles_two_sources_and_stops_at_the_first_bad_one(cuda: ForeignProject) -> None:
    right = outcome(cuda, "nvcc -arch=sm_80 -MD -c k.cu m.cu && rm k.o m.o", cuda.plain)
    assert right[0] == 0
    for _ in range(2):
        assert outcome(cuda, "nvcc -arch=sm_80 -MD -c k.cu m.cu && rm k.o m.o", cuda.environ)[:2] == right[:2]
    assert cuda.counts() == (2, 2)
    cuda.write("bad.cu", "int bad(\n")
    for command in ("nvcc -arch=sm_80 -c k.cu bad.cu m.cu", "nvcc -arch=sm_80 k.cu bad.cu m.cu -o prog"):
        plain, ours = (outcome(cuda, command, environ) for environ in (cuda.plain, cuda.environ))
        assert plain[:2] == ours[:2] and plain[2].keys() == ours[2].keys(), command
