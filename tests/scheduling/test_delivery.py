"""What the caller of a part of a divided command hears, and which outputs are not made."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.scheduling.delivery import Delivery
from codegen.compilers.command_parser import Compile, Family, Makes, PassThrough
from codegen.compilers.depfile import HeaderFolders

FOLDER = "/tmp/buildd-parts-0000000000000000/p/prog"
DRIVER = b"nvcc warning : incompatible redefinition for option 'optimize', the last value of this option was used\n"
LINKER = b"/usr/bin/ld: warning: x.o: missing .note.GNU-stack section\n"


def said_once(output: str, objects: tuple[str, ...] = ()) -> bytes:
    makes = Makes.LINKED if objects else Makes.OBJECT
    compile = Compile(
        family=Family.NVCC, arguments=(), source="a.cu", output=output, flags=(), makes=makes, objects=objects
    )
    return Delivery(compile, "/p", 0o022, HeaderFolders()).said_once(DRIVER + LINKER)


@pytest.mark.parametrize(
    ("output", "objects", "hears_driver"),
    [
        (f"{FOLDER}/0/a.o", (), True),
        (f"{FOLDER}/1/b.o", (), False),
        ("prog", (f"{FOLDER}/0/a.o", f"{FOLDER}/1/b.o"), False),
        ("prog", ("a.o", f"{FOLDER}/0/b.o"), False),
        ("prog", ("a.o", "b.o"), True),
        ("a.o", (), True),
    ],
)
def test_nvcc_warns_of_its_options_once_for_each_command(
    output: str, objects: tuple[str, ...], hears_driver: bool
) -> None:
    assert said_once(output, objects) == (DRIVER if hears_driver else b"") + LINKER


@pytest.mark.parametrize("output", ["none.c", "./none.c", "{}/none.c"])
def test_a_compile_that_would_write_its_source_is_passed_through_also_if_there_is_none(
    output: str, tmp_path: Path
) -> None:
    """Its plan would wait for itself."""
    output = output.format(tmp_path)
    compile = Compile(family=Family.GCC, arguments=(), source="none.c", output=output, flags=(), makes=Makes.OBJECT)
    with pytest.raises(PassThrough, match="is the source"):
        Delivery(compile, str(tmp_path), 0o022, HeaderFolders()).check()
