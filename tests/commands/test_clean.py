"""`buildd clean`, `build -n`, `-v`, `-q`, `--list`, and options before the command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")

SECOND = '\n[target.second]\nkind = "cuda"\nsources = ["src/b.cu"]\noutput = "object"\narch = ["sm_80"]\n'


@pytest.fixture
def developer(another_developer: Developer) -> Developer:
    return another_developer


def test_what_is_cleaned_comes_back_from_the_store(developer: Developer) -> None:
    developer.write("buildd.toml", (developer.project / "buildd.toml").read_text() + SECOND)
    assert developer.build().status == 0
    folder = developer.project / "build"
    assert (folder / ".gitignore").read_text() == "*\n", "git shows no outputs"
    (folder / "notes.txt").write_text("mine")
    status, text = developer.buildd("clean", "-C", str(developer.project), "-n", "demo")
    assert (status, (folder / "demo").is_dir()) == (0, True) and f"would remove {folder / 'demo'} (" in text
    status, text = developer.buildd("-C", str(developer.project), "clean", "demo")
    assert status == 0 and f"removed {folder / 'demo'} (" in text
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "notes.txt", "second"]
    status, text = developer.buildd("-C", str(developer.project), "clean")
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "notes.txt"], "what buildd did not make"
    assert developer.buildd("-C", str(developer.project), "clean") == (0, "nothing to remove\n")
    said = developer.build()
    assert (said.status, said.compiled) == (0, 0) and developer.library.is_file()
    (folder / "notes.txt").unlink()
    assert developer.buildd("-C", str(developer.project), "clean")[0] == 0
    assert not folder.exists()
    assert developer.build().compiled == 0
    assert (folder / ".gitignore").is_file(), "made again with the folder"


def test_a_source_below_the_build_folder_stays(developer: Developer) -> None:
    shutil.move(developer.project / "src", developer.project / "build/demo/src")
    text = (developer.project / "buildd.toml").read_text().replace("src/*.cu", "build/demo/src/a.cu")
    developer.write("buildd.toml", text)
    said = developer.build()
    assert said.status == 0, said.text
    status, text = developer.buildd("clean", "-C", str(developer.project))
    assert status == 0 and not developer.library.exists()
    assert {path.name for path in (developer.project / "build/demo/src").iterdir()} >= {"a.cu", "b.cu", "x.h"}


def test_an_unknown_target_is_refused(developer: Developer) -> None:
    status, text = developer.buildd("clean", "-C", str(developer.project), "dmeo")
    assert status == 2 and 'did you mean "demo"' in text


def test_a_dry_run_names_what_would_run_and_runs_nothing(developer: Developer) -> None:
    assert developer.build().status == 0
    developer.write("src/b.cu", "another\n")
    before = developer.library.read_bytes()
    status, text = developer.buildd("build", "-C", str(developer.project), "-n")
    assert status == 0, text
    assert text.splitlines()[0] == "would run demo/src/b.cu.o: input src/b.cu: content changed"
    assert "hit demo" not in text and "1 would hit, 2 would run" in text
    assert developer.library.read_bytes() == before


def test_loud_and_quiet(developer: Developer) -> None:
    status, text = developer.buildd("build", "-C", str(developer.project), "-v")
    assert status == 0 and "start demo/src/a.cu.o: " in text and "-c" in text
    developer.write("src/b.cu", "another\n")
    status, text = developer.buildd("build", "-C", str(developer.project), "-q")
    assert status == 0 and "demo/src/b.cu.o" not in text and "built 1 target" in text
    assert developer.buildd("build", "-C", str(developer.project), "-q", "-v")[0] == 2


def test_the_targets_are_listed(developer: Developer) -> None:
    developer.write("buildd.toml", (developer.project / "buildd.toml").read_text() + SECOND)
    assert developer.buildd("build", "-C", str(developer.project), "--list") == (0, "demo    cuda\nsecond  cuda\n")


def test_options_before_the_command(developer: Developer, tmp_path: Path) -> None:
    status, text = developer.buildd("-C", str(developer.project), "build")
    assert status == 0 and "built 1 target" in text
    inside = ("-C", str(developer.project.parent), "--directory=" + developer.project.name)
    status, text = developer.buildd(*inside, "--color", "always", "build")
    assert status == 0 and "\x1b[32mbuilt 1 target" in text
    assert "\x1b[" not in developer.buildd("build", "-C", str(developer.project))[1]
    assert "\x1b[32m" in developer.buildd("build", "-C", str(developer.project), "--color=always")[1]
    developer.environ["CLICOLOR_FORCE"] = "1"
    assert "\x1b[32m" in developer.buildd(*inside, "build")[1]
    assert "\x1b[" not in developer.buildd(*inside, "--color=never", "build")[1]
    status, text = developer.buildd("-C", str(tmp_path / "no"), "build")
    assert (status, text.splitlines()[0]) == (2, f"buildd: cannot go to {tmp_path / 'no'}: No such file or directory")
    assert developer.buildd("-C")[0] == 2
    status, text = developer.buildd("--color", "blue", "build")
    assert status == 2 and "--color" in text
    status, text = developer.buildd("--color", "never", "run", "--", "sh", "-c", "pwd; exit 7")
    assert status == 7
