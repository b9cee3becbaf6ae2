"""The first call of torch.compile in a fresh process, with what the target has left in torch's caches."""

import time
from pathlib import Path

import torch
from torch._dynamo.utils import counters

torch.compiler.load_cache_artifacts(Path("build/caches/caches.artifacts").read_bytes())
model = torch.compile(torch.export.load("classifier.pt2").module(), dynamic=True)
began_s = time.perf_counter()
with torch.no_grad():
    model(torch.randn(5, 16))
found = counters["inductor"]
hits, misses = found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]
print(f"{time.perf_counter() - began_s:.1f} s: graphs found {hits}, compiled {misses}")
