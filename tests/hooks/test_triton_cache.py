"""Triton's cache in the store: whole, checked, found from any folder, compiled once, and never in the way."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from buildd.hooks import entries, inductor_cache, trace_key, triton_cache
from buildd.hooks.entries import Entry, Shelf
from buildd.hooks.triton_cache import Lock
from buildd.shims.framework_environment import HOOKS, TAG, tag, variables, without_hooks
from buildd.store import figures, garbage_collection, shared_kernels, verification
from buildd.store.bundle_manifest import KERNEL_NAME as BUNDLED
from buildd.store.store import Store
from tests.support.own_programs import lend_programs
from tests.support.user import User
from tests.support.waiting import until

KEY = "SOMEKEY"
GROUP = "add.json"
FILES = {"add.ttir": b"module {}", "add.cubin": bytes(range(256)) * 40, GROUP: b'{"target": {"backend": "cuda"}}'}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "store"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("BUILDD_DIR", str(made))
    for name in ("TRITON_CACHE_MANAGER", "TRITON_STORE_BINARY_ONLY", "BUILDD_DISABLE", "BUILDD_RECACHE"):
        monkeypatch.delenv(name, raising=False)
    return made


def kept(store: Path) -> list[Path]:
    return sorted(path for path in (store / "triton").glob("*") if "." not in path.name)


@pytest.fixture
def shelf(store: Path) -> Shelf:
    made = Shelf(str(store), "triton")
    assert made.open()
    made.put(Entry(KEY, GROUP, FILES))
    return made


# ---------------------------------------------------------------- entries


def test_an_entry_comes_back_as_it_was(shelf: Shelf, store: Path) -> None:
    found = shelf.take(KEY, GROUP)
    assert found is not None and found.files == FILES
    assert shelf.take("OTHER", GROUP) is None and shelf.take(KEY, "other.json") is None
    assert shared_kernels.held(store) == (1, kept(store)[0].stat().st_size)
    assert kept(store)[0].stat().st_mode & 0o777 == 0o600


def test_whatever_happened_to_an_entry_it_is_noticed(shelf: Shelf, store: Path) -> None:
    (place,) = kept(store)
    content = place.read_bytes()
    for at in range(0, len(content), 61):
        place.write_bytes(content[:at])
        with pytest.raises(ValueError):
            shelf.take(KEY, GROUP)
        place.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError):
            shelf.take(KEY, GROUP)
    place.write_bytes(content + b"more")
    assert shared_kernels.verify(store) == (1, 1) and kept(store) == []
    # One that is sound and stands under a name that is not its own.
    shelf.put(Entry("OTHER", GROUP, FILES))
    os.replace(kept(store)[0], place)
    with pytest.raises(ValueError, match="not signed"):
        shelf.take(KEY, GROUP)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "a\0b"])
def test_no_file_of_an_entry_leaves_its_folder(shelf: Shelf, name: str) -> None:
    shelf.put(Entry(KEY, GROUP, {**FILES, name: b"x"}))
    with pytest.raises(ValueError, match="damaged"):
        shelf.take(KEY, GROUP)


def test_a_folder_that_others_can_write_to_is_not_used(shelf: Shelf, store: Path) -> None:
    (store / "triton").chmod(0o777)
    with pytest.raises(OSError, match="alone"):
        shelf.open()


def test_what_was_not_used_for_longest_goes_first(shelf: Shelf, store: Path) -> None:
    for number in range(4):
        shelf.put(Entry(f"K{number}", GROUP, FILES))
        os.utime(shelf.folder + "/" + entries.name_of(f"K{number}", GROUP), (1000 + number, 1000 + number))
    (store / "triton" / ".1-1").write_bytes(b"torn")
    os.utime(store / "triton" / ".1-1", (1000, 1000))
    assert shelf.take("K0", GROUP) is not None  # used again
    size = kept(store)[0].stat().st_size
    shared_kernels.trim(store, 3 * size + 100)
    assert [shelf.take(f"K{number}", GROUP) is not None for number in range(4)] == [True, False, False, True]
    assert not list((store / "triton").glob(".*"))
    assert shared_kernels.clear(store) == 3 and shared_kernels.held(store) == (0, 0)


def test_the_store_counts_checks_bounds_and_flushes_them(shelf: Shelf, store: Path) -> None:
    with Store.open(store) as opened:
        assert (
            figures.stats(opened).areas["kernels"].entries,
            verification.verify(opened).areas["kernels"].entries,
        ) == (1, 1)
        garbage_collection.gc(opened)
        assert shelf.take(KEY, GROUP) is not None
        garbage_collection.gc(opened, limit_bytes=shared_kernels.SHARE * 100)
        assert shelf.take(KEY, GROUP) is None
        shelf.put(Entry(KEY, GROUP, FILES))
        garbage_collection.flush(opened)
        assert figures.stats(opened).areas["kernels"].entries == 0
        (store / "triton" / entries.name_of(KEY, GROUP)).write_bytes(b"bad")
        assert not verification.verify(opened).is_sound and verification.verify(opened).is_sound


def test_graphs_share_the_bound_and_are_named_by_their_folder(shelf: Shelf, store: Path) -> None:
    graphs = Shelf(str(store), inductor_cache.FOLDER)
    assert graphs.open()
    graphs.put(Entry("pt2:k", "graph", {"graph": b"pickle"}))
    assert shelf.take("pt2:k", "graph") is None and graphs.take(KEY, GROUP) is None
    assert shared_kernels.held(store)[0] == shared_kernels.verify(store)[0] == 2
    found = dict(shared_kernels.sound(store))
    assert [Entry.decode(content).key for content in found.values()] == [KEY, "pt2:k"]
    assert all(BUNDLED.fullmatch(name.encode()) for name in found) and sorted(found, key=str.encode) == sorted(found)
    assert all(shared_kernels.read(store, name) == found[name] for name in found)
    (path,) = (store / inductor_cache.FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert shared_kernels.verify(store) == (2, 1) and graphs.take("pt2:k", "graph") is None
    graphs.put(Entry("pt2:k", "graph", {"graph": b"pickle"}))
    shared_kernels.trim(store, 0)
    assert shared_kernels.held(store) == (0, 0)


def test_tools_in_place_of_tritons_own_are_told_apart_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = entries.name_of(KEY, GROUP)
    tool = tmp_path / "ptxas"
    tool.write_text("one")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    first = entries.name_of(KEY, GROUP)
    tool.write_text("two")
    second = entries.name_of(KEY, GROUP)
    assert len({plain, first, second}) == 3
    other = tmp_path / "elsewhere"
    other.write_text("one")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(other))
    assert entries.name_of(KEY, GROUP) == first


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once, and nothing is remembered yet."""
    monkeypatch.setattr(entries, "_SETTLED_NS", 0)
    monkeypatch.setattr(entries, "_values", {})


