"""Run the library beside the same network in torch, in double precision."""

import torch
import torch.nn.functional as F

from buildd.loader import load_model

SHAPES = {
    "w1": (512, 256),
    "b1": (512,),
    "gain": (512,),
    "shift": (512,),
    "w2": (256, 512),
    "b2": (256,),
    "w3": (16, 256),
    "b3": (16,),
}
weights = {name: 0.1 * torch.randn(shape, dtype=torch.float16, device="cuda") for name, shape in SHAPES.items()}
mlp = load_model("build/mlp/libmlp.so", weights)
exact = {name: weight.double() for name, weight in weights.items()}


def network(x: torch.Tensor) -> torch.Tensor:
    hidden = F.gelu(F.linear(x, exact["w1"], exact["b1"]))
    normed = F.layer_norm(hidden, (512,), exact["gain"], exact["shift"])
    back = F.linear(normed, exact["w2"], exact["b2"]) + x
    return torch.softmax(F.linear(back, exact["w3"], exact["b3"]), -1)


print(f"{mlp.workspace_bytes} bytes for what is between the operations")
for count in (1, 8, 500):
    x = torch.randn(count, 256, dtype=torch.float16, device="cuda")
    print(f"{count} rows: at most {(mlp(x) - network(x.double())).abs().max():.1e} apart")
