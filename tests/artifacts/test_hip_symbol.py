"""The symbol that each of HIP's objects has for its module, in objects that gcc makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildd.artifacts.hip_symbol import renamed, shown
from codegen.steps.module_ids import HIP_SYMBOL, ModuleIds

SOURCE = """\
char __hip_cuid_ID;
__attribute__((section(".hip_fatbin"))) char const code[] = "\\0__hip_cuid_ID";
static char *__hip_gpubin_handle_ID = &__hip_cuid_ID;
char *handle(void) { return __hip_gpubin_handle_ID; }
"""
OTHER = f"{HIP_SYMBOL}ffffffffffff".encode()


def made_of(folder: Path, source: str) -> bytes:
    (folder / "a.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-c", "a.c"], cwd=folder, check=True)
    return (folder / "a.o").read_bytes()


def symbols(folder: Path, made: bytes) -> set[str]:
    (folder / "b.o").write_bytes(made)
    said = subprocess.run(["nm", "b.o"], cwd=folder, check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in said.stdout.splitlines()}


@pytest.mark.parametrize("digits", ["0123456789abcdef", "123456789abcd"])
def test_the_objects_own_symbol_is_renamed_and_the_device_code_stays(tmp_path: Path, digits: str) -> None:
    made = made_of(tmp_path, SOURCE.replace("ID", digits))
    other = renamed(made, OTHER)
    assert other is not None and len(other) == len(made)
    assert symbols(tmp_path, made) - symbols(tmp_path, other) == {f"__hip_cuid_{digits}"}
    assert symbols(tmp_path, other) - symbols(tmp_path, made) == {f"{OTHER.decode()}{digits[12:]}"}
    assert f"\0__hip_cuid_{digits}".encode() in other, "a hash in the device code depends on the name"
    assert renamed(other, f"{HIP_SYMBOL}{digits[:12]}".encode()) == made


def test_what_is_shown_of_a_module_is_its_shared_id(tmp_path: Path) -> None:
    ids = ModuleIds(OTHER, b"", "ffffffffffff0000")
    made = made_of(tmp_path, SOURCE.replace("ID", "0123456789abcdef"))
    assert shown(made, ids) == renamed(made, OTHER)
    assert shown(b"an older clang's", ids) == b"an older clang's"
    assert shown(made_of(tmp_path, SOURCE.replace("ID", "123")), ids) is None


def test_an_object_without_the_symbol_or_with_several_is_left_alone(tmp_path: Path) -> None:
    for source in (
        "int a;\n",
        SOURCE.replace("ID", "123"),
        SOURCE.replace("ID", "0123456789abcdefg"),
        "int __hip_cuid_0123456789abcdef, __hip_cuid_1123456789abcdef;\n",
    ):
        assert renamed(made_of(tmp_path, source), OTHER) is None
    made = made_of(tmp_path, SOURCE.replace("ID", "0123456789abcdef"))
    for end in range(0, len(made), 7):
        renamed(made[:end], OTHER)  # raises nothing
    assert renamed(b"", OTHER) is None and renamed(b"x" * 4096, OTHER) is None
