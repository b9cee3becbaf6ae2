"""A model of EasyDeL, unchanged, below `buildd run`: the second process compiles nothing and computes the same.

Runs where EasyDeL is installed, with what it needs besides for its models: torch and pillow.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.jax_program import JaxProgram
from tests.support.user import User

pytestmark = [
    *(pytest.mark.jax, pytest.mark.slow, pytest.mark.timeout(600)),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("easydel", "torch", "PIL"))), reason="no easydel, torch and pillow"
    ),
]
TRAIN = """
import collections, json
import jax, jax.numpy as jnp

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **more: events.update([name.rpartition("/")[2]]))
import easydel
from flax import nnx

config = easydel.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, sharding_axis_dims=(1, 1, 1, 1, 1))
with config.mesh:
    model = easydel.LlamaForCausalLM(
        config=config, dtype=jnp.float32, param_dtype=jnp.float32, precision=None, rngs=nnx.Rngs(0))
    ids = jnp.arange(32, dtype=jnp.int32).reshape(1, 32)

    @nnx.jit
    def slopes(model, ids):
        return nnx.value_and_grad(lambda m: (m(input_ids=ids).logits ** 2).mean())(model)

    loss, found = slopes(model, ids)
total = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(found))
print(json.dumps({"loss": [float(loss), total], "asked": events["compile_requests_use_cache"],
    "hits": events["cache_hits"], "folder": ""}))
"""


def test_a_model_of_easydel_is_compiled_once(kept_user: User) -> None:
    program = JaxProgram(kept_user, TRAIN)
    alone = program.run(through_us=False)
    first, second = program.run(), program.run()
    assert first.loss == second.loss == alone.loss
    assert second.asked > 20 and second.compiled == 0, (second.asked, second.hits)
    # What took a second to compile stands in ejkernel's own folder, too.
    assert " JAX programs from the store" in second.errors
