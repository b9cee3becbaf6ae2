"""Compiles run inside the limits of the compiler's caller, and no client's limits become the daemon's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buildd.host.confinement import Confinement, confinement_of
from buildd.host.memory import folders_of
from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import Process, User
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
LIMITED = [
    ("taskset", "-c", "0"),
    ("nice", "-n", "5"),
    ("chrt", "--batch", "0"),
    ("prlimit", f"--as={4 << 30}"),
    ("prlimit", f"--stack={4 << 20}"),
    ("prlimit", "--cpu=3000"),
]


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toolkit(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture
def fake(user: User, toolkit: Path, request: pytest.FixtureRequest) -> ForeignProject:
    """With a fake nvcc, whose sources say how long it takes."""
    name = f"{request.node.originalname}-{request.node.name.__hash__() & 0xFFFF}"
    return ForeignProject(user, user.folder / name, str(toolkit.parent))


def own() -> Confinement:
    found = confinement_of(os.getpid())
    assert found is not None
    return found


def waiting(fake: ForeignProject, name: str = "a.cu") -> Path:
    """Write a source whose compile waits; returns the file that it waits for."""
    gate = fake.folder / f"{name}.go"
    fake.write(name, f"//! wait {gate}\n// {fake.folder}\n")
    return gate


def tool_of(fake: ForeignProject, name: str = "a.cu") -> Process:
    """The process that compiles a source: not a shim, which waits for it."""

    def found() -> Process | None:
        for process in fake.user.processes():
            try:
                program, words = os.readlink(f"/proc/{process.pid}/exe"), process.command
            except OSError:
                continue
            if name in words and "-c" in words and "launchers" not in program and "toolkit" in program:
                return process
        return None

    return until(found, f"the compile of {name}")


def parents(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


@contextmanager
def compiling(fake: ForeignProject, *before: str, name: str = "a.cu") -> Iterator[tuple[Process, int]]:
    """The compile of a source while it waits, and the shim's pid; succeeds at the end."""
    gate = waiting(fake, name)
    process = fake.start(*before, "nvcc", "-c", name, "-o", f"{name}.o")
    try:
        yield tool_of(fake, name), process.pid
    finally:
        gate.touch()
        said = process.communicate(timeout=60)
    assert process.returncode == 0, said


@pytest.mark.parametrize("limited", LIMITED, ids=" ".join)
def test_a_compile_has_the_limits_of_its_caller(fake: ForeignProject, limited: tuple[str, ...]) -> None:
    with compiling(fake, *limited) as (tool, shim):
        assert confinement_of(tool.pid) == confinement_of(shim) != own()
        assert shim in parents(tool.pid)
    assert fake.counts() == (0, 1)
    assert not tool.lives and fake.folder.joinpath("a.cu.o").exists()
    fake.good("nvcc", "-c", "a.cu", "-o", "a.cu.o")
    assert fake.counts() == (1, 1), "what was compiled there is a hit elsewhere"


def test_a_compile_without_limits_of_its_own_runs_below_the_daemon(fake: ForeignProject) -> None:
    daemon = fake.user.daemon()
    with compiling(fake) as (tool, shim):
        above = [*parents(tool.pid)]
        assert daemon is not None and daemon.pid in above and shim not in above
        assert confinement_of(tool.pid) == own()


def test_a_compile_stays_in_the_cgroup_of_its_caller(fake: ForeignProject) -> None:
    with cgroup_of(1 << 30) as (folder, enter):
        with compiling(fake, "sh", "-c", f'{enter}; exec "$@"', "sh") as (tool, _):
            assert str(tool.pid) in (folder / "cgroup.procs").read_text().split()
            found = confinement_of(tool.pid)
            assert found is not None and str(folder) in found.cgroups
        assert fake.counts() == (0, 1)


@contextmanager
def cgroup_of(memory_bytes: int) -> Iterator[tuple[Path, str]]:
    """A cgroup below this one with so much memory, and the shell command that enters it."""
    version_2, version_1 = folders_of(Path("/proc/self/cgroup").read_text(), "/sys/fs/cgroup")
    file = "memory.max" if not version_1 else "memory.limit_in_bytes"
    folder = Path((version_1 or version_2 or ["/nowhere"])[0], f"buildd-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / file).write_text(str(memory_bytes))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield folder, f"echo $$ > {folder}/cgroup.procs"
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "an empty cgroup")
        folder.rmdir()


