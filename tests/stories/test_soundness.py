"""Promise 1, attacked: stories in which a cache that is a little too trusting hands out a wrong artifact.

The fake compiler's directives change files while it runs; what a later build delivers is compared with what the
compiler makes of the files as they are then.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.files.traits import Traits, traits_of
from buildd.keys import depfiles, include_search, survey_memory
from codegen.compilers import closure
from codegen.compilers.closure import host_compiler, which
from codegen.flags import inspect
from codegen.plan import Discovery, Knowledge, Probe, ProbesNeeded, ToolFile
from codegen.search import include_folders, library_folders
from protocol import messages as m
from tests.support.carry_out import run_probe
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.settled_builds import build, built, clean, during, settle


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    return workspace


def assert_right(workspace: Workspace) -> None:
    """The next build delivers what the compiler makes now."""
    assert build(workspace).done.outcome is m.Outcome.BUILT
    assert built(workspace) == clean(workspace)


def test_a_header_replaced_by_an_older_one_while_it_is_read(workspace: Workspace) -> None:
    older = workspace.write("include/older.h", "other\n")
    during(workspace, lambda: older.rename(workspace.project / "include/x.h"))
    assert_right(workspace)


def test_a_header_removed_while_it_is_read_is_not_forgotten(workspace: Workspace) -> None:
    during(workspace, lambda: (workspace.project / "include/x.h").unlink())
    workspace.write("include/x.h", "two\n")
    assert_right(workspace)


def test_a_link_that_is_turned_while_it_is_read(workspace: Workspace) -> None:
    workspace.write("include/old.h", "old\n")
    workspace.write("include/new.h", "new\n")
    conf = workspace.project / "include/conf.h"
    conf.symlink_to("old.h")
    workspace.write("src/a.cu", '#include "conf.h"\n')

    def turn() -> None:
        conf.unlink()
        conf.symlink_to("new.h")

    during(workspace, turn)
    assert_right(workspace)


def test_a_link_to_a_folder_that_is_turned_while_it_is_read(workspace: Workspace) -> None:
    for version in ("v1", "v2"):
        (workspace.project / version).mkdir()
        workspace.write(f"{version}/conf.h", f"{version}\n")
    now = workspace.project / "include/now"
    now.symlink_to("../v1")
    workspace.write("src/a.cu", '#include "now/conf.h"\n')

    def turn() -> None:
        now.unlink()
        now.symlink_to("../v2")

    during(workspace, turn)
    assert_right(workspace)


def test_a_folder_that_is_exchanged_while_it_is_read(workspace: Workspace) -> None:
    for version in ("sub", "other"):
        (workspace.project / "include" / version).mkdir()
        workspace.write(f"include/{version}/conf.h", f"{version}\n")
    workspace.write("src/a.cu", '#include "sub/conf.h"\n')

    def exchange() -> None:
        (workspace.project / "include/sub").rename(workspace.project / "aside")
        (workspace.project / "include/other").rename(workspace.project / "include/sub")

    during(workspace, exchange)
    assert_right(workspace)


def test_a_header_that_appears_earlier_while_the_other_is_read(workspace: Workspace) -> None:
    during(workspace, lambda: workspace.write("first/x.h", "first\n"))
    assert_right(workspace)


def test_an_unrelated_file_saved_beside_while_it_is_read_costs_nothing(workspace: Workspace) -> None:
    during(workspace, lambda: (workspace.write("include/other.h", ""), workspace.write("src/.a.cu.swp", "")))
    assert "a.cu.o" not in build(workspace).ran()


def test_a_build_that_makes_files_where_a_name_is_asked_for_compiles_once(workspace: Workspace) -> None:
    """Objects of other compiles come to the folder meanwhile, and below a search folder that is not there."""
    workspace.write(
        "include/x.h", '#if __has_include("later.h")\nlater\n#endif\n#if __has_include("gen/y.h")\n#endif\n'
    )
    story = during(workspace, lambda: (workspace.write("include/other.o", ""), workspace.write("src/b.o", "")))
    assert story.ran().count("a.cu.o") == 1
    assert "a.cu.o" not in build(workspace).ran()


def test_a_link_to_a_folder_before_two_dots(workspace: Workspace) -> None:
    """include/far/../conf.h is beside what the link points to, not beside the link."""
    elsewhere = workspace.folder / "elsewhere"
    (elsewhere / "far").mkdir(parents=True)
    (elsewhere / "conf.h").write_text("one\n")
    (workspace.project / "include/far").symlink_to(elsewhere / "far")
    workspace.write("include/conf.h", "decoy\n")
    workspace.write("src/a.cu", '#include "far/../conf.h"\n')
    build(workspace)
    (elsewhere / "conf.h").write_text("two\n")
    build(workspace)
    assert built(workspace) == clean(workspace)


def test_who_joined_a_running_job_knows_its_headers_too(workspace: Workspace) -> None:
    """Two equal requests at once: one compiles, the other waits for it. Whichever record is kept must hold the
    headers, or the next build finds nothing to do although one of them changed."""
    workspace.write("src/a.cu", '#include "x.h"\n//! touch reached\n//! wait-for go\n')

    settle(workspace)

    async def both() -> None:
        async with Harness(workspace) as harness:
            logs = [harness.submit(workspace.request()), harness.submit(workspace.request())]
            for log in logs:
                await harness.until(log, lambda body: isinstance(body, m.Queued))
            (workspace.project / "go").touch()
            for log in logs:
                assert (await harness.finish(log)).done.outcome is m.Outcome.BUILT
            # The one that joined ends once more, last.
            await harness.build(workspace.request())

    asyncio.run(both())
    assert "nothing to do" in build(workspace).done.message, "no record was kept: this shows nothing"
    workspace.write("include/x.h", "changed\n")
    story = build(workspace)
    assert "a.cu.o" in story.ran(), story


def test_a_source_that_comes_while_it_is_built_is_not_passed_over(workspace: Workspace) -> None:
    """The folder that was listed for the plan changed before the request ended."""
    workspace.write("src/a.cu", '#include "x.h"\n//! write-other src/late.cu\n//! sleep 0.1\n')
    first = build(workspace)
    assert "late.cu.o" not in first.ran()
    assert "late.cu.o" in build(workspace).ran()


def test_an_executable_that_lost_its_bit_gets_it_back(workspace: Workspace) -> None:
    (workspace.project / "run").mkdir()
    build(workspace)
    library = workspace.project / "build/a.cu.o"
    mode = library.stat().st_mode
    library.chmod(mode ^ 0o111)
    build(workspace)
    assert bool(library.stat().st_mode & 0o100) == bool(mode & 0o100)


@pytest.mark.parametrize(
    ("line", "path"),
    [("./x.h", "./x.h"), ("./../common/x.h", "./../common/x.h"), ("../x.h", "../x.h"), (".cfg/x.h", ".cfg/x.h")],
)
def test_clang_names_headers_without_marks_of_depth(line: str, path: str) -> None:
    assert depfiles.parse(Discovery.CLANG, line.encode() + b"\n") == (path,)


@pytest.mark.parametrize(
    ("text", "trait"),
    [
        ('const char *a = "image/*"; assert(a); asm(".incbin \\"f\\""); /* */', Traits.EMBED),
        ('const char *a = "http://x"; assert(a);\n#if __has_include(<x>) // */', Traits.HAS_INCLUDE),
        ("#if MY_HAS_INCLUDE(<x>)", Traits.HAS_INCLUDE),
        ('#include "../x.h"', Traits.HAS_INCLUDE),
        ("# include_next <a/../x.h>", Traits.HAS_INCLUDE),
        ('asm(".include \\"f.s\\"");', Traits.EMBED),
        ("int a;\0" + "const char *t = __TIME__;", Traits.TIME),
    ],
)
def test_traits_are_found_wherever_they_stand(text: str, trait: Traits) -> None:
    assert traits_of(text.encode()) & trait


@pytest.mark.parametrize(
    ("flags", "folders"),
    [
        (("-isystem", "sys", "-Ilate"), ("sys", "late")),
        (("-Xcompiler", "-Ione,-isystem,two"), ("one", "two")),
        (("-Xcompiler=-Ione",), ("one",)),
        (("--include-path=one,two", "-I", "three"), ("one", "two", "three")),
        (("-include", "forced.h"), (".",)),
        (("-Ione/../two/", "-I../three/./four"), ("one/../two", "../three/four")),
        (("-I./one/../two",), ("./one/../two", "one/../two")),
        (("-imacros", "forced.h", "-iquote", "q"), ("q", ".")),
    ],
)
def test_every_way_to_name_an_include_folder(flags: tuple[str, ...], folders: tuple[str, ...]) -> None:
    assert set(folders) <= set(include_folders((), flags, {}))


def test_library_folders_of_flags_and_environment() -> None:
    found = library_folders(("-Lone", "-Xlinker", "-Ltwo", "-L", "three"), (("LIBRARY_PATH", "/four:/five"),), {})
    assert found == ("one", "two", "three", "/four", "/five")


@pytest.mark.parametrize(
    "flag",
    [
        "-DSTAMP=__TIME__",
        "-Wl,--retain-symbols-file=keep",
        "-Wl,-Map=out.map",
        "-fuse-ld=gold",
        "--sysroot=/x",
        "-fplugin=named",
        "--libdevice-directory=/x",
        "-Wl,@options",
    ],
)
def test_flags_that_reach_what_nobody_lists_are_never_stored(flag: str) -> None:
    assert inspect((flag,)).uncacheable


def test_a_library_that_appears_in_another_folder(tmp_path: Path) -> None:
    """-Lone -Ltwo -lx: found in two, until one has it, whichever kind it is; and the system's may be shadowed."""
    for folder in ("one", "two", "system"):
        (tmp_path / folder).mkdir()
    used = ["two/libx.a", f"{tmp_path}/system/libm.so"]
    for path in used:
        (tmp_path / path).write_text("")

    def present() -> tuple[str, ...]:
        snapshot = Snapshot(Files(), str(tmp_path))
        return include_search.Surveyor(snapshot, ("one", "two"), ()).survey(used, ()).present

    assert present() == ()
    for path in ("one/libx.a", "one/libx.so", "two/libx.so", "one/libm.a"):
        (tmp_path / path).write_text("")
        assert present() == (path,)
        (tmp_path / path).unlink()


