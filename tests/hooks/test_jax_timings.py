"""XLA's timings of a GPU beside the store, as far as it needs no GPU: when XLA keeps them there, and when not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.hooks import jax_timings
from buildd.store import profiles
from buildd.store.profiles import ProfileArea

OPTION, MODE = "xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_experimental_autotune_cache_mode"


class Compile:
    """One compile of a JAX program, with what JAX's modules say of it."""

    def __init__(
        self, *, platform: str = "gpu", asked: str | None = OPTION, own: str = "", process: int = 0, devices: int = 1
    ) -> None:
        self.debug = SimpleNamespace(**{OPTION: own, MODE: None})
        self.options = SimpleNamespace(executable_build_options=SimpleNamespace(debug_options=self.debug))
        device = SimpleNamespace(device_kind="NVIDIA H200")
        self.backend = SimpleNamespace(
            platform=platform, platform_version="PJRT C API\ncuda 13000", local_devices=lambda: [device] * devices
        )
        self.compiler = SimpleNamespace(
            config=SimpleNamespace(persistent_cache_enable_xla_caches=SimpleNamespace(value=asked)),
            xc=SimpleNamespace(AutotuneCacheMode=SimpleNamespace(UPDATE="update", READ="read")),
            distributed=SimpleNamespace(global_state=SimpleNamespace(process_id=process)),
        )

    def folder(self, store: Path) -> str:
        """Where XLA keeps its timings in this compile."""
        kept = jax_timings.use(str(store), self.compiler, self.backend, self.options)
        folder: str = getattr(self.debug, OPTION)
        assert not kept or Path(folder).is_dir()
        return folder


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python need not have jaxlib."""
    monkeypatch.setitem(sys.modules, "jaxlib", SimpleNamespace(__version__="0.11.2"))


def test_a_gpu_has_one_folder_which_only_the_first_process_of_a_program_writes(tmp_path: Path) -> None:
    first, second = Compile(), Compile(process=1)
    assert first.folder(tmp_path) == second.folder(tmp_path) != ""
    assert [getattr(each.debug, MODE) for each in (first, second)] == ["update", "read"]
    assert sorted(path.suffix for path in (tmp_path / jax_timings.FOLDER).iterdir()) == ["", ".json"]


@pytest.mark.parametrize(
    ("compiled", "folder"),
    [
        (Compile(platform="cpu"), ""),
        (Compile(platform="tpu"), ""),
        (Compile(own="/home/me/timings"), "/home/me/timings"),
        (Compile(devices=0), ""),
        (Compile(asked=""), ""),
        (Compile(asked=None), ""),
        (Compile(asked="xla_gpu_kernel_cache_file"), ""),
    ],
)
def test_where_there_are_no_timings_or_the_user_has_a_place_nothing_changes(
    tmp_path: Path, compiled: Compile, folder: str
) -> None:
    assert compiled.folder(tmp_path) == folder
    assert getattr(compiled.debug, MODE) is None and not list(tmp_path.iterdir())


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    above = tmp_path / jax_timings.FOLDER
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(OSError, match="not a folder of this user's alone"):
        Compile().folder(tmp_path)


@pytest.mark.parametrize(
    ("message", "is_ours"),
    [
        ("INVALID_ARGUMENT: Failed to parse autotune results", True),
        ("No space left on device; FOLDER/tmp/tmp_cache_x", True),
        ("RESOURCE_EXHAUSTED: Out of memory", False),
    ],
)
def test_a_compile_that_failed_over_them_is_told_apart(tmp_path: Path, message: str, is_ours: bool) -> None:
    compiled = Compile()
    error = RuntimeError(message.replace("FOLDER", compiled.folder(tmp_path)))
    assert jax_timings.is_at_fault(compiled.options, error) is is_ours
    assert (getattr(compiled.debug, OPTION) == "") is is_ours


def test_of_too_many_the_oldest_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(Compile().folder(tmp_path))
    for number in range(5):
        path = folder / f"{number}.textproto"
        path.touch()
        os.utime(path, (number, number))
    monkeypatch.setattr(profiles, "_MOST_TIMINGS", 2)
    area: Any = ProfileArea
    area(None, tmp_path).trim(0)
    assert sorted(path.name for path in folder.iterdir()) == ["3.textproto", "4.textproto"]
    assert Path(f"{folder}.json").exists()
