"""Known answers: what shims deliver by themselves, without any daemon, and when they must not."""

from __future__ import annotations

import fcntl
import fnmatch
import os
import random
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from buildd.files import sweep
from buildd.files.snapshot import Snapshot
from buildd.files.stamp_set import FolderStamp, Stamps, listed_names
from buildd.scheduling.make_rules import written
from buildd.shims import shim_folders
from buildd.store import answers, hit_notes
from buildd.store.answer_questions import question_elsewhere, question_of
from buildd.store.answers import Answer, Answers
from buildd.store.store import Counter, Store
from codegen.compilers.depfile import Rule
from codegen.foreign.called_tool import MARK, sent_variables
from protocol.messages import BuildId, Digest, Request, RequestId
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
RAN = b"the tool ran\n"
KEY = Digest("ab" * 32)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_folders.program(tmp_path_factory.mktemp("native"), os.environ["PATH"])


class Desk:
    """A project, a store with answers, and a shim of a tool that only says that it ran."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self.project, self.store, self.bin = folder / "project", folder / "store", folder / "bin"
        for place in (self.project / "out", self.project / "one", self.bin / MARK):
            place.mkdir(parents=True)
        self.tool = folder / "tool"
        self.tool.write_text(f"#!/bin/sh\nprintf '{RAN.decode().strip()}\\n'\n")
        self.tool.chmod(0o700)
        shutil.copy(binary, self.bin / "cc")
        (self.bin / MARK / "cc").symlink_to(self.tool)
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C",
            "BUILDD_DIR": str(self.store),
            "BUILDD_RUNTIME_DIR": str(folder / "nowhere"),
            "BUILDD_BUILD_ID": "a build",
        }
        self.answers = Answers(self.store, 1 << 30)
        for name in ("one/a.h", "one/b.h", "a.c"):
            (self.project / name).write_text(name)

    def ask(
        self, *arguments: str, cwd: Path | None = None, umask: int = -1, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        cwd = cwd or self.project
        environ = {**self.environ, "PWD": str(cwd), **variables}
        command = [self.bin / "cc", *(arguments or ("-c", "a.c"))]
        done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, umask=umask, timeout=60, check=False)
        assert done.returncode == 0, done
        return done

    def is_answered(self, *arguments: str, **variables: str) -> bool:
        return self.ask(*arguments, **variables).stdout != RAN

    def request(self, *arguments: str, cwd: Path | None = None, **variables: str) -> Request:
        sent = sent_variables()
        environ = {**self.environ, **variables}
        return Request(
            request_id=RequestId("r"),
            build_id=BuildId("b"),
            project=str(cwd or self.project),
            command=(str(self.tool), *(arguments or ("-c", "a.c"))),
            environment={k: v for k, v in environ.items() if any(fnmatch.fnmatchcase(k, name) for name in sent)},
        )

    def stamps(self, *listed: str, names: frozenset[str] = frozenset(), digested: bool = True) -> Stamps:
        """Stamps of everything in the project that is no output, as it is now.

        Args:
            listed: folders that outputs come and go in.
            digested: with the content of files.
        """
        places = [self.project, *sorted(self.project.rglob("*"))]
        paths = [os.fsencode(path) for path in places if path.is_file() and path.parent.name != "out"]
        folders = [
            FolderStamp(str(path), _stamp(path), listed_names(str(path), names) if path.name in listed else None)
            for path in [*places, self.project / "absent"]
            if path.is_dir() or not path.exists()
        ]
        numbers = sweep.packed([n for path in paths for n in sweep.stamp(path)])
        digests = b"".join(content_of(path) for path in paths) if digested else b""
        return Stamps(paths, numbers, tuple(folders), names, digests)

    def answer(self, stamps: Stamps | None = None, request: Request | None = None, *, object: bytes = b"obj") -> Answer:
        return Answer(
            question=question_of(request or self.request()),
            stamps=self.stamps("out") if stamps is None else stamps,
            output="out/a.o",
            object=object,
            depfile="out/a.d",
            rules=b"out/a.o: a.c\n",
            stdout=b"said\n",
            stderr=b"complained\n",
            key=KEY,
            saved_s=1.5,
        )

    def publish(self, answer: Answer | None = None) -> Path:
        """Its file."""
        answer = answer or self.answer()
        self.answers.publish(answer)
        return self.store / "answers" / answers._name(answer.question)

    def outputs(self) -> list[bytes]:
        return [(self.project / "out" / name).read_bytes() for name in ("a.o", "a.d")]

    def clean(self) -> None:
        for path in (self.project / "out").iterdir():
            path.unlink()


def content_of(path: bytes) -> bytes:
    """Digest of a file; empty where there is none."""
    try:
        with open(path, "rb") as file:
            return blake3(file.read()).digest()
    except OSError:
        return b""


def _stamp(path: Path) -> int:
    """A folder's stamp, however young it is."""
    stamp = Snapshot(_Old(), "/").folder_stamp(str(path))  # type: ignore[arg-type]
    assert stamp != -1
    return stamp


