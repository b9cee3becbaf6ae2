"""A program with many small functions for torch.compile, each of which means something else where CHANGED is set.

It says of each whether Dynamo traced it, and whether its numbers are those without torch.compile.
"""

from __future__ import annotations

HELPERS = """
import functools
CONSTANT = 2.0
TABLE = {"f": lambda x: x * 5.0, "k": 7.0}
def edited(x):
    return x * 1.5
def patched(x):
    return x - 1.0
def other(x):
    return x - 4.0
def decorate(f, by=1.0):
    @functools.wraps(f)
    def wrapper(x):
        return f(x) * by
    return wrapper
@decorate
def decorated(x):
    return x.sin()
def made(by):
    return lambda x: x * by
class Config:
    factor = 2.0
    table = {"a": 2.0}
    def __init__(self, value):
        self.value = value
    @property
    def twice(self):
        return self.value * 2
    def times(self, x):
        return x * self.value
class Child(Config):
    pass
"""
PROGRAM = """
import functools, json, os, sys, types
import torch
import torch.nn.functional as F
import helpers
from torch._dynamo.utils import counters

CHANGED = os.environ.get("CHANGED") == "1"
GLOBAL, LIMITS = (3.5, [1.0, 4.0]) if CHANGED else (2.5, [1.0, 2.0])
torch.manual_seed(0)
x = torch.linspace(-1, 1, 32).reshape(4, 8)
cases = {}

def case(make):
    cases[make.__name__] = make
    return make

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(8, 8).requires_grad_(False), 1.0
    def forward(self, x):
        return F.relu(self.layer(x)) * self.scale + self.extra(x)
    def extra(self, x):
        return x
class Patched(Net): pass
class Unpatched(Net): pass
class Edited(Net):
    def forward(self, x):
        return self.layer(x) * 1.0  # edited by a test

@case
def same(): return Net(), x
@case
def edited_forward(): return Edited(), x
@case
def edited_helper(): return lambda x: helpers.edited(x).cos(), x
@case
def kind(): return lambda x: x.exp() + 1, x.double() if CHANGED else x
@case
def batch(): return lambda x: x.exp() + 2, torch.cat([x, x]) if CHANGED else x
@case
def transposed(): return lambda x: x.reshape(-1) + 2, x.t() if CHANGED else x
@case
def gradient(): return lambda x: x.exp() * 3, x.clone().requires_grad_(not CHANGED)
@case
def gradient_mode():
    def outer(x):
        with torch.set_grad_enabled(not CHANGED):
            return inner(x)
    inner = torch.compile(lambda x: x * (2.0 if torch.is_grad_enabled() else 9.0))
    return outer, x
@case
def constant(): return lambda x: x * GLOBAL, x
@case
def list_of_constants(): return lambda x: x.clamp(-LIMITS[0], LIMITS[1]) + LIMITS[1], x
@case
def constant_of_a_module():
    if CHANGED: helpers.CONSTANT = 10.0
    return lambda x: x * helpers.CONSTANT + 1, x
@case
def constant_of_a_class():
    if CHANGED: helpers.Config.factor = 11.0
    return lambda x: x * helpers.Config.factor + 2, x
@case
def table_of_a_class():
    if CHANGED: helpers.Config.table["a"] = 12.0
    return lambda x: x * helpers.Config.table["a"] + 3, x
@case
def method_patched():
    if CHANGED: Patched.extra = lambda self, x: x * 11
    return Patched(), x
@case
def method_patched_before():
    if not CHANGED: Unpatched.extra = lambda self, x: x * 11
    return Unpatched(), x
@case
def method_of_a_subclass():
    if CHANGED: helpers.Child.times = lambda self, x: x * 30
    return functools.partial(lambda config, x: config.times(x), helpers.Child(2.0)), x
@case
def property_patched():
    if CHANGED: helpers.Config.twice = property(lambda self: self.value * 29)
    return functools.partial(lambda config, x: x * config.twice, helpers.Config(2.0)), x
@case
def instance_patched():
    net = Net()
    if CHANGED: net.layer.forward = types.MethodType(lambda self, x: x * 13, net.layer)
    return net, x
@case
def attribute():
    net = Net()
    net.scale = 23.0 if CHANGED else 2.0
    return net, x
@case
def hook():
    net = Net()
    if CHANGED: net.layer.register_forward_hook(lambda module, given, made: made * 32)
    return net, x
@case
def another_layer(): return torch.nn.Sequential(torch.nn.Sigmoid() if CHANGED else torch.nn.Tanh()), x
@case
def module_patched():
    if CHANGED: helpers.patched = helpers.other
    return lambda x: helpers.patched(x) + 1, x
@case
def torch_patched():
    if CHANGED: F.softsign = lambda x: x * 17
    return lambda x: F.softsign(x) + 1, x
@case
def torch_patched_before():
    if not CHANGED: F.mish = lambda x: x * 17
    return lambda x: F.mish(x) + 1, x
@case
def native_patched():
    if CHANGED: torch.erf = lambda x: x * 19
    return lambda x: torch.erf(x) + 1, x
@case
def builtin_hidden():
    if CHANGED: globals()["len"] = lambda x: 37
    return lambda x: x * len(x.shape), x
@case
def closure(): return helpers.made(21.0 if CHANGED else 2.0), x
@case
def default():
    if CHANGED: takes_default.__defaults__ = (28.0,)
    return lambda x: takes_default(x), x
def takes_default(x, by=2.0): return x * by
@case
def code_replaced():
    if CHANGED: recoded.__code__ = (lambda x: x * 41).__code__
    return lambda x: recoded(x) + 1, x
def recoded(x): return x * 2
@case
def decorated():
    if CHANGED: helpers.decorated = helpers.decorate(helpers.decorated.__wrapped__, 33.0)
    return lambda x: helpers.decorated(x), x
@case
def registered():
    if CHANGED: helpers.TABLE["f"] = lambda x: x * 24
    return lambda x: helpers.TABLE["f"](x), x
@case
def setting():
    torch.backends.cuda.enable_flash_sdp(not CHANGED)
    return lambda x: x + 51, x
@case
def break_in_the_graph():
    def breaks(x):
        x = x + GLOBAL
        torch._dynamo.graph_break()
        return x * 2
    return breaks, x
@case
def assumed(): return lambda x: x * assume(), x
@torch._dynamo.assume_constant_result
def assume(): return 27 if CHANGED else 1

said = {}
for name, make in cases.items():
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    torch._dynamo.reset()
    model, given = make()
    wanted = torch._dynamo.disable(model)(given)
    before = counters["stats"]["calls_captured"]
    got = torch.compile(model)(given)
    if got.requires_grad:
        got.sum().backward()
    said[name] = [counters["stats"]["calls_captured"] == before, torch.allclose(got, wanted, atol=1e-5)]
print(json.dumps(said))
"""
