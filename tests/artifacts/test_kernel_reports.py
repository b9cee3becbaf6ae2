"""ptxas's reports as data, and as the table that people read."""

from __future__ import annotations

import shutil

import pytest

from buildd.artifacts.kernel_reports import is_report, kernels_in, moved, without_report
from buildd.ui.kernel_names import demangled
from buildd.ui.kernel_table import kernel_table
from protocol.messages import Kernel

REPORT = """\
ptxas info    : 8 bytes gmem, 16 bytes cmem[4]
ptxas info    : Compiling entry function '_Z5scalePfi' for 'sm_80'
ptxas info    : Function properties for _Z5scalePfi
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem, 364 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 2.345 ms
ptxas info    : Function properties for _Z6helperPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z5scalePfi' for 'sm_90'
ptxas info    : Function properties for _Z5scalePfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 364 bytes cmem[0]
"""
WARNING = 'a.cu(3): warning #177-D: variable "x" was declared but never referenced\n'
LOSS = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"


def test_every_kernel_of_every_architecture() -> None:
    assert kernels_in(REPORT) == (
        Kernel(
            name="_Z5scalePfi",
            arch="sm_80",
            registers=32,
            shared_bytes=1024,
            constant_bytes=372,
            stack_bytes=16,
            spill_store_bytes=4,
            spill_load_bytes=8,
        ),
        Kernel(
            name="_Z5scalePfi",
            arch="sm_90",
            registers=24,
            shared_bytes=0,
            constant_bytes=364,
            stack_bytes=0,
            spill_store_bytes=0,
            spill_load_bytes=0,
        ),
    )


def test_only_the_report_is_taken_out() -> None:
    assert without_report((WARNING + REPORT + LOSS).encode()).decode() == WARNING + LOSS
    assert without_report(b"no report\n") == b"no report\n"
    assert not is_report("    int x = 3;")


def test_what_moved() -> None:
    one, other = kernels_in(REPORT)
    more = Kernel(name=one.name, arch=one.arch, registers=40)
    assert moved((one, other), (one, other)) == []
    assert moved((one,), (more,)) == [(one, more)]
    assert moved((one,), (other,)) == [(one, None), (None, other)]


def test_a_table_says_from_what_to_what() -> None:
    one, other = kernels_in(REPORT)
    more = Kernel(name=one.name, arch=one.arch, registers=40, shared_bytes=1024)
    text = "\n".join(line.text for line in kernel_table([(one, more), (None, other)]))
    assert "32 -> 40" in text and "1024 -> " not in text
    assert "+ " in text and "sm_90" in text


@pytest.mark.skipif(not shutil.which("c++filt"), reason="no c++filt (Debian: apt install binutils)")
def test_names_are_as_people_write_them_however_long() -> None:
    depth = 400
    nested = f"_Z1kI{'1AI' * depth}i{'E' * depth}EvT_"
    name = f"{'A<' * depth}int{' >' * depth}".replace("int >", "int>")
    assert demangled(["_Z5saxpyifPf", nested, "plain"]) == [
        "saxpy(int, float, float*)",
        f"void k<{name} >({name})",
        "plain",
    ]
    assert demangled([]) == []


def test_a_table_is_bounded() -> None:
    changes = [(None, Kernel(name=f"k{number}", arch="sm_80", registers=1)) for number in range(100)]
    lines = kernel_table(changes)
    assert len(lines) < 30 and "more" in lines[-1].text