@pytest.mark.parametrize(
    "text",
    [
        "#define HAS(x) __has_include(x)\n#if HAS(<a.h>)\n#endif\n",
        "#define HAS(x) \\\n  __has_include(x)\n#if HAS(<a.h>)\n#endif\n",
        "#define NAME <a.h>\n#if __has_include(NAME)\n#endif\n",
    ],
)
def test_has_include_behind_another_name_is_not_followed(text: str) -> None:
    assert include_search.asks_computed(text.encode())


def test_a_shim_for_has_include_asks_nothing() -> None:
    assert not include_search.asks_computed(b"#if !defined(__has_include)\n#  define __has_include(x) 0\n#endif\n")


def test_has_include_over_two_lines() -> None:
    assert include_search.asked_names(b"#if __has_include( \\\n <a.h>)\n") == ("a.h",)


def test_a_source_that_asks_is_watched_though_nobody_lists_it(tmp_path: Path) -> None:
    """clang lists headers only."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "main.hip").write_text('#if __has_include("a.h")\n#endif\n')
    found = include_search.Surveyor(Snapshot(Files(), str(tmp_path)), ("inc",), ()).survey([], ("main.hip",))
    assert "inc" in dict(found.folders) and dict(found.asked)["inc"] == {"a.h"}


def test_a_name_asked_for_whose_link_points_nowhere_yet(tmp_path: Path) -> None:
    """The listing of the folder does not change when the target appears."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "inc/a.h").symlink_to("../far/a.h")
    (tmp_path / "main.cu").write_text('#if __has_include("a.h")\n#endif\n')

    def surroundings() -> survey_memory.Surroundings:
        return include_search.Surveyor(Snapshot(Files(), str(tmp_path)), ("inc",), ()).survey(["main.cu"], ("main.cu",))

    before = surroundings()
    assert before.present == () and "far" in dict(before.folders)
    (tmp_path / "far/a.h").write_text("")
    assert surroundings().present == ("inc/a.h",)


