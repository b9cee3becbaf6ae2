"""torch's users: an operator library against torch's own headers, through the daemon, loaded by torch and called.

Runs where torch is installed (`scripts/test-torch`); the daemon itself never imports it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.cuda, pytest.mark.timeout(900)]

SOURCE = """
#include <torch/library.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

__global__ void scale_kernel(float const *in, float *out, long n, float by) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * by;
}

at::Tensor scale_cpu(at::Tensor const &in, double by) {
  auto out = at::empty_like(in);
  float const *from = in.const_data_ptr<float>();
  float *to = out.mutable_data_ptr<float>();
  for (long i = 0; i < in.numel(); ++i) to[i] = from[i] * static_cast<float>(by);
  return out;
}

TORCH_LIBRARY(buildd_test, library) { library.def("scale(Tensor x, float by) -> Tensor"); }
TORCH_LIBRARY_IMPL(buildd_test, CPU, library) { library.impl("scale", &scale_cpu); }
"""

CALL = """
import sys, torch
torch.ops.load_library(sys.argv[1])
x = torch.arange(7, dtype=torch.float32)
assert torch.equal(torch.ops.buildd_test.scale(x, 3.0), x * 3), "wrong values"
print("called", torch.__version__)
"""


@pytest.fixture(scope="module")
def torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def lay_out(folder: Path, torch_folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "scale.cu").write_text(SOURCE)
    api = torch_folder / "include" / "torch" / "csrc" / "api" / "include"
    (folder / "buildd.toml").write_text(
        "[target.ops]\n"
        'kind = "cuda"\n'
        'sources = ["src/*.cu"]\n'
        'arch = ["sm_80"]\n'
        f'include = ["{torch_folder}/include", "{api}"]\n'
        'flags = ["-std=c++20", "-O1", "-w"]\n'
        f'link_flags = ["-L{torch_folder}/lib"]\n'
        'libraries = ["c10", "torch_cpu"]\n'
    )
    return folder


def library(folder: Path) -> Path:
    (found,) = (folder / "build" / "ops").glob("*.so")
    return found


def call(made: Path) -> str:
    answer = subprocess.run([sys.executable, "-P", "-c", CALL, str(made)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_an_operator_library_is_built_loaded_and_called(user: User, torch_folder: Path) -> None:
    project = lay_out(user.folder / "one", torch_folder)
    status, said = user.buildd("build", "-C", str(project), timeout_s=800)
    assert status == 0, said
    assert call(library(project)).startswith("called 2.")
    # Torch has thousands of headers; those that the compiler read are what the result is filed under.
    library(project).unlink()
    status, said = user.buildd("build", "-C", str(project), "--explain")
    assert status == 0 and "2 hits" in said, said
    assert call(library(project))
    twin = lay_out(user.folder / "two", torch_folder)
    status, said = user.buildd("warm", "--prove", "-C", str(twin))
    assert status == 0, "another checkout finds everything: " + said


def test_a_patched_torch_header_is_noticed(user: User, torch_folder: Path) -> None:
    copy = user.folder / "torch"
    copy.mkdir()
    subprocess.run(["cp", "-r", str(torch_folder / "include"), str(copy)], check=True)
    (copy / "lib").symlink_to(torch_folder / "lib")
    project = lay_out(user.folder / "patched", copy)
    assert user.buildd("build", "-C", str(project), timeout_s=800)[0] == 0
    header = copy / "include" / "torch" / "library.h"
    header.write_text(header.read_text() + "\n#define BUILDD_PATCHED 1\n")
    status, said = user.buildd("build", "-C", str(project), "--explain", timeout_s=800)
    assert status == 0 and "library.h: content changed" in said, said


def test_the_daemon_does_not_import_torch(user: User) -> None:
    daemon = user.daemon()
    assert daemon is not None
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "libtorch" not in mapped and "libc10" not in mapped
