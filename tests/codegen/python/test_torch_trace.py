"""TorchScript made by request: torch.jit.trace's parameters act, and its findings are told with the user's line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from codegen.python.torch_trace import WORKER
from tests.support.torch_project import Checkout
from tests.support.user import User

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = torch.nn.Linear(16, width)
    def forward(self, x, y=None):
        x = torch.relu(self.first(x))
        return x if y is None else x * y

def looped(x):
    return x * 2 if x.sum() > 0 else x * 3

def random(x):
    return x + torch.rand(3)

def listed(x):
    return {"twice": 2 * x}
"""
TABLE = """
[target.{name}]
kind = "torch"
result = "trace"
source = "net.py"
{keys}
"""
USE = """
import sys, torch, net
traced = torch.jit.load("build/net/net.pt")
torch.manual_seed(0)
model = net.Net(width=5).eval()
x = torch.randn(9, 16)
with torch.no_grad():
    torch.testing.assert_close(traced(x, torch.ones(5)), model(x, torch.ones(5)))
"""
X = "example_inputs = [{ shape = [2, 16] }]"


def test_the_worker_imports_nothing_of_ours() -> None:
    lines = [line.strip() for line in WORKER.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if line.startswith(("from buildd", "from codegen", "import msgspec"))]


@pytest.mark.torch
def test_a_traced_model_computes_what_the_model_does_and_checks_act(user: User) -> None:
    project = Checkout(user, "trace")
    (project.folder / "net.py").write_text(NET)

    def build(name: str, keys: str) -> tuple[int, str]:
        (project.folder / "buildd.toml").write_text(TABLE.format(name=name, keys=keys))
        return user.buildd("build", "-C", str(project.folder), timeout_s=600)

    named = "example_kwarg_inputs = { y = { shape = [5] } }"
    both = f'model = "Net"\narguments = {{ width = 5 }}\n{named.replace("y =", "x =").replace("[5]", "[2, 16]")}'
    both = both.replace("} }", "}, y = { shape = [5] } }")
    status, said = build("net", both)
    assert status == 0, said
    project.python(USE)
    # A branch on data: the other way is found by another set of inputs, if the check may run.
    data = '{ shape = [3], dtype = "int64", high = 1 }'
    further = f"check_inputs = [[{data.replace('high = 1', 'high = 9')}]]"
    status, said = build("looped", f'func = "looped"\nexample_inputs = [{data}]\n{further}\ncheck_tolerance = 1e-9')
    assert status == 1 and "cannot be traced" in said and "net.py" in said, said
    status, said = build("looped", f'func = "looped"\nexample_inputs = [{data}]\n{further}\ncheck_trace = false')
    assert status == 0, said
    status, said = build("random", 'func = "random"\nexample_inputs = [{ shape = [3] }]\ncheck_tolerance = 10')
    assert status == 0, said
    status, said = build("listed", 'func = "listed"\nexample_inputs = [{ shape = [3] }]')
    assert status == 1 and "strict" in said, said
    status, said = build("listed", 'func = "listed"\nexample_inputs = [{ shape = [3] }]\nstrict = false')
    assert status == 0, said
    load = "import torch; print(torch.jit.load('build/listed/listed.pt')(torch.ones(3))['twice'].sum().item())"
    done = subprocess.run([sys.executable, "-c", load], cwd=project.folder, capture_output=True, text=True, check=True)
    assert done.stdout == "6.0\n"


@pytest.mark.torch
def test_a_gpu_that_this_torch_cannot_have_is_refused_by_name(user: User) -> None:
    project = Checkout(user, "nogpu")
    (project.folder / "net.py").write_text(NET)
    keys = f'kind = "torch"\nsource = "net.py"\nfunction = "Net"\n{X}\ndevice = "cuda"'
    (project.folder / "buildd.toml").write_text(f"[target.net]\n{keys}\n")
    status, said = user.buildd("build", "-C", str(project.folder), timeout_s=600)
    assert status == 2 and ('not built for device "cuda"' in said or "no GPU for device" in said), said


@pytest.mark.torch
def test_a_model_in_code_is_proved_by_a_trace(user: User) -> None:
    """In another checkout too, and with weights of its own it is another model."""
    table = TABLE.replace('result = "trace"\n', "").format(name="net", keys='function = "Net"\n{arguments}{inputs}')
    keys = {"inputs": "inputs = [{ shape = [2, 16] }]\n", "arguments": "factory = true\narguments = { width = 5 }\n"}
    checkouts = [Checkout(user, name) for name in ("one", "two")]
    for checkout in checkouts:
        (checkout.folder / "net.py").write_text(NET)
        (checkout.folder / "buildd.toml").write_text(table.format(**keys))
    prove = ("warm", "--prove", "-C", str(checkouts[1].folder))
    status, said = user.buildd(*prove, timeout_s=600)
    assert status == 1 and "would run net/net.pt2: never built before" in said, said
    status, said = user.buildd("warm", "-C", str(checkouts[0].folder), timeout_s=600)
    assert status == 0, said
    status, said = user.buildd(*prove, timeout_s=600)
    assert status == 0 and "nothing would be compiled, 1 hit, 1 model traced" in said, said
    assert not (checkouts[1].folder / "build").exists()
    (checkouts[1].folder / "buildd.toml").write_text(table.format(**{**keys, "arguments": "factory = true\n"}))
    status, said = user.buildd(*prove, timeout_s=600)
    assert status == 1 and "would run net/net.pt2" in said, said
    (checkouts[1].folder / "net.py").write_text("raise RuntimeError('no weights')\n")
    status, said = user.buildd(*prove, timeout_s=600)
    assert status == 1 and "no weights" in said, said