def test_an_answer_of_the_host_compiler_holds_until_a_program_appears_where_it_looks(tmp_path: Path) -> None:
    """COMPILER_PATH is where gcc looks for `as`: the remembered answer must depend on what is there."""
    driver = which("g++", "/usr/local/bin:/usr/bin:/bin")
    environment = (("COMPILER_PATH", str(tmp_path)), ("PATH", "/usr/bin:/bin"))
    asked: list[Probe] = []
    knowledge = Knowledge()
    while True:
        try:
            host_compiler(knowledge, (driver,), environment, "/usr/bin:/bin")
            break
        except ProbesNeeded as needed:
            asked += needed.probes
            for probe in needed.probes:
                knowledge.learn(probe, run_probe(probe))
    (question,) = [probe for probe in asked if "-print-prog-name=as" in probe.argv]
    assert str(tmp_path / "as") in question.files
    loaders = [probe for probe in asked if "--list" in probe.argv]
    assert loaders and all("/etc/ld.so.cache" in probe.files for probe in loaders)


@pytest.mark.parametrize("loaders", [{}, {os.uname().machine: "/bin/false"}])
def test_where_the_loader_cannot_tell_ldd_is_asked(loaders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another machine, or a system whose loader is elsewhere."""
    program = which("g++", "/usr/local/bin:/usr/bin:/bin")
    compiler = closure.which("cc1plus", os.path.dirname(_said(program, "-print-prog-name=cc1plus")))
    environment = (("PATH", "/usr/bin:/bin"),)
    expected = _libraries(compiler, environment)
    monkeypatch.setattr(closure, "_LOADERS", loaders)
    assert _libraries(compiler, environment) == expected != ()


def _libraries(program: str, environment: tuple[tuple[str, str], ...]) -> tuple[ToolFile, ...]:
    knowledge = Knowledge()
    while True:
        try:
            return closure.libraries(knowledge, (program,), environment)
        except ProbesNeeded as needed:
            for probe in needed.probes:
                knowledge.learn(probe, run_probe(probe))


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_answers_of_earlier_requests_hold_while_their_folders_do(tmp_path: Path) -> None:
    """Each request has its own view; what they share must never make a new file invisible."""
    files, memory = Files(), survey_memory.Memory()
    for name in ("one", "two", "src"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "x.h").write_text("x")
    (tmp_path / "src" / "main.cu").write_text("#if __has_include(<y.h>)\n#endif\n")
    for folder in (tmp_path, *tmp_path.iterdir()):
        os.utime(folder, (1_700_000_000, 1_700_000_000))

    def present(memory: survey_memory.Memory) -> tuple[str, ...]:
        surveyor = include_search.Surveyor(Snapshot(files, str(tmp_path)), ("one", "two"), (), memory)
        return surveyor.survey(["src/main.cu", "two/x.h"], ["src/main.cu"]).present

    assert present(memory) == ()
    listed = files.names_in(str(tmp_path / "two"))
    assert files.names_in(str(tmp_path / "two")) is listed, "remembered"
    for path in ("one/x.h", "two/y.h", "src/x.h"):
        (tmp_path / path).write_text("new")
        assert path in present(memory)
        os.utime((tmp_path / path).parent, (1_700_000_000 + 100, 1_700_000_000 + 100))
        assert path in present(memory), "and once the folder is old again"
        assert present(memory) == present(survey_memory.Memory())
        (tmp_path / path).unlink()
        assert path not in present(memory)
        os.utime((tmp_path / path).parent, (1_700_000_000 + 200, 1_700_000_000 + 200))
        assert present(memory) == present(survey_memory.Memory())


def test_a_folder_that_a_build_writes_to_is_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects beside the sources change the folder, not what the search would find: only the asked names count."""
    files, memory = Files(), survey_memory.Memory()
    used = ["a.h", "b.h", "inc/sub/c.h"]
    (tmp_path / "inc/sub").mkdir(parents=True)
    for name in (*used, "main.cpp"):
        (tmp_path / name).write_text("#if __has_include(<y.h>)\n#endif\n" if name == "b.h" else "x")
    searches: list[str] = []
    exists = include_search._exists

    def counted(snapshot: Snapshot, folder: str, rest: str, *others: Any, **options: Any) -> bool:
        searches.append(f"{folder}/{rest}")
        return exists(snapshot, folder, rest, *others, **options)

    monkeypatch.setattr(include_search, "_exists", counted)

    def survey(memory: survey_memory.Memory, used: list[str] = used) -> survey_memory.Surroundings:
        searches.clear()
        return include_search.Surveyor(Snapshot(files, str(tmp_path)), ("inc", "."), (), memory).survey(
            used, ["main.cpp"]
        )

    for number in range(4):
        (tmp_path / f"{number}.o").write_text("")
        found = survey(memory)
    assert found.present == () and not searches
    assert survey(memory, ["a.h", "inc/sub/c.h"]).present == (), "of another source"
    for number, rival in enumerate(("inc/a.h", "sub/c.h", "y.h", "inc/y.h", "sub")):
        (tmp_path / rival).parent.mkdir(exist_ok=True)
        (tmp_path / rival).write_text("")
        (tmp_path / f"later{number}.o").write_text("")
        found, fresh = survey(memory), survey(survey_memory.Memory())
        assert (found.present, dict(found.folders).keys()) == (fresh.present, dict(fresh.folders).keys())
        assert rival in found.present or rival == "sub"
        (tmp_path / rival).unlink()
        if rival == "sub/c.h":
            (tmp_path / "sub").rmdir()
        assert survey(memory).present == ()


def test_what_a_file_asks_for_is_not_remembered_as_another_content_s(tmp_path: Path) -> None:
    """It was changed after it was looked at, and is changed back: each answer is that of one content."""
    files, memory = Files(now_ns=lambda: time.time_ns() + 60_000_000_000), survey_memory.Memory()
    for name in ("inc/sub", "src"):
        (tmp_path / name).mkdir(parents=True)
    header, asked = tmp_path / "src" / "x.h", "#if __has_include(<sub/y.h>)\n#endif\n"
    header.write_text(asked)

    def survey(snapshot: Snapshot) -> survey_memory.Surroundings:
        return include_search.Surveyor(snapshot, ("inc",), (), memory).survey(["src/x.h"], ())

    torn = Snapshot(files, str(tmp_path))
    torn.fact("src/x.h")
    header.write_text(asked.replace("sub/y.h", "other.h"))
    found = survey(torn)
    assert found.present == ("src/x.h",) and not survey_memory.unchanged(torn, found.folders)
    header.write_text(asked)
    again = survey(Snapshot(files, str(tmp_path)))
    assert "inc/sub" in dict(again.folders) and again.present == ()
    (tmp_path / "inc/sub/y.h").write_text("")
    assert survey(Snapshot(files, str(tmp_path))).present == ("inc/sub/y.h",)
