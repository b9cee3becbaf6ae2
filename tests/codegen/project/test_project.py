"""buildd.toml and inline specs: what is read, and what each mistake says."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from codegen import sources
from codegen.errors import RequestError
from codegen.project import toml_file
from codegen.project.project_file import load_project
from codegen.project.target import CudaTarget, GemmTarget, OutputKind
from codegen.sources import expand, output_stem
from protocol.messages import Request
from tests.support.carry_out import request_for

GOOD = """
[project]
name = "demo"
default = ["app"]

[toolchain]
cuda = "toolkit"

[environment]
AIT_NDEBUG = true

[target.kernels]
kind = "cuda"
sources = "src/*.cu"
output = "static"
arch = ["sm_80"]

[target.app]
kind = "cuda"
sources = ["main.cu"]
output = "executable"
arch = ["sm_80", "sm_90a"]
deps = ["kernels"]
"""


def project(tmp_path: Path, text: str) -> Request:
    (tmp_path / "buildd.toml").write_text(text)
    return request_for(tmp_path)


def refused(tmp_path: Path, text: str, *targets: str) -> RequestError:
    request = msgspec.structs.replace(project(tmp_path, text), targets=targets)
    with pytest.raises(RequestError) as caught:
        load_project(request)
    return caught.value


def test_a_project_is_read_with_its_dependencies_first(tmp_path: Path) -> None:
    loaded = load_project(project(tmp_path, GOOD))
    assert [target.name for target in loaded.targets] == ["kernels", "app"]
    assert loaded.asked == ("app",)
    kernels, app = loaded.targets
    assert isinstance(kernels, CudaTarget) and kernels.sources == ("src/*.cu",) and kernels.output is OutputKind.STATIC
    assert isinstance(app, CudaTarget) and app.arch == ("sm_80", "sm_90a")
    assert loaded.settings.cuda == str(tmp_path / "toolkit")
    assert loaded.environment == {"AIT_NDEBUG": "1"}
    assert loaded.read == (str(tmp_path / "buildd.toml"),)


@pytest.mark.parametrize("folder", ["build", "out/deep"])
def test_a_file_in_the_place_of_the_build_folder_is_told_once(tmp_path: Path, folder: str) -> None:
    request = project(tmp_path, f'[project]\nbuild_dir = "{folder}"\n[target.b]\nkind="gemm"\n')
    blocking = folder.partition("/")[0]
    (tmp_path / blocking).write_text("")
    with pytest.raises(RequestError) as caught:
        load_project(request)
    assert f"{blocking} is a file" in caught.value.message and caught.value.file == str(tmp_path / blocking)
    (tmp_path / blocking).unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / blocking).symlink_to("elsewhere")
    assert load_project(request).settings.build_dir == folder, "a link to a folder is one"


def test_without_defaults_all_targets_are_meant(tmp_path: Path) -> None:
    loaded = load_project(project(tmp_path, '[target.b]\nkind="gemm"\n[target.a]\nkind="gemm"\n'))
    assert loaded.asked == ("b", "a")
    assert loaded.settings.name == tmp_path.name


@pytest.mark.parametrize(
    ("text", "code", "says", "at"),
    [
        ("[project\nname = 1", "bad-project", "not valid TOML", "buildd.toml:1:9"),
        ("[project]\nname = ", "bad-project", "not valid TOML", "buildd.toml:2"),
        ('[target.a]\nsources = [\n "a",\n "]" # [\narch = ["x"]\n', "bad-project", "before line 5", "buildd.toml:2"),
        ('[target.a]\nsources = [\n "a",\narch = ["x"]\n', "bad-project", "before line 4, or", "buildd.toml:2"),
        ('[target.a]\nsources = [\n "a",\n[target.b]\nx = 1\n', "bad-project", "before line 4", "buildd.toml:2"),
        ('[target.a]\nsources = [\n "a",\n\n', "bad-project", "is not closed", "buildd.toml:2"),
        ('[target.a]\nsources = [\n "a\n]\n', "bad-project", "Illegal character", "buildd.toml:3:4"),
        ('[target.a]\nsources = ["a" "b"]\n', "bad-project", "Unclosed array", "buildd.toml:2:16"),
        (
            "[a]\nx = 1\n[b]\nx = [\n 1\n]\ny = 1\nx = [\n2\n]\n",
            "bad-project",
            "x is set already, in line 4",
            "buildd.toml:10",
        ),
        ("[a]\nx = 1\n[b]\n[a] # again\n", "bad-project", "[a] is there already, in line 1", "buildd.toml:4"),
        ("[target.a]\nflags = [-O3]\n", "bad-project", "-O3 stands without quotes", "buildd.toml:2:10"),
        ("[target.a]\nkind = cuda\n", "bad-project", "cuda stands without quotes", "buildd.toml:2:8"),
        ("[target.a]\nrdc = True\n", "bad-project", "True stands without quotes", "buildd.toml:2:7"),
        ("[target.a]\nflags = [\n  -O3\n]\n", "bad-project", "-O3 stands without quotes", "buildd.toml:3:3"),
        ('[project]\nnmae = "x"', "bad-project", 'did you mean "name"?', "buildd.toml:2"),
        ('[projekt]\nname = "x"', "bad-project", 'did you mean "project"?', "buildd.toml:1"),
        (
            '[target.a]\nkind = "cuda"\nsources = ["a.cu"]\n\n[target.a.sorces]\nx = 1',
            "bad-project",
            'did you mean "sources"?',
            "buildd.toml:5",
        ),
        ('\n[target.a]\nkind = "cuda"\nsorces = ["a.cu"]', "bad-project", 'did you mean "sources"?', "buildd.toml:4"),
        ('[target.a]\nkind = "cdua"', "bad-project", 'did you mean "cuda"?', "buildd.toml:2"),
        ('[target.a]\nsources = ["a.cu"]', "bad-project", "has no kind", "buildd.toml:1"),
        ('[target.a]\nkind = "cuda"\nsources = 3', "bad-project", "sources", "buildd.toml:3"),
        ('[target.a]\nkind = "gemm"\n\ntile = [1, "x", 1]', "bad-project", "tile[1]", "buildd.toml:4"),
        ('[project]\nname = "x"\n[toolchain]\ncuda = 3', "bad-project", "[toolchain]: expected", "buildd.toml:4"),
        ('[target.a]\nkind = "gemm"\n[target.a.signatur]\nx = 1', "bad-project", "unknown key", "buildd.toml:3"),
        ('[target.a]\nkind = "cuda"', "bad-project", 'target "a" has no "sources"', "buildd.toml:1"),
        (
            '[target.a]\nkind = "cuda"\nsources = ["a.cu"]\noutput = "shard"',
            "bad-project",
            'did you mean "shared"?',
            "buildd.toml:4",
        ),
        ('[target."../a"]\nkind = "gemm"', "bad-project", "is not a valid target name", "buildd.toml:1"),
        (
            '[target.a]\nkind = "gemm"\noutput_name = "../../x.so"',
            "path-outside",
            "without folders",
            "buildd.toml:3",
        ),
        ('[project]\nbuild_dir = "../out"', "path-outside", "not a folder below", "buildd.toml:2"),
        ('[project]\nbuild_dir = "."', "path-outside", "not a folder below", "buildd.toml:2"),
        ('[target.a]\nkind = "gemm"\ntimeout_s = 0', "bad-project", "timeout_s", "buildd.toml:3"),
        ('[environment]\nAIT_NDEBGU = 1\n[target.a]\nkind = "gemm"', "bad-variable", "AIT_NDEBUG", "buildd.toml:1"),
        ('[target.a]\nkind = "gemm"\ntimeout_s = nan', "bad-project", "timeout_s", "buildd.toml:3"),
        ('[target.a]\nkind = "gemm"\ntimeout_s = inf', "bad-project", "timeout_s", "buildd.toml:3"),
        ('[target.a]\nkind = "cuda"\nsources = []', "missing-source", "no sources", "buildd.toml:3"),
        ('[target.a]\nkind = "cuda"\nsources = [""]', "bad-path", "empty path", "buildd.toml:3"),
        ('[target.a]\nkind = "cuda"\nsources = "a\\u0000.cu"', "bad-project", "zero byte", "buildd.toml:3"),
        (
            '[target.a]\nkind = "cuda"\nsources = "a.cu"\nflags = ["-DA\\u0000B"]',
            "bad-project",
            "flags of target",
            "buildd.toml:4",
        ),
        (
            '[target.a]\nkind = "triton"\nsource = "a.py"\nsignature = {"a\\u0000" = "i32"}',
            "bad-project",
            "zero byte",
            "buildd.toml:4",
        ),
        (f'[target.a]\nkind = "gemm"\noutput_name = "{"x" * 300}"', "bad-project", "too long", "buildd.toml:3"),
        (f'[target.{"x" * 300}]\nkind = "gemm"', "bad-project", "too long", "buildd.toml:1"),
        ("[target]\na = 3", "bad-project", "must be a table", "buildd.toml"),
        ("target = 3", "bad-project", "must hold tables", "buildd.toml"),
        ('[target."a.b"]\nkind = "cdua"', "bad-project", 'did you mean "cuda"?', "buildd.toml:2"),
        ('a = "\0"', "bad-project", "not valid TOML", "buildd.toml:1"),
        (f"a = {'[' * 5000}", "bad-project", "too deeply nested", "buildd.toml"),
        ("", "bad-project", "no target", "buildd.toml"),
    ],
)
def test_mistakes_name_the_place_and_what_was_meant(tmp_path: Path, text: str, code: str, says: str, at: str) -> None:
    error = refused(tmp_path, text)
    assert error.code == code
    assert says in error.message
    assert error.file.startswith(at)
    assert error.next_step


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert load_project(project(tmp_path, "\ufeff" + GOOD)).asked == ("app",)


def test_what_to_add_for_a_missing_key_is_said(tmp_path: Path) -> None:
    error = refused(tmp_path, '[target.a]\nkind = "cuda"')
    assert error.next_step == 'add sources = ["src/*.cu"] below [target.a]'
    error = refused(tmp_path, '[target.a]\nkind = "triton"\nsource = "k.py"')
    assert error.next_step == "add kernel = ... below [target.a]"


def test_what_to_do_about_a_value_without_quotes_and_a_key_twice(tmp_path: Path) -> None:
    assert refused(tmp_path, "[target.a]\nflags = [-O3]\n").next_step == 'write "-O3"'
    assert refused(tmp_path, "[target.a]\nrdc = True\n").next_step == "write true"
    step = "remove one of them, or put both values into one list"
    assert refused(tmp_path, '[target.a]\nflags = ["-O3"]\nflags = ["-g"]\n').next_step == step


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_bytes(b"[project]\n# caf\xe9\n")
    with pytest.raises(RequestError, match="line 2 is not UTF-8") as caught:
        load_project(request_for(tmp_path))
    assert caught.value.next_step == "save the file as UTF-8"


def test_thousands_of_targets_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = project(tmp_path, "".join(f'[target.t{n}]\nkind = "gemm"\n' for n in range(3000)))
    head, looked_at = toml_file._HEAD, []
    counting = SimpleNamespace(match=lambda line: looked_at.append(line) or head.match(line))
    monkeypatch.setattr(toml_file, "_HEAD", counting)
    assert len(load_project(request).targets) == 3000
    assert 3000 <= len(looked_at) <= 2 * 3000


def test_an_unknown_target_names_the_nearest(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD, "kernel")
    assert error.code == "unknown-target"
    assert 'did you mean "kernels"?' in error.message
    assert "app, kernels" in error.next_step


def test_an_unknown_dependency_names_who_wants_it(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace('deps = ["kernels"]', 'deps = ["kernel"]'))
    assert error.code == "unknown-dependency" and '`deps` of "app"' in error.message


def test_a_dependency_cycle_is_spelled_out(tmp_path: Path) -> None:
    text = "".join(f'[target.{a}]\nkind = "gemm"\ndeps = ["{b}"]\n' for a, b in ("xy", "yz", "zy"))
    error = refused(tmp_path, text, "x")
    assert error.code == "dependency-cycle"
    assert "y -> z -> y" in error.message


def test_a_missing_project_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        load_project(request_for(tmp_path))
    assert caught.value.code == "bad-project" and "-C DIR" in caught.value.next_step


def test_inline_targets_need_no_file(tmp_path: Path) -> None:
    loaded = load_project(request_for(tmp_path, file="", specs={"g": {"kind": "gemm", "m": 64}}))
    (target,) = loaded.targets
    assert isinstance(target, GemmTarget) and target.m == 64 and loaded.read == ()


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "cuda", "sources": ["../../etc/passwd"]},
        {"kind": "cuda", "sources": ["/etc/passwd"]},
        {"kind": "cuda", "sources": ["a/../../b.cu"]},
        {"kind": "cuda", "sources": ["a.cu"], "include": ["/etc"]},
        {"kind": "triton", "source": "../k.py", "kernel": "k"},
    ],
)
def test_inline_targets_stay_in_the_project(tmp_path: Path, table: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        load_project(request_for(tmp_path, file="", specs={"x": table}))
    assert caught.value.code == "path-outside"


def test_an_inline_target_that_is_no_messagepack_is_refused(tmp_path: Path) -> None:
    request = msgspec.structs.replace(request_for(tmp_path, file=""), specs={"x": msgspec.Raw(b"\xc1")})
    with pytest.raises(RequestError, match="not MessagePack"):
        load_project(request)


# ------------------------------------------------------------ sources


def tree(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_globs_are_sorted_and_know_which_folders_decided(tmp_path: Path) -> None:
    tree(tmp_path, "src/b.cu", "src/a.cu", "src/.hidden.cu", "src/deep/c.cu", "build/t/gen/x.cu", "main.cu")
    files, listed = expand(str(tmp_path), ("main.cu", "**/*.cu"), "build", "")
    assert files == ("main.cu", "src/a.cu", "src/b.cu", "src/deep/c.cu")
    assert set(listed) == {str(tmp_path), str(tmp_path / "src"), str(tmp_path / "src/deep")}
    assert expand(str(tmp_path), ("src/[ab].cu",), "build", "") == (("src/a.cu", "src/b.cu"), (str(tmp_path / "src"),))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("src/*.hip", "no file matches"),
        ("no.cu", "does not exist"),
        ("src", "is a folder"),
        ("pipe.cu", "is not a regular file"),
        ("pipe*", "no file matches"),
        ("/dev/zero", "is not a regular file"),
    ],
)
def test_missing_sources_are_named(tmp_path: Path, pattern: str, says: str) -> None:
    tree(tmp_path, "src/a.cu")
    os.mkfifo(tmp_path / "pipe.cu")
    with pytest.raises(RequestError) as caught:
        expand(str(tmp_path), (pattern,), "build", "buildd.toml:3")
    assert caught.value.code == "missing-source"
    assert says in caught.value.message and caught.value.file == "buildd.toml:3"


@pytest.mark.parametrize("pattern", ["/**/*.x", "//**", "/../**/a.cu", "{up}/**/*.x"])
def test_a_pattern_that_would_list_the_whole_disk_is_refused(tmp_path: Path, pattern: str) -> None:
    up = "/".join([".."] * len(tmp_path.parts))
    with pytest.raises(RequestError) as caught:
        expand(str(tmp_path), (pattern.format(up=up),), "build", "buildd.toml:3")
    assert "looks into every folder of this machine" in caught.value.message and caught.value.file == "buildd.toml:3"
    assert caught.value.next_step == "name the folder that the sources are in"


def test_a_pattern_looks_into_no_more_folders_than_a_project_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "a/b/c/d/e.cu")
    monkeypatch.setattr(sources, "MOST_FOLDERS", 3)
    with pytest.raises(RequestError, match="looks into more than 3 folders"):
        expand(str(tmp_path), ("**/*.cu",), "build", "")


@pytest.mark.parametrize("pattern", ["**/*.cu", "shut/*.cu"])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user to be refused by a folder's mode")
def test_a_pattern_that_meets_a_folder_which_may_not_be_read(pattern: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        tree(Path(name), "a.cu", "shut/b.cu")
        os.chmod(f"{name}/shut", 0o700)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setgroups([])
                os.setresuid(65534, 65534, 65534)
                with pytest.raises(RequestError) as caught:
                    expand(name, (pattern,), "build", "buildd.toml:3")
                assert f"looks into {name}/shut, which cannot be read: Permission denied" in caught.value.message
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_name_that_is_not_utf8_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a\udcff.cu").write_text("")
    with pytest.raises(RequestError) as caught:
        expand(str(tmp_path), ("*.cu",), "build", "")
    assert caught.value.code == "bad-path" and "\\xff" in caught.value.message
    caught.value.message.encode()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("pipe", "no regular file"),
        ("/dev/zero", "no regular file"),
        ("folder", "no regular file"),
        ("endless", f"more than {toml_file.MOST_BYTES} bytes"),
        ("a\0b", "no file can have this name"),
    ],
)
def test_a_project_file_is_a_regular_file_of_bounded_size(tmp_path: Path, file: str, says: str) -> None:
    """A FIFO would wait for its writer, and a device has no end: the daemon would neither answer nor stop."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "endless", "wb") as endless:
        endless.truncate(toml_file.MOST_BYTES + 1)
    with pytest.raises(RequestError) as caught:
        load_project(request_for(tmp_path, file=file))
    assert caught.value.code == "bad-project" and says in caught.value.message
    assert caught.value.next_step == "name a regular file of at most 16 MiB"


@pytest.mark.parametrize(
    ("source", "stem"),
    [("src/a.cu", "src/a.cu"), ("../b.cu", "__/b.cu"), ("/x/c.cu", "x/c.cu"), ("a/../../d.cu", "__/d.cu")],
)
def test_results_stay_in_the_build_folder(source: str, stem: str) -> None:
    assert output_stem(source) == stem
