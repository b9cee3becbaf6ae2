"""Variables of PyTorch around Inductor (compile, logs, cpp_extension) and of Triton.

Knows no request, no torch and no triton. The installed triton itself names the variables that
invalidate its cache.
"""

from __future__ import annotations

from codegen.variables.variable import (
    CACHE,
    KEY,
    LAYOUT,
    LOG,
    PASS,
    SCHED,
    STRIP,
    Kind,
    Section,
    SetIn,
    ToolFamily,
    Variable,
    rows,
)

V = Variable
_FORWARD = "passed to jobs of kind torch and keyed"
_DUMP = "none: not passed to jobs of kind triton, because it would write beside a cached result"
_PRIVATE = "none: a job of kind triton has one of its own; Triton uses it under `buildd run`"
_DRIVER = "none: no compile needs it; Triton reads it under `buildd run`"
_UNDECLARED = "none: not passed to jobs of kind triton, because the file would be an input that no key covers"
_TRITONS = "passed to jobs of kind triton and keyed"
_TRITON = (ToolFamily.TRITON,)
_INDUCTOR = (ToolFamily.TORCH,)

# fmt: off
_TORCH = rows(
    Section.TORCH,
    V("TORCH_WARM_POOL", Kind.ON_IF_1, "1", (SCHED,), "starts Inductor's workers on import",
      "none: a job of kind torch has no pool of workers; Inductor reads it under `buildd run`"),
    V("TORCH_COMPILE_FORCE_DISABLE_CACHES", Kind.ON_IF_1, "0", (CACHE,), "no cache at all",
      "none: torch reads it under `buildd run`, and while its caches are off, buildd keeps no graphs"),
    V("TORCH_COMPILE_CACHE_KEY_TAG", Kind.STRING, "", (KEY,), "salt of Inductor's keys",
      "`buildd run` appends the processor's features, which Inductor's own key leaves out", acts=True,
      set_in=SetIn.SHELL),
    V("ATEN_CPU_CAPABILITY", Kind.STRING, "", (KEY,), "vector width of ATen",
      "passed to jobs of kind torch and keyed; also part of the names of graphs that `buildd run` keeps",
      families=_INDUCTOR),
    V("OMP_NUM_THREADS", Kind.STRING, "", (KEY,), "OpenMP's threads; CPU code specialises on it",
      "number of threads that code of kind torch is generated for; keyed", acts=True),
    V("MKL_NUM_THREADS", Kind.STRING, "", (KEY,), "MKL's threads; CPU code specialises on it",
      "none: OMP_NUM_THREADS counts for kind torch"),
    V("TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2", Kind.ON_IF_1, "1", (KEY,), "how mutating operators are captured", _FORWARD,
      families=_INDUCTOR),
    V("TORCH_LOGS", Kind.STRING, "", (LOG,), "which logs are shown",
      "none: not passed to jobs of kind torch; torch reads it under `buildd run`"),
    V("TORCH_TRACE", Kind.PATH, "", (LOG,), "folder of structured traces",
      "if it is set, the trace of a package of kind torch is an artifact too, NAME.torch_trace.log; under `buildd run`"
      " torch writes its traces itself, and `buildd log` names them", acts=True),
    V("MAST_HPC_JOB_NAME", Kind.STRING, "", (STRIP,), "name of a cluster job",
      "none: it names another process, so it is not sent to the daemon"),
    V("ROLE_RANK", Kind.INT, "0", (STRIP,), "rank in that job",
      "none: it names another process, so it is not sent to the daemon"),
    V("MAX_JOBS", Kind.COUNT, "", (SCHED,), "parallel compiles of an extension",
      "`buildd run` sets it to BUILDD_JOBS or the number of processors, if it is not set", acts=True,
      set_in=SetIn.SHELL),
    V("PYTORCH_NVCC", Kind.PATH, "", (KEY,), "nvcc of an extension",
      "with BUILDD_INTERPOSE=0, `buildd run` sets it to the shim of nvcc, if it is not set", acts=True,
      set_in=SetIn.SHELL),
    V("TORCH_CUDA_ARCH_LIST", Kind.STRING, "", (KEY,), "architectures of an extension",
      "architectures of kind extension if neither the target nor --arch names one; keyed", acts=True),
    V("PYTORCH_ROCM_ARCH", Kind.STRING, "", (KEY,), "architectures of an extension",
      "none: kind extension compiles for CUDA; torch reads it under `buildd run`"),
    V("TORCH_EXTENSIONS_DIR", Kind.PATH, "", (CACHE,), "folder of built extensions",
      "none: a target's files are below build/; torch uses it under `buildd run`"),
    V("TORCH_NO_COMPILER_WRAPPER", Kind.ON_IF_1, "0", (SCHED,), "no ccache or sccache before the compiler",
      "`buildd run` without its library sets it to 1, if it is not set: the shims cache", acts=True,
      set_in=SetIn.SHELL),
    V("ROCM_HOME", Kind.PATH, "", (KEY,), "where ROCm is, for torch",
      "buildd looks for hipcc there; its content is keyed", acts=True),
)

