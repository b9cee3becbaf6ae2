"""Calls kernels of the user's own on a GPU: compares their results with a reference, and times them. Run by the
client's own interpreter, which has torch.

Knows nothing of buildd: it imports the standard library and torch only. Speaks as `measure.cu` does: waits for a turn
before it uses the GPU, and answers each question with a line of JSON. A question is a JSON object, ended by a zero
byte, with the fields of `codegen.tuning.own_problem.OwnCall`, paths absolute.

    python call_worker.py [cuda|cpu]
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which no reference must import.
    del sys.path[0]

import ast
import ctypes
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

sys.dont_write_bytecode = True

_WARM_UPS = 3
_SAMPLES = (10, 200)
"""At least and at most so many."""
_TIMED_S = 0.2
_SEED = 20_24
_CU_FUNC_MAX_DYNAMIC_SHARED = 8
_STATIC_SHARED_BYTES = 48 << 10
_SCRATCH = 2
"""Pointers to memory of Triton's own that follow a kernel's arguments."""
Launch = Callable[[list[Any]], None]


class Refused(Exception):
    """The call cannot be made: one message for the user."""


class Wrong(Exception):
    """The kernel's results are wrong."""


class Machine:
    """torch's device, and what timing needs of it."""

    def __init__(self, name: str) -> None:
        import torch

        self.torch: Any = torch
        self.device = torch.device(name)
        torch.zeros(1, device=self.device).add_(1)
        self.ready()
        self.on_gpu = self.device.type == "cuda"
        cache_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size if self.on_gpu else 1 << 20
        self._flushed = torch.empty(2 * cache_bytes, dtype=torch.uint8, device=self.device)

    def ready(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream().cuda_stream) if self.on_gpu else 0

    def time_us(self, work: Callable[[], None]) -> tuple[list[float], float]:
        """Times of calls with a cold L2 cache, and the spread of their middle half as a share of the median."""
        for _ in range(_WARM_UPS):
            work()
        self.ready()
        least, most = _SAMPLES
        found: list[float] = []
        until_s = time.perf_counter() + _TIMED_S
        while len(found) < least or (len(found) < most and time.perf_counter() < until_s):
            self._flushed.zero_()
            found.append(self._once(work))
        quarters = statistics.quantiles(found, n=4)
        return found, (quarters[2] - quarters[0]) / quarters[1]

    def _once(self, work: Callable[[], None]) -> float:
        if not self.on_gpu:
            begun_s = time.perf_counter()
            work()
            return 1e6 * (time.perf_counter() - begun_s)
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))


# ---------------------------------------------------------------- one call


def measure(machine: Machine, call: dict[str, Any]) -> dict[str, Any]:
    """Check and time one call. Raises Refused, Wrong."""
    specs = call["arguments"]
    values = _values(machine, specs)
    launch = _kernel(machine, call)
    written = [index for index, spec in enumerate(specs) if spec["output"] or spec["in_place"]]
    initial = {index: values[index].clone() for index in written}
    wanted = _wanted(machine, call, specs, values, written)
    launch(values)
    machine.ready()
    error = _largest_error(machine, call, [(specs[index], values[index]) for index in written], wanted)
    for index in written:
        values[index].copy_(initial[index])
    times, spread = machine.time_us(lambda: launch(values))
    return {
        "outcome": "measured",
        "time_us": max(statistics.median(times), 1e-3),
        "spread": spread,
        "error": error,
        "samples": len(times),
    }


def _values(machine: Machine, specs: list[dict[str, Any]]) -> list[Any]:
    """The arguments: tensors with random content, or numbers."""
    torch = machine.torch
    torch.manual_seed(_SEED)
    return [spec["value"] if spec["shape"] is None else _tensor(torch, spec, machine.device) for spec in specs]


def _tensor(torch: Any, spec: dict[str, Any], device: Any) -> Any:
    dtype, shape = getattr(torch, spec["dtype"]), spec["shape"]
    if spec["output"]:
        if dtype.is_floating_point:
            return torch.full(shape, float("nan"), device=device).to(dtype)
        return torch.full(shape, dtype is not torch.bool and torch.iinfo(dtype).min, dtype=dtype, device=device)
    if dtype.is_floating_point:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return torch.randn(shape, dtype=wide, device=device).to(dtype)
    return torch.randint(0, min(spec["high"], 2 if dtype is torch.bool else 127), shape, device=device).to(dtype)