class _Old:
    """Looks at everything a while later."""

    def now_ns(self) -> int:
        return 1 << 62


@pytest.fixture
def desk(tmp_path: Path, binary: Path) -> Desk:
    return Desk(tmp_path, binary)


# ---------------------------------------------------------------- what is delivered


def test_an_answer_is_delivered_without_a_daemon(desk: Desk) -> None:
    assert desk.ask().stdout == RAN
    desk.publish()
    done = desk.ask()
    assert (done.stdout, done.stderr) == (b"said\n", b"complained\n")
    assert desk.outputs() == [b"obj", b"out/a.o: a.c\n"]


def test_outputs_that_are_there_only_get_a_new_time(desk: Desk) -> None:
    desk.publish()
    desk.ask()
    before = []
    for name in ("a.o", "a.d"):
        os.utime(desk.project / "out" / name, (1, 1))
        before.append(os.stat(desk.project / "out" / name).st_ino)
    assert desk.is_answered()
    after = [os.stat(desk.project / "out" / name) for name in ("a.o", "a.d")]
    assert [status.st_ino for status in after] == before
    assert all(status.st_mtime > 1_000_000_000 for status in after)
    for name in ("a.o", "a.d"):
        (desk.project / "out" / name).write_bytes(b"xyz")
    assert desk.is_answered()
    assert desk.outputs() == [b"obj", b"out/a.o: a.c\n"]


def test_the_umask_is_the_callers(desk: Desk) -> None:
    desk.publish()
    for umask, mode in ((0o027, 0o640), (0o002, 0o664)):
        desk.clean()
        assert desk.ask(umask=umask).stdout != RAN
        assert [stat.S_IMODE(path.stat().st_mode) for path in (desk.project / "out").iterdir()] == [mode, mode]


def test_it_is_for_the_whole_question_only(desk: Desk) -> None:
    desk.publish()
    assert desk.is_answered()
    assert desk.is_answered(SOME_OTHER="1")
    assert not desk.is_answered("-c", "b.c")
    assert not desk.is_answered("-c", "a.c", "")
    assert not desk.is_answered(CPATH="/x")
    assert not desk.is_answered(LC_ALL="C.UTF-8")
    assert not desk.is_answered(BUILDD_RECACHE="1")
    assert not desk.is_answered(BUILDD_DISABLE="1")
    assert not desk.is_answered(BUILDD_DIR=str(desk.store / "other"))


def test_a_folder_that_is_another_one_now_has_no_answer(desk: Desk, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "out").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("first")
    desk.publish(desk.answer(request=desk.request(cwd=link)))
    assert desk.ask(cwd=link).stdout != RAN
    link.unlink()
    link.symlink_to("second")
    assert desk.ask(cwd=link).stdout == RAN
    assert not list((tmp_path / "second/out").iterdir())


def test_a_place_that_is_no_file_of_its_own_is_left_to_the_tool(desk: Desk) -> None:
    desk.publish()
    target = desk.project / "target"
    for make in (lambda p: p.symlink_to(target), lambda p: p.mkdir(), os.mkfifo):
        for name in ("a.o", "a.d"):
            desk.clean()
            make(desk.project / "out" / name)
            assert not desk.is_answered(), name
            assert not target.exists()
            shutil.rmtree(desk.project / "out")
            (desk.project / "out").mkdir()
    (desk.project / "out").rmdir()
    assert not desk.is_answered()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("is_written_to", [False, True])
def test_a_fifo_in_place_of_the_code_makes_nobody_wait(desk: Desk, is_written_to: bool) -> None:
    desk.publish()
    code = desk.store / "answers/code"
    code.unlink()
    os.mkfifo(code, 0o600)
    writer = os.open(code, os.O_RDWR) if is_written_to else -1
    try:
        assert not desk.is_answered()
        answers.prepare(desk.store)
        assert code.is_file()
    finally:
        if is_written_to:
            os.close(writer)


