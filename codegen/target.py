"""The typed targets of a project: one struct a kind, with the keys that stand under [target.NAME].

Knows neither where the tables come from (`project`) nor what becomes of them (one generator a kind).
"""

from __future__ import annotations

from enum import Enum

import msgspec


class OutputKind(Enum):
    """What a compiled target makes. The last five are made once a source (and, for PTX and cubin, once an arch)."""

    SHARED = "shared"
    STATIC = "static"
    EXECUTABLE = "executable"
    OBJECT = "object"
    PTX = "ptx"
    CUBIN = "cubin"
    FATBIN = "fatbin"
    CODE_OBJECT = "code-object"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind has. `name` and `where` are not keys of the table."""

    name: str
    where: str = ""
    """Where a person finds it: "buildd.toml:12"."""
    arch: tuple[str, ...] = ()
    deps: tuple[str, ...] = ()
    """Other targets, whose libraries or objects are linked in, or which just come first."""
    timeout_s: float = 3600.0


class CompiledTarget(Target, frozen=True, kw_only=True):
    """Sources through a compiler, and what is made of them."""

    sources: tuple[str, ...]
    """Files or globs, relative to the project."""
    output: OutputKind = OutputKind.SHARED
    output_name: str = ""
    """File name of what is linked; by default made of the target's name."""
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    """"NAME" or "NAME=VALUE"."""
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """For -l."""
    rdc: bool = False
    """Relocatable device code: kernels call device functions of other sources."""
    map_paths: bool = False
    """Keep the project's absolute path out of the results, so that another checkout hits also with -g or -lineinfo."""


class CudaTarget(CompiledTarget, frozen=True, kw_only=True):
    """kind = "cuda"."""


class HipTarget(CompiledTarget, frozen=True, kw_only=True):
    """kind = "hip"."""


class GeneratedTarget(Target, frozen=True, kw_only=True):
    """Sources that we write, and how they are compiled."""

    output: OutputKind = OutputKind.SHARED
    output_name: str = ""
    flags: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    map_paths: bool = False


class GemmTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "gemm": D = epilogue(alpha * A @ B + beta * C), of CUTLASS or in plain HIP. See `gemm`."""

    m: int = 0
    """Rows of A and D; 0 means known only at run time. Likewise `n` and `k`."""
    n: int = 0
    k: int = 0
    layout: str = "rcr"
    """A, B, D: r row-major, c column-major."""
    dtype: str = "fp16"
    """Type of A and B: fp16, bf16, tf32, fp32, int8; fp8_e4m3, fp8_e5m2 on sm_90a and sm_100a."""
    output_dtype: str = ""
    """Type of C and D; by default that of A and B (fp32 for tf32, int32 for int8, fp16 for fp8)."""
    accumulator: str = ""
    """fp32, fp16 or int32; by default fp32 (int32 for int8)."""
    epilogue: str = "none"
    """none, or some of "bias", an activation, and "add" or "multiply", in this order: bias_gelu, silu_multiply."""
    batched: bool = False
    """Many problems of one size, one behind the other; how many is known at run time."""
    grouped: bool = False
    """Many problems of different sizes in one launch; their arrays and sizes are known at run time."""
    split_k: int = 1
    """Parts of k that are computed side by side and then added: for small m and n."""
    tile: tuple[int, int, int] | None = None
    """Threadblock tile (m, n, k); by default one that suits the architecture."""
    warps: tuple[int, int, int] | None = None
    """sm_80 only: warps of a threadblock along m, n, k."""
    cluster: tuple[int, int, int] | None = None
    """sm_90a only: threadblocks of a cluster."""
    threads: tuple[int, int, int] | None = None
    """gfx only: threads of a block along m, n, k (which is 1)."""
    stages: int = 0
    """0: chosen by arch (sm_80) or by what shared memory leaves (sm_90a)."""
    schedule: str = ""
    """sm_90a only: "cooperative" or "pingpong"; by default what suits the tile."""
    alignment: int = 0
    """Elements at which A and B are aligned; 0 means 16 bytes, or what fixed m, n, k allow."""
    profile: bool | tuple[int, ...] = False
    """Measured before it is built, where that has not happened: true, or typical m, n, k where some are open; of a
    batched one how many, m, n, k."""


class Conv2dTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "conv2d": y = activation(conv2d(x, weight) + bias) of NHWC arrays, through CUTLASS. See `conv2d`."""

    shape: tuple[int, int, int, int]
    """Of x: n, height, width, channels; all but the last may be 0: known at run time only."""
    filters: int
    kernel: tuple[int, int]
    """Height and width of the weight, which is filters x height x width x channels. Likewise all that follow."""
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    """Zeros on each side."""
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "fp16"
    """Of x and weight: fp16, bf16, tf32."""
    output_dtype: str = ""
    """Of bias and y; by default that of x."""
    epilogue: str = "none"
    """none, or "bias", an activation, or both: bias_relu."""
    tile: tuple[int, int, int] | None = None
    """Threadblock tile of the GEMM that it is: n * height * width, filters, channels."""
    warps: tuple[int, int, int] | None = None
    stages: int = 0
    profile: bool | tuple[int, int, int, int] = False
    """Measured before it is built, where that has not happened: true, or a typical `shape` where some of it is open."""


class RowwiseTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "rowwise": softmax, a norm or a reduction of an array, as plain CUDA or HIP. See `rowwise`."""

    op: str
    """softmax, layer_norm, rms_norm, sum, mean, max."""
    shape: tuple[int, ...]
    """Of x; 0 means known at run time only."""
    axes: tuple[int, ...] = (-1,)
    """What is gone over: of reductions any, else the last ones."""
    dtype: str = "fp16"
    """Of x, weight and bias: fp16, bf16, fp32. Everything is computed in fp32."""
    output_dtype: str = ""
    """By default `dtype`."""
    weight: bool | None = None
    """Of the norms: one factor for each element of `axes`; by default there is one. Likewise `bias`, of layer_norm."""
    bias: bool | None = None
    eps: float = 1e-5


class ElementwiseTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "elementwise": an expression over arrays as one kernel, in plain CUDA or HIP. See `elementwise`."""

    expression: str
    """ "gelu(x + bias) * gate"; see `expression`."""
    inputs: dict[str, str]
    """Name -> type: fp16, bf16, fp32. Everything is computed in fp32."""
    shape: tuple[int, ...]
    """Of the result; 0 means known at run time only."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Of inputs that are broadcast, as numpy does it; all others have `shape`."""
    output_dtype: str = ""
    """By default that of the first input."""


OptionValue = bool | int | float | str | list[bool | int | float | str]


class ModelTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model is given: an array of an input or constant."""

    shape: tuple[int | str, ...]
    """Sizes; a name stands for one of `ModelTarget.sizes`."""
    dtype: str = "fp16"
    """fp16, bf16, fp32, int8, int32, fp8_e4m3, fp8_e5m2."""


class ModelTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "model": operations of the other generated kinds as one library. See `model`."""

    inputs: dict[str, ModelTensor]
    """What it is given at each run."""
    outputs: tuple[str, ...]
    """Operations whose results are handed back."""
    ops: dict[str, dict[str, OptionValue]]
    """Name of the tensor that it makes -> `kind` (gemm, conv2d, rowwise, elementwise; reshape, permute, slice, split,
    concat), `inputs`, and keys of that kind."""
    constants: dict[str, ModelTensor] = {}
    """What it is given once: weights."""
    sizes: dict[str, tuple[int, int]] = {}
    """Name of a size that is known at run time only -> smallest and largest."""
    places: dict[str, str] = {}
    """Operation -> where a person finds it; no key of the table."""
    profile: bool = False
    """Its GEMMs and convolutions are measured before it is built, where that has not happened."""


class TritonTarget(Target, frozen=True, kw_only=True):
    """kind = "triton": one Triton kernel compiled ahead of time for each architecture. See `triton_kernel`."""

    source: str
    """Python file, relative to the project."""
    kernel: str
    """Name of the @triton.jit function in it."""
    signature: dict[str, str] = {}
    """Argument -> type ("*fp32", "i32", "*fp16:16" for 16-byte alignment)."""
    constants: dict[str, int | float | bool | str] = {}
    """Argument declared tl.constexpr -> value."""
    num_warps: int = 4
    num_stages: int = 3
    output_name: str = ""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that a model is traced with."""

    shape: tuple[int | str, ...] = ()
    """Sizes; a name stands for one that may change (see `TorchTarget.dims`)."""
    dtype: str = "float32"
    """torch's name of it: float32, bfloat16, int64, bool ..."""
    high: int = 2
    """Values of whole numbers are below this: the rows of an embedding, for indices into it."""