_TRITON_ROWS = rows(
    Section.TRITON,
    V("TRITON_CACHE_DIR", Kind.PATH, "", (CACHE,), "Triton's cache", _PRIVATE),
    V("TRITON_HOME", Kind.PATH, "", (CACHE,), "parent of Triton's folders", _PRIVATE),
    V("TRITON_CACHE_MANAGER", Kind.STRING, "", (CACHE,), "class that manages Triton's cache",
      "if it is set, buildd keeps no kernels under `buildd run`", acts=True, set_in=SetIn.SHELL),
    V("TRITON_REMOTE_CACHE_BACKEND", Kind.STRING, "", (CACHE,), "class of its remote cache",
      "none: not passed to jobs of kind triton; Triton reads it under `buildd run`"),
    V("TRITON_REDIS_*", Kind.STRING, "", (CACHE,), "server of its remote cache",
      "none: not passed to jobs of kind triton; Triton reads it under `buildd run`"),
    V("TRITON_ALWAYS_COMPILE", Kind.TRITON_SWITCH, "0", (CACHE,), "ignores Triton's cache",
      "none: the cache of a job of kind triton is empty; Triton reads it under `buildd run`"),
    V("TRITON_STORE_BINARY_ONLY", Kind.TRITON_SWITCH, "0", (CACHE,), "keeps only the binary",
      "part of the names of kernels that `buildd run` keeps; a target of kind triton has every stage", acts=True,
      set_in=SetIn.SHELL),
    V("TRITON_CACHE_AUTOTUNING", Kind.TRITON_SWITCH, "0", (CACHE,), "keeps tuning results", _DRIVER),
    V("TRITON_PRINT_AUTOTUNING", Kind.TRITON_SWITCH, "0", (LOG,), "prints tuning results", _DRIVER),
    V("TRITON_KERNEL_DUMP", Kind.TRITON_SWITCH, "0", (LOG,), "dumps each stage", _DUMP),
    V("TRITON_DUMP_DIR", Kind.PATH, "", (LAYOUT,), "folder of dumps", _DUMP),
    V("TRITON_KERNEL_OVERRIDE", Kind.TRITON_SWITCH, "0", (KEY,), "replaces stages by files",
      _UNDECLARED),
    V("TRITON_OVERRIDE_DIR", Kind.PATH, "", (KEY,), "folder of those files",
      _UNDECLARED),
    V("TRITON_INTERPRET", Kind.TRITON_SWITCH, "0", (KEY,), "runs kernels in Python",
      "none: not passed to jobs of kind triton, because nothing would be compiled"),
    V("TRITON_LIBCUDA_PATH", Kind.PATH, "", (PASS,), "folder of libcuda", _DRIVER),
    V("TRITON_LIBHIP_PATH", Kind.PATH, "", (PASS,), "libamdhip64", _DRIVER),
    V("TRITON_PROTON_DISABLE", Kind.TRITON_SWITCH, "0", (PASS,), "no profiler", _DRIVER),
    V("TRITON_*", Kind.STRING, "", (KEY,), "code choices of Triton", _TRITONS,
      families=_TRITON),
    V("AMDGCN_*", Kind.STRING, "", (KEY,), "code choices for AMD", _TRITONS, families=_TRITON),
    V("NVPTX_*", Kind.STRING, "", (KEY,), "dumps for NVIDIA", _TRITONS, families=_TRITON),
    V("MLIR_DUMP_PATH", Kind.PATH, "", (LOG,), "file of dumps", _DUMP),
    V("MLIR_*", Kind.STRING, "", (KEY,), "switches of MLIR", _TRITONS, families=_TRITON),
    V("LLVM_PASS_PLUGIN_PATH", Kind.PATH, "", (KEY,), "a plugin of LLVM",
      _UNDECLARED),
    V("LLVM_*", Kind.STRING, "", (KEY,), "switches of LLVM", _TRITONS, families=_TRITON),
    V("PTXAS_OPTIONS", Kind.FLAGS, "", (KEY,), "options for Triton's ptxas", _TRITONS,
      families=_TRITON),
    V("DISABLE_LLVM_OPT", Kind.STRING, "", (KEY,), "leaves out LLVM passes", _TRITONS,
      families=_TRITON),
    V("DISABLE_PTXAS_OPT", Kind.TRITON_SWITCH, "0", (KEY,), "ptxas without optimisation",
      _TRITONS, families=_TRITON),
    V("DISABLE_MMA_*", Kind.TRITON_SWITCH, "0", (KEY,), "leaves out a generation of tensor cores",
      _TRITONS, families=_TRITON),
    V("ALLOW_LHS_TMEM_LAYOUT_CONVERSION", Kind.TRITON_SWITCH, "0", (KEY,), "a layout choice for Blackwell",
      _TRITONS, families=_TRITON),
    V("USE_IR_LOC", Kind.STRING, "", (KEY,), "line information of an intermediate stage",
      _TRITONS, families=_TRITON),
    V("PYTHONPATH", Kind.PATHS, "", (KEY,), "folders of Python modules",
      "passed to jobs of kinds triton, torch and jax; the modules that they read are keyed by content",
      families=(ToolFamily.TRITON, ToolFamily.TORCH, ToolFamily.JAX)),
)
# fmt: on

VARIABLES = _TORCH + _TRITON_ROWS
