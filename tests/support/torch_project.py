"""A project with an exported torch model: its request, a pretended torch for its plan, and a checkout to build."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from codegen.plan import Answer, Probe
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.support.carry_out import run_probe
from tests.support.user import User

IDENTITY = {
    "torch": "9.9 git abc cuda None hip None",
    "python": "3.11.7 cpython-311",
    "folder": "/site/torch",
    "site": "/site",
    "include": ["/site/torch/include"],
    "modes": ["default", "max-autotune"],
    "backends": ["cudagraphs", "eager", "inductor"],
    "options": {
        "max_autotune": ["bool"],
        "cpp.simdlen": ["int"],
        "rate": ["float"],
        "cpp.cxx": ["str"],
        "trace.enabled": ["bool"],
        "triton.cudagraphs": ["bool"],
        "rocm.arch": ["str"],
        "pre_grad_custom_pass": [],
    },
    "files": {"python": "/usr/bin/env", "torch/version.py": "/usr/bin/env"},
}


def request(folder: Path, *, environment: dict[str, str] | None = None, **changes: Any) -> Request:
    (folder / "mlp.pt2").write_bytes(b"weights")
    table = {"kind": "torch", "archive": "mlp.pt2", **changes}
    return Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(folder),
        file="",
        specs={"mlp": spec_from(table)},
        environment={"PATH": "/usr/bin:/bin", **(environment or {})},
        interpreter=sys.executable,
    )


_answers: dict[Probe, Answer] = {}


def pretended(probe: Probe) -> Answer:
    """What a machine with torch would answer; of the compiler, what this one does."""
    if probe.argv[-1] == "--identify":
        return Answer(status=0, stdout=json.dumps(IDENTITY), stderr="")
    if probe not in _answers:
        _answers[probe] = run_probe(probe)
    return _answers[probe]


SOURCE: dict[str, Any] = {"archive": "", "source": "net.py", "function": "Net", "inputs": [{"shape": ["rows", 16]}]}

EXPORT = """
import sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)

torch.manual_seed(int(sys.argv[1]))
rows = torch.export.Dim("rows", max=64)
program = torch.export.export(Model().eval(), (torch.randn(4, 16),), dynamic_shapes=({0: rows},))
torch.export.save(program, sys.argv[2])
"""

COMPARE = """
import sys
import torch

compiled, program = torch._inductor.aoti_load_package(sys.argv[1]), torch.export.load(sys.argv[2]).module()
with torch.no_grad():
    for rows in (2, 4, 33):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-5, atol=1e-6)
"""

PROJECT = '[target.mlp]\nkind = "torch"\narchive = "mlp.pt2"\n'


class Checkout:
    """A project with an exported model, of a user with a daemon."""

    def __init__(self, user: User, name: str) -> None:
        self.user, self.folder = user, user.folder / name
        self.folder.mkdir()
        (self.folder / "buildd.toml").write_text(PROJECT)

    def python(self, code: str, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def export(self, seed: int) -> None:
        self.python(EXPORT, str(seed), "mlp.pt2")

    def build(self, *arguments: str) -> str:
        status, said = self.user.buildd("build", "-C", str(self.folder), *arguments, timeout_s=600)
        assert status == 0, said
        return said

    def compare(self) -> None:
        """The package computes what the archive does."""
        self.python(COMPARE, "build/mlp/mlp.pt2", "mlp.pt2")
