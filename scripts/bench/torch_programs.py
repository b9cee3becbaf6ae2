"""The programs that scripts/bench/torch runs: plain torch and Triton, as somebody would write them.

Each ends with one line of JSON. They know nothing of buildd.
"""

from __future__ import annotations

MODEL = {"mlp": "six layers of 512", "gpt": "four layers of 256, four heads"}

MODULE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.split(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, i].transpose(1, 2) for i in range(3))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))

def mlp():
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())))

def gpt():
    blocks = (Block(256, 4) for _ in range(4))
    return nn.Sequential(nn.Embedding(1000, 256), *blocks, nn.LayerNorm(256), nn.Linear(256, 1000))
"""
"""Both models."""

PROGRAM = (
    "import json, sys, time\n"
    + MODULE
    + """
torch.manual_seed(0)
model = globals()[sys.argv[1]]()
x = torch.randn(32, 512) if sys.argv[1] == "mlp" else torch.randint(1000, (4, 64))
model.eval()
with torch.no_grad():
    compiled = torch.compile(model)
    start = time.perf_counter()
    y = compiled(x)
    first = time.perf_counter() - start
    torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-3)
print(json.dumps({"first_s": first}))
"""
)

_INPUTS = {"mlp": "{ shape = [32, 512] }", "gpt": '{ shape = [4, 64], dtype = "int64", high = 1000 }'}


def torch_project(model: str) -> str:
    """A model of `MODULE`, in a file models.py, as a target of a buildd.toml."""
    return (
        f'[target.{model}]\nkind = "torch"\nsource = "models.py"\nfunction = "{model}"\nfactory = true\n'
        f"inputs = [{_INPUTS[model]}]\n"
    )


TRITON = '''
import json, os, sys, tempfile, time
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total)

@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    top = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + tl.program_id(0) * n + at, top / tl.sum(top, axis=0), mask=at < n)

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
"""
folder = tempfile.mkdtemp()
open(os.path.join(folder, "bench_kernels.py"), "w").write(SOURCE)
sys.path.insert(0, folder)
import bench_kernels as k

PLAIN = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
SOFTMAX = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
POINTERS = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}
MATMUL = {**POINTERS, "M": "constexpr", "N": "constexpr", "BLOCK": "constexpr"}
SHAPES = ((32, 32, 32), (64, 32, 32), (64, 64, 32), (128, 64, 32))
WANTED = [
    *((k.matmul, MATMUL, {"M": m, "N": n, "BLOCK": block}) for m, n, block in SHAPES),
    *((k.softmax, SOFTMAX, {"BLOCK": block}) for block in (256, 512, 1024, 2048)),
    *((k.add, PLAIN, {"BLOCK": block}) for block in (128, 256, 512, 1024)),
]
TARGETS = (
    GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx90a", 64), GPUTarget("hip", "gfx942", 64)
)
hits = []
triton.knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
for target in TARGETS[::2]:  # reads Triton itself, asks ptxas for its version
    triton.compile(ASTSource(k.add, PLAIN, constexprs={"BLOCK": 64}), target=target)
hits.clear()
start = time.perf_counter()
for target in TARGETS:
    for function, signature, constants in WANTED:
        triton.compile(ASTSource(function, signature, constexprs=constants), target=target)
took = time.perf_counter() - start
print(json.dumps({"compile_s": took, "hits": sum(hits), "count": len(hits)}))
'''

RECORDED = (
    TRITON.replace("folder = tempfile.mkdtemp()", "folder = os.getcwd()").partition("hits = []")[0]
    + """
class Driver:
    number = 0
    def get_current_target(self):
        return TARGETS[self.number]
    def get_current_device(self):
        return self.number
    def get_current_stream(self, device=0):
        return 0

class Tensor:
    def __init__(self, kind):
        self.dtype = kind.removeprefix("*")
    def data_ptr(self):
        return 16

triton.runtime.driver.set_active(Driver())
for Driver.number in range(len(TARGETS)):
    for function, signature, constants in WANTED:
        given = [Tensor(kind) if kind[0] == "*" else 1000 for kind in signature.values() if kind != "constexpr"]
        function.warmup(*given, **constants, grid=(1,))
print("{}")
"""
)
"""The same kernels as a program on those GPUs would have them compiled; for `buildd run --record`."""

KERNELS = TRITON.partition('SOURCE = """')[2].partition('"""')[0]
"""Their source."""


def project() -> str:
    """The same kernels for the same targets as a buildd.toml beside `kernels.py`."""
    plain = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    softmax = {name: kind for name, kind in plain.items() if name != "y"}
    matmul = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}
    shapes = ((32, 32, 32), (64, 32, 32), (64, 64, 32), (128, 64, 32))
    wanted: list[tuple[str, dict[str, str], dict[str, int]]] = [
        *(("matmul", matmul, {"M": m, "N": n, "BLOCK": block}) for m, n, block in shapes),
        *(("softmax", softmax, {"BLOCK": block}) for block in (256, 512, 1024, 2048)),
        *(("add", plain, {"BLOCK": block}) for block in (128, 256, 512, 1024)),
    ]
    tables = []
    for number, (kernel, signature, constants) in enumerate(wanted):
        types = ", ".join(f'{name} = "{kind}"' for name, kind in signature.items())
        values = ", ".join(f"{name} = {value}" for name, value in constants.items())
        tables.append(
            f'[target.{kernel}-{number}]\nkind = "triton"\nsource = "kernels.py"\nkernel = "{kernel}"\n'
            f'arch = ["sm_80", "sm_90", "gfx90a", "gfx942"]\nsignature = {{ {types} }}\nconstants = {{ {values} }}\n'
        )
    return "\n".join(tables)