def test_no_more_compiles_run_at_once_than_the_caller_has_processors(fake: ForeignProject) -> None:
    gates = [waiting(fake, name) for name in ("a.cu", "b.cu")]
    limited = ("taskset", "-c", "0", "nvcc", "-c")
    first = fake.start(*limited, "a.cu", "-o", "a.o")
    tool_of(fake, "a.cu")
    second = fake.start(*limited, "b.cu", "-o", "b.o")
    until(lambda: "limits of its client" in fake.status().waiting_for, "a compile that waits")
    gates[0].touch()
    assert first.communicate(timeout=60) == (b"", b"") and first.returncode == 0
    tool_of(fake, "b.cu")
    gates[1].touch()
    assert second.communicate(timeout=60) == (b"", b"") and second.returncode == 0


def test_a_compile_ends_with_its_caller(fake: ForeignProject) -> None:
    waiting(fake)
    process = fake.start("taskset", "-c", "0", "nvcc", "-c", "a.cu", "-o", "a.o")
    tool = tool_of(fake)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not tool.lives, "the end of the compile")
    fake.write("b.cu", "// fine\n")
    fake.good("taskset", "-c", "0", "nvcc", "-c", "b.cu", "-o", "b.o")


def test_compile_errors_come_back_from_there(fake: ForeignProject) -> None:
    fake.write("bad.cu", "//! fail\n")
    plain = fake.plainly("nvcc", "-c", "bad.cu", "-o", "bad.o")
    limited = fake.call("taskset", "-c", "0", "nvcc", "-c", "bad.cu", "-o", "bad.o")
    assert (limited.returncode, limited.stdout, limited.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert fake.figures().failures == 1 and not fake.figures().passed_through


@pytest.mark.cuda
def test_nvccs_steps_run_there(user: User) -> None:
    project = ForeignProject.with_nvcc(user, "steps")
    project.write("k.cu", "__global__ void k(float *x) { x[threadIdx.x] *= 2; }\n")
    project.good("taskset", "-c", "0", "nvcc", "-c", "k.cu", "-o", "k.o", "-arch=sm_80")
    assert project.counts() == (0, 1) and project.status().counters["step_misses"] > 2
    made = (project.folder / "k.o").read_bytes()
    project.good("nvcc", "-c", "k.cu", "-o", "k.o", "-arch=sm_80")
    assert project.counts() == (1, 1) and (project.folder / "k.o").read_bytes() == made


def test_a_daemon_does_not_keep_the_limits_of_the_shim_that_started_it(toolkit: Path) -> None:
    with short_folder() as folder:
        other = User(folder)
        try:
            foreign = ForeignProject(other, folder / "project", str(toolkit.parent))
            foreign.write("a.cu", "// a\n")
            soft = ("prlimit", f"--as={4 << 30}:", f"--stack={2 << 20}:", "--cpu=600:")
            foreign.good(*soft, "taskset", "-c", "0", "nvcc", "-c", "a.cu", "-o", "a.o")
            daemon = other.daemon()
            assert daemon is not None
            found = confinement_of(daemon.pid)
            assert found is not None and found.processors == own().processors and found.limits == own().limits
            with compiling(foreign, name="b.cu") as (tool, _):
                assert confinement_of(tool.pid) == own()
        finally:
            assert other.end() == []


@pytest.mark.parametrize("limited", [("prlimit", "--nproc=3000"), ("nice", "-n", "3")], ids=" ".join)
def test_limits_that_a_daemon_cannot_take_off_bind_no_later_client(toolkit: Path, limited: tuple[str, ...]) -> None:
    with short_folder() as folder:
        other = User(folder)
        try:
            foreign = ForeignProject(other, folder / "project", str(toolkit.parent))
            foreign.write("a.cu", "// a\n")
            foreign.good(*limited, "nvcc", "-c", "a.cu", "-o", "a.o")
            daemon = other.daemon()
            assert daemon is not None and confinement_of(daemon.pid) != own()
            with compiling(foreign, name="b.cu") as (tool, _):
                assert confinement_of(tool.pid) == own()
        finally:
            assert other.end() == []
