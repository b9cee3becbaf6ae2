"""Shims at work: real compilers, a real daemon, and the same commands without us beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildd.shims.interposition import LAUNCHER
from buildd.store.store import Store
from protocol.client import Client
from protocol.messages import Queued
from tests.support.foreign_project import ForeignProject, declaration, prerequisites, same_files
from tests.support.serving import short_folder
from tests.support.states import until_answered
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
WARNS = '#include <stdio.h>\n#include "a.h"\nint main(void) { int unused; puts(A); return 0; }\n'
Make = Callable[..., ForeignProject]


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toolkit(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / request.node.name)
    # Not what another test has compiled: where no path matters another folder hits.
    made.write("a.c", f"{WARNS}{declaration(request.node.name)}")
    made.write("a.h", '#define A "one"\n')
    return made


@pytest.fixture
def fake(user: User, toolkit: Path, request: pytest.FixtureRequest) -> ForeignProject:
    """With a fake nvcc, whose sources say how long it takes."""
    return ForeignProject(user, user.folder / request.node.name, str(toolkit.parent))


def settle(*paths: Path) -> None:
    """Make files old, so that nobody has to doubt their stamps."""
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000))


# ---------------------------------------------------------------- hits and misses


def test_a_second_compile_is_a_hit_that_says_and_writes_the_same(foreign: ForeignProject) -> None:
    command = ("gcc", "-Wall", "-c", "a.c", "-o", "a.o", "-MD")
    plain = foreign.plainly("gcc", "-Wall", "-c", "a.c", "-o", "plain.o", "-MD")
    first = foreign.call(*command)
    depfile, content = (foreign.folder / "a.d").read_bytes(), (foreign.folder / "a.o").read_bytes()
    for name in ("a.o", "a.d"):
        (foreign.folder / name).unlink()
    second = foreign.call(*command)
    assert foreign.counts() == (1, 1)
    assert b"unused variable" in plain.stderr
    assert plain.stderr == first.stderr == second.stderr
    assert (plain.returncode, first.returncode, second.returncode) == (0, 0, 0)
    assert (foreign.folder / "a.o").read_bytes() == content == (foreign.folder / "plain.o").read_bytes()
    assert (foreign.folder / "a.d").read_bytes() == depfile


def test_known_answers_are_hits_too_and_renew_the_object(foreign: ForeignProject) -> None:
    foreign.good("gcc", "-c", "a.c", "-o", "a.o", "-MMD", "-MP")
    for _ in range(3):
        settle(foreign.folder / "a.o")
        foreign.good("gcc", "-c", "a.c", "-o", "a.o", "-MMD", "-MP")
        assert (foreign.folder / "a.o").stat().st_mtime > 1_700_000_000
        assert prerequisites((foreign.folder / "a.d").read_bytes()) == ("a.o", ["a.c", "a.h"])
    assert foreign.counts() == (3, 1)


def test_known_answers_outlive_the_daemon() -> None:
    with short_folder() as folder:
        other = User(folder)
        other.buildd("up")
        try:
            foreign = ForeignProject(other, folder / "project")
            foreign.write("a.c", WARNS)
            foreign.write("a.h", '#define A "one"\n')
            command = ("gcc", "-Wall", "-c", "a.c", "-MD")
            until_answered(foreign, " ".join(command))
            hits, said = foreign.figures().hits, foreign.good(*command).stderr
            daemon = other.daemon()
            assert daemon is not None
            daemon.kill()
            assert other.leftovers(within_s=30) == []
            outputs = [(foreign.folder / name).read_bytes() for name in ("a.o", "a.d")]
            for name in ("a.o", "a.d"):
                (foreign.folder / name).unlink()
            before = foreign.figures().hits
            assert foreign.good(*command).stderr == said and b"unused" in said
            assert [(foreign.folder / name).read_bytes() for name in ("a.o", "a.d")] == outputs
            assert foreign.figures().hits == before + 1
            foreign.write("a.h", '#define A "two"\n')
            foreign.good(*command)
            assert (foreign.folder / "a.o").read_bytes() != outputs[0]
            foreign.notes.close()
            stats = json.loads(other.buildd("cache", "stats", "--json")[1])
            # What the daemon had not written down yet went with it.
            assert 2 <= stats["counters"]["hits"] <= hits + 2
        finally:
            assert other.end() == []


def test_figures_are_right_when_a_build_has_ended(foreign: ForeignProject) -> None:
    def hits() -> int:
        return int(json.loads(foreign.user.buildd("cache", "stats", "--json")[1])["counters"]["hits"])

    until_answered(foreign, "gcc -c a.c")
    before = hits()
    for _ in range(3):
        status, said = foreign.user.buildd("run", "--", "sh", "-c", f"cd {foreign.folder} && gcc -c a.c && gcc -c a.c")
        assert status == 0 and "buildd: 2 hits, 0 misses" in said
    assert hits() == before + 6


def test_what_is_to_be_compiled_again_is_not_answered(foreign: ForeignProject) -> None:
    until_answered(foreign, "gcc -c a.c")
    before = foreign.figures()
    environ = {**foreign.environ, "BUILDD_RECACHE": "1"}
    assert foreign.call("gcc", "-c", "a.c", environ=environ).returncode == 0
    assert foreign.figures().misses == before.misses + 1
    assert foreign.user.buildd("cache", "flush")[0] == 0
    foreign.good("gcc", "-c", "a.c")
    assert foreign.figures().misses == before.misses + 2
    assert foreign.figures().hits == before.hits


def test_a_changed_header_is_a_miss_and_its_return_a_hit(foreign: ForeignProject) -> None:
    objects = []
    for text in ('#define A "one"\n', '#define A "two, longer"\n', '#define A "one"\n'):
        foreign.write("a.h", text)
        foreign.good("gcc", "-c", "a.c")
        objects.append((foreign.folder / "a.o").read_bytes())
    assert objects[0] == objects[2] != objects[1]
    assert foreign.counts() == (1, 2)


def test_a_header_that_comes_to_stand_earlier_is_found(foreign: ForeignProject) -> None:
    foreign.write("one/first.h", "")
    foreign.write("two/b.h", "#define B 1\n")
    foreign.write("b.c", "#include <b.h>\nint b = B;\n")
    command = ("gcc", "-Ione", "-Itwo", "-c", "b.c")
    for _ in range(3):
        foreign.good(*command)
    before = (foreign.folder / "b.o").read_bytes()
    foreign.write("one/b.h", "#define B 2\n")
    foreign.good(*command)
    assert (foreign.folder / "b.o").read_bytes() != before
    assert foreign.counts() == (2, 2)


def test_an_object_that_somebody_changed_is_put_right(foreign: ForeignProject) -> None:
    foreign.good("gcc", "-c", "a.c")
    content = (foreign.folder / "a.o").read_bytes()
    for _ in range(2):
        (foreign.folder / "a.o").write_bytes(b"nonsense")
        foreign.good("gcc", "-c", "a.c")
        assert (foreign.folder / "a.o").read_bytes() == content


def test_two_at_once_share_one_execution(fake: ForeignProject) -> None:
    fake.write("k.cu", "//! wait go\n")
    processes = [fake.start("nvcc", "-c", "k.cu", "-o", "k.o") for _ in range(2)]
    until(lambda: fake.status().requests == 2, "both are there")
    shared = []
    with Client.connect(environ=fake.user.environ) as client:
        for request in fake.status().active:
            queued = next(event.body for event in client.follow(request) if isinstance(event.body, Queued))
            shared.append(queued.shared)
    assert sorted(shared) == [False, True]
    fake.write("go", "")
    for process in processes:
        assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode == 0
    assert fake.counts() == (0, 1)


@pytest.mark.parametrize("limits", [{"BUILDD_JOBS": "2"}, {"BUILDD_JOBS": "8", "BUILDD_MEMORY": "1500M"}], ids=str)
def test_however_wide_builds_go_the_machine_stays_as_large_as_it_is(toolkit: Path, limits: dict[str, str]) -> None:
    """Six builds at once, in processors and in the memory that nvcc is expected to need."""
    with short_folder() as folder:
        other = User(folder, limits)
        other.buildd("up")
        try:
            fake = ForeignProject(other, folder / "project", str(toolkit.parent))
            for number in range(6):
                fake.write(f"{number}.cu", f"//! wait go\nint unit_{number};\n")
            environs = [{**fake.environ, "BUILDD_BUILD_ID": str(number)} for number in range(6)]
            processes = [fake.start("nvcc", "-c", f"{n}.cu", environ=environ) for n, environ in enumerate(environs)]
            until(lambda: fake.status().queued == 4, "the others wait")
            assert len(fake.status().running) == 2
            fake.write("go", "")
            for process in processes:
                process.communicate(timeout=60)
                assert process.returncode == 0
            assert sum(build.misses for build in fake.status().builds.values()) == 6
        finally:
            assert other.end() == []


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize(
    "options",
    [
        ("-MD",),
        ("-MMD",),
        ("-MD", "-MF", "deps/x.d"),
        ("-MD", "-MP", "-MT", "one two", "-MT", "three"),
        ("-MMD", "-MF", "x.d", "-MQ", "odd $name"),
        ("-MD", "-o", "out/a.obj"),
    ],
    ids=" ".join,
)
def test_a_depfile_is_as_the_compiler_writes_it(foreign: ForeignProject, options: tuple[str, ...]) -> None:
    for name in ("deps", "out"):
        (foreign.folder / name).mkdir()
    found = []
    for call in (foreign.plainly, foreign.call, foreign.call, foreign.call):
        assert call("gcc", "-c", "a.c", *options).returncode == 0
        (place,) = foreign.folder.rglob("*.d")
        text = place.read_bytes()
        rules = [line.partition(b":")[0] for line in text.replace(b"\\\n", b"").splitlines() if line]
        found.append((place, prerequisites(text), sorted(rules)))
        place.unlink()
    assert found[0] == found[1] == found[2] == found[3]
    assert foreign.figures().hits == 2


def test_the_umask_is_the_callers(foreign: ForeignProject) -> None:
    for umask, mode in ((0o027, 0o640), (0o002, 0o664), (0o077, 0o600)):
        for name in ("a.o", "a.d"):
            (foreign.folder / name).unlink(missing_ok=True)
        assert foreign.call("gcc", "-c", "a.c", "-MD", umask=umask).returncode == 0
        for name in ("a.o", "a.d"):
            assert stat.S_IMODE((foreign.folder / name).stat().st_mode) == mode, name
    assert foreign.counts() == (2, 1)


def test_odd_names_and_folders(foreign: ForeignProject) -> None:
    folder = foreign.folder / "ünder $HOME" / "it's #1"
    folder.mkdir(parents=True)
    (folder / "a b.c").write_text('#include "../../a.h"\nchar const *a = A;\n')
    command = ("gcc", "-c", "a b.c", "-o", 'o "x".o', "-MD", "-MF", "a b.d", '-DX="y z"')
    plain = foreign.plainly(*command, cwd=folder)
    wanted = prerequisites((folder / "a b.d").read_bytes())
    for _ in range(2):
        (folder / 'o "x".o').unlink()
        done = foreign.call(*command, cwd=folder)
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        assert (folder / 'o "x".o').is_file()
        assert prerequisites((folder / "a b.d").read_bytes()) == wanted
    assert foreign.counts() == (1, 1)


def test_relative_folders_mean_the_callers(foreign: ForeignProject) -> None:
    (foreign.folder / "build/deep").mkdir(parents=True)
    deep = foreign.folder / "build/deep"
    assert foreign.call("gcc", "-c", "../../a.c", "-o", "a.o", "-MD", cwd=deep).returncode == 0
    assert foreign.call("gcc", "-c", "../../a.c", "-o", "deep/b.o", cwd=foreign.folder / "build").returncode == 1
    assert "../../a.h" in prerequisites((deep / "a.d").read_bytes())[1]


def test_output_that_is_no_text_comes_out_as_it_was(fake: ForeignProject) -> None:
    fake.write("k.cu", "//! print 700000\n")
    plain = fake.plainly("nvcc", "-c", "k.cu", "-o", "k.o")
    assert len(plain.stdout) > 600_000 and b"\xe9" in plain.stdout
    for _ in range(3):
        assert fake.good("nvcc", "-c", "k.cu", "-o", "k.o").stdout == plain.stdout
    assert fake.counts() == (2, 1)


def test_debug_information_holds_the_folder(foreign: ForeignProject) -> None:
    other = foreign.folder / "other"
    other.mkdir()
    for name in ("a.c", "a.h"):
        shutil.copy(foreign.folder / name, other)
    for options, hits in ((("-O1",), 1), (("-g",), 1)):
        for folder in (foreign.folder, other):
            assert foreign.call("gcc", *options, "-c", "a.c", cwd=folder).returncode == 0
            content = (folder / "a.o").read_bytes()
            assert foreign.plainly("gcc", *options, "-c", "a.c", cwd=folder).returncode == 0
            assert (folder / "a.o").read_bytes() == content
        assert foreign.figures().hits == hits, options


# ---------------------------------------------------------------- what fails, and how it ends


def test_a_compile_that_fails_fails_in_the_same_way(foreign: ForeignProject) -> None:
    foreign.write("bad.c", '#include "a.h"\nint x = ;\n')
    plain = foreign.plainly("gcc", "-c", "bad.c", "-o", "bad.o")
    for _ in range(2):
        done = foreign.call("gcc", "-c", "bad.c", "-o", "bad.o")
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert plain.returncode == 1 and not (foreign.folder / "bad.o").exists()
    assert foreign.figures().failures == 2


def test_a_tool_that_a_signal_ends_ends_its_caller_so(fake: ForeignProject) -> None:
    fake.write("k.cu", f"//! signal {signal.SIGSEGV.value}\n")
    assert fake.plainly("nvcc", "-c", "k.cu").returncode == -signal.SIGSEGV
    assert fake.call("nvcc", "-c", "k.cu").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_shim_that_is_ended_ends_its_job(fake: ForeignProject, number: signal.Signals) -> None:
    fake.write("k.cu", "//! wait never\n")
    process = fake.start("nvcc", "-c", "k.cu", "-o", "k.o")
    until(lambda: len(fake.status().running) == 1, "it runs")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    until(lambda: not fake.status().running and fake.status().requests == 0, "the job ended")
    assert not (fake.folder / "k.o").exists()
    until(lambda: fake.figures().cancelled == 1, "it counts as cancelled")
    assert (fake.figures().misses, fake.figures().missed, fake.figures().failures) == (0, {}, 0)


def test_without_a_daemon_the_tool_runs(foreign: ForeignProject) -> None:
    (foreign.folder / "open").mkdir()
    for environ in (
        {**foreign.environ, "BUILDD_RUNTIME_DIR": str(foreign.folder / "nowhere" / "deep")},
        {**foreign.environ, "BUILDD_RUNTIME_DIR": str(foreign.folder / "open")},
        {**foreign.environ, "BUILDD_DISABLE": "1"},
        {"PATH": foreign.environ["PATH"], "BUILDD_RUNTIME_DIR": "relative"},
    ):
        (foreign.folder / "a.o").unlink(missing_ok=True)
        done = foreign.call("gcc", "-Wall", "-c", "a.c", environ=environ)
        assert done.returncode == 0 and b"unused" in done.stderr
        assert (foreign.folder / "a.o").is_file()
    assert foreign.counts() == (0, 0)


def test_a_daemon_that_dies_midway_costs_nothing_but_time(toolkit: Path) -> None:
    with short_folder() as folder:
        other = User(folder)
        other.buildd("up")
        try:
            fake = ForeignProject(other, folder / "project", str(toolkit.parent))
            fake.write("k.cu", "//! print 200\n//! wait go\n")
            process = fake.start("nvcc", "-c", "k.cu", "-o", "k.o")
            until(lambda: len(fake.status().running) == 1, "it runs")
            daemon = other.daemon()
            assert daemon is not None
            daemon.kill()
            fake.write("go", "")
            stdout, _ = process.communicate(timeout=60)
            assert process.returncode == 0 and (fake.folder / "k.o").is_file()
            assert stdout == fake.plainly("nvcc", "-c", "k.cu", "-o", "k.o").stdout
        finally:
            assert other.end() == []


def test_a_daemon_of_another_protocol_is_not_asked(foreign: ForeignProject, tmp_path: Path) -> None:
    (file,) = foreign.user.run_folder.rglob("endpoint.json")
    with short_folder() as base:
        place = base / file.parent.name
        place.mkdir(mode=0o700)
        text = file.read_text()
        environ = {**foreign.environ, "BUILDD_RUNTIME_DIR": str(base)}
        (place / "endpoint.json").write_text(text.replace("{", '{"protocol": 2,', 1))
        assert foreign.call("gcc", "-c", "a.c", environ=environ).returncode == 0
        assert foreign.counts() == (0, 0)
        (place / "endpoint.json").write_text(text)
        assert foreign.call("gcc", "-c", "a.c", environ=environ).returncode == 0
        assert foreign.counts() == (0, 1)


# ---------------------------------------------------------------- what is passed through


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-E", "a.c", "-o", "a.i"), "preprocess"),
        (("-M", "-MD", "a.c"), "dependencies-only"),
        (("a.o", "-o", "a", "-nostdlib", "-shared"), "link"),
        (("-S", "a.c", "b.c"), "several-sources"),
        (("-c", "-xc", "-", "-o", "in.o"), "standard-input"),
        (("-c", "a.c", "-save-temps"), "unknown-option"),
        (("-c", "a.c", "-ftest-coverage"), "unsupported-option"),
        (("-c", "a.c", "-o", "/dev/null"), "trial"),
        (("-c", "a.c", "-o", "nowhere/a.o"), "output"),
        (("-c", "a.c", "-o", "./a.c"), "output"),
        (("-S", "s.s"), "assembler"),
        (("-c", "s.s"), "assembler"),
        (("--version",), "query"),
        ((), "no-source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_plain_compile_is_passed_through(
    foreign: ForeignProject, arguments: tuple[str, ...], reason: str
) -> None:
    foreign.write("b.c", "int b;\n")
    foreign.write("s.s", "")
    plain = foreign.plainly("gcc", *arguments)
    done = foreign.call("gcc", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert foreign.figures().passed_through == {reason: 1}
    assert foreign.counts() == (0, 0)


def test_a_name_that_is_no_utf8_is_the_tools_own(foreign: ForeignProject) -> None:
    name = os.fsencode(foreign.folder) + b"/\xff.c"
    Path(os.fsdecode(name)).write_text("int a;\n")
    assert foreign.call("gcc", "-c", name, "-o", "a.o").returncode == 0
    assert (foreign.folder / "a.o").is_file() and foreign.counts() == (0, 0)


def test_response_files_are_read(foreign: ForeignProject) -> None:
    foreign.write("args", '-c a.c\n"-DX=1 2"')
    for text, counts in (("args", (0, 1)), ("args", (1, 1))):
        foreign.good("gcc", f"@{text}", "-o", "a.o")
        assert foreign.counts() == counts
    foreign.write("args", "-c a.c -DY")
    foreign.good("gcc", "@args", "-o", "a.o")
    assert foreign.counts() == (1, 2)
    foreign.write("outer", "@args -DZ=1")
    for text, counts in (("-c a.c", (1, 3)), ("-c a.c", (2, 3)), ("-c a.c -DY=2", (2, 4))):
        foreign.write("args", text)
        foreign.good("gcc", "@outer", "-o", "a.o")
        assert foreign.counts() == counts
    foreign.write("outer", "@outer -c a.c")
    assert foreign.call("gcc", "@outer").returncode == foreign.plainly("gcc", "@outer").returncode
    assert foreign.figures().passed_through == {"response-file": 1}


@pytest.mark.parametrize(
    "options", [("-S",), ("-S", "-O2", "-o", "x.s"), ("-c", "-flto=2"), ("-c", "-flto=auto")], ids=" ".join
)
def test_other_ways_to_compile_one_source(foreign: ForeignProject, options: tuple[str, ...]) -> None:
    def made() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in foreign.folder.iterdir() if path.suffix in (".s", ".o", ".d")}

    foreign.plainly("gcc", *options, "a.c", "-MD")
    wanted = made()
    for _ in range(2):
        for name in wanted:
            (foreign.folder / name).unlink()
        foreign.good("gcc", *options, "a.c", "-MD")
        assert made().keys() == wanted.keys()
        # Two plain compiles with -flto differ too.
        texts = [name for name in wanted if name.endswith(".s")]
        assert [made()[name] for name in texts] == [wanted[name] for name in texts]
    assert foreign.counts() == (1, 1)


# ---------------------------------------------------------------- other ways in


def test_a_compiler_launcher_takes_the_compiler_as_its_first_argument(foreign: ForeignProject) -> None:
    launcher, shim = str(foreign.shims / LAUNCHER), str(foreign.shims / "gcc")
    real = shutil.which("gcc", path=foreign.plain["PATH"])
    assert real is not None
    for compiler in (real, shim, "gcc"):
        foreign.good(launcher, compiler, "-c", "a.c")
    assert foreign.counts() == (2, 1)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make (Debian: make)")
def test_make_settles_after_a_hit(foreign: ForeignProject) -> None:
    foreign.write("Makefile", "a.o: a.c\n\tgcc -MD -MP -c a.c -o a.o\n-include a.d\n")
    foreign.good("make", "a.o")
    foreign.good("make", "-q", "a.o")
    (foreign.folder / "a.h").touch()
    assert foreign.call("make", "-q", "a.o").returncode == 1
    foreign.good("make", "a.o")
    foreign.good("make", "-q", "a.o")
    assert foreign.counts() == (1, 1)


def test_ninja_settles_after_a_hit(foreign: ForeignProject) -> None:
    ninja = str(Path(pytest.importorskip("ninja").BIN_DIR) / "ninja")
    foreign.write(
        "build.ninja",
        "rule cc\n  command = gcc -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
        + "".join(f"build out/{n}.o: cc {n}.c\n" for n in range(6)),
    )
    for number in range(6):
        foreign.write(f"{number}.c", f'#include "a.h"\nchar const *a{number} = A;\n')
    foreign.good(ninja, "-j6")
    assert b"no work to do" in foreign.good(ninja).stdout
    (foreign.folder / "a.h").touch()
    foreign.good(ninja, "-j6")
    assert b"no work to do" in foreign.good(ninja).stdout
    assert foreign.counts() == (6, 6)


def test_run_gives_the_commands_status_and_a_summary(foreign: ForeignProject) -> None:
    script = 'gcc -c a.c && gcc -c a.c && gcc -E a.c -o a.i && echo "$MAX_JOBS" && exit 7'
    process = subprocess.run(
        [*_command(), "run", "-j", "3", "--", "sh", "-c", script],
        cwd=foreign.folder,
        env=foreign.plain,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 7
    assert process.stdout == "3\n"
    last = process.stderr.splitlines()[-1]
    assert last.startswith("buildd: 1 hit, 1 miss (new 1), 1 passed through (preprocess 1), ")


def test_run_needs_a_command(user: User) -> None:
    assert user.buildd("run")[0] == 2
    status, output = user.buildd("run", "--", "no-such-command")
    assert status == 127 and "no-such-command" in output


def test_installed_launchers_stand_for_the_next_on_the_path(foreign: ForeignProject) -> None:
    folder = foreign.folder / "bin"
    status, output = foreign.user.buildd("install-launchers", str(folder))
    assert status == 0, output
    environ = {**foreign.plain, "PATH": f"{folder}:{foreign.plain['PATH']}", "BUILDD_BUILD_ID": foreign.build}
    assert foreign.call("gcc", "-c", "a.c", environ=environ).returncode == 0
    assert foreign.counts() == (0, 1)
    assert foreign.user.buildd("install-launchers", str(folder))[0] == 0
    foreign.write("mine/gcc", "")
    status, output = foreign.user.buildd("install-launchers", str(foreign.folder / "mine"))
    assert status == 3 and "is not a shim" in output


# ---------------------------------------------------------------- nvcc


@pytest.fixture
def cuda(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    import importlib.util

    found = importlib.util.find_spec("nvidia.cu13")
    places = list(found.submodule_search_locations or ()) if found else []
    made = ForeignProject(user, user.folder / request.node.name, f"{places[0]}/bin" if places else "")
    made.write("k.cuh", "#pragma once\n#define SCALE 2.0f\n")
    made.write("k.cu", '#include "k.cuh"\n__global__ void k(float *x) { int unused; x[threadIdx.x] *= SCALE; }\n')
    return made


@pytest.mark.cuda
def test_nvcc_is_one_compile_with_the_tools_that_it_calls(cuda: ForeignProject) -> None:
    command = ("nvcc", "-arch=sm_80", "-Xcompiler", "-fPIC", "-c", "k.cu", "-o", "k.o", "-MD", "-MF", "k.d")
    plain = cuda.plainly(*command)
    wanted = prerequisites((cuda.folder / "k.d").read_bytes())
    (cuda.folder / "k.o").unlink()
    for _ in range(3):
        done = cuda.good(*command)
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        assert b"unused" in done.stderr
        target, listed = prerequisites((cuda.folder / "k.d").read_bytes())
        assert target == wanted[0] == "k.o"
        # The device pass may read headers that nvcc's own depfile does not have.
        assert {os.path.normpath(path) for path in wanted[1]} <= {os.path.normpath(path) for path in listed}
        assert same_files([path for path in listed if not path.startswith("/")], ["k.cu", "k.cuh"])
    assert cuda.figures().passed_through == {}
    assert cuda.counts() == (2, 1)
    cuda.write("k.cuh", "#pragma once\n#define SCALE 3.0f\n")
    cuda.good(*command)
    assert cuda.counts() == (2, 2)


@pytest.mark.cuda
def test_the_place_of_shims_has_the_shape_of_the_toolkit(cuda: ForeignProject) -> None:
    nvcc = cuda.shims / "nvcc"
    assert (nvcc.parents[1] / "include" / "cuda_runtime.h").is_file()
    assert (nvcc.parents[1] / "nvvm").is_dir()
    assert (nvcc.parents[1] / "lib64").is_dir()
    assert b"release 13" in cuda.good(str(nvcc), "--version").stdout


@pytest.mark.cuda
def test_a_shim_as_host_compiler_is_the_tool_behind_it(cuda: ForeignProject) -> None:
    host = cuda.shims / "g++"
    cuda.good("nvcc", "-arch=sm_80", f"-ccbin={host}", "-c", "k.cu")
    assert cuda.counts() == (0, 1) and cuda.figures().passed_through == {}


@pytest.mark.hip
def test_hipcc_is_one_compile(foreign: ForeignProject) -> None:
    foreign.write("h.h", "#define SCALE 2.0f\n")
    kernel = "__global__ void k(float *x) { int unused; *x *= SCALE; }\n"
    foreign.write("k.hip", f'#include <hip/hip_runtime.h>\n#include "h.h"\n{kernel}')
    command = ("hipcc", "--offload-arch=gfx90a", "-Wall", "-c", "-x", "hip", "k.hip", "-o", "k.o", "-MD")
    foreign.call(*command)
    assert foreign.figures().passed_through == {"environment": 1} or foreign.counts() == (0, 1)
    before = foreign.figures()
    for environ in (foreign.plain, foreign.environ):
        environ["HIP_PLATFORM"] = "amd"
    plain = foreign.plainly(*command)
    assert plain.returncode == 0, plain.stderr
    wanted = prerequisites((foreign.folder / "k.d").read_bytes())
    for _ in range(3):
        (foreign.folder / "k.o").unlink()
        done = foreign.good(*command)
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        target, listed = prerequisites((foreign.folder / "k.d").read_bytes())
        assert target == wanted[0] and same_files(listed, wanted[1])
        assert (foreign.folder / "k.o").is_file()
    assert foreign.figures().passed_through == before.passed_through
    assert foreign.figures().hits == before.hits + 2


def _command() -> list[str]:
    import sys

    return [sys.executable, "-P", "-m", "buildd"]


# ---------------------------------------------------------------- other homes


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_launcher_uses_the_store_of_its_own_home(foreign: ForeignProject, tmp_path: Path, variable: str) -> None:
    """A daemon serves all homes of a user, as root has them in containers and CI; which one started it says nothing."""
    store = tmp_path / (".cache/buildd" if variable == "HOME" else "buildd")
    environ = {name: value for name, value in foreign.environ.items() if name not in ("BUILDD_DIR", "XDG_CACHE_HOME")}
    environ[variable] = str(tmp_path)
    assert foreign.call("gcc", "-c", "a.c", "-o", "a.o", environ=environ).returncode == 0
    assert not store.exists(), "where no store is, the daemon's own serves"
    Store.open(store).close()
    for _ in range(2):
        assert foreign.call("gcc", "-c", "a.c", "-o", "a.o", environ=environ).returncode == 0
    folder = store / "answers"

    def answers() -> list[Path]:
        # One that is being written begins with a dot.
        return (
            [path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}", path.name)] if folder.is_dir() else []
        )

    # The daemon writes it when no request is open.
    until(answers, "no answer is written")
    assert len(answers()) == 1, "the second compile is found there, in the same store"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_file_that_comes_beside_is_taken_first(foreign: ForeignProject, absolute: bool) -> None:
    """The name leads from a folder of the search path to a file, and from the source's folder to none."""
    foreign.write("p/include/x/y/.keep", "")
    foreign.write("p/include/e/e.h", "#define E 1\n")
    foreign.write("p/src/a.c", f'#include "../../e/e.h"\nint e_{absolute} = E;\n')
    top = f"{foreign.folder}/p/" if absolute else "p/"
    command = ("gcc", f"-I{top}include", f"-I{top}include/x/y", "-c", f"{top}src/a.c", "-o", "a.o")
    objects = []
    for came in (False, False, True, True, False):
        if came:
            foreign.write("e/e.h", "#define E 2\n")
        else:
            (foreign.folder / "e" / "e.h").unlink(missing_ok=True)
        foreign.good(*command)
        objects.append((foreign.folder / "a.o").read_bytes())
    assert objects[0] == objects[1] == objects[4] != objects[2] == objects[3]
    assert foreign.counts() == (3, 2)
