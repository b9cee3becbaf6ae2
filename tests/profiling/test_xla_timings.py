"""XLA's timings as rows of the profiles: read from files, written as files, carried by bundles."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import msgspec
import pytest

from buildd.errors import StoreError
from buildd.hooks import jax_timings
from buildd.profiling import xla_timings
from tests.support.user import User

H100 = "NVIDIA H100 80GB HBM3"
FUSIONS = {"v1/gemm.pb": b"\x08\x01\x12\x00", "v1/softmax.pb": b"\x00\xff" * 40}


def timings(path: Path, parts: dict[str, bytes], *, gpu: str = H100, jaxlib: str = "0.11.2") -> Path:
    """A file as a native build of kind jax makes it."""
    about = {"device_kind": gpu, "jaxlib": jaxlib, "platform_version": "PJRT C API\ncuda 13000"}
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in {xla_timings.ABOUT: json.dumps(about).encode(), **parts}.items():
            stream.writestr(name, content)
    return path


def parts_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as stream:
        return {name: stream.read(name) for name in stream.namelist()}


def test_rows_become_the_same_file_again(tmp_path: Path) -> None:
    rows = xla_timings.read(timings(tmp_path / "one.autotune", FUSIONS))
    assert {row.problem for row in rows} == {"xla v1/gemm.pb", "xla v1/softmax.pb"}
    assert {(row.setting.gpu, row.setting.toolkit) for row in rows} == {(H100, "cuda 13000")}
    found = xla_timings.write(rows, "", tmp_path / "two.autotune")
    assert (found.gpu, found.jaxlib, found.timings) == (H100, "0.11.2", 2)
    assert FUSIONS.items() <= parts_of(tmp_path / "two.autotune").items()
    again = xla_timings.read(tmp_path / "two.autotune")
    assert [row.note for row in sorted(again, key=str)] == [row.note for row in sorted(rows, key=str)]
    # It is part of a key, so it depends on its content only.
    xla_timings.write(reversed(again), "", tmp_path / "three.autotune")
    assert (tmp_path / "two.autotune").read_bytes() == (tmp_path / "three.autotune").read_bytes()


def test_of_two_results_for_a_fusion_the_newest_counts(tmp_path: Path) -> None:
    (old,) = xla_timings.read(timings(tmp_path / "old", {"v1/gemm.pb": b"old"}))
    (new,) = xla_timings.read(timings(tmp_path / "new", {"v1/gemm.pb": b"new"}))
    old = msgspec.structs.replace(old, measured_ns=1)
    for rows in ([old, new], [new, old]):
        xla_timings.write(rows, "", tmp_path / "both")
        assert parts_of(tmp_path / "both")["v1/gemm.pb"] == b"new"


def test_one_gpu_and_version_is_chosen_by_name(tmp_path: Path) -> None:
    rows = xla_timings.read(timings(tmp_path / "h100", FUSIONS))
    rows += xla_timings.read(timings(tmp_path / "older", FUSIONS, jaxlib="0.10.2"))
    rows += xla_timings.read(timings(tmp_path / "h200", {"v1/gemm.pb": b"h200"}, gpu="NVIDIA H200"))
    with pytest.raises(StoreError, match=r"several GPUs or versions: NVIDIA H100 .*0\.10\.2.*; .*NVIDIA H200"):
        xla_timings.write(rows, "", tmp_path / "out")
    with pytest.raises(StoreError, match="no such timings"):
        xla_timings.write(rows, "B200", tmp_path / "out")
    assert xla_timings.write(rows, "h200", tmp_path / "out").timings == 1
    assert xla_timings.write(rows, "h100 0.10.2", tmp_path / "out").jaxlib == "0.10.2"


@pytest.mark.parametrize("parts", [{"../outside": b""}, {"/absolute": b""}, {"a/../b": b""}, {}])
def test_a_file_with_odd_names_or_nothing_is_refused(tmp_path: Path, parts: dict[str, bytes]) -> None:
    with pytest.raises(StoreError):
        xla_timings.read(timings(tmp_path / "odd", parts))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no timings")
    with zipfile.ZipFile(tmp_path / "without", "w"):
        pass
    for name in ("text", "without", "absent"):
        with pytest.raises(StoreError, match="no timings of XLA"):
            xla_timings.read(tmp_path / name)


def test_commands_list_carry_and_flush_them(user: User, tmp_path: Path) -> None:
    first = timings(tmp_path / "one.autotune", {"v1/gemm.pb": b"gemm"})
    second = timings(tmp_path / "two.autotune", {"v1/softmax.pb": b"softmax"})
    for file in (first, second):
        status, said = user.buildd("cache", "import", "--xla", str(file))
        assert status == 0 and f"1 timing of {H100} and jaxlib 0.11.2 imported" in said, said
    said = user.buildd("cache", "query", "SELECT gpu, library, problem, outcome FROM profiles", "--format", "csv")[1]
    assert f"{H100},XLA of jaxlib 0.11.2,xla v1/gemm.pb,kept" in said and "xla v1/softmax.pb" in said
    bundle, merged = tmp_path / "all.bundle", tmp_path / "merged.autotune"
    status, said = user.buildd("cache", "export", "--all", str(bundle))
    assert status == 0 and "2 profiles" in said, said
    own = user.buildd("cache", "key")[1].strip()
    folder = tmp_path / "other"
    folder.mkdir()
    other = User(folder)
    try:
        assert other.buildd("cache", "trust", own)[0] == 0
        assert other.buildd("cache", "import", str(bundle))[0] == 0
        status, said = other.buildd("cache", "export", "--xla", str(merged))
        assert status == 0 and "2 timings" in said, said
    finally:
        other.end()
    made = parts_of(merged)
    assert made.pop(xla_timings.ABOUT) and made == {"v1/gemm.pb": b"gemm", "v1/softmax.pb": b"softmax"}
    assert user.buildd("cache", "export", "--xla", "--gpu", "H200", str(merged))[0] != 0
    user.environ["FLUSH_PROFILE_CACHE"] = "1"
    assert "the profiles are emptied" in user.buildd("run", "--quiet", "--", "true")[1]
    del user.environ["FLUSH_PROFILE_CACHE"]
    assert "there are no such timings" in user.buildd("cache", "export", "--xla", str(merged))[1]


def test_what_jax_programs_keep_becomes_rows_and_rows_reach_programs(user: User, tmp_path: Path) -> None:
    about = {"device_kind": H100, "jaxlib": "0.11.2", "platform_version": "PJRT C API\ncuda 13000"}
    kept = Path(jax_timings.made(str(user.store), about))
    (kept / "tmp").mkdir()
    (kept / "tmp" / "half.textproto").write_bytes(b"half")
    (kept / "gemm.textproto").write_bytes(b"gemm")
    merged = tmp_path / "merged.autotune"

    def exported() -> dict[str, bytes]:
        status, said = user.buildd("cache", "export", "--xla", str(merged))
        assert status == 0, said
        made = parts_of(merged)
        assert json.loads(made.pop(xla_timings.ABOUT))["device_kind"] == H100
        return made

    assert exported() == {"gemm.textproto": b"gemm"}
    (kept / "softmax.textproto").write_bytes(b"softmax")
    assert exported() == {"gemm.textproto": b"gemm", "softmax.textproto": b"softmax"}
    assert user.buildd("cache", "import", "--xla", str(timings(tmp_path / "more", {"v1/more.pb": b"more"})))[0] == 0
    assert (kept / "v1/more.pb").read_bytes() == b"more", "programs with this GPU and these versions find it"
    assert set(exported()) == {"gemm.textproto", "softmax.textproto", "v1/more.pb"}
    (kept / "gone.textproto").symlink_to("nowhere")
    user.environ["CACHE_DIR"] = str(tmp_path / "shared")
    assert set(exported()) == {"gemm.textproto", "softmax.textproto", "v1/more.pb"}, "into another database"
    del user.environ["CACHE_DIR"]
    areas = json.loads(user.buildd("cache", "stats", "--json")[1])["areas"]
    assert areas["profiles"]["bytes"] == len(b"halfgemmsoftmaxmore"), areas["profiles"]
    user.environ["FLUSH_PROFILE_CACHE"] = "1"
    assert "the profiles are emptied" in user.buildd("run", "--quiet", "--", "true")[1]
    assert not [path for path in kept.rglob("*") if path.is_file()]
    assert "run a JAX program below" in user.buildd("cache", "export", "--xla", str(merged))[1]


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/../outside", "ABSOLUTE", "a/../../outside", ".", "", "v1/", "a\0b"]
)
def test_a_row_of_a_bundle_writes_nothing_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    (row,) = xla_timings.read(timings(tmp_path / "one", {"v1/gemm.pb": b"gemm"}))
    store = tmp_path / "store"
    store.mkdir()
    named = name.replace("ABSOLUTE", str(tmp_path / "outside"))
    xla_timings.put_out(store, [msgspec.structs.replace(row, problem=f"xla {named}"), row])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != jax_timings.ABOUT]
    assert sorted(path.name for path in written) == ["gemm.pb", "one"]
