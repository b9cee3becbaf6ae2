"""Variables of TorchInductor's and AOTInductor's configuration, as two versions of its source name them.

Knows no request and no torch: the installed torch has more names, which `TORCHINDUCTOR_*` covers. A variable in
Inductor's own cache key is keyed here too and forwarded verbatim.
"""

from __future__ import annotations

import msgspec

from codegen.variables.variable import (
    CACHE,
    KEY,
    LOG,
    PROFILE,
    SCHED,
    Kind,
    Section,
    SetIn,
    ToolFamily,
    Variable,
    VariableClass,
    rows,
)

V = Variable
_FORWARD = "passed to jobs of kind torch and keyed"
_TIMED = f"{_FORWARD}; under `buildd run` each timing has its GPU to itself"
_DUMP = "none: not passed to jobs of kind torch; Inductor reads it under `buildd run`"
_CACHE_OFF = "none: Inductor reads it under `buildd run`, and while its caches are off, buildd keeps no graphs"
_REDIS = "none: `buildd redis` prints a value for stock torch; Inductor reads it under `buildd run`"
_TREE = "passed to jobs of kind torch; the files of the tree are keyed by content"


def _on(suffix: str, default: str, meaning: str) -> Variable:
    """Return the row of a switch for generated code that is on only for exactly "1"."""
    return V("TORCHINDUCTOR_" + suffix, Kind.ON_IF_1, default, (KEY,), meaning, _FORWARD)


def _tune(
    suffix: str,
    default: str,
    meaning: str,
    kind: Kind = Kind.ON_IF_1,
    choices: tuple[str, ...] = (),
    effect: str = _FORWARD,
) -> Variable:
    """Return the row of a setting for the search for the fastest kernel."""
    return V("TORCHINDUCTOR_" + suffix, kind, default, (KEY, PROFILE), meaning, effect, choices=choices)


def _other(
    suffix: str,
    kind: Kind,
    default: str,
    classes: tuple[VariableClass, ...],
    meaning: str,
    effect: str = _FORWARD,
    *,
    acts: bool = False,
) -> Variable:
    return V(
        "TORCHINDUCTOR_" + suffix,
        kind,
        default,
        classes,
        meaning,
        effect,
        acts=acts,
        set_in=SetIn.SHELL if acts else SetIn.ANYWHERE,
    )