def _largest_error(
    machine: Machine, call: dict[str, Any], found: list[tuple[dict[str, Any], Any]], wanted: list[Any]
) -> float:
    """The largest error, relative to the largest value. Raises Wrong."""
    largest = 0.0
    for (spec, tensor), right in zip(found, wanted, strict=True):
        name = spec["name"]
        if tuple(right.shape) != tuple(tensor.shape):
            raise Refused(f"the reference returns {name} with the shape {list(right.shape)}, not {list(tensor.shape)}")
        a, b = tensor.double(), right.to(tensor.device).double()
        odd = (a.isnan() != b.isnan()) | (a.isinf() != b.isinf())
        if bool(odd.any()):
            where = odd.nonzero()[0].tolist()
            raise Wrong(f"{name}{where} is {a[tuple(where)].item():g}, not {b[tuple(where)].item():g}")
        difference = (a - b).abs().nan_to_num(0.0)
        size = b.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if b.numel() else 0.0
        error = (difference.max().item() if difference.numel() else 0.0) / (size or 1.0)
        if error > call["tolerance"]:
            where = (difference == difference.max()).nonzero()[0].tolist()
            raise Wrong(
                f"{name}{where} is {a[tuple(where)].item():g}, not {b[tuple(where)].item():g}:"
                f" a relative error of {error:.1e}, more than {call['tolerance']:g}"
            )
        largest = max(largest, error)
    return largest


# ---------------------------------------------------------------- references


def _wanted(
    machine: Machine, call: dict[str, Any], specs: list[dict[str, Any]], values: list[Any], written: list[int]
) -> list[Any]:
    """The right content of the tensors that the kernel writes."""
    path, function = call["reference"]["path"], call["reference"]["function"]
    copies = [value.clone() if hasattr(value, "clone") else value for value in values]
    if path.endswith(".so"):
        _function(path, function, specs)(machine, copies)
        machine.ready()
        return [copies[index] for index in written]
    inputs = [value for spec, value in zip(specs, copies, strict=True) if not spec["output"]]
    try:
        with machine.torch.no_grad():
            returned = getattr(_module(path), function)(*inputs)
            machine.ready()
    except (Exception, SystemExit) as error:  # the user's code
        raise Refused(f"the reference {os.path.basename(path)}:{function} failed: {_said(error)}") from error
    found = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(found) != len(written) or not all(isinstance(each, machine.torch.Tensor) for each in found):
        raise Refused(f"the reference must return {len(written)} tensor{'s' * (len(written) != 1)}")
    return found


def _module(path: str) -> Any:
    sys.path.insert(0, os.path.dirname(path))
    try:
        found = importlib.util.spec_from_file_location("_reference", path)
        if found is None or found.loader is None:
            raise Refused(f"{path} is no Python file")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module
    finally:
        del sys.path[0]


# ---------------------------------------------------------------- kernels


def _kernel(machine: Machine, call: dict[str, Any]) -> Launch:
    if not os.path.isfile(call["path"]):
        raise Refused(f"{call['path']} was not built")
    if call["source"]:
        return _triton(machine, call)
    function = _function(call["path"], call["symbol"], call["arguments"])
    return lambda values: function(machine, values)


def _function(path: str, symbol: str, specs: list[dict[str, Any]]) -> Callable[[Machine, list[Any]], None]:
    """A function of a library, which gets the arguments and a stream."""
    try:
        function = getattr(ctypes.CDLL(path), symbol)
    except OSError as error:
        raise Refused(str(error)) from error
    except AttributeError:
        raise Refused(f'{os.path.basename(path)} has no function {symbol}: is it extern "C"?') from None
    function.restype = None

    def called(machine: Machine, values: list[Any]) -> None:
        words = [_word(spec, value) for spec, value in zip(specs, values, strict=True)]
        function(*words, ctypes.c_void_p(machine.stream()))

    return called


def _word(spec: dict[str, Any], value: Any) -> Any:
    if spec["shape"] is not None:
        return ctypes.c_void_p(value.data_ptr())
    kinds = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double}
    return kinds[spec["dtype"]](value)


