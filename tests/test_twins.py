"""What stands in the twins of step files."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd import twins
from codegen.step_kinds import Kind
from protocol.messages import Digest
from tests.test_nvcc_steps import KERNEL, Build, project

TEXT = b'# 1 "k.cu"\nint a;\n'
KEY = Digest("11" * 32)


def test_a_text_of_the_host_is_what_it_was_made_of_and_others_what_they_are() -> None:
    moved = TEXT.replace(b"# 1", b"# 2")
    for kind in (Kind.PREPROCESS, Kind.CICC):
        assert twins.of_text(kind, TEXT, None) == twins.of_text(kind, moved, None)
        assert twins.of_text(kind, TEXT, None) != twins.of_text(kind, TEXT + b"int b;\n", None)
    assert twins.of_text(Kind.CUDAFE, TEXT, KEY) == twins.of_text(Kind.CUDAFE, b"", KEY)
    assert twins.of_text(Kind.CUDAFE, TEXT, KEY) != twins.of_text(Kind.CUDAFE, TEXT, Digest("22" * 32))
    assert twins.of_text(Kind.FATBINARY, TEXT, None) != twins.of_text(Kind.FATBINARY, moved, None)


@pytest.mark.parametrize("kind", [Kind.CUDAFE, Kind.CICC])
def test_host_code_that_names_an_architecture_has_no_twin(kind: Kind) -> None:
    assert twins.of_text(kind, TEXT + b"int a = __CUDA_ARCH_LIST__;", KEY) == twins.NONE


@pytest.mark.cuda
def test_host_code_that_names_an_architecture_is_compiled_for_each_list(tmp_path: Path) -> None:
    keys = 'output = "object"\narch = '
    named = 'extern "C" char const *named() { return "__CUDA_ARCH_LIST__"; }\n'
    floor = project(tmp_path, f'{keys}["sm_80"]\n', KERNEL + named)
    Build(floor)
    toml = floor.project / "buildd.toml"
    toml.write_text(toml.read_text().replace('"sm_80"', '"sm_80", "sm_90"'))
    counters = Build(floor).counters
    assert (counters["step_hits"], counters["step_misses"]) == (4, 8), "the host compile, too"
