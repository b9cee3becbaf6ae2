"""What a node keeps of jobs' files, and how it lays them out: bounded, shared by workers, like the daemon's machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.cluster import cargo, node_inputs
from buildd.cluster.node_contents import NodeContents
from buildd.cluster.node_files import digest_of
from buildd.cluster.wire import InputFile

ENTRY = "# no process is started here"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A project with links and with files that are alike."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "real").mkdir()
    (folder / "src/a.c").write_text("a\n")
    (folder / "real/h.h").write_text("h\n")
    (folder / "src/twin.h").write_text("h\n")
    os.link(folder / "real/h.h", folder / "src/again.h")
    (folder / "include").symlink_to("real")
    os.utime(folder / "src/twin.h", ns=(1, 1_600_000_000_000_000_001))
    return folder


def packed(folder: Path, *paths: str, fixed: tuple[str, ...] = ("/tmp",)) -> cargo.Cargo:
    found = cargo.pack((f"{folder}/{path}" for path in paths), [f"{folder}/include"], str(folder), fixed)
    assert found is not None
    return found


def spec_of(load: cargo.Cargo, folder: Path, **more: object) -> dict[str, Any]:
    folder.mkdir()
    fields = {name: getattr(load, name) for name in ("links", "folders", "tops", "listed")}
    return {"folder": str(folder), "inputs": msgspec.to_builtins(load.files), **fields, "cwd": b"/", **more}


def laid(spec: Mapping[str, Any], load: cargo.Cargo, keep: node_inputs.Keep) -> node_inputs.Laid:
    """Laid out by a node that has nothing of it, which asks once."""
    absent = lambda path: ""  # noqa: E731 - a node on which no file exists
    asked = node_inputs.lay_out(spec, {}, absent, ENTRY, keep)
    assert isinstance(asked, tuple) and asked[0] == "lacks"
    found = node_inputs.lay_out(spec, cargo.contents(load, asked[1]), absent, ENTRY, keep)
    assert isinstance(found, node_inputs.Laid)
    return found


def test_a_laid_tree_is_like_the_one_here(here: Path, tmp_path: Path) -> None:
    load = packed(here, "src/a.c", "src/../include/h.h", "src/again.h", "src/twin.h")
    tree = laid(spec_of(load, tmp_path / "job"), load, node_inputs.Keep(str(tmp_path / "keep")))
    for path in ("src/a.c", "include/h.h", "src/again.h", "src/twin.h", "src/../include/../src/a.c"):
        there, own = os.stat(tree.where(f"{here}/{path}")), os.stat(here / path)
        assert (there.st_size, there.st_mtime_ns) == (own.st_size, own.st_mtime_ns), path
    real, again, twin = (
        os.stat(tree.where(f"{here}/{path}")).st_ino for path in ("real/h.h", "src/again.h", "src/twin.h")
    )
    assert real == again != twin, "files are one where they are one here, not where they are alike"
    place = tree.where(f"{here}/real/h.h").removesuffix("/real/h.h")
    assert os.readlink(f"{place}/include") == "real"


def test_what_stands_there_as_it_stands_here_is_not_laid_out(here: Path, tmp_path: Path) -> None:
    load = packed(here, "src/a.c", "include/h.h")
    spec = spec_of(load, tmp_path / "job")
    assert node_inputs.lay_out(spec, {}, digest_of, ENTRY, None) is None
    (here / "real/h.h").write_text("another\n")
    other = node_inputs.lay_out(
        spec, {}, lambda path: digest_of(path, {}), ENTRY, node_inputs.Keep(str(tmp_path / "k"))
    )
    assert isinstance(other, tuple) and len(other[1]) == 1, "what is the same there does not travel"


def test_a_job_whose_files_are_not_all_known_asks_for_the_list(here: Path, tmp_path: Path) -> None:
    load = cargo.known_alone([f"{here}/src/a.c"])
    assert node_inputs.lay_out(spec_of(load, tmp_path / "one"), {}, digest_of, ENTRY) is None
    assert node_inputs.lay_out(spec_of(load, tmp_path / "two"), {}, lambda path: "", ENTRY) == ("lacks", ())


def test_a_folder_that_holds_the_compiler_is_not_replaced(here: Path, tmp_path: Path) -> None:
    load = packed(here, "src/a.c", "include/h.h", fixed=(f"{here}/venv/bin/nvcc", f"{here}/src/plugin.so"))
    tops = {file.path.removeprefix(f"{here}/"): file.top.removeprefix(str(here)) for file in load.files}
    assert tops == {"src/a.c": "", "real/h.h": "/real"}
    answer = node_inputs.lay_out(spec_of(load, tmp_path / "job"), {}, lambda path: "", ENTRY)
    assert isinstance(answer, tuple) and answer[0] == "refused" and "holds more than" in answer[1]


def test_what_is_no_regular_file_does_not_travel(here: Path) -> None:
    assert cargo.pack(["/dev/null"], [], str(here), []) is None
    assert cargo.pack([f"{here}/src/gone.c"], [], str(here), []) is None
    (here / "loop").symlink_to("loop")
    assert cargo.pack([f"{here}/loop/a.c"], [], str(here), []) is None


def test_what_arrives_damaged_is_refused(here: Path, tmp_path: Path) -> None:
    load = packed(here, "src/a.c")
    keep = node_inputs.Keep(str(tmp_path / "keep"))
    blobs = {load.files[0].sha256: b"other"}
    answer = node_inputs.lay_out(spec_of(load, tmp_path / "job"), blobs, lambda path: "", ENTRY, keep)
    assert answer == ("refused", f"{here}/src/a.c did not arrive whole") and not os.listdir(keep.folder)


def test_the_files_that_were_used_last_stay(tmp_path: Path) -> None:
    keep = node_inputs.Keep(str(tmp_path / "keep"), most_bytes=160_000)
    files = []
    for number in range(30):
        content = bytes([number]) * 10_000
        (tmp_path / "one").write_bytes(content)
        file = msgspec.to_builtins(InputFile("/p", digest_of(str(tmp_path / "one"), {}), 10_000, number, "/p", "/"))
        files.append(file)
        keep.add(file, content)
        keep.lay(files[0], str(tmp_path / f"laid-{number}"))
        keep.trim()
    left = [os.path.exists(keep.path(file)) for file in files]
    assert left[0] and left[-1] and sum(left) <= 17 and not any(left[1:8])


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir(mode=0o777)
    (tmp_path / "keep").chmod(0o777)
    with pytest.raises(node_inputs.Refused, match="is not this user's alone"):
        node_inputs.Keep(str(tmp_path / "keep"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(node_inputs.Refused):
        node_inputs.Keep(str(tmp_path / "link"))


def test_workers_that_keep_the_same_file_at_once_disturb_nobody(here: Path, tmp_path: Path) -> None:
    load = packed(here, "src/a.c", "include/h.h", "src/twin.h")
    wrong: list[object] = []

    def work(number: int) -> None:
        keep = node_inputs.Keep(str(tmp_path / "keep"))
        for turn in range(20):
            spec = spec_of(load, tmp_path / f"job-{number}-{turn}")
            tree = node_inputs.lay_out(
                spec, cargo.contents(load, [file.sha256 for file in load.files]), lambda path: "", ENTRY, keep
            )
            if not isinstance(tree, node_inputs.Laid):
                wrong.append(tree)
            elif any(digest_of(tree.where(file.path), {}) != file.sha256 for file in load.files):
                wrong.append(spec)
            for file in spec["inputs"]:
                keep.forget(file)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert all(isinstance(each, tuple) and each[0] == "lacks" for each in wrong), "a file that is gone is asked for"


def test_what_another_job_has_carried_meanwhile_is_not_carried_again() -> None:
    holds = NodeContents()
    header, other = InputFile("/p/x.h", "aa"), InputFile("/q/x.h", "aa")
    source = InputFile("/p/a.c", "bb")
    asked = [header, source, InputFile("/p/there.h", "cc")]
    assert holds.still_lacking("beta", asked, ["aa", "bb"], 1.0) == {"aa", "bb"}
    holds.given("beta", [header], 2.0)
    assert holds.still_lacking("beta", asked, ["aa", "bb"], 1.0) == {"bb"}
    assert holds.still_lacking("gamma", asked, ["aa", "bb"], 1.0) == {"aa", "bb"}
    assert holds.still_lacking("beta", asked, ["aa"], 3.0) == {"aa"}, "the node has removed it since"
    assert holds.still_lacking("beta", [other], ["aa"], 1.0) == {"aa"}, "a file of that content, but another one"
