"""Plans, depfiles and stamps of foreign compiles; and that random edits never lead to a stale object."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from buildd.builds.build_figures import Figures, decoded, encoded
from buildd.files.stamp_set import FolderStamp, Stamps, listed_names
from buildd.files.sweep import Sweep
from buildd.scheduling.delivery import Delivery
from buildd.scheduling.foreign_compile import pieces
from buildd.scheduling.make_rules import make_rule, written
from codegen.compilers.command_parser import Depfile, PassThrough, Reason
from codegen.compilers.depfile import HeaderFolders
from codegen.foreign.called_tool import MARK, Described, sent_variables, without_shims
from codegen.foreign.command_line import parse
from codegen.foreign.compile_plan import header_folders, plan
from codegen.plan import Tool
from codegen.search import without_variables
from protocol import messages as m
from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User

OLD = (1_700_000_000, 1_700_000_000)


def test_folders_of_shims_are_no_part_of_a_tools_path(tmp_path: Path) -> None:
    (tmp_path / "ours" / MARK).mkdir(parents=True)
    (tmp_path / "theirs").mkdir()
    path = f"{tmp_path}/ours:{tmp_path}/theirs::/usr/bin"
    assert without_shims(path) == f"{tmp_path}/theirs:/usr/bin"


def test_a_shim_sends_what_reaches_a_compiler_and_no_secret() -> None:
    names = sent_variables()
    assert {"PATH", "CPATH", "LC_*", "NVCC_APPEND_FLAGS", "SOURCE_DATE_EPOCH", "SUNPRO_DEPENDENCIES"} <= set(names)
    assert not {"HOME", "SSH_AUTH_SOCK", "BUILDD_TCP_KEY", "TMPDIR", "MAKEFLAGS"} & set(names)


def test_a_depfile_has_the_source_first_and_each_header_once() -> None:
    paths = ["a.h", "/usr/include/b c.h", "src/a.c", "d$.h"]
    depfile = Depfile(path="x.d", targets=("one", "two"), phony=True)
    wanted = "one two: src/a.c a.h /usr/include/b\\ c.h d$$.h\na.h:\n/usr/include/b\\ c.h:\nd$$.h:\n"
    assert written(make_rule(depfile, "src/a.c", paths, HeaderFolders())) == wanted.encode()
    assert written(make_rule(depfile, "././/src/a.c", paths, HeaderFolders())) == wanted.encode()
    paths += ["/usr/bin/../include/c++/12/cmath", "/p/../q/e.h"]
    user = Depfile(path="x.d", targets=("t",), system=False)
    assert (
        written(make_rule(user, "src/a.c", paths, HeaderFolders(("/usr/include/",))))
        == b"t: src/a.c a.h d$$.h /p/../q/e.h\n"
    )


def test_gcc_names_no_target_with_a_leading_dot() -> None:
    targets = ("./a.o", ".//./b.o", "././../c.o", ".d.o", "e.o ./f.o")
    depfile = Depfile(path="x.d", targets=targets)
    wanted = b"a.o b.o ../c.o .d.o e.o ./f.o: a.c\n"
    assert written(make_rule(depfile, "a.c", (), HeaderFolders())) == wanted
    wanted = b"./a.o .//./b.o ././../c.o .d.o e.o ./f.o: a.c\n"
    assert written(make_rule(depfile, "a.c", (), HeaderFolders(), clang=True)) == wanted


def test_clang_names_no_file_with_a_leading_dot() -> None:
    paths = ["/lists/ignored", "src/a.c", "./a.h", ".//b/./c.h", "../d.h", "/e/../f.h", "./../g.h", ".hidden.h"]
    depfile = Depfile(path="x.d", targets=("t",))
    wanted = b"t: /lists/ignored src/a.c a.h b/./c.h ../d.h /e/../f.h ../g.h .hidden.h\n"
    assert written(make_rule(depfile, "./src/a.c", paths, HeaderFolders(), clang=True)) == wanted


def test_a_folder_that_only_the_environment_names_is_searched_too() -> None:
    compile = parse(("/cuda/bin/nvcc", "-Ione", "-c", "a.cu", "-MMD"), "/p")
    environment = (("NVCC_APPEND_FLAGS", "-isystem three"), ("NVCC_PREPEND_FLAGS", "-I'two words'"))
    described = Described(
        tool=Tool(name="nvcc"), program="nvcc", environment=environment, clang=False, host="", standard=()
    )
    request = m.Request(request_id=m.RequestId("r"), build_id=m.BuildId("b"), project="/p", command=("/cuda/bin/nvcc",))
    (action,) = plan(compile, described, request).actions
    assert {"one", "two words", "three"} <= set(action.search)
    assert header_folders(compile, described) == HeaderFolders(("three/",))


@pytest.mark.parametrize(
    ("words", "is_bound"),
    [
        (("-c", "a.cu"), True),
        (("-c", "a.cpp"), False),
        (("-dc", "a.c"), False),
        (("-c", "a.cpp", "-x", "cu"), True),
        (("-c", "-x=cu", "a.cpp"), True),
        (("-c", "-g", "a.cpp"), True),
    ],
)
def test_nvcc_names_a_module_by_its_path_only_where_it_makes_one(words: tuple[str, ...], is_bound: bool) -> None:
    """It hands C and C++ to the host compiler as they are: another folder has the same object."""
    compile = parse(("/cuda/bin/nvcc", *words), "/p")
    described = Described(tool=Tool(name="nvcc"), program="nvcc", environment=(), clang=False, host="", standard=())
    request = m.Request(request_id=m.RequestId("r"), build_id=m.BuildId("b"), project="/p", command=("/cuda/bin/nvcc",))
    (action,) = plan(compile, described, request).actions
    assert (("PWD", "/p") in action.environment) is is_bound


def test_system_headers_are_in_folders_of_every_option_and_none_of_cpath() -> None:
    compile = parse(
        ("/usr/bin/gcc", "-isystem", "/p/x/../y", "-idirafter", "z", "-idirafterw", "-c", "a.c", "-MMD"), "/p"
    )
    environment = (("CPATH", "/mine"),)
    described = Described(
        tool=Tool(name="gcc"),
        program="gcc",
        environment=environment,
        clang=False,
        host="",
        standard=without_variables(("/mine", "/usr/include"), environment),
    )
    folders = header_folders(compile, described)
    assert folders == HeaderFolders(("/p/x/../y/", "z/", "w/", "/p/y/", "/usr/include/"))


def test_headers_of_a_folder_of_the_users_in_a_system_folder_are_no_system_headers() -> None:
    words = ("-I/usr/include/node", "-iquote", "sys/mine", "-I/usr/include", "-isystem", "sys", "-I/elsewhere")
    compile = parse(("/usr/bin/gcc", *words, "-c", "a.c", "-MMD"), "/p")
    described = Described(
        tool=Tool(name="gcc"), program="gcc", environment=(), clang=False, host="", standard=("/usr/include",)
    )
    folders = header_folders(compile, described)
    assert folders.user == ("/usr/include/node/", "sys/mine/", "/usr/include/")
    listed = ["/usr/include/node/api.h", "sys/mine/m.h", "/elsewhere/e.h"]
    assert not any(map(folders.is_system, listed))
    assert all(map(folders.is_system, ("/usr/include/stdio.h", "/usr/include/nodes.h", "sys/s.h")))


def test_output_travels_in_pieces() -> None:
    data = os.urandom(600_000)
    assert b"".join(piece.data for piece in pieces("stderr", data)) == data
    assert len(pieces("stderr", data)) == 3 and pieces("stdout", b"") == []


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "missing folder"])
def test_an_output_that_is_no_plain_file_is_the_tools_own(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "a.o"
    match kind:
        case "folder":
            output.mkdir()
        case "link":
            output.symlink_to("elsewhere")
        case "fifo":
            os.mkfifo(output)
        case _:
            output = tmp_path / "no" / "a.o"
    compile = parse(("/usr/bin/gcc", "-c", "a.c", "-o", str(output)), str(tmp_path))
    with pytest.raises(PassThrough) as why:
        Delivery(compile, str(tmp_path), 0o022, HeaderFolders()).check()
    assert why.value.reason is Reason.OUTPUT


def test_stamps_hold_until_something_that_matters_changes(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("one")
    os.utime(file, OLD)
    sweep = Sweep(tmp_path / "native")
    names = frozenset({"a.h", "sub"})
    paths = [os.fsencode(file)]

    def stamps(there: frozenset[tuple[str, bool]] | None) -> Stamps:
        return Stamps(paths, sweep.stamps_of(paths), (FolderStamp(str(folder), -1, there),), names)

    assert not stamps(None).hold(sweep)
    held = stamps(listed_names(str(folder), names))
    assert held.hold(sweep)
    (folder / "b.o").write_text("")
    assert held.hold(sweep)
    (folder / "a.h").write_text("")
    assert not held.hold(sweep)
    (folder / "a.h").unlink()
    assert held.hold(sweep)
    (folder / "sub").mkdir()
    assert not held.hold(sweep)
    (folder / "sub").rmdir()
    file.write_text("two")
    assert not held.hold(sweep)


# ---------------------------------------------------------------- edits


class Edited:
    """A source with headers in four folders and behind two links, changed at random."""

    def __init__(self, foreign: ForeignProject, rng: random.Random) -> None:
        self.foreign = foreign
        self.rng = rng
        self.flags: list[str] = []
        for name in ("one", "two", "three", "out"):
            (foreign.folder / name).mkdir()
        for number in (1, 2):
            foreign.write(f"subs/{number}/w.h", f"#define W {number}\n")
        self.relink("link", "one")
        self.relink("two/sub", "../subs/1")
        foreign.write(
            "main.c",
            '#include <x.h>\n#include "y.h"\n#include <sub/w.h>\n#if __has_include(<z.h>)\n#include <z.h>\n#endif\n'
            "int value = X + Y + W\n#ifdef Z\n+ Z\n#endif\n#ifdef D\n+ D\n#endif\n;\nchar const *file = __FILE__;\n",
        )
        foreign.write("two/x.h", "#define X 1\n")
        foreign.write("two/y.h", "#define Y 1\n")

    def relink(self, place: str, target: str) -> str:
        (self.foreign.folder / place).unlink(missing_ok=True)
        (self.foreign.folder / place).symlink_to(target)
        return f"{place} -> {target}"

    def edit(self) -> str:
        rng, number = self.rng, self.rng.randrange(100)
        name = rng.choice(("x", "y", "z"))
        folder = rng.choice((".", "one", "two", "three"))
        header = self.foreign.folder / folder / f"{name}.h"
        match rng.randrange(8):
            case 0 | 1:
                header.write_text(f"#define {name.upper()} {number}\n")
                return f"write {header}"
            case 2:
                # x.h and y.h of the last folder stay, so that it always compiles.
                if name == "z" or folder != "two":
                    header.unlink(missing_ok=True)
                return f"remove {header}"
            case 3:
                if header.exists():
                    header.touch()
                return f"touch {header}"
            case 4:
                self.flags = [f"-DD={number % 3}"] if number % 2 else []
                return f"flags {self.flags}"
            case 5:
                return self.relink("link", rng.choice(("one", "three", "nowhere")))
            case 6:
                return self.relink("two/sub", f"../subs/{rng.choice((1, 2))}")
            case _:
                text = (self.foreign.folder / "main.c").read_text()
                (self.foreign.folder / "main.c").write_text(text + f"/* {number} */\n" * (number % 2))
                return "comment"

    def compile(self) -> tuple[bytes, bytes]:
        """Ours and theirs."""
        folders = [f"-I{self.foreign.folder}/link", "-Ione", f"-I{self.foreign.folder}/two"]
        command = ["gcc", *self.flags, *folders, "-c", "main.c", "-o", "out/main.o"]
        found = []
        # The second one of ours may be a known answer.
        for call in (self.foreign.call, self.foreign.call, self.foreign.plainly):
            done = call(*command)
            assert done.returncode == 0, done.stderr
            found.append((self.foreign.folder / "out" / "main.o").read_bytes())
        assert found[0] == found[1]
        return found[1], found[2]


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_edits_never_lead_to_a_stale_object(user: User, seed: int) -> None:
    edited = Edited(ForeignProject(user, user.folder / f"edits-{seed}"), random.Random(seed))
    story = []
    for _ in range(40):
        story.append(edited.edit())
        ours, theirs = edited.compile()
        assert ours == theirs, story
    hits, misses = edited.foreign.counts()
    assert hits + misses == 80 and hits > 45 and misses > 5


@pytest.mark.skipif(not host_compiler() or not Path("/bin").is_symlink(), reason="no gcc, or /bin is no link")
def test_an_order_of_path_that_leads_to_the_same_compiler_changes_nothing(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "path-order")
    (foreign.folder / "p.c").write_text("int path_order(void) { return 1; }\n")
    other = {**foreign.environ, "PATH": foreign.environ["PATH"].replace("/usr/bin:/bin", "/bin:/usr/bin")}
    assert other["PATH"] != foreign.environ["PATH"]
    before = foreign.counts()
    for environ in (foreign.environ, other):
        assert foreign.call("gcc", "-c", "p.c", environ=environ).returncode == 0
    hits, misses = (now - then for now, then in zip(foreign.counts(), before, strict=True))
    assert (hits, misses) == (1, 1)


def test_what_builds_came_to_outlives_the_daemon() -> None:
    figures = Figures(hits=3, passed_through={"linking": 2})
    assert decoded(encoded({m.BuildId("b"): figures})) == {"b": figures}
    assert decoded(None) == {} and decoded(b"damaged") == {}
