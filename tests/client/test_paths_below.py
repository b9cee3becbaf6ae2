"""Which folder `buildd run --map-paths` keeps out of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.client.foreign_build import paths_below


def configured(sources: Path, build: Path) -> None:
    build.mkdir(parents=True, exist_ok=True)
    (build / "CMakeCache.txt").write_text(f"# cache\nA:BOOL=ON\nCMAKE_HOME_DIRECTORY:INTERNAL={sources}\nB:BOOL=ON\n")


def test_the_folder_of_the_call_or_the_sources_of_its_build_folder(tmp_path: Path) -> None:
    sources, build, other = tmp_path / "p", tmp_path / "p/out/release", tmp_path / "build"
    configured(sources, build)
    configured(sources, other)
    run = {"BUILDD_RUN_FOLDER": str(build)}
    assert paths_below(str(build), None) == run
    assert paths_below(str(build), False) == {**run, "BUILDD_MAP_PATHS": "no"}
    assert paths_below(str(build), True) == {**run, "BUILDD_MAP_PATHS": str(sources)}
    for folder in (sources, build.parent, other, tmp_path):
        mapped = {"BUILDD_RUN_FOLDER": str(folder), "BUILDD_MAP_PATHS": str(folder)}
        assert paths_below(str(folder), True) == mapped, "the sources are not above it, or it is no build folder"


@pytest.mark.parametrize(
    "text", ["", "CMAKE_HOME_DIRECTORY:INTERNAL=\n", "CMAKE_HOME_DIRECTORY:INTERNAL=/\n", "\xff\n"]
)
def test_an_odd_cache_of_cmake_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "CMakeCache.txt").write_bytes(text.encode("latin-1"))
    assert paths_below(str(tmp_path), True)["BUILDD_MAP_PATHS"] == str(tmp_path)


def test_a_link_to_the_sources_names_the_real_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    configured(tmp_path / "link", tmp_path / "real/build")
    assert paths_below(str(tmp_path / "link/build"), True)["BUILDD_MAP_PATHS"] == str(tmp_path / "real")