def test_both_sides_ask_the_same_question_in_another_checkout(desk: Desk, tmp_path: Path) -> None:
    """Random words: a shim in another folder finds an answer exactly where Python makes the same question of both."""
    rng, verdicts = random.Random(19), []
    other = tmp_path / "x/other"
    (other / "out").mkdir(parents=True)
    stamps = Stamps([], b"", ())
    for _ in range(150):
        pieces = [
            rng.choice(("-I", "-isystem", "-D", "a", "/", "=", ":", ",", ";", '"', " ", ".", "HERE", "HERE"))
            for _ in range(5)
        ]
        words = ["-c", "a.c", "".join(pieces), rng.choice(("-IHERE/x", "HERE", "-Wl,HERE:HERE", "-DX=HERE-1"))]
        mine = [word.replace("HERE", str(desk.project)) for word in words]
        theirs = [word.replace("HERE", str(other)) for word in words]
        wanted = question_elsewhere(desk.request(*mine), str(desk.project))
        answer = replace(
            desk.answer(stamps, desk.request(*mine)), elsewhere=wanted, folder=str(desk.project), stdout=b"said \1/x\n"
        )
        desk.publish(answer)
        found = desk.ask(*theirs, cwd=other).stdout
        is_same = bool(wanted) and wanted == question_elsewhere(desk.request(*theirs, cwd=other), str(other))
        assert found == (f"said {other}/x\n".encode() if is_same else RAN), words
        verdicts.append(is_same)
        answers.clear(desk.store)
    assert 20 < sum(verdicts) < 130


@pytest.mark.parametrize("clang", [False, True])
def test_a_depfile_has_the_same_lines_from_either_side(desk: Desk, tmp_path: Path, clang: bool) -> None:
    rng = random.Random(23)
    for number in range(60):
        other = tmp_path / ("o" * rng.randrange(1, 90)) / str(number)
        (other / "out").mkdir(parents=True)
        names = ["HERE/" * rng.randrange(2) + "n" * rng.randrange(1, 40) + ".h" for _ in range(rng.randrange(1, 12))]
        mine = [name.replace("HERE", str(desk.project)) for name in names]
        cut = rng.randrange(len(names))
        rule = Rule(
            tuple(mine[: cut + 1]), tuple(mine[cut:]), rng.randrange(len(mine) - cut), rng.random() < 0.5, clang
        )
        request = desk.request("-c", f"-D{number}", "a.c")
        answer = replace(
            desk.answer(Stamps([], b"", ()), request),
            elsewhere=question_elsewhere(request, str(desk.project)),
            folder=str(desk.project),
            rule=rule,
        )
        desk.publish(answer)
        for place in (desk.project, other):
            assert desk.ask("-c", f"-D{number}", "a.c", cwd=place).stdout == b"said\n"
            theirs = [name.replace("HERE", str(place)) for name in names]
            rule = replace_names(rule, theirs)
            assert (place / "out/a.d").read_bytes() == written(rule), names


def replace_names(rule: Rule, names: Sequence[str]) -> Rule:
    cut = len(rule.targets)
    return Rule(tuple(names[:cut]), tuple(names[cut - 1 :]), rule.source, rule.phony, rule.clang)


def test_an_answer_for_all_checkouts_takes_its_room_once(desk: Desk) -> None:
    request = desk.request()
    answer = replace(desk.answer(), elsewhere=question_elsewhere(request, str(desk.project)), folder=str(desk.project))
    size = desk.publish(answer).stat().st_size
    assert answers.held(desk.store) == (1, size)
    assert answers.verify(desk.store) == (2, 0)
    assert answers.trim(desk.store, 0) == 0
    assert not desk.is_answered()


# ---------------------------------------------------------------- when it holds