# fmt: off
_ROWS = rows(
    Section.TORCH,
    # Workers and operations.
    _other("COMPILE_THREADS", Kind.COUNT, "", (SCHED,), "Inductor's workers; up to 32 by default",
      "none: a job of kind torch compiles in one process; Inductor reads it under `buildd run`"),
    _other("WORKER_START", Kind.STRING, "subprocess", (SCHED,), "how workers are started",
      "none: a job of kind torch has no workers; Inductor reads it under `buildd run`"),
    _other("WORKER_SUPPRESS_LOGGING", Kind.TRISTATE, "1", (KEY,), "workers do not log", _FORWARD),
    _other("WORKER_LOGPATH", Kind.PATH, "", (KEY,), "where workers log", _FORWARD),
    _other("FILE_LOCK_TIMEOUT", Kind.INT, "600", (KEY,), "wait for a file lock, seconds", _FORWARD),
    _other("QUIESCE_ASYNC_COMPILE_POOL", Kind.TRISTATE, "", (KEY,), "stops idle workers", _FORWARD),
    _other("COMPILE_WORKER_WAIT_TIMEOUT", Kind.INT, "0", (KEY,), "limit of a worker's answer, seconds", _FORWARD),
    _other("PRECOMPILATION_TIMEOUT_SECONDS", Kind.INT, "", (KEY,), "limit of compiling candidates, seconds", _FORWARD),
    # Caches.
    _other("CACHE_DIR", Kind.PATH, "", (CACHE,), "folder of Inductor's caches",

      "none: a job of kind torch has one of its own; under `buildd run` Inductor uses it, but for --record"),
    _other("FX_GRAPH_CACHE", Kind.TRISTATE, "1", (CACHE,), "cache of compiled graphs", _CACHE_OFF),
    _other("FX_GRAPH_CACHE_DEFAULT", Kind.TRISTATE, "", (CACHE,), "default of that cache", _CACHE_OFF),
    _other("AUTOGRAD_CACHE", Kind.TRISTATE, "1", (CACHE,), "cache of AOTAutograd", _CACHE_OFF),
    _other("AUTOTUNE_REMOTE_CACHE", Kind.TRISTATE, "", (CACHE,), "remote cache of tuning",
      _REDIS),
    _other("FX_GRAPH_REMOTE_CACHE", Kind.TRISTATE, "", (CACHE,), "remote cache of compiled graphs",
      "if it is set, buildd keeps no graphs under `buildd run`", acts=True),
    _other("REDIS_URL", Kind.STRING, "", (CACHE,), "server of the remote caches",
      _REDIS),
    _other("AUTOGRAD_REMOTE_CACHE", Kind.TRISTATE, "", (KEY,), "remote cache of AOTAutograd", _FORWARD),
    _other("BUNDLED_AUTOTUNE_REMOTE_CACHE", Kind.TRISTATE, "", (KEY,), "remote cache of tuning, bundled", _FORWARD),
    _other("NON_BLOCKING_REMOTE_CACHE_WRITE", Kind.TRISTATE, "1", (KEY,), "writes remote entries in the background",
      _FORWARD),
    _other("BUNDLE_TRITON_INTO_FX_GRAPH_CACHE", Kind.TRISTATE, "1", (KEY,), "cubins inside the graph's entry",
      _FORWARD),
    _other("FORCE_DISABLE_CACHES", Kind.ON_IF_1, "0", (CACHE,), "no cache at all", _CACHE_OFF),
    _tune("SEARCH_AUTOTUNE_CACHE", "0", "looks for tuned choices without max_autotune"),
    # Tuning.
    _tune("MAX_AUTOTUNE", "0", "slow tuning of algorithms", effect=_TIMED),
    _tune("MAX_AUTOTUNE_POINTWISE", "0", "tuning of pointwise kernels and reductions", effect=_TIMED),
    _tune("MAX_AUTOTUNE_GEMM", "0", "tuning of matrix products", effect=_TIMED),
    _tune("MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN,TRITON,CPP", "candidates' backends for matrix products", Kind.LIST),
    _tune("MAX_AUTOTUNE_CONV_BACKENDS", "ATEN,TRITON", "candidates' backends for convolutions", Kind.LIST),
    _tune("MAX_AUTOTUNE_GEMM_SEARCH_SPACE", "DEFAULT", "size of the search", Kind.CHOICE, ("DEFAULT", "EXHAUSTIVE")),
    _tune("MAX_AUTOTUNE_FLEX_SEARCH_SPACE", "DEFAULT", "size of the search for flex attention", Kind.CHOICE,
      ("DEFAULT", "EXHAUSTIVE")),
    _tune("MAX_AUTOTUNE_PRUNE_CHOICES_BASED_ON_SHARED_MEM", "1",
      "leaves out candidates that need too much shared memory"),
    _tune("MAX_AUTOTUNE_REPORT_CHOICES_STATS", "1", "reports candidates and their times"),
    _tune("DISTRIBUTED_MAX_AUTOTUNE_GEMM", "0", "shares the tuning between ranks"),
    _tune("AUTOTUNE_IN_SUBPROC", "0", "times candidates in another process"),
    _tune("AUTOTUNE_MULTI_DEVICE", "0", "times candidates on several GPUs"),
    _tune("AUTOTUNE_FALLBACK_TO_ATEN", "1", "ATen where no candidate works"),
    _tune("COORDINATE_DESCENT_TUNING", "0", "coordinate descent over block sizes", effect=_TIMED),
    _tune("COORDINATE_DESCENT_CHECK_ALL_DIRECTIONS", "0", "all neighbours, not only along an axis"),
    _tune("COORDINATE_DESCENT_RADIUS", "1", "how far a neighbour is", Kind.INT),
    _other("COORDINATE_DESCENT_*", Kind.STRING, "", (KEY, PROFILE), "coordinate descent", _FORWARD),
    _other("MAX_AUTOTUNE*", Kind.STRING, "", (KEY, PROFILE), "tuning", _FORWARD),
    _tune("AUTOHEURISTIC_COLLECT", "", "operators whose tuning data is collected", Kind.LIST),
    _tune("AUTOHEURISTIC_USE", "mixed_mm", "operators that use a learned heuristic", Kind.LIST),
    _tune("AUTOHEURISTIC_LOG_PATH", "DEFAULT", "where that data is written", Kind.PATH),
    _tune("USE_EXPERIMENTAL_BENCHMARKER", "", "Inductor's own benchmarker", Kind.TRISTATE),
    _tune("MULTI_KERNEL", "0", "several kernels for one reduction, chosen while running", Kind.INT),
    _tune("BENCHMARK_FUSION", "0", "times a fusion before taking it", effect=_TIMED),
    _tune("BENCHMARK_EPILOGUE_FUSION", "1", "times a template with and without its epilogue", effect=_TIMED),
    _tune("BENCHMARK_KERNEL", "0", "benchmark code in each kernel"),
    _tune("DETERMINISTIC", "0", "no timing where it could change numerics"),
    # Generated code.
    _on("INPLACE_PADDING", "1", "pads in place"),
    _on("USE_STATIC_CUDA_LAUNCHER", "1", "static launcher of CUDA kernels"),
    _on("STRICT_STATIC_CUDA_LAUNCHER", "0", "an error where the static launcher cannot be used"),
    _other("STATIC_LAUNCH_USER_DEFINED_TRITON_KERNELS", Kind.TRISTATE, "", (KEY,),
      "static launcher for the user's Triton kernels"),
    _on("PROLOGUE_FUSION", "1", "fuses what comes before a template"),
    _on("CPP_WRAPPER", "0", "C++ instead of Python around the kernels"),
    _on("CPP_WRAPPER_BUILD_SEPARATE", "0", "compiles entry and kernels of the C++ wrapper apart"),
    _on("FX_WRAPPER", "0", "FX graph around the kernels"),
    _on("ABI_COMPATIBLE", "0", "ABI-compatible C++ wrapper"),
    _other("C_SHIM_VERSION", Kind.STRING, "2", (KEY,), "version of the C interface"),
    _on("ONLINE_SOFTMAX", "1", "softmax in one pass"),
    _on("SIZE_ASSERTS", "1", "asserts sizes in generated code"),
    _on("NAN_ASSERTS", "0", "asserts that there is no NaN"),
    _on("RUNTIME_TRITON_NAN_ASSERTS", "0", "the same inside Triton kernels"),
    _on("SCALAR_ASSERTS", "1", "asserts scalars in generated code"),
    _on("ALIGNMENT_ASSERTS", "1", "asserts alignment in generated code"),
    _on("MEMORY_PLANNING", "0", "pooled allocations"),
    _other("MEMORY_POOL", Kind.STRING, "intermediates", (KEY,), "which tensors share storage"),
    _on("USE_FAST_MATH", "0", "flush-to-zero exponentials in Triton code"),
    _on("DYNAMIC_SCALE_RBLOCK", "1", "smaller reduction blocks for occupancy"),
    _on("TRITON_DISABLE_DEVICE_DETECTION", "0", "Triton does not look for a device"),
    _on("GRAPH_PARTITION", "1", "several Inductor graphs for one Dynamo graph"),
    _other("FORCE_SAME_PRECISION", Kind.TRISTATE, "", (KEY,), "the same precision in cuBLAS and Triton"),
    _on("LAYOUT_OPTIMIZATION", "1", "changes layouts; off by default on ROCm"),
    _on("FORCE_LAYOUT_OPT", "0", "changes layouts always"),
    _on("KEEP_OUTPUT_STRIDE", "1", "outputs have the strides of eager mode"),
    _on("WARN_MIX_LAYOUT", "0", "warns when a kernel's inputs have mixed layouts"),
    _on("ASSUME_UNALIGNED_FALLBACK_OUTPUT", "0", "takes fallback outputs for unaligned"),
    _on("DEBUG_FUSION", "0", "names the fused nodes in the generated code"),
    _on("LOOP_ORDERING_AFTER_FUSION", "1", "chooses the order of loops after fusing"),
    _on("SPLIT_REDUCTIONS", "1", "splits reductions with small outputs"),
    _other("MIN_NUM_SPLIT", Kind.INT, "0", (KEY,), "fewest parts of a split reduction"),
    _on("EMULATE_PRECISION_CASTS", "0", "rounds as eager mode does in fp16 and bf16"),
    _on("EMULATE_DIVISION_ROUNDING", "0", "divides as eager mode does"),
    _on("OPTIMIZE_SCATTER_UPON_CONST_TENSOR", "1", "no scatter where the tensor is constant"),
    _on("SHAPE_PADDING", "1", "pads matrices for tensor cores"),
    _on("COMPREHENSIVE_PADDING", "1", "pads for pointwise kernels and reductions"),
    _on("PERMUTE_FUSION", "0", "fuses products with permutations"),
    _on("FREEZING", "0", "weights become constants"),
    _on("ENABLE_LINEAR_BINARY_FOLDING", "0", "folds binary operators into linear layers"),
    _on("ANNOTATE_TRAINING", "0", "NVTX ranges around training phases"),
    _on("STACK_ALLOCATION", "0", "temporary tensors on the stack"),
    _on("CUDAGRAPHS", "0", "CUDA graphs in the output code"),
    _on("UNIQUE_KERNEL_NAMES", "0", "another name for each kernel"),
    _on("PERSISTENT_REDUCTIONS", "1", "other code for small reductions"),
    _on("RUN_JIT_POST_COMPILE_HOOK", "0", "runs a hook after each compile"),
    # C++ on the CPU.
    _other("VEC_ISA_OK", Kind.TRISTATE, "", (KEY,), "says that the vector instructions work, instead of trying them",
      _FORWARD),
    _on("CPP_NO_REDUNDANT_LOOPS", "1", "no loops that never run"),
    _on("CPP_DYNAMIC_THREADS", "0", "does not specialise on the number of threads"),
    _other("CPP_MIN_CHUNK_SIZE", Kind.INT, "512", (KEY,), "smallest share of a thread"),
    _other("CPP_MARCH", Kind.STRING, "", (KEY,), "-march of the host compiler"),
    _on("CPP_ENABLE_KERNEL_PROFILE", "0", "kernels show up in the profiler"),
    _on("CPP_WEIGHT_PREPACK", "1", "packs weights beforehand"),
    _other("CPP_MAX_HORIZONTAL_FUSION_SIZE", Kind.INT, "16", (KEY,), "most nodes of a horizontal fusion"),
    _on("CPP_FALLBACK_SCATTER_REDUCE_SUM", "1", "scatter_reduce for sums"),
    _on("CPP_ENABLE_UNSAFE_MATH_OPT_FLAG", "0", "-funsafe-math-optimizations"),
    _on("CPP_ENABLE_FLOATING_POINT_CONTRACT_FLAG", "0", "-ffp-contract"),
    # Diagnostics, which are in Inductor's key.
    _on("SAVE_ARGS", "0", "saves the arguments of a compile"),
    _other("ENABLED_METRIC_TABLES", Kind.LIST, "", (KEY,), "tables of metrics that are written"),
    _other("PROFILE", Kind.STRING, "", (KEY,), "bandwidth of each kernel; a regular expression or nothing"),
    _other("PROFILE_OUTPUT", Kind.PATH, "", (KEY,), "file of those bandwidths"),
    _on("PROFILE_WITH_DO_BENCH_USING_PROFILING", "0", "measures without CPU overhead"),
    # Toolkits.
    _other("CUTLASS_DIR", Kind.PATH, "", (KEY,), "a CUTLASS tree",
      _TREE),
    _other("CK_DIR", Kind.PATH, "", (KEY,), "a Composable Kernel tree",
      _TREE),
    V("TORCHINDUCTOR_*", Kind.STRING, "", (KEY,), "every other choice of generated code", _FORWARD),
    # AOTInductor.
    V("AOT_INDUCTOR_DEBUG_COMPILE", Kind.ON_IF_1, "0", (KEY,), "compiles the wrapper with -g and without optimisation",
      _FORWARD),
    V("AOT_INDUCTOR_DEBUG_DUMP_CONSTS_BIN", Kind.ON_IF_1, "0", (KEY,), "writes the constants into a file", _FORWARD),
    V("AOT_INDUCTOR_*", Kind.STRING, "", (KEY,), "AOTInductor, which has no graph cache of its own",
      _FORWARD),
    # Dumps.
    V("TORCH_COMPILE_DEBUG", Kind.ON_IF_1, "0", (LOG, KEY), "dumps everything; its level is in Inductor's key", _DUMP),
    V("INDUCTOR_POST_FUSION_SVG", Kind.ON_IF_1, "0", (LOG,), "picture of the graph after fusing", _DUMP),
    V("INDUCTOR_ORIG_FX_SVG", Kind.ON_IF_1, "0", (LOG,), "picture of the graph with its fusions", _DUMP),
    V("INDUCTOR_POST_FUSION_*", Kind.STRING, "", (LOG,), "pictures of the graph after fusing", _DUMP),
    V("INDUCTOR_ORIG_FX_*", Kind.STRING, "", (LOG,), "pictures of the graph", _DUMP),
    V("INDUCTOR_DOT_GRAPH_SHAPE_SVG", Kind.STRING, "", (LOG,), "shape of the nodes in pictures", _DUMP),
    V("INDUCTOR_LOG_URL_FOR_GRAPH_XFORM", Kind.STRING, "", (LOG,), "folder of pictures after each pass", _DUMP),
    V("LOG_TLPARSE", Kind.TRISTATE, "", (LOG, KEY), "logs runtime estimates; in Inductor's key", _DUMP),
    V("INDUCTOR_CUDA_BACKEND_GENERATE_TEST_RUNNER_CODE", Kind.ON_IF_1, "0", (KEY,),
      "a program that runs the CUTLASS kernel alone", _FORWARD),
    V("CUTEDSL_ENABLE_AUTOTUNING", Kind.ON_IF_1, "0", (KEY, PROFILE), "CuTe DSL among the candidates", _FORWARD),
)
# fmt: on

# Variables that change generated code reach buildd's own compiles; variables that write dumps do not.
VARIABLES = tuple(
    msgspec.structs.replace(row, families=(ToolFamily.TORCH,)) if KEY in row.classes and LOG not in row.classes else row
    for row in _ROWS
)
