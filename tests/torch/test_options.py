"""The table of torch's options is that of the installed torch, and torch takes each option that acts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from codegen.python.torch_model import WORKER, refusal_of
from tests.support.paths import ROOT

pytestmark = pytest.mark.torch

TAKE = """
import json, sys
import torch._inductor.config as config
import torch

names = json.load(sys.stdin)
known = config.get_config_copy()
values = {name: known[name] for name in names}
# torch.compile checks names and types of options at once, and compiles at the first call.
torch.compile(lambda x: x, options={n: v for n, v in values.items() if v is not None and not isinstance(v, list)})
with config.patch({name: value for name, value in values.items()}):
    pass
print(len(values))
"""


def test_torch_takes_every_option_that_acts() -> None:
    done = subprocess.run([sys.executable, WORKER, "--identify"], capture_output=True, text=True, check=True)
    options = json.loads(done.stdout)["options"]
    acting = sorted(name for name, accepted in options.items() if not refusal_of(name, accepted, "cuda"))
    assert len(acting) > 300 and {"max_autotune", "triton.cudagraphs", "cuda.arch"} <= set(acting)
    assert not {"cpp.cxx", "rocm.arch", "post_grad_custom_pre_pass"} & set(acting)
    taken = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TAKE],
        input=json.dumps(acting),
        capture_output=True,
        text=True,
        check=False,
    )
    assert taken.stdout == f"{len(acting)}\n", taken.stderr[-2000:]


def test_the_page_is_the_installed_torchs() -> None:
    page = (ROOT / "docs" / "torch-options.md").read_text(encoding="utf-8")
    import importlib.metadata

    version = importlib.metadata.version("torch").partition("+")[0]
    if f"# torch {version}:" not in page:
        pytest.skip(f"the page is of another torch than {version}")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs-torch", "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:] or "run .venv-torch/bin/python scripts/docs-torch"
