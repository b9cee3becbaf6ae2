"""`torch.compile(model, backend="buildd")` under `buildd run`, in a Python without buildd: backend "inductor".

There Inductor goes through the store anyway, so the name has nothing to add. Knows torch's registry of backends.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

NAME = "buildd"


def begin(registry: Any) -> None:
    """Give the registry (the module torch._dynamo.backends.registry) the name, unless buildd's own backend has it."""
    if find_spec(NAME) is not None:
        return

    def compile_graph(graph: Any, inputs: Any, **options: Any) -> Any:
        return registry.lookup_backend("inductor")(graph, inputs, **options)

    registry.register_backend(compile_graph, name=NAME)
