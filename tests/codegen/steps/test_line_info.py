"""Paths in the line information of device code: which are mapped, and which stay."""

from __future__ import annotations

from codegen.plan import Place, Ref
from codegen.steps.line_info import VARIABLE, environment, ident, mapped

ROOTS = (("+pip-req-build", "/tmp/pip-req-build-ab_12cd3"), ("tmp", "/tmp/tmpab_12cd3"), ("checkout", "/home/u/p"))
PTX = b"""\
.visible .entry k() {
\t.loc\t1 2 0
}
\t.file\t1 "/tmp/pip-req-build-ab_12cd3/csrc/k.cu"
\t.file\t2 "/tmp/pip-req-build-ab_12cd34/k.cuh"
\t.file\t3 "/tmp/tmpab_12cd3/k.cuh"
\t.file\t4 "/usr/include/stdio.h"
\t.section .debug_str { // "/tmp/pip-req-build-ab_12cd3/x"
"""


def test_file_lines_name_mapped_folders_by_their_names() -> None:
    assert mapped(PTX, ROOTS) == PTX.replace(b"/tmp/pip-req-build-ab_12cd3/csrc", b"/pip-req-build/csrc")
    assert mapped(PTX, ROOTS[1:]) == PTX


def test_fatbinarys_name_for_the_source_is_mapped() -> None:
    assert ident("--ident=/tmp/pip-req-build-ab_12cd3/k.cu", ROOTS) == "--ident=/pip-req-build/k.cu"
    for word in ("--ident=k.cu", "--ident=/tmp/tmpab_12cd3/k.cu", "/tmp/pip-req-build-ab_12cd3/k.cu"):
        assert ident(word, ROOTS) == word
    reference = Ref(place=Place.ROOT, name="cuda", suffix="/bin/fatbinary")
    assert ident(reference, ROOTS) is reference


def test_only_a_step_with_line_information_is_told_apart() -> None:
    assert environment(("cicc", "-generate-line-info"), ROOTS) == {VARIABLE: "+pip-req-build"}
    assert environment(("cicc", "-generate-line-info"), ROOTS[1:]) == environment(("cicc",), ROOTS) == {}
