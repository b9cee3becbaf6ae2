"""How calls that were not understood are named."""

from __future__ import annotations

import pytest

from buildd.shims.call_names import call_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/gcc -O2 -x c -c -o out/a.o a.c", "gcc out/a.o a.c (in /p)"),
        (
            "nvcc -ccbin g++ -gencode arch=compute_90,code=sm_90 -Xcompiler -fPIC k.cu main.o",
            "nvcc k.cu main.o (in /p)",
        ),
        ("g++ --version", "g++ (in /p)"),
    ],
)
def test_a_call_is_named_by_its_files(command: str, name: str) -> None:
    assert call_of(command.split(), "/p") == name
