"""Models and kernels as people write them with JAX, as files of kind jax: Flax's train steps and a kernel of Pallas."""

from __future__ import annotations

LINEN = """
import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import TrainState

class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4)(linen.LayerNorm()(jax.nn.gelu(linen.Dense(32)(x))))

NET, ADAM = Net(), optax.adam(0.01)

def state():
    parameters = NET.init(jax.random.PRNGKey(0), jnp.zeros((1, 8)))["params"]
    return TrainState.create(apply_fn=NET.apply, params=parameters, tx=ADAM)

def step(state, x, y):
    def loss(parameters):
        return ((state.apply_fn({"params": parameters}, x) - y) ** 2).mean()
    value, slopes = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=slopes), value
"""

NNX = """
import jax
import jax.numpy as jnp
import optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)

    def __call__(self, x):
        return self.down(self.norm(jax.nn.gelu(self.up(x))))

def whole():
    net = Net(nnx.Rngs(0))
    return nnx.split((net, nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param)))

GRAPH = whole()[0]

def state():
    return whole()[1]

def step(state, x, y):
    net, optimizer = nnx.merge(GRAPH, state)
    value, slopes = nnx.value_and_grad(lambda net: ((net(x) - y) ** 2).mean())(net)
    optimizer.update(net, slopes)
    return nnx.state((net, optimizer)), value
"""

PALLAS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

def kernel(x, y, out):
    out[...] = x[...] * 2 + y[...]

def call(x, y, **how):
    block = pl.BlockSpec((128,), lambda i: i)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=(8,), in_specs=[block] * 2, out_specs=block, **how)(x, y)

def interpreted(x, y):
    return call(x, y, interpret=True)

def compiled(x, y):
    return call(x, y, compiler_params=triton.CompilerParams(num_warps=4))
"""
