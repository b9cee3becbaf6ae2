"""From an action to its stored result and back, with real files and a real store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.files import kernel_clock
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.file_names import Names
from buildd.keys.filing import Filing, file_run, unsound_reason
from buildd.keys.include_search import Surveyor
from buildd.keys.lookup import Found, Lookup, Missing
from buildd.keys.precompiled import Places, candidates
from buildd.keys.survey_memory import Memory
from buildd.store.store import Result, Store, StoredOutput
from codegen.plan import Action, Discovery, Output, Place, Ref, Tool, ToolFile
from protocol.messages import Digest


class Desk:
    """A project, a toolkit and a store; each look is a new request, a minute after the last write."""

    def __init__(self, folder: Path, surveys: Memory | None) -> None:
        self.surveys = surveys
        self.project = folder / "project"
        self.toolkit = folder / "toolkit"
        for sub in ("src", "first", "second"):
            (self.project / sub).mkdir(parents=True)
        (self.toolkit / "include").mkdir(parents=True)
        self.write("src/a.cu", '#include "x.h"\n#include <y.h>\n')
        self.write("second/x.h", "int x;")
        (self.toolkit / "include" / "y.h").write_text("int y;")
        (self.toolkit / "compiler").write_text("tool")
        self.store = Store.open(folder / "store")
        self.used = ("second/x.h", f"{self.toolkit}/include/y.h")
        self.action = Action(
            name="a.o",
            kind="nvcc",
            tool="nvcc",
            argv=("nvcc", "-Ifirst", "-Isecond", "src/a.cu", Ref(place=Place.OUTPUT, name="object")),
            inputs=("src/a.cu",),
            outputs=(Output(name="object", path="build/a.o"),),
            discovery=Discovery.GCC,
            search=("first", "second"),
        )

    @property
    def tool(self) -> Tool:
        return Tool(
            name="nvcc",
            files=(ToolFile(role="compiler", path=str(self.toolkit / "compiler")),),
            roots=(("cuda", str(self.toolkit)),),
            search=(str(self.toolkit / "include"),),
        )

    def write(self, path: str, text: str) -> None:
        (self.project / path).write_text(text)

    def lookup(self, **options: bool) -> Lookup:
        files = Files(self.store, now_ns=lambda: kernel_clock.now_ns() + 60_000_000_000)
        return Lookup(self.store, Snapshot(files, str(self.project)), surveys=self.surveys, **options)

    def look(self, **options: bool) -> Found | Missing:
        return self.lookup(**options).look(self.action, self.tool)

    def file(self, used: tuple[str, ...] | None = None) -> Filing:
        """Pretend that the action ran now and read `used`."""
        lookup = self.lookup()
        missing = lookup.look(self.action, self.tool)
        read = self.used if used is None else used
        started_ns = kernel_clock.now_ns() + 30_000_000_000
        return file_run(lookup, self.action, self.tool, missing, read, ("/private",), started_ns)

    def build(self, used: tuple[str, ...] | None = None) -> None:
        lookup = self.lookup()
        missing = lookup.look(self.action, self.tool)
        filing = self.file(used)
        assert filing.input_set is not None, filing
        digest = self.store.put_bytes(b"object")
        output = StoredOutput(name="object", digest=digest, size_bytes=6, executable=False)
        self.store.publish(
            missing.first, filing.input_set, Result(key=filing.input_set.key, action="a.o", outputs=(output,))
        )
        if isinstance(missing, Missing):
            self.store.remember_action(lookup.name_key(self.action), missing.components)

    def why(self) -> str:
        answer = self.look()
        return "hit" if isinstance(answer, Found) else "; ".join(answer.reasons)


@pytest.fixture(params=["each by itself", "with what others worked out"])
def desk(tmp_path: Path, request: pytest.FixtureRequest):
    desk = Desk(tmp_path, Memory() if request.param.startswith("with") else None)
    yield desk
    desk.store.close()


def test_never_built_then_hit(desk: Desk) -> None:
    assert desk.why() == "never built before"
    desk.build()
    assert desk.why() == "hit"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("src/a.cu", "input src/a.cu: content changed"), ("second/x.h", "input second/x.h: content changed")],
)
def test_a_changed_file_is_named_and_changed_back_it_hits(desk: Desk, path: str, reason: str) -> None:
    before = (desk.project / path).read_text()
    desk.build()
    desk.write(path, before + "// more")
    assert desk.why() == reason
    desk.write(path, before)
    assert desk.why() == "hit"


def test_a_patched_toolkit_header_and_a_replaced_tool(desk: Desk) -> None:
    desk.build()
    header = desk.toolkit / "include" / "y.h"
    header.write_text("int z;")
    assert desk.why() == f"input {header}: content changed"
    header.write_text("int y;")
    (desk.toolkit / "compiler").write_text("newer tool")
    assert desk.why() == "tool nvcc: compiler: content changed"


def test_a_header_that_appears_earlier_on_the_path_is_noticed(desk: Desk) -> None:
    desk.build()
    desk.write("first/x.h", "int other;")
    assert desk.why() == "input first/x.h: appeared where the search finds it first"
    (desk.project / "first/x.h").unlink()
    assert desk.why() == "hit"


def test_a_header_beside_the_source_comes_before_the_path(desk: Desk) -> None:
    desk.build()
    desk.write("src/x.h", "int other;")
    assert desk.why() == "input src/x.h: appeared where the search finds it first"


def test_another_file_in_a_searched_folder_is_no_miss(desk: Desk) -> None:
    desk.build()
    desk.write("first/unrelated.h", "")
    desk.write("src/.a.cu.swp", "")
    assert desk.why() == "hit"


def test_a_project_file_that_shadows_a_toolkit_header(desk: Desk) -> None:
    desk.build()
    desk.write("second/y.h", "int other;")
    assert desk.why() == "input second/y.h: appeared where the search finds it first"


def test_a_searched_folder_that_did_not_exist(desk: Desk) -> None:
    (desk.project / "first").rmdir()
    desk.build()
    assert desk.why() == "hit"
    (desk.project / "first").mkdir()
    assert desk.why() == "hit"
    desk.write("first/x.h", "int other;")
    assert desk.why() == "input first/x.h: appeared where the search finds it first"


def test_a_survey_is_worked_out_once_for_all_sources_with_the_same_headers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    survey = Surveyor._survey

    def counted(*args: Any) -> Any:
        made.append(1)
        return survey(*args)

    monkeypatch.setattr(Surveyor, "_survey", counted)
    desk.write("second/x.h", "#if __has_include(<optional.h>)\n#endif\n")
    desk.file()
    first = len(made)
    desk.file()
    assert first >= 1 and len(made) == (first if desk.surveys is not None else 2 * first)
    desk.write("second/x.h", "#if __has_include(<another.h>)\n#endif\n")
    desk.file()
    assert len(made) > first, "it asks for another name now"
    desk.write("first/x.h", "int other;")
    before = len(made)
    desk.file()
    assert len(made) > before, "a folder has another name in it"


def test_an_answer_of_has_include_that_turns(desk: Desk) -> None:
    desk.write("second/x.h", "#if __has_include(<optional.h>)\n#endif\n")
    desk.build()
    assert desk.why() == "hit"
    desk.write("first/optional.h", "")
    assert "optional.h" in desk.why()
    desk.build(("second/x.h", "first/optional.h", f"{desk.toolkit}/include/y.h"))
    (desk.project / "first/optional.h").unlink()
    assert desk.why() == "hit", "the older input set fits again"


def test_a_computed_has_include_is_not_stored(desk: Desk) -> None:
    desk.write("second/x.h", "#if __has_include(NAME)\n#endif\n")
    assert desk.file().unstored == "second/x.h asks __has_include for a computed name"


@pytest.mark.parametrize("text", ["const char *t = __TIME__;", 'asm(".incbin \\"data\\"");'])
def test_what_a_key_cannot_settle_is_not_stored(desk: Desk, text: str) -> None:
    desk.write("src/a.cu", text)
    filing = desk.file()
    assert filing.input_set is None
    assert filing.unstored.startswith("src/a.cu ")


@pytest.mark.parametrize(
    ("text", "is_stored"),
    [
        ("int f();", True),
        ("#define MINE VERSION\n#define TEXT(x) #x", True),
        ("/* VERSION */ // __TIME__", True),
        ("const char *t = VERSION;", False),
        ("#define MINE VERSION\nint f() { return sizeof MINE; }", False),
        ("#define CAT(a, b) a##b\nconst char *t = CAT(VER, SION);", False),
        ("#define CAT(b) VER##b\nconst char *t = CAT(SION);", False),
        ("#define OTHER(b) X##b\nint OTHER(y);", True),
        ("#if VERSION\n#endif", False),
        ("#ifdef __TIME__\n#endif", False),
        ("const char *t = VER\\\nSION;", False),
        ("#define MINE(x) x; const char *t = \\\n__TIME__\nMINE(int a)", False),
    ],
)
def test_a_macro_of_the_clock_that_nobody_uses_is_no_hindrance(desk: Desk, text: str, is_stored: bool) -> None:
    """Headers with the version of a library define one, and every source of it includes such a header."""
    desk.write("second/x.h", '#define VERSION "1 " __DATE__ " " __TIME__\n')
    desk.write("src/a.cu", f'#include "x.h"\n{text}\n')
    unstored = desk.file().unstored
    assert (not unstored) == is_stored, unstored
    assert is_stored or "mentions __DATE__ or __TIME__" in unstored


def test_inputs_that_changed_while_the_tool_ran(desk: Desk) -> None:
    lookup = desk.lookup()
    missing = lookup.look(desk.action, desk.tool)
    desk.write("src/a.cu", "int edited;")
    started_ns = kernel_clock.now_ns() + 30_000_000_000
    assert file_run(lookup, desk.action, desk.tool, missing, ("second/x.h",), ("/p",), started_ns).stale == (
        "src/a.cu",
    )


def test_a_header_younger_than_the_run_is_stale(desk: Desk) -> None:
    lookup = Lookup(desk.store, Snapshot(Files(desk.store), str(desk.project)))
    missing = lookup.look(desk.action, desk.tool)
    assert isinstance(missing, Missing)
    started_ns = kernel_clock.now_ns()
    desk.write("second/x.h", "int edited;")
    lookup.snapshot.fact("second/x.h")  # seen, but after the run began: what the tool read is not known
    filing = file_run(lookup, desk.action, desk.tool, missing, ("second/x.h",), ("/p",), started_ns)
    assert filing.stale == ("second/x.h",)


def test_a_tool_that_said_nothing_of_its_inputs_is_not_stored(desk: Desk) -> None:
    lookup = desk.lookup()
    missing = lookup.look(desk.action, desk.tool)
    filing = file_run(lookup, desk.action, desk.tool, missing, None, ("/p",), kernel_clock.now_ns() + 90_000_000_000)
    assert filing.input_set is None and filing.unstored


def test_temporaries_of_the_job_are_no_inputs(desk: Desk) -> None:
    filing = desk.file((*desk.used, "/private/x.cudafe1.cpp"))
    assert filing.input_set is not None
    assert [name for name, _ in filing.input_set.files] == ["second/x.h", "{cuda}/include/y.h"]


def test_a_file_that_was_read_and_is_gone_is_not_passed_over(desk: Desk) -> None:
    assert desk.file((*desk.used, "second/gone.h")).stale == ("second/gone.h",)


def test_a_toolkit_elsewhere_hits_unless_its_path_can_reach_the_result(desk: Desk) -> None:
    desk.build()
    moved = desk.toolkit.with_name("elsewhere")
    desk.toolkit.rename(moved)
    desk.toolkit = moved
    assert desk.why() == "hit"
    (moved / "include" / "y.h").write_text("inline auto f() { return __FILE__; }")
    desk.used = ("second/x.h", f"{moved}/include/y.h")
    desk.build()
    assert desk.why() == "hit"
    back = moved.with_name("toolkit")
    moved.rename(back)
    desk.toolkit = back
    assert "the result may contain its path" in desk.why()


def test_another_checkout_hits(desk: Desk) -> None:
    desk.build()
    desk.project = desk.project.rename(desk.project.with_name("checkout2"))
    assert desk.why() == "hit"


def test_asked_to_run_again_and_never_stored(desk: Desk) -> None:
    desk.build()
    again = desk.look(recache=True)
    assert isinstance(again, Missing) and again.reasons == ("asked to run again",)
    never = Action(**{f: getattr(desk.action, f) for f in desk.action.__struct_fields__} | {"uncacheable": "-time"})
    answer = desk.lookup().look(never, desk.tool)
    assert isinstance(answer, Missing) and answer.reasons == ("never stored: -time",)


def test_a_changed_input_below_a_root_is_named_by_its_path(desk: Desk) -> None:
    header = desk.toolkit / "include" / "y.h"
    fields = {f: getattr(desk.action, f) for f in desk.action.__struct_fields__}
    desk.action = Action(**fields | {"inputs": (*desk.action.inputs, str(header))})
    desk.build()
    header.write_text("another")
    assert desk.why() == f"input {header}: content changed"


def test_a_missing_source_is_a_miss(desk: Desk) -> None:
    desk.build()
    os.unlink(desk.project / "src/a.cu")
    assert desk.why() == "input src/a.cu: no longer there"


def test_all_changed_inputs_are_named(desk: Desk) -> None:
    desk.build()
    header = desk.toolkit / "include" / "y.h"
    header.write_text("int another;")
    desk.write("second/x.h", "int another;")
    told = [f"input {path}: content changed" for path in (header, "second/x.h")]
    assert sorted(desk.why().split("; ")) == sorted(told)


def test_file_names_that_are_no_utf8(desk: Desk) -> None:
    name = os.fsdecode(b"second/h\xe9.h")
    desk.write(name, "int h;")
    names = Names((), "/p")
    assert names.name(name).isascii() and names.path(names.name(name)) == name
    desk.action = Action(**{f: getattr(desk.action, f) for f in desk.action.__struct_fields__} | {"inputs": (name,)})
    desk.build()
    assert desk.why() == "hit"
    desk.write(name, "int changed;")
    assert desk.why() == f"input {name}: content changed"


class Blind(Snapshot):
    """A snapshot of folders that may be searched and not listed."""

    def listing(self, folder: str) -> frozenset[str] | None:
        return None


def test_precompiled_headers_are_found_also_where_folders_cannot_be_listed(desk: Desk) -> None:
    tool = Tool(name="cc", search=(f"{desk.toolkit}/include", f"{desk.toolkit}/none"))
    desk.write("first/x.h.gch", "made")
    desk.write("src/y.h", "")
    for kind in (Snapshot, Blind):
        snapshot = kind(Files(desk.store), str(desk.project))
        folders: dict[str, int] = {}
        found = candidates(desk.action, tool, Places(snapshot, folders))
        assert [path for path, _ in found.present] == ["first/x.h.gch"], kind
        assert set(found.headers) == {"src/y.h", "second/x.h", f"{desk.toolkit}/include/y.h"}
        assert {"src/x.h.gch", "y.h.gch", f"{desk.toolkit}/none/x.h.gch", "first/x.h"} <= set(found.absent)
        assert {"src", "first", "second", ".", f"{desk.toolkit}/none", str(desk.toolkit)} <= set(folders)
    # What an action of the request itself has made is there, whatever was seen before.
    places = Places(Snapshot(Files(desk.store), str(desk.project)), {})
    candidates(desk.action, tool, places)
    places.snapshot.produced("src/x.h.gch", Digest("f" * 64))
    assert ("src/x.h.gch", "f" * 64) in candidates(desk.action, tool, places).present


@pytest.mark.parametrize("folder", [".", "src", "src/../first", "/", "/usr", "..", "", "first/"])
@pytest.mark.parametrize("name", ["x.gch", "in/x.gch", "../x.gch", "./x.gch", "/x.gch", "/usr/x.gch", "a/../../x.gch"])
def test_a_candidate_is_where_the_compiler_joins_its_folder_and_name(desk: Desk, folder: str, name: str) -> None:
    folders: dict[str, int] = {}
    path, there = Places(Snapshot(Files(desk.store), str(desk.project)), folders).of(folder, name)
    assert path == os.path.normpath(os.path.join(folder, name)) and not there
    assert (os.path.dirname(path) or ".") in folders


def test_a_header_is_judged_by_the_content_that_was_looked_at(desk: Desk) -> None:
    """It may be changed between the two, and changed back."""
    desk.write("second/x.h", "#if __has_include(NAME)\n#endif\n")
    lookup = desk.lookup()
    fact = lookup.snapshot.fact("second/x.h")
    asked = (lookup.snapshot, "second/x.h", fact, desk.action, desk.tool)
    assert fact is not None and unsound_reason(*asked).endswith("a computed name")
    desk.write("second/x.h", "int x;")
    assert unsound_reason(*asked) == "second/x.h was changed just now"


def test_a_module_that_torch_imports_embeds_nothing(desk: Desk) -> None:
    """Cython's command line names .include; in a Triton kernel the same word reaches the assembler."""
    name = "second/options.py"
    desk.write(name, 'asm = """\n.include "other.inc"\n"""\n')
    lookup = desk.lookup()
    fact = lookup.snapshot.fact(name)
    assert fact is not None
    verdicts = {}
    for kind in ("torch", "triton"):
        action = msgspec.structs.replace(desk.action, kind=kind, discovery=Discovery.REPORTED)
        verdicts[kind] = unsound_reason(lookup.snapshot, name, fact, action, desk.tool)
    assert verdicts["torch"] == "" and "embeds another file" in verdicts["triton"]