@pytest.mark.usefixtures("settled")
def test_what_was_read_once_is_noted_for_other_processes(
    shelf: Shelf, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("one")
    digest = entries.digest_of(str(tool), shelf.folder)
    (note,) = (store / "triton").glob(f"*{entries.NOTE}")
    forged = "0" * 32
    check = entries._check_of(note.name, forged)
    for text, wanted in ((f"{forged} {check}", forged), (f"{forged} {check[:-1]}", digest), ("", digest)):
        note.write_text(text)  # the first one shows that it is read at all
        monkeypatch.setattr(entries, "_values", {})
        assert entries.digest_of(str(tool), shelf.folder) == wanted
    tool.write_text("another")
    assert entries.digest_of(str(tool), shelf.folder) not in (digest, forged)
    assert len(kept(store)) == 1 and shared_kernels.held(store)[0] == 1, "a note is no kernel"


@pytest.mark.usefixtures("settled")
def test_tritons_digest_of_itself_is_made_once_for_each_state_of_its_files(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "triton"
    (folder / "_C").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    library = folder / "_C" / "libtriton.so"
    library.write_text("one")
    made: list[str] = []

    def triton_key() -> str:
        made.append(library.read_text())
        return f"3.9-{made[-1]}"

    def in_another_process() -> str:
        monkeypatch.setattr(entries, "_values", {})
        return triton_cache.key_remembered(triton_key, str(folder))()

    assert [in_another_process() for _ in range(3)] == ["3.9-one"] * 3 and made == ["one"]
    library.write_text("two")
    assert [in_another_process() for _ in range(2)] == ["3.9-two"] * 2 and made == ["one", "two"]
    (folder / "language.py").write_text("")
    in_another_process()
    assert made == ["one", "two", "two"]
    monkeypatch.setenv("BUILDD_DIR", str(tmp_path / "nowhere"))
    assert in_another_process() == "3.9-two" and len(made) == 4


@pytest.mark.usefixtures("settled")
def test_tritons_digest_is_not_taken_for_that_of_its_sources(store: Path, tmp_path: Path) -> None:
    """Both are computed from the same files, but the traces' one knows libraries by their size alone."""
    folder = tmp_path / "triton"
    (folder / "_C").mkdir(parents=True)
    (folder / "_C" / "libtriton.so").write_text("one")
    notes = str(store / "triton")
    sources = trace_key._sources_of(str(folder), ("",), notes)
    assert triton_cache.key_remembered(lambda: "3.9-one", str(folder))() == "3.9-one"
    assert trace_key._sources_of(str(folder), ("",), notes) == sources


def test_what_was_written_just_now_is_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_SETTLED_NS", 3600 * 10**9)
    tool = tmp_path / "ptxas"
    tool.write_text("one")
    before = entries.stamp_of(str(tool))
    monkeypatch.setattr(entries, "stamp_of", lambda path: before)  # a clock with coarse steps
    first = entries.digest_of(str(tool), str(tmp_path))
    tool.write_text("two")
    assert entries.digest_of(str(tool), str(tmp_path)) != first
    assert not list(tmp_path.glob(f"*{entries.NOTE}"))


# ---------------------------------------------------------------- one compiles


def _hold(path: str, connection: Connection) -> None:
    lock = Lock(path)
    connection.send(lock.take())
    connection.recv()


def test_a_lock_ends_with_its_process_and_is_not_waited_for_by_its_thread(tmp_path: Path) -> None:
    path = str(tmp_path / "x.lock")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(path, theirs))
    process.start()
    assert ours.recv() is True
    lock = Lock(path)
    assert not lock.take()
    process.kill()
    process.join()
    assert lock.take() and Lock(path).take(), "the same thread does not wait for itself"
    taken = []
    thread = threading.Thread(target=lambda: taken.append(Lock(path).take()))
    thread.start()
    thread.join()
    assert taken == [False]
    lock.release()
    assert not os.path.exists(path) and Lock(path).take()


HOLDER = """
import subprocess, sys
from buildd.hooks.triton_cache import Lock
lock = Lock(sys.argv[1])
print(lock.take(), flush=True)
if sys.stdin.readline():
    # As ptxas: the time is a child's, for as long as its parent lives.
    subprocess.run([sys.executable, "-c", "import os\\nparent = os.getppid()\\nwhile os.getppid() == parent: pass"])
"""


@contextlib.contextmanager
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock, and computes when it is told to."""
    command = [sys.executable, "-c", HOLDER, path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


class Looked(Lock):
    """Looks at its holder when that has computed since the last time, and the third time that ends."""

    def __init__(self, path: str, process: subprocess.Popen[str]) -> None:
        super().__init__(path)
        self.process = process
        self.looks: list[str] = []

    def progress(self) -> str:
        until(lambda: super(Looked, self).progress() not in ("", *self.looks))
        self.looks.append(super().progress())
        if len(self.looks) == 3:
            self.process.kill()
        return self.looks[-1]


@pytest.mark.usefixtures("impatient")
def test_who_computes_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "x.lock")
    with holder(path) as process:
        assert process.stdin is not None
        process.stdin.write("compute\n")
        process.stdin.flush()
        lock = Looked(path, process)
        assert triton_cache.waited(lock) and len(lock.looks) >= 3
        lock.release()


@pytest.mark.usefixtures("impatient")
def test_who_is_stopped_or_cannot_be_seen_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "x.lock")
    with holder(path):
        assert Lock(path).progress() and not triton_cache.waited(Lock(path))
        Path(path).write_text("1000000000\n")  # of another pid namespace
        assert not Lock(path).progress() and not triton_cache.waited(Lock(path))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_cache, "_MOST_WAIT_S", 0.1)


# ---------------------------------------------------------------- Triton's interface


@pytest.fixture
def manager(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    cache = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "local"))
    return triton_cache.manager_of(cache.FileCacheManager)


def compiled(manager: Any) -> dict[str, str]:
    """What Triton's compiler does with its cache when it compiles."""
    one = manager(KEY)
    assert one.get_group(GROUP) is None
    group = {name: one.put(data, name) for name, data in FILES.items()}
    one.put_group(GROUP, group)
    return group


def half_of_another(path: Path) -> None:
    """A process that was killed while it made the first file of a folder."""
    for other in path.parent.iterdir():
        other.unlink()
    path.write_bytes(FILES[path.name][:100])


@pytest.mark.triton
def test_a_kernel_is_found_from_another_folder_whatever_is_there(
    manager: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = compiled(manager)
    assert manager(KEY).get_group(GROUP) == group
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "moved"))
    found = manager(KEY).get_group(GROUP)
    assert {name: Path(path).read_bytes() for name, path in found.items()} == FILES
    assert all(path.startswith(str(tmp_path / "moved")) for path in found.values())
    for damage in (lambda path: path.write_bytes(b"torn"), Path.unlink, half_of_another):
        damage(Path(found["add.cubin"]))
        assert Path(manager(KEY).get_group(GROUP)["add.cubin"]).read_bytes() == FILES["add.cubin"]
    (place,) = kept(store)
    place.write_bytes(place.read_bytes()[:-1])
    assert manager(KEY).get_group(GROUP) is None, "nothing tells whether Triton's own copy is whole"


