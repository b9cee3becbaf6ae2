"""A Python program that compiles a model with torch.compile, checks it and prints Inductor's cache counts."""

from __future__ import annotations

PROGRAM = """
import json, os, sys
for name in sys.argv[1:]:
    os.environ.__setitem__(*name.split("="))
import torch
from torch._dynamo.utils import counters

def model(x, y):
    return torch.softmax(torch.exp(x) * y + torch.sigmoid(x), dim=-1).cumsum(-1) + y.sum()

torch.manual_seed(0)
found = []
for shape, kind in (((33, 65), torch.float32), ((17, 129), torch.float64), ((64, 64), torch.bfloat16)):
    x, y = torch.randn(shape).to(kind), torch.randn(shape).to(kind)
    got, wanted = torch.compile(model)(x, y), model(x, y)
    torch.testing.assert_close(got, wanted, rtol=2e-2 if kind is torch.bfloat16 else 1e-4, atol=1e-2)
    found.append(got.double().sum().item().hex())
seen = counters["inductor"]
print(json.dumps({"hits": seen["fxgraph_cache_hit"], "missed": seen["fxgraph_cache_miss"], "sums": found,
    "width": torch.backends.cpu.get_cpu_capability()}))
"""