def _triton(machine: Machine, call: dict[str, Any]) -> Launch:
    """A kernel that Triton has compiled, launched through the driver."""
    with open(call["path"].removesuffix(".cubin") + ".json", "rb") as stream:
        described = json.load(stream)
    if described.get("launch_cooperative_grid") or max(described.get("cluster_dims") or (1,)) > 1:
        raise Refused("kernels with a cooperative grid or clusters cannot be measured")
    order = _order(call["source"], call["symbol"])
    specs = sorted(call["arguments"], key=lambda spec: order.index(spec["name"]))
    places = [call["arguments"].index(spec) for spec in specs]
    grid = [*call["grid"], 1, 1][:3]
    programs = grid[0] * grid[1] * grid[2]
    scratch = [
        _scratch(machine, programs * int(described.get(f"{name}_scratch_size") or 0)) for name in ("global", "profile")
    ]
    driver = _Driver()
    with open(call["path"], "rb") as stream:
        function = driver.function(stream.read(), described["name"], int(described.get("shared") or 0))

    def launch(values: list[Any]) -> None:
        words = [_word(spec, values[place]) for spec, place in zip(specs, places, strict=True)]
        words += [ctypes.c_void_p(memory.data_ptr() if memory is not None else 0) for memory in scratch[:_SCRATCH]]
        pointers = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        threads = int(described.get("warp_size") or 32) * int(described["num_warps"])
        shared = int(described.get("shared") or 0)
        stream = ctypes.c_void_p(machine.stream())
        driver.call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, stream, pointers, None)

    return launch


def _scratch(machine: Machine, size_bytes: int) -> Any:
    return machine.torch.empty(size_bytes, dtype=machine.torch.uint8, device=machine.device) if size_bytes else None


def _order(source: str, kernel: str) -> list[str]:
    """The names of a kernel's arguments. Its file is read, not run."""
    with open(source, "rb") as stream:
        tree = ast.parse(stream.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == kernel:
            return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    raise Refused(f"{os.path.basename(source)} has no function {kernel}: a kernel is found by its `def`")


class _Driver:
    """CUDA's driver, in the context that torch has made."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def function(self, code: bytes, name: str, shared_bytes: int) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > _STATIC_SHARED_BYTES:
            self.call("cuFuncSetAttribute", function, _CU_FUNC_MAX_DYNAMIC_SHARED, shared_bytes)
        return function

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            raise Refused(f"{name}: {(text.value or b'?').decode(errors='replace')}")


# ---------------------------------------------------------------- the conversation


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:200]


def _question() -> bytes:
    """The next question; empty at the end."""
    words = bytearray()
    while (byte := sys.stdin.buffer.read(1)) not in (b"", b"\0"):
        words += byte
    return bytes(words)


def _answered(machine: Machine, call: dict[str, Any]) -> dict[str, Any]:
    try:
        return measure(machine, call)
    except Refused as error:
        return {"outcome": "refused", "note": str(error)}
    except Wrong as error:
        return {"outcome": "wrong", "note": str(error)}
    except machine.torch.OutOfMemoryError:
        free = f", of which {machine.torch.cuda.mem_get_info()[0] / 2**30:.1f} GiB are free" * machine.on_gpu
        return {"outcome": "refused", "note": f"it needs more memory than the GPU has{free}"}
    except Exception as error:  # an illegal access, which only shows later; and faults of this file
        return {"outcome": "crashed", "note": _said(error)}


def main(arguments: list[str]) -> int:
    told, sys.stdout = sys.stdout, sys.stderr  # what a reference prints is no answer

    def say(line: str) -> None:
        print(line, file=told, flush=True)

    try:
        import torch  # noqa: F401  the longest part, before the turn
    except ImportError as error:
        say(json.dumps({"outcome": "gpu", "note": f"{sys.executable} has no torch, which the call needs: {error}"}))
        return 1
    say("ready")
    sys.stdin.buffer.readline()
    try:
        machine = Machine(arguments[0] if arguments else "cuda")
    except Exception as error:  # the driver's many
        say(json.dumps({"outcome": "gpu", "note": _said(error)}))
        return 1
    say(json.dumps({"outcome": "started"}))
    while question := _question():
        call = json.loads(question)
        say("ready")
        sys.stdin.buffer.readline()
        say(json.dumps(_answered(machine, call)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