@pytest.mark.triton
def test_a_store_that_cannot_be_used_leaves_tritons_own_cache(
    manager: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "triton").write_text("no folder")
    group = compiled(manager)
    assert manager(KEY).get_group(GROUP) == group
    monkeypatch.setenv("BUILDD_DIR", str(tmp_path / "nowhere"))
    assert manager(KEY).get_group(GROUP) == group
    monkeypatch.delenv("BUILDD_DIR")
    assert manager(KEY).get_group(GROUP) == group


@pytest.mark.triton
@pytest.mark.parametrize("name", ["TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH"])
def test_what_tritons_key_leaves_out_is_not_kept(
    manager: Any, store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    compiled(manager)
    assert kept(store) == []


@pytest.mark.triton
def test_a_kernel_of_somebody_elses_backend_or_made_in_parts_is_not_kept(manager: Any, store: Path) -> None:
    one = manager(KEY)
    assert one.get_group(GROUP) is None
    one.put_group(
        GROUP, {"add.cubin": one.put(b"x", "add.cubin"), GROUP: one.put('{"target": {"backend": "npu"}}', GROUP)}
    )
    other = manager("OTHER")
    assert other.get_group(GROUP) is None
    other.put_group(GROUP, {"add.cubin": one.put(b"x", "add.cubin"), GROUP: other.put(FILES[GROUP], GROUP)})
    assert kept(store) == []


# ---------------------------------------------------------------- programs


@pytest.fixture
def environ(store: Path, tmp_path: Path) -> dict[str, str]:
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "BUILDD_DIR": str(store)}
    return {**plain, **variables(plain)}


