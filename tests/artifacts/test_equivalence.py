"""The equivalents of files that steps make."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from buildd.artifacts import equivalence
from codegen.steps.step_kinds import StepKind
from protocol.messages import Digest
from tests.support.nvcc_project import KERNEL, Build, project

TEXT = b'# 1 "k.cu"\nint a;\n'
KEY = Digest("11" * 32)


def test_a_text_of_the_host_is_what_it_was_made_of_and_others_what_they_are() -> None:
    moved = TEXT.replace(b"# 1", b"# 2")
    for kind in (StepKind.PREPROCESS, StepKind.CICC):
        assert equivalence.of_text(kind, TEXT, None) == equivalence.of_text(kind, moved, None)
        assert equivalence.of_text(kind, TEXT, None) != equivalence.of_text(kind, TEXT + b"int b;\n", None)
    assert equivalence.of_text(StepKind.CUDAFE, TEXT, KEY) == equivalence.of_text(StepKind.CUDAFE, b"", KEY)
    assert equivalence.of_text(StepKind.CUDAFE, TEXT, KEY) != equivalence.of_text(
        StepKind.CUDAFE, TEXT, Digest("22" * 32)
    )
    assert equivalence.of_text(StepKind.FATBINARY, TEXT, None) != equivalence.of_text(StepKind.FATBINARY, moved, None)


@pytest.mark.parametrize("kind", [StepKind.CUDAFE, StepKind.CICC])
def test_host_code_that_names_an_architecture_has_no_twin(kind: StepKind) -> None:
    assert equivalence.of_text(kind, TEXT + b"int a = __CUDA_ARCH_LIST__;", KEY) == equivalence.NONE


@pytest.mark.cuda
def test_host_code_that_names_an_architecture_is_compiled_for_each_list(tmp_path: Path) -> None:
    keys = 'output = "object"\narch = '
    named = 'extern "C" char const *named() { return "__CUDA_ARCH_LIST__"; }\n'
    workspace = project(tmp_path, f'{keys}["sm_80"]\n', KERNEL + named)
    Build(workspace)
    toml = workspace.project / "buildd.toml"
    toml.write_text(toml.read_text().replace('"sm_80"', '"sm_80", "sm_90"'))
    counters = Build(workspace).counters
    assert (counters["step_hits"], counters["step_misses"]) == (4, 8), "the host compile, too"


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        (b"int a;\n", False),
        (b"#pragma unroll\n#pragma unroll 4\n#pragma GCC diagnostic push\n#pragma nounroll\n", False),
        (b"  # pragma unroll kCount\n#pragma clang loop unroll_count(kCount)\n", False),
        (b"#pragma GCC unroll 4\n#pragma GCC unroll (kCount)\n#pragma GCC nounroll\n", False),
        (b"#pragma GCC unroll N\n", True),
        (b"#pragma GCC unroll 2 * kCount\n", True),
        (b"#pragma unroll N\n", True),
        (b"#pragma unroll 2 * kCount\n", True),
        (b"#pragma clang loop unroll_count(N)\n", True),
        (b"#pragma pack(1)\n", True),
        (b"#pragma clang fp contract(off)\n", True),
        (b"int* _Nonnull f();\n", True),
        (b"int a = __builtin_LINE();\n", True),
        (b"char const* a = __PRETTY_FUNCTION__;\n", True),
    ],
)
def test_what_clang_may_make_of_the_source_alone(text: bytes, differs: bool) -> None:
    assert equivalence.differs_from_source(text, lambda name: name == b"N") is differs
    made = equivalence.of_text(StepKind.PREPROCESS, text, None, differs=differs)
    assert (blake3(made).hexdigest() == equivalence.DIFFERING) is differs
