"""Hits in another checkout that no daemon is asked for, and every reason why there must be none."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install gcc)")
FILES = {
    "src/a.c": '#include "x.h"\n#include <y.h>\nint of_a(void) { int unused; return X + Y; }\n',
    "src/x.h": "#define X 1\n",
    "inc/y.h": '#include "sub/z.h"\n#define Y Z\n',
    "inc/sub/z.h": "#define Z 2\n",
    "early/other.h": "",
    "build/kept": "",
}
WORDS = "gcc -O1 -Wall -I{early} -I{inc} -MD -MP -MT {build}/a.o -MF {build}/a.d -c {src}/a.c -o {build}/a.o"
RELATIVE = {"early": "../early", "inc": "../inc", "build": ".", "src": "../src"}


class Checkouts:
    """Checkouts of one project, which the compiles of one build are called in."""

    def __init__(self, user: User, name: str) -> None:
        self.project = ForeignProject(user, user.folder / name)
        self.first = self.folder("first")

    def folder(self, name: str) -> Path:
        """Make another checkout."""
        top = self.project.folder / name
        for path, text in FILES.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text(text)
        return top

    def learn(self, words: list[str]) -> None:
        """Compile in a checkout until its shim knows the answer, and in others until theirs do."""
        until(lambda: self.ran(words, self.first) == 1, "a hit by the shim alone, once the files are old enough")
        tries = itertools.count()
        until(lambda: self.ran(words, self.folder(f"try-{next(tries)}")) == 1, "the same in another checkout")

    def ran(self, words: list[str], top: Path) -> int:
        """How many hits by shims alone the command was. It must do what it does without us."""
        here = [word.replace("{top}", str(top)) for word in words]
        before = self.project.notes.figures()[0]
        done = self.project.call(*here, cwd=top / "build")
        hits = self.project.notes.figures()[0] - before
        made = self._made(top)
        plain = self.project.plainly(*here, cwd=top / "build")
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        assert made == self._made(top), here
        return hits

    def _made(self, top: Path) -> list[bytes]:
        found = []
        for name in ("a.o", "a.d"):
            path = top / "build" / name
            # Older versions of clang write an empty line before each target of -MP.
            found.append(path.read_bytes().replace(b"\n\n", b"\n") if path.exists() else b"")
            path.unlink(missing_ok=True)
        return found


def absolute(*more: str) -> list[str]:
    return [*WORDS.format(**{name: f"{{top}}/{name}" for name in RELATIVE}).split(), *more]


def relative(*more: str) -> list[str]:
    return [*WORDS.format(**RELATIVE).split(), *more]


@pytest.mark.parametrize("form", [absolute, relative])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_another_checkout_is_answered_by_the_shim(
    kept_user: User, form: Callable[..., list[str]], compiler: str
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    checkouts = Checkouts(kept_user, f"{form.__name__}-{compiler}")
    words = [compiler, *form()[1:], f"-Dof_a=of_{form.__name__}_{compiler}"]
    checkouts.learn(words)
    # A depfile's lines end by the length of its paths.
    for name in ("second", "a-longer-name-for-a-checkout-of-the-same-project", "x/y"):
        assert checkouts.ran(words, checkouts.folder(name)) == 1
    shutil.rmtree(checkouts.first)
    assert checkouts.ran(words, checkouts.folder("when-the-first-one-is-gone")) == 1


@pytest.mark.parametrize("form", [absolute, relative])
def test_it_holds_for_the_same_files_alone(kept_user: User, form: Callable[..., list[str]]) -> None:
    checkouts = Checkouts(kept_user, f"same-{form.__name__}")
    words = form(f"-Dof_a=of_same_{form.__name__}")
    checkouts.learn(words)

    def write(name: str, text: str) -> Callable[[Path], object]:
        return lambda top: (top / name).write_text(text)

    def link(name: str, target: str) -> Callable[[Path], object]:
        def act(top: Path) -> None:
            os.rename(top / name, top / f"{name}.kept")
            (top / name).symlink_to(target)

        return act

    edits = {
        "source": write("src/a.c", FILES["src/a.c"].replace("return", "return 1 +")),
        "header": write("inc/sub/z.h", "#define Z 3\n"),
        "earlier": write("early/y.h", "#define Y 7\n"),
        "beside": write("src/y.h", "#define Y 8\n"),
        "gone": lambda top: (top / "inc/sub/z.h").unlink(),
        "no folder": lambda top: shutil.rmtree(top / "inc"),
        "linked folder": link("inc", "inc.kept"),
        "linked file": link("inc/y.h", "y.h.kept"),
        "precompiled": write("src/x.h.gch", "no header"),
    }
    for name, edit in edits.items():
        top = checkouts.folder(name.replace(" ", "-"))
        edit(top)
        assert checkouts.ran(words, top) == 0, name
    tries = itertools.count()

    def unharmed() -> bool:
        top = checkouts.folder(f"unharmed-{next(tries)}")
        for path in ("early/unnamed.h", "build/b.o", "src/b.c"):
            (top / path).write_text("")
        return checkouts.ran(words, top) == 1

    until(unharmed, "a hit by the shim alone: the last answer was that of an edited checkout")


@pytest.mark.parametrize(
    ("why", "name", "text"),
    [
        ("the object has debug information", "-g", ""),
        ("__FILE__ is seen", "src/x.h", "#define X sizeof __FILE__\n"),
        ("a macro has the path", "-DHERE={top}", ""),
        ("the source names the folder", "src/x.h", '#include "{top}/inc/w.h"\n'),
        ("an include leads out of it", "src/x.h", '#include "../../outside.h"\n'),
        ("a part of the path is mapped", "-ffile-prefix-map={above}=.", "#define X sizeof __FILE__\n"),
    ],
)
def test_a_result_that_the_folder_reaches_holds_for_it_alone(kept_user: User, why: str, name: str, text: str) -> None:
    checkouts = Checkouts(kept_user, f"bound-{abs(hash(why)) % 1000}")
    above = checkouts.project.folder
    (above / "outside.h").write_text("#define X 5\n")
    (checkouts.first / "inc/w.h").write_text("#define X 6\n")
    is_flag = name.startswith("-")
    words = absolute(
        *([name.replace("{above}", str(above))] if is_flag else []), f"-Dof_a=of_{above.name.replace('-', '_')}"
    )
    place = "src/x.h" if is_flag else name

    def prepared(top: Path) -> Path:
        if text:
            (top / place).write_text(text.replace("{top}", str(checkouts.first)))
        return top

    prepared(checkouts.first)
    until(lambda: checkouts.ran(words, checkouts.first) == 1, "a hit by the shim alone")
    second = prepared(checkouts.folder("second"))
    (second / "inc/w.h").write_text("#define X 7\n")
    assert checkouts.ran(words, second) == 0, why


def test_random_edits_of_another_checkout_give_no_stale_object(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "random")
    forms = [absolute("-Dof_a=of_random_one"), relative("-Dof_a=of_random_two")]
    for words in forms:
        checkouts.learn(words)
    rng, answered = random.Random(11), 0
    texts = ["#define X 1\n", "#define X 2\n", "#define Z 2\n", "#define Y 2\n", "", '#include "z.h"\n', "#error no\n"]
    places = ["src/x.h", "inc/y.h", "inc/sub/z.h", "src/y.h", "early/x.h", "early/y.h", "src/sub/z.h", "early/sub/z.h"]
    for number in range(60):
        top = checkouts.folder(f"of-{number}")
        for _ in range(rng.choice((0, 0, 1, 2))):
            path = top / rng.choice(places)
            act = rng.random()
            if act < 0.6:
                with contextlib.suppress(OSError):  # below a link that leads nowhere
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(rng.choice(texts))
            elif act < 0.8:
                path.unlink(missing_ok=True)
            elif path.parent != top / "src" and path.parent.exists() and not path.parent.is_symlink():
                os.rename(path.parent, f"{path.parent}.kept")
                path.parent.symlink_to(rng.choice((f"{path.parent.name}.kept", "../src", "nowhere")))
        answered += checkouts.ran(rng.choice(forms), top)
        shutil.rmtree(top)
    assert 15 < answered < 50


def _names_a_folder(checkouts: Checkouts, second: Path, words: str, *, changed: str, text: str) -> None:
    """What a command names beside the checkout's own files counts, though the command is the same one elsewhere."""
    name = second.parent.name.replace("-", "_")
    said = [*words.replace("{second}", str(second)).split(), f"-Dof_a=of_{name}_{second.name}"]
    until(lambda: checkouts.ran(said, checkouts.first) == 1, "a hit by the shim alone")
    for number in range(4):  # the answer for all checkouts is there, if there is one
        top = checkouts.project.folder / f"copy-{number}"
        shutil.copytree(checkouts.first, top)
        checkouts.ran(said, top)
    (checkouts.first / changed).write_text(text)
    checkouts.ran(said, second)


