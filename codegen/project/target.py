"""The typed targets of a project: one struct per kind, with the keys of [target.NAME] as its fields.

Knows neither the file of the tables (`project_file`) nor the generators, one per kind, that use the structs.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from codegen.project.measured_call import MeasuredCall


class OutputKind(Enum):
    """What a compiled target produces. The last five are made once per source, and PTX and cubin also once per
    architecture."""

    SHARED = "shared"
    STATIC = "static"
    EXECUTABLE = "executable"
    OBJECT = "object"
    PTX = "ptx"
    CUBIN = "cubin"
    FATBIN = "fatbin"
    CODE_OBJECT = "code-object"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that every kind has. `name`, `where` and `lines` are not keys of the table."""

    name: str
    where: str = ""
    """Location for messages: "buildd.toml:12"."""
    lines: tuple[tuple[str, str], ...] = ()
    """Keys of the table, each with its location."""
    arch: tuple[str, ...] = ()
    deps: tuple[str, ...] = ()
    """Other targets that are built first; their libraries or objects are linked in."""
    timeout_s: float = 3600.0

    def at(self, key: str) -> str:
        """The location of a key for messages; that of the table if the key has none."""
        return dict(self.lines).get(key, self.where)


class CompiledTarget(Target, frozen=True, kw_only=True):
    """Sources, how they are compiled, and the output made from them."""

    sources: tuple[str, ...]
    """Files or globs, relative to the project."""
    output: OutputKind = OutputKind.SHARED
    output_name: str = ""
    """File name of the linked output; by default derived from the target's name."""
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    """"NAME" or "NAME=VALUE"."""
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """Values of -l."""
    rdc: bool = False
    """Relocatable device code: kernels call device functions of other sources."""
    map_paths: bool = False
    """Keep the project's absolute path out of the results, so that another checkout hits even with -g or -lineinfo."""


class CudaTarget(CompiledTarget, frozen=True, kw_only=True):
    """kind = "cuda"."""

    measure: MeasuredCall | None = None
    """How `buildd watch --profile` calls and checks a function of the library."""


class HipTarget(CompiledTarget, frozen=True, kw_only=True):
    """kind = "hip"."""


class GeneratedTarget(Target, frozen=True, kw_only=True):
    """Sources that buildd generates, and how they are compiled."""

    output: OutputKind = OutputKind.SHARED
    output_name: str = ""
    flags: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    map_paths: bool = False


class GemmTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "gemm": D = epilogue(alpha * A @ B + beta * C), with CUTLASS or as plain HIP. See `gemm`."""

    m: int = 0
    """Rows of A and D; 0 means known only at run time. The same holds for `n` and `k`."""
    n: int = 0
    k: int = 0
    layout: str = "rcr"
    """Layouts of A, B and D: r is row-major, c is column-major."""
    dtype: str = "fp16"
    """Type of A and B: fp16, bf16, tf32, fp32, int8; fp8_e4m3, fp8_e5m2 on sm_90a and sm_100a."""
    output_dtype: str = ""
    """Type of C and D; by default the type of A and B (fp32 for tf32, int32 for int8, fp16 for fp8)."""
    accumulator: str = ""
    """fp32, fp16 or int32; by default fp32 (int32 for int8)."""
    epilogue: str = "none"
    """none, or a combination of "bias", an activation, and "add" or "multiply", in this order: bias_gelu,
    silu_multiply."""
    batched: bool = False
    """Many problems of one size, stored one after the other; their number is known at run time."""
    grouped: bool = False
    """Many problems of different sizes in one launch; their arrays and sizes are known at run time."""
    split_k: int = 1
    """Number of parts of k that are computed in parallel and then added; useful for small m and n."""
    tile: tuple[int, int, int] | None = None
    """Threadblock tile (m, n, k); by default a tile that suits the architecture."""
    warps: tuple[int, int, int] | None = None
    """sm_80 only: warps per threadblock along m, n, k."""
    cluster: tuple[int, int, int] | None = None
    """sm_90a only: threadblocks per cluster."""
    threads: tuple[int, int, int] | None = None
    """gfx only: threads per block along m, n, k (k is 1)."""
    stages: int = 0
    """Pipeline stages; 0: chosen by architecture (sm_80) or by the free shared memory (sm_90a)."""
    schedule: str = ""
    """sm_90a only: "cooperative" or "pingpong"; by default the one that suits the tile."""
    alignment: int = 0
    """Alignment of A and B in elements; 0 means 16 bytes, or less if fixed m, n, k require it."""
    profile: bool | tuple[int, ...] = False
    """Measure candidates before the build, unless they are measured already: true, or typical m, n, k if some are open;
    for a batched GEMM the number of problems, m, n, k."""


class Conv2dTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "conv2d": y = activation(conv2d(x, weight) + bias) on NHWC arrays, with CUTLASS. See `conv2d`."""

    shape: tuple[int, int, int, int]
    """Shape of x: n, height, width, channels. All but the last may be 0, which means known only at run time."""
    filters: int
    kernel: tuple[int, int]
    """Height and width of the weight, which is filters x height x width x channels. All pairs below are in this
    order."""
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    """Number of zeros on each side."""
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "fp16"
    """Type of x and weight: fp16, bf16, tf32."""
    output_dtype: str = ""
    """Type of bias and y; by default the type of x."""
    epilogue: str = "none"
    """none, or "bias", an activation, or both: bias_relu."""
    tile: tuple[int, int, int] | None = None
    """Threadblock tile of the convolution as a GEMM: n * height * width, filters, channels."""
    warps: tuple[int, int, int] | None = None
    stages: int = 0
    profile: bool | tuple[int, int, int, int] = False
    """Measure candidates before the build, unless they are measured already: true, or a typical `shape` if some of it
    is open."""


class RowwiseTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "rowwise": a softmax, norm or reduction of an array, as plain CUDA or HIP. See `rowwise`."""

    op: str
    """softmax, layer_norm, rms_norm, sum, mean, max."""
    shape: tuple[int, ...]
    """Shape of x; 0 means known only at run time."""
    axes: tuple[int, ...] = (-1,)
    """Axes that the operation runs over: any axes for a reduction, otherwise the last ones."""
    dtype: str = "fp16"
    """Type of x, weight and bias: fp16, bf16, fp32. The kernel computes in fp32."""
    output_dtype: str = ""
    """Type of the result; by default `dtype`."""
    weight: bool | None = None
    """Norms only: whether there is a factor for each element of `axes`; true by default. The same holds for `bias` of
    layer_norm."""
    bias: bool | None = None
    eps: float = 1e-5


class ElementwiseTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "elementwise": an expression over arrays as one kernel, in plain CUDA or HIP. See `elementwise`."""

    expression: str
    """ "gelu(x + bias) * gate"; see `expression`."""
    inputs: dict[str, str]
    """Name -> type: fp16, bf16, fp32. The kernel computes in fp32."""
    shape: tuple[int, ...]
    """Shape of the result; 0 means known only at run time."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Shapes of inputs that are broadcast by numpy's rules; all other inputs have `shape`."""
    output_dtype: str = ""
    """Type of the result; by default the type of the first input."""


OptionValue = bool | int | float | str | list[bool | int | float | str]


class ModelTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input or a constant of a model: an array."""

    shape: tuple[int | str, ...]
    """Sizes; a name refers to one of `ModelTarget.sizes`."""
    dtype: str = "fp16"
    """fp16, bf16, fp32, int8, int32, fp8_e4m3, fp8_e5m2."""


class ModelTarget(GeneratedTarget, frozen=True, kw_only=True):
    """kind = "model": operations of the other generated kinds in one library. See `model`."""

    inputs: dict[str, ModelTensor]
    """Arrays that the caller passes at each run."""
    outputs: tuple[str, ...]
    """Operations whose results the model returns."""
    ops: dict[str, dict[str, OptionValue]]
    """Name of an operation's result -> its `kind` (gemm, conv2d, rowwise, elementwise; reshape, permute, slice, split,
    concat), its `inputs`, and keys of that kind."""
    constants: dict[str, ModelTensor] = {}
    """Arrays that the caller passes once: weights."""
    sizes: dict[str, tuple[int, int]] = {}
    """Name of a size that is known only at run time -> its smallest and largest value."""
    places: dict[str, str] = {}
    """Operation -> its location for messages; not a key of the table."""
    profile: bool = False
    """Measure candidates of its GEMMs and convolutions before the build, unless they are measured already."""


TritonValue = int | float | bool | str


class TritonTarget(Target, frozen=True, kw_only=True):
    """kind = "triton": a Triton kernel compiled ahead of time for each architecture, in one or more configurations.
    See `triton_kernel`."""

    source: str
    """Python file, relative to the project."""
    kernel: str
    """Name of the @triton.jit function in it."""
    signature: dict[str, str] = {}
    """Argument -> type ("*fp32", "i32", "*fp16:16" for 16-byte alignment)."""
    constants: dict[str, TritonValue | list[TritonValue]] = {}
    """Argument declared tl.constexpr -> value. Here and below a list makes one configuration for each combination."""
    num_warps: int | tuple[int, ...] = 4
    num_stages: int | tuple[int, ...] = 3
    num_ctas: int | tuple[int, ...] = 1
    """Blocks of a cluster; more than 1 on sm_90 and newer."""
    maxnreg: int | tuple[int, ...] = 0
    """Most registers of a thread, on NVIDIA's GPUs; 0: no limit."""
    output_name: str = ""
    measure: MeasuredCall | None = None
    """How `buildd watch --profile` calls and checks the kernel."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An example tensor for tracing a model."""

    shape: tuple[int | str, ...] = ()
    """Sizes; a name stands for a size that may change (see `TorchTarget.dims`)."""
    dtype: str = "float32"
    """torch's name of the type: float32, bfloat16, int64, bool ..."""
    high: int = 2
    """Upper bound (exclusive) of integer values: for indices into an embedding its number of rows."""


class TorchTarget(Target, frozen=True, kw_only=True):
    """kind = "torch": a model compiled ahead of time by AOTInductor, for this machine's CPU or GPU. See `torch_model`.

    `ALIASES` has the names of torch.jit.trace and torch.compile for some of the keys.
    """

    archive: str = ""
    """File written by torch.export.save (.pt2), relative to the project; it contains the dynamic shapes."""
    source: str = ""
    """Alternative to `archive`: a Python file, relative to the project, that is run to get the model."""
    function: str = ""
    """Name in `source` that is exported: a function of tensors, a torch.nn.Module, or a subclass of it."""
    factory: bool = False
    """`function` is a factory: it is called, and its result is exported."""
    arguments: dict[str, OptionValue] = {}
    """Arguments of the class or factory."""
    inputs: tuple[TensorSpec, ...] = ()
    """Example inputs for tracing, as torch.jit.trace's example_inputs."""
    keyword_inputs: dict[str, TensorSpec] = {}
    """Example inputs by name, as torch.jit.trace's example_kwarg_inputs."""
    dims: dict[str, tuple[int, int]] = {}
    """Name of a size in `inputs` -> its smallest and largest value; a size that is missing here may have any value."""
    strict: bool | None = None
    """torch.export's strict: trace bytecode instead of running the function (by default false); of a trace
    torch.jit.trace's: record no lists and dicts (by default true)."""
    check: bool = True
    """Check that the exported program computes the same as the model, as torch.jit.trace's check_trace."""
    check_inputs: tuple[tuple[TensorSpec, ...], ...] = ()
    """Further sets of inputs to check the result with; by default `inputs`."""
    check_tolerance: float = 1e-5
    device: str = "cpu"
    """"cpu", "cuda", or "hip" where torch is built for AMD's GPUs."""
    mode: str = ""
    """torch.compile's mode: "max-autotune-no-cudagraphs"; excludes `options`."""
    options: dict[str, OptionValue] = {}
    """torch.compile's options: Inductor's configuration ("max_autotune", "cpp.simdlen")."""
    threads: int = 0
    """Number of threads that the code is generated for; 0 means OMP_NUM_THREADS, else the CPUs available here."""
    result: str = "package"
    """"package": AOTInductor's package; "artifacts": the entries of torch.compile's caches; "trace": TorchScript by
    torch.jit.trace. See `torch_artifacts`, `torch_trace`."""
    backend: str = "inductor"
    """torch.compile's backend; for artifacts only. The same holds for `disable`."""
    disable: bool = False
    fullgraph: bool = False
    """torch.compile's fullgraph, and below its dynamic; for artifacts only."""
    dynamic: bool | None = None
    training: bool = False
    """The model is called with gradients, forward and backward."""
    output_name: str = ""


class ArraySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An argument of a JAX function: an array, or a tree of arrays that a function of the source makes."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    """JAX's name of the type: float32, bfloat16, int32, bool ..."""
    function: str = ""
    """Instead of `shape` and `dtype`: a function whose result has the shapes; JAX computes nothing of it."""
    donate: bool = False
    """The function may write its result into this argument's memory, as jax.jit's donate_argnums."""
    sharding: tuple[str, ...] = ()
    """For each dimension the axis of the mesh over which it is split, or "". Counts for each array of a tree."""


class JaxTarget(Target, frozen=True, kw_only=True):
    """kind = "jax": a function compiled ahead of time by XLA, for this machine's CPU or GPU or for a GPU elsewhere. See
    `jax_function`."""

    source: str = ""
    """Python file, relative to the project, that is run to get the function."""
    function: str = ""
    """Its name in `source`; it may be compiled by jax.jit there."""
    inputs: tuple[ArraySpec, ...] = ()
    """The arguments by position."""
    keyword_inputs: dict[str, ArraySpec] = {}
    static: dict[str, OptionValue] = {}
    """Arguments by name whose values are part of the program, as jax.jit's static_argnames."""
    device: str = "cpu"
    """"cpu" or "cuda"."""
    mesh: dict[str, int] = {}
    """The devices that the function is spread over: names and sizes of the axes, in order. Empty for one device."""
    shardings: str = ""
    """A function of `source` that takes the mesh (a `jax.sharding.Mesh`) and returns (in_shardings, out_shardings), as
    jax.jit takes them."""
    topology: str = ""
    """File of `buildd topology`, or XLA's GpuTargetConfigProto as text (.txtpb): the GPU to compile for. Without it,
    device "cuda" is the GPU of this machine."""
    autotune: str = ""
    """File of timings that a build on such a GPU made (NAME.autotune)."""
    options: dict[str, bool | int | float | str] = {}
    """XLA's options, as compiler_options of jax.jit."""
    output_name: str = ""


class ExtensionTarget(Target, frozen=True, kw_only=True):
    """kind = "extension": a module for torch, with the flags of torch.utils.cpp_extension. See `extension`."""

    sources: tuple[str, ...]
    """Files or globs, relative to the project: C++, and CUDA (.cu)."""
    module: str = ""
    """Name that Python imports ("package._C"); by default the target's name."""
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Flags of C++ sources, as extra_cflags."""
    cuda_flags: tuple[str, ...] = ()
    """Flags of CUDA sources, as extra_cuda_cflags."""
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    py_limited_api: bool = False
    """Build for every Python from the oldest that torch supports, without torch_python; as setuptools' argument."""
    output_name: str = ""


class RecordedTarget(Target, frozen=True, kw_only=True):
    """kind = "recorded": Triton kernels of a manifest, all compiled in one process. See `triton_recorded`."""

    kernels: tuple[str, ...]
    """Lines of the manifest."""
    variables: dict[str, str] = {}
    """Variables in Triton's key when the kernels were recorded."""
    prove: bool = False
    """Compile nothing; report which kernels are missing."""
    hooks: str = ""
    """Folder that comes first on the process's PYTHONPATH: its modules keep Triton's kernels in the store."""
    asked_by: str = ""
    """Id of the request. Equal requests get a process each, because each must be told about every kernel."""