class TorchTarget(Target, frozen=True, kw_only=True):
    """kind = "torch": a model compiled ahead of time for this machine's CPU by AOTInductor. See `torch_model`."""

    archive: str = ""
    """File that torch.export.save wrote (.pt2), relative to the project; dynamic shapes are in it."""
    source: str = ""
    """In place of it a Python file, relative to the project, that is run to get the model."""
    function: str = ""
    """What in it is exported: a function of tensors, a torch.nn.Module, or a class of those."""
    factory: bool = False
    """`function` is called to get what is exported."""
    arguments: dict[str, OptionValue] = {}
    """Of the class or factory."""
    inputs: tuple[TensorSpec, ...] = ()
    """What it is traced with, as torch.jit.trace's example_inputs."""
    keyword_inputs: dict[str, TensorSpec] = {}
    """By name, as its example_kwarg_inputs."""
    dims: dict[str, tuple[int, int]] = {}
    """Name of a size in `inputs` -> smallest and largest; any where it is not named here."""
    strict: bool = False
    """torch.export's: trace bytecode instead of running the function."""
    check: bool = True
    """What was exported must compute what the model does, as torch.jit.trace's check_trace."""
    check_tolerance: float = 1e-5
    mode: str = ""
    """torch.compile's: "max-autotune-no-cudagraphs"; not together with `options`."""
    options: dict[str, OptionValue] = {}
    """torch.compile's: Inductor's configuration ("max_autotune", "cpp.simdlen")."""
    threads: int = 0
    """Threads that the code is made for; 0 means OMP_NUM_THREADS, else the CPUs that may be used here."""
    result: str = "package"
    """AOTInductor's; or "artifacts": what torch.compile leaves in its caches. See `torch_artifacts`."""
    fullgraph: bool = False
    """torch.compile's, as the next one; of artifacts."""
    dynamic: bool | None = None
    training: bool = False
    """It is called with gradients, forward and backward."""
    output_name: str = ""


class ExtensionTarget(Target, frozen=True, kw_only=True):
    """kind = "extension": a module for torch, with the flags of torch.utils.cpp_extension. See `extension`."""

    sources: tuple[str, ...]
    """Files or globs, relative to the project: C++, and CUDA (.cu)."""
    module: str = ""
    """As Python imports it ("package._C"); by default the target's name."""
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Of C++ sources, as extra_cflags."""
    cuda_flags: tuple[str, ...] = ()
    """Of CUDA sources, as extra_cuda_cflags."""
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    py_limited_api: bool = False
    """For every Python from the oldest one on that torch supports; without torch_python, as setuptools' argument."""
    output_name: str = ""


class RecordedTarget(Target, frozen=True, kw_only=True):
    """kind = "recorded": Triton kernels of a manifest, all for one process. See `triton_recorded`."""

    kernels: tuple[str, ...]
    """Lines of the manifest."""
    variables: dict[str, str] = {}
    """Those in Triton's key when they were recorded."""
    prove: bool = False
    """Compile nothing; say what is not there."""
    asked_by: str = ""
    """The request: two that ask for the same have a process each, since each is told of every kernel."""


KINDS: dict[str, type[Target]] = {
    "cuda": CudaTarget,
    "hip": HipTarget,
    "gemm": GemmTarget,
    "conv2d": Conv2dTarget,
    "rowwise": RowwiseTarget,
    "elementwise": ElementwiseTarget,
    "model": ModelTarget,
    "triton": TritonTarget,
    "torch": TorchTarget,
    "extension": ExtensionTarget,
}
INLINE_KINDS: dict[str, type[Target]] = {**KINDS, "recorded": RecordedTarget}
"""Those of a request's own tables: one more, which nobody writes by hand."""