def test_it_never_holds_where_the_rules_say_no(desk: Desk) -> None:
    """After random edits a shim judges as `Stamps.hold` does, but for files that only have another stamp."""
    rng = random.Random(7)
    project = desk.project
    (project / "two").symlink_to("one")
    (project / "one/deep").mkdir()
    names = frozenset({"a.h", "m.h", "deep", "out", "sub"})
    sweeper = sweep.Sweep(desk.store / "native")
    edits: list[Callable[[], object]] = [
        lambda: None,
        lambda: None,
        lambda: (project / "one/a.h").write_text("changed"),
        lambda: os.utime(project / "a.c", (5, 5)),
        lambda: (project / "one/b.h").unlink(missing_ok=True),
        lambda: (project / f"out/{rng.random()}.o").write_text(""),
        lambda: (project / "out/m.h").write_text(""),
        lambda: (project / "out/m.h").unlink(missing_ok=True),
        lambda: (project / "out/sub").mkdir(exist_ok=True),
        lambda: shutil.rmtree(project / "out/sub", ignore_errors=True),
        lambda: _relink(project / "out/deep", rng.choice(("../one", "../a.c", "nowhere"))),
        lambda: _relink(project / "two", rng.choice(("one", "out"))),
        lambda: (project / f"one/deep/{rng.random()}").write_text(""),
        lambda: (project / "absent").mkdir(exist_ok=True),
        lambda: shutil.rmtree(project / "absent", ignore_errors=True),
        lambda: os.replace(shutil.copy2(project / "a.c", project / "one/copy"), project / "a.c"),
        lambda: (project / "a.c").chmod(rng.choice((0o600, 0o644))),
    ]
    verdicts, contents = [], 0
    for _ in range(200):
        digested = rng.random() < 0.7
        stamps = desk.stamps("out", names=names, digested=digested)
        desk.publish(desk.answer(stamps))
        for _ in range(rng.choice((0, 1, 1, 2))):
            rng.choice(edits)()
        wanted = stamps.hold(sweeper)
        if not wanted and digested:
            same = b"".join(map(content_of, stamps.paths)) == stamps.digests
            wanted = same and Stamps([], b"", stamps.folders, names).hold(sweeper)
            contents += wanted
        assert desk.is_answered() == wanted
        verdicts.append(wanted)
    assert 30 < sum(verdicts) < 150 and contents > 10


def _relink(place: Path, target: str) -> None:
    if place.is_symlink() or not place.exists():
        place.unlink(missing_ok=True)
        place.symlink_to(target)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 5000, 65536, 300_001])