@pytest.mark.parametrize("word", ["-I../../first/early", "-I{top}/../first/early"])
def test_a_command_names_the_folder_of_another_checkout(kept_user: User, word: str) -> None:
    checkouts = Checkouts(kept_user, f"named-{len(word)}")
    words = f"gcc -O1 {word} -I../inc -MD -MF a.d -c ../src/a.c -o a.o"
    second = checkouts.folder("second")
    _names_a_folder(checkouts, second, words, changed="early/y.h", text="#define Y 9\n")


def test_a_response_file_names_the_folder_of_another_checkout(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "words")
    second = checkouts.folder("second")
    for top in (checkouts.first, second):
        (top / "build/words").write_text(f"-I{checkouts.first}/inc\n")
    words = ["gcc", "-O1", "@words", "-MD", "-MF", "a.d", "-c", "../src/a.c", "-o", "a.o", "-Dof_a=of_words"]
    until(lambda: checkouts.ran(words, checkouts.first) == 1, "a hit by the shim alone")
    (checkouts.first / "inc/sub/z.h").write_text("#define Z 9\n")
    checkouts.ran(words, second)


def test_a_folder_that_the_search_passes_may_be_a_link(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "passed")
    second, other = checkouts.folder("second"), checkouts.folder("other")
    for top in (checkouts.first, other):
        (top / "passed").mkdir()
    (second / "passed").symlink_to(other / "passed")
    (other / "early/y.h").write_text("#define Y 9\n")
    words = "gcc -O1 -I../passed/../early -I../inc -MD -MF a.d -c ../src/a.c -o a.o"
    _names_a_folder(checkouts, second, words, changed="src/other.c", text="")


