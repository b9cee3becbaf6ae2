"""The table of kernels: it fits the terminal, and the worst change is its first row."""

from __future__ import annotations

import pytest

from buildd.ui.kernel_table import kernel_table
from buildd.ui.text import Style
from protocol.messages import Kernel

NAME = "saxpy_kernel(int, float, float const*, float*)"


def kernel(name: str = NAME, registers: int = 32, spills: int = 0, **more: int) -> Kernel:
    needs = {"shared_bytes": 0, "constant_bytes": 376, "stack_bytes": 0} | more
    return Kernel(
        name=name, arch="sm_90a", registers=registers, spill_store_bytes=spills, spill_load_bytes=spills, **needs
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 160])
def test_it_fits_and_keeps_what_matters(columns: int) -> None:
    worse = (kernel(registers=128, stack_bytes=16), kernel(registers=255, spills=4096, stack_bytes=65536))
    lines = kernel_table([worse, (kernel(), kernel(registers=40))], columns=columns)
    assert len(lines) == 3 and all(len(line.text) <= columns for line in lines)
    assert "128 -> 255" in lines[1].text and "regs" in lines[0].text
    if columns >= 80:
        assert "25 -> 12%" in lines[1].text and "0 -> 4096" in lines[1].text and "threads" in lines[0].text


def test_the_worst_change_is_the_first_row() -> None:
    better = (kernel("better", registers=64), kernel("better", registers=32))
    fuller = (kernel("fuller", registers=32), kernel("fuller", registers=33))
    lesser = (kernel("lesser", registers=30), kernel("lesser", registers=31))
    spills = (kernel("spills", registers=255), kernel("spills", registers=255, spills=8))
    rows = kernel_table([better, (None, kernel("new")), lesser, (kernel("gone"), None), fuller, spills])
    names = [row.text.split()[0] if row.text.split()[0] not in "+-" else row.text.split()[1] for row in rows[1:]]
    assert names == ["spills", "fuller", "lesser", "better", "new", "gone"] or names[:3] == [
        "spills",
        "fuller",
        "lesser",
    ]
    assert names[-1] == "gone"
    assert [row.style for row in rows[1:3]] == [Style.WARNING, Style.WARNING]


def test_columns_that_say_nothing_are_left_out() -> None:
    (title, row) = kernel_table([(None, kernel(constant_bytes=0))], whole=True)
    assert title.text.split() == ["kernel", "arch", "regs", "occup", "threads"]
    assert row.text.split()[-4:] == ["sm_90a", "32", "100%", "1024"]


def test_columns_that_are_the_same_in_all_rows_make_room_for_names() -> None:
    names = [f"void scan_kernel<{kind}, 4>({kind} const*, {kind}*, int)" for kind in ("float", "double")]
    spilling = kernel(names[0], registers=32, spills=956, stack_bytes=956)
    lines = [line.text for line in kernel_table([(None, spilling), (None, kernel(names[1]))], whole=True, columns=80)]
    assert lines[0].split("  ")[1:] and "spill st" in lines[0] and "const" not in lines[0]
    assert "scan_kernel<float, 4> " in lines[1] and "scan_kernel<double, 4> " in lines[2]


def test_a_table_without_spills_says_how_to_see_them() -> None:
    unknown = Kernel(name="k", arch="sm_80", registers=32, stack_bytes=16)
    assert kernel_table([(None, unknown)], whole=True)[-1].text == "  spills are known if you compile with -Xptxas=-v"
    assert len(kernel_table([(unknown, Kernel(name="k", arch="sm_80", registers=40, stack_bytes=16))])) == 2
    assert len(kernel_table([(None, kernel())], whole=True)) == 2