def says(environ: dict[str, str], code: str, *options: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=environ, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip()


def test_the_users_own_sitecustomize_runs(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = __file__\n")
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'own'}"
    code = "import sys, sitecustomize; print(mine == sitecustomize.__file__, len(sys.meta_path))"
    assert says(environ, code) == "True " + str(1 + int(says(environ, "import sys; print(len(sys.meta_path))", "-I")))


def test_no_module_of_ours_comes_before_one_of_the_users(environ: dict[str, str], tmp_path: Path) -> None:
    ours = {path.stem for path in Path(triton_cache.__file__).parent.glob("*.py")} - {"__init__"}
    (tmp_path / "own").mkdir()
    for name in ours:
        (tmp_path / "own" / f"{name}.py").write_text("")
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'own'}"
    code = "import importlib, sys; print({importlib.import_module(name).__file__ for name in sys.argv[1:]})"
    done = subprocess.run([sys.executable, "-c", code, *ours], env=environ, capture_output=True, text=True, check=True)
    assert len(ours) > 5 and done.stdout.count(str(tmp_path / "own")) == len(ours), done.stdout


def test_nothing_of_ours_is_needed(environ: dict[str, str], tmp_path: Path) -> None:
    code = f"import os; print(os.environ.get('TRITON_CACHE_MANAGER'), 'buildd-cpu' in os.environ['{TAG}'])"
    assert says(environ, code, "-I") == says({**environ, "PYTHONPATH": str(tmp_path)}, code) == "None True"
    assert HOOKS not in without_hooks(environ).get("PYTHONPATH", "")
    assert without_hooks({**environ, "PYTHONPATH": f"{HOOKS}:/x"})["PYTHONPATH"] == "/x"


