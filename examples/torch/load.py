"""Run the compiled package beside the model that it was made of."""

import torch

compiled = torch._inductor.aoti_load_package("build/classifier/classifier.pt2")
model = torch.export.load("classifier.pt2").module()
with torch.no_grad():
    for count in (2, 8, 500):
        x = torch.randn(count, 16)
        print(f"{count} rows: at most {(compiled(x) - model(x)).abs().max():.1e} apart")