def test_a_byte_of_the_command_is_no_folder(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "bytes")
    words = absolute("-Dof_a=of_bytes")
    checkouts.learn(words)
    second = checkouts.folder("second")
    shutil.copytree(second / "inc", second / "build/\1/inc")
    (second / "build/\1/inc/y.h").write_text("#define Y 9\n")
    checkouts.ran([word.replace("{top}/inc", "\1/inc") for word in words], second)


def _shows_its_name(checkouts: Checkouts, header: Path, second: Path, words: str) -> None:
    header.write_text("static inline const char *name(void) { return __FILE__; }\n")
    for top in (checkouts.first, second):
        (top / "src/a.c").write_text(f"#include <{header.name}>\nconst char *of_a(void) {{ return name(); }}\n")
    _names_a_folder(checkouts, second, words, changed="src/other.c", text="")


def test_a_mapped_folder_may_begin_as_another_path_does(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "begins")
    second = checkouts.folder("second")
    beside = Path(f"{second}-inc")
    beside.mkdir()
    words = f"gcc -O1 -I{beside} -ffile-prefix-map={{top}}=. -I{{top}}/inc -MD -MF a.d -c {{top}}/src/a.c -o a.o"
    _shows_its_name(checkouts, beside / "w.h", second, words)


def test_another_checkout_may_be_in_a_mapped_folder(kept_user: User) -> None:
    checkouts = Checkouts(kept_user, "over")
    second = checkouts.folder("apart/second")
    maps = f"-ffile-prefix-map={{top}}=. -ffile-prefix-map={second.parent}/=X"
    words = f"gcc -O1 -g {maps} -I{{top}}/inc -MD -MF a.d -c {{top}}/src/a.c -o a.o"
    _names_a_folder(checkouts, second, words, changed="src/other.c", text="")