def test_a_file_that_was_touched_is_read(desk: Desk, size: int) -> None:
    source = desk.project / "a.c"
    source.write_bytes(random.Random(size).randbytes(size))
    desk.publish()
    before = source.stat()
    os.utime(source, (5, 5))
    assert desk.is_answered(), "the same content"
    if size:
        content = bytearray(source.read_bytes())
        content[size * 2 // 3] ^= 4
        source.write_bytes(content)
        assert not desk.is_answered()
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not desk.is_answered()
    source.write_bytes(random.Random(size).randbytes(size) + b"x")
    assert not desk.is_answered()
    source.write_bytes(random.Random(size).randbytes(size))
    assert desk.is_answered()
    desk.publish(desk.answer(desk.stamps("out", digested=False)))
    assert desk.is_answered()
    os.utime(source, (6, 6))
    assert not desk.is_answered(), "what it was is not known"


def test_what_is_torn_or_damaged_is_no_answer(desk: Desk) -> None:
    file = desk.publish()
    whole = file.read_bytes()
    assert answers.is_sound(whole, file.name) and desk.is_answered()
    rng = random.Random(3)
    cuts = [whole[:length] for length in (0, 1, 15, 16, 47, 100, 159, 160, 161, len(whole) - 1)]
    flips = []
    for place in (*range(0, 160, 5), *rng.sample(range(160, len(whole)), 60), len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        flips.append(bytes(changed))
    for content in (*cuts, *flips, whole + b"x", b"\xff" * 500, whole.replace(b"answer 8", b"answer 7")):
        desk.clean()
        file.write_bytes(content)
        assert not answers.is_sound(content, file.name)
        assert not desk.is_answered(), content[:160]
        assert not list((desk.project / "out").iterdir())
    file.write_bytes(whole)
    shutil.copy(file, file.with_name("0" * 32))
    assert answers.verify(desk.store) == (2, 1)
    assert desk.is_answered()


def test_nonsense_with_the_right_digests_breaks_nothing(desk: Desk) -> None:
    """What only a mistake of ours could write: counts and strings that lead nowhere."""
    file = desk.publish()
    whole = file.read_bytes()
    rng = random.Random(5)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            place = rng.randrange(160, len(whole))
            changed[place : place + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0", rng.randbytes(4)))
        del changed[len(whole) :]
        changed[16:48] = answers._digest(bytes(changed[48 : len(whole) - 3]))
        file.write_bytes(changed)
        desk.ask()  # ends well, with any answer


def test_what_others_may_have_written_is_no_answer(desk: Desk, tmp_path: Path) -> None:
    file = desk.publish()
    file.chmod(0o620)
    assert not desk.is_answered()
    file.chmod(0o600)
    assert desk.is_answered()
    file.parent.chmod(0o750)
    assert not desk.is_answered()
    file.parent.chmod(0o700)
    os.rename(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert not desk.is_answered()
    file.unlink()
    os.rename(desk.store / "answers", tmp_path / "moved")
    (desk.store / "answers").symlink_to(tmp_path / "moved")
    assert not desk.is_answered()


# ---------------------------------------------------------------- the folder


def test_the_least_recently_used_go_first(desk: Desk) -> None:
    requests = [desk.request("-c", "a.c", f"-DN={n}") for n in range(3)]
    files = [desk.publish(desk.answer(request=request)) for request in requests]
    for age, file in enumerate(files):
        os.utime(file, (1_000_000 + age, 1_000_000 + age))
    assert desk.is_answered("-c", "a.c", "-DN=0")
    size = files[0].stat().st_size
    assert answers.trim(desk.store, 2 * size) == 2 * size
    assert [file.exists() for file in files] == [True, False, True]
    assert answers.held(desk.store) == (2, 2 * size)
    assert answers.clear(desk.store) == 2


def test_the_folder_is_bounded(desk: Desk) -> None:
    bounded = Answers(desk.store, answers.SHARE * 10_000)
    for number in range(20):
        bounded.publish(desk.answer(request=desk.request(str(number)), object=b"x" * 2000))
    count, size = answers.held(desk.store)
    assert 1 < count < 5 and size <= 10_000


def test_answers_of_other_code_are_dropped(desk: Desk) -> None:
    desk.publish()
    answers.prepare(desk.store)
    assert desk.is_answered()
    for content in ("of yesterday", "", None):
        file = desk.publish()
        assert desk.is_answered()
        if content is None:
            (desk.store / "answers/code").unlink()
        else:
            (desk.store / "answers/code").write_text(content)
        assert not desk.is_answered()
        answers.prepare(desk.store)
        assert not file.exists() and not desk.is_answered()


def test_a_store_that_is_flushed_has_none(desk: Desk) -> None:
    from buildd.store import figures, garbage_collection

    with Store.open(desk.store) as store:
        desk.publish()
        assert figures.stats(store).areas["answers"].entries == 1
        garbage_collection.gc(store)
        assert desk.is_answered()
        garbage_collection.flush(store)
    assert not desk.is_answered()


# ---------------------------------------------------------------- notes


def test_hits_are_noted_and_counted_once(desk: Desk) -> None:
    desk.publish()
    with Store.open(desk.store) as store:
        with hit_notes.Notes(desk.store, "a build") as mine:
            for _ in range(3):
                desk.ask()
            desk.ask(BUILDD_BUILD_ID="another")
            desk.ask(BUILDD_BUILD_ID="")
            assert mine.figures() == (3, 4.5)
            assert hit_notes.count(store) == 2
            assert mine.figures() == (3, 4.5)
        assert hit_notes.count(store) == 3
        assert hit_notes.count(store) == 0
        assert store.counters()[Counter.HITS] == 5
        assert store.counters()[Counter.SAVED_MS] == 7500
    assert not list((desk.store / "answers/notes").iterdir())


@pytest.mark.parametrize("build", ["a b/../c", "ä" * 50, "x" * 200, "." * 3])
def test_a_builds_name_is_the_same_for_both(desk: Desk, build: str) -> None:
    desk.publish()
    with hit_notes.Notes(desk.store, build) as mine:
        desk.ask(BUILDD_BUILD_ID=build)
        assert mine.figures()[0] == 1


def test_none_is_lost_while_others_count(desk: Desk) -> None:
    desk.publish()
    desk.ask()
    counted = 0
    stop = threading.Event()

    def count(store: Store) -> None:
        nonlocal counted
        while not stop.is_set():
            counted += hit_notes.count(store)
        counted += hit_notes.count(store)

    with Store.open(desk.store) as store:
        counter = threading.Thread(target=count, args=(store,))
        counter.start()
        try:
            for _ in range(40):
                desk.ask()
        finally:
            stop.set()
            counter.join()
    assert counted == 41


def test_a_lock_that_somebody_keeps_costs_a_moment_only(desk: Desk) -> None:
    desk.publish()
    with hit_notes.Notes(desk.store, "a build") as mine:
        pass
    path = desk.store / "answers/notes/a_build"
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert desk.is_answered()
    assert path.stat().st_size == 0
    path.write_bytes(b"\xff" * 95)
    with hit_notes.Notes(desk.store, "a build") as mine:
        assert mine.figures()[0] == 2