def test_builds_of_extensions_are_as_wide_as_the_budget() -> None:
    assert (
        variables({})["MAX_JOBS"] == variables({"BUILDD_JOBS": "no"})["MAX_JOBS"] == str(len(os.sched_getaffinity(0)))
    )
    assert variables({"BUILDD_JOBS": "3"})["MAX_JOBS"] == "3"
    assert "MAX_JOBS" not in variables({"BUILDD_JOBS": "3", "MAX_JOBS": "7"})


def test_the_tag_names_the_processor_and_keeps_the_users_own() -> None:
    plain, narrow = tag({}), tag({"ATEN_CPU_CAPABILITY": "AVX2"})
    assert plain != narrow and plain.endswith("-any") and narrow.endswith("-avx2")
    assert tag({TAG: "mine"}) == f"mine+{plain}"
    assert tag({TAG: tag({TAG: "mine"}), "ATEN_CPU_CAPABILITY": "avx2"}) == f"mine+{narrow}"
    assert tag({TAG: plain}) == plain


KERNEL = """
import triton
import triton.language as tl

@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
COMPILE = """
import sys, time, triton
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
sys.path.insert(0, sys.argv[1])
from twice import twice_kernel
signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
hits = []
triton.knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    kernel = triton.compile(ASTSource(twice_kernel, signature, constexprs={"BLOCK": 256}), target=target)
    binary = kernel.asm["cubin" if target.backend == "cuda" else "hsaco"]
    assert binary[:4] == b"\\x7fELF" and len(binary) > 1000
print(sum(hits), len(hits))
"""


@pytest.fixture(scope="module")
def user(user: User) -> User:
    (user.folder / "twice.py").write_text(KERNEL)
    return user


def run(user: User, name: str, **environ: str) -> subprocess.Popen[str]:
    """A program that compiles two kernels, in a folder and with a cache of its own."""
    folder = user.folder / name
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "buildd", "run", "--quiet", "--", sys.executable, "-c", COMPILE]
    return subprocess.Popen(
        [*command, str(user.folder)],
        cwd=folder,
        env={**user.environ, "TRITON_CACHE_DIR": str(folder / "cache"), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output.splitlines()[-1]


@pytest.mark.triton
@pytest.mark.slow
def test_the_second_program_compiles_nothing(user: User) -> None:
    assert said(run(user, "one")) == "0 2"
    assert said(run(user, "two")) == "2 2"
    with contextlib.suppress(FileNotFoundError):
        for place in (user.folder / "two" / "cache").rglob("*.cubin"):
            place.write_bytes(place.read_bytes()[:100])
    assert said(run(user, "two")) == "2 2"
    for place in kept(user.store):
        place.write_bytes(place.read_bytes()[:-7])
    assert said(run(user, "two")) == "0 2"
    assert said(run(user, "three", TRITON_STORE_BINARY_ONLY="1")) == "0 2"
    for place in (user.folder / "one" / "cache").rglob("__grp__*"):
        assert json.loads(place.read_text())["child_paths"]


@pytest.mark.triton
def test_the_summary_of_a_run_counts_the_kernels_that_were_found(user: User) -> None:
    places = {"TRITON_CACHE_DIR": str(user.folder / "cache"), "BUILDD_DIR": str(user.folder / "counted")}
    lend_programs(user.folder / "counted")
    environ = {**user.environ, **places}
    command = [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "-c", COMPILE, str(user.folder)]
    ends = []
    for _ in range(2):
        shutil.rmtree(user.folder / "cache", ignore_errors=True)
        done = subprocess.run(command, cwd=user.folder, env=environ, capture_output=True, text=True, check=True)
        ends.append(done.stderr)
    assert "from the store" not in ends[0]
    assert "2 Triton kernels from the store" in ends[1], ends


@pytest.mark.triton
@pytest.mark.slow
def test_of_several_programs_at_once_one_compiles_each_kernel(user: User) -> None:
    running = [run(user, f"at once {number}", TRITON_DISABLE_LINE_INFO="1") for number in range(4)]
    hits = [int(said(process).split()[0]) for process in running]
    assert sum(hits) == 2 * 4 - 2
