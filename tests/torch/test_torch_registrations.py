"""Graphs in the store hold for what a program registers with torch's compiler, which is not in keys of Inductor."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.support.serving import short_folder
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500)]
OPERATOR = """
import torch
K = {value}
lib = torch.library.Library("own", "DEF")
lib.define("scaled(Tensor x) -> Tensor")
@torch.library.impl(lib, "scaled", "CompositeExplicitAutograd")
def scaled(x):
    return x * K
@torch.library.register_fake("own::scaled")
def _(x):
    return torch.empty_like(x)
"""
CASES = {
    "fake": """
import torch
K = {value}
TYPE = torch.float64 if K == 3 else torch.float32
@torch.library.custom_op("own::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).to(TYPE)
@scaled.register_fake
def _(x):
    return torch.empty_like(x, dtype=TYPE)
""",
    "decomposition": OPERATOR + """
from torch._inductor.decomposition import register_decomposition
@register_decomposition(torch.ops.own.scaled.default)
def decomposed(x):
    return x * K
""",
    "lowering": OPERATOR + """
from torch._inductor.lowering import lowerings, register_lowering
@register_lowering(torch.ops.own.scaled.default)
def lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](x, K)
""",
    "composite": """
import torch
from factors import K
lib = torch.library.Library("own", "DEF")
lib.define("scaled(Tensor x) -> Tensor")
@torch.library.impl(lib, "scaled")
def scaled(x):
    return x * K
""",
    "nested": OPERATOR + """
from torch._inductor.lowering import lowerings, register_lowering
import far
class Scaler:
    def __init__(self, k):
        self.k = k
    def scale(self, x):
        def inner():
            return TABLE["k"][0] * far.one() * self.k / K
        return lowerings[torch.ops.aten.mul.Tensor](x, inner())
import os
K = int(os.environ["K"])
TABLE = {{"k": [K]}}
register_lowering(torch.ops.own.scaled.default)(Scaler(K).scale)
""",
    "far": OPERATOR.replace("K = {value}", "from factors import K") + """
from torch._inductor.lowering import lowerings, register_lowering
import far
@register_lowering(torch.ops.own.scaled.default)
def lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](x, far.factor())
""",
    "pattern": OPERATOR + """
from torch._inductor.fx_passes.post_grad import pass_patterns
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern
@register_graph_pattern(CallFunction(torch.ops.own.scaled.default, KeywordArg("x")), pass_dict=pass_patterns[0])
def replaced(match, x):
    match.replace_by_example(lambda x: torch.ops.aten.mul.Tensor(x, K), [x])
""",
}  # fmt: skip
FAR = "import factors\ndef one():\n    return 1\ndef factor():\n    return factors.K\n"
PROGRAM = """
import torch
import registers
def f(x):
    return torch.ops.own.scaled(x) + 1
x = torch.arange(8.0) + 1
with torch.no_grad():
    print("right" if torch.equal(torch.compile(f)(x), f(x)) else f"wrong: {torch.compile(f)(x)}, not {f(x)}")
"""


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder, {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")})
        (folder / "program.py").write_text(PROGRAM)
        yield user
        assert user.end() == []


def graphs_found(user: User, value: int) -> int:
    """How many graphs a run of the program, with Inductor's own caches empty, had from the store."""
    user.environ["K"] = str(value)
    shutil.rmtree(user.folder / "inductor", ignore_errors=True)
    status, said = user.buildd("run", "--", sys.executable, "-B", "program.py", timeout_s=400)
    assert status == 0 and re.search("^right$", said, re.MULTILINE), said
    found = re.search(r"(\d+) graphs? from the store", said)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("case", CASES)
def test_a_registration_that_changed_compiles_again(user: User, case: str) -> None:
    for value in (2, 3):
        # What differs in this case is in no file.
        (user.folder / "registers.py").write_text(CASES[case].format(value=2 if case == "nested" else value))
        (user.folder / "factors.py").write_text(f"K = {value}\n")
        (user.folder / "far.py").write_text(
            "import factors\ndef one():\n    return 1\ndef factor():\n    return factors.K\n"
        )
        assert graphs_found(user, value) == 0
    assert graphs_found(user, 3) == 1
