"""Variables of PyTorch around Inductor (compile, logs, cpp_extension) and of Triton.

Knows no request, no torch and no triton: what the installed triton itself names as invalidating its cache
is asked from it.
"""

from __future__ import annotations

from codegen.variable import CACHE, KEY, LAYOUT, LOG, PASS, SCHED, STRIP, Family, Kind, Section, Variable, rows

V = Variable
_FORWARD = "forwarded verbatim and keyed"
_DIGEST = "that tool's content is keyed, which Inductor leaves out"
_DUMP = "not passed to ahead-of-time compiles: it would write beside a cached result"
_PRIVATE = "ahead-of-time compiles have a private one in the job's folder"
_DRIVER = "forwarded to the user's own processes; no ahead-of-time compile needs it"
_TRITON = (Family.TRITON,)
_INDUCTOR = (Family.TORCH,)

# fmt: off
_TORCH = rows(
    Section.TORCH,
    V("TORCH_WARM_POOL", Kind.ON_IF_1, "1", (SCHED,), "starts Inductor's workers on import", "0 inside a warm worker"),
    V("TORCH_COMPILE_FORCE_DISABLE_CACHES", Kind.ON_IF_1, "0", (CACHE,), "no cache at all", "ours is off too"),
    V("TORCH_COMPILE_CACHE_KEY_TAG", Kind.STRING, "", (KEY,), "salt of Inductor's keys",
      "holds the CPU's instruction set, and the user's own"),
    V("ATEN_CPU_CAPABILITY", Kind.STRING, "", (KEY,), "vector width of ATen",
      "keyed, which Inductor leaves out although its results depend on it", families=_INDUCTOR),
    V("OMP_NUM_THREADS", Kind.STRING, "", (KEY,), "OpenMP's threads; CPU code specialises on it",
      "how many threads code of kind torch is made for; keyed", acts=True),
    V("MKL_NUM_THREADS", Kind.STRING, "", (KEY,), "MKL's threads; CPU code specialises on it",
      "forwarded and keyed; pinned, or dynamic for CI"),
    V("TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2", Kind.ON_IF_1, "1", (KEY,), "how mutating operators are captured", _FORWARD,
      families=_INDUCTOR),
    V("TORCH_LOGS", Kind.STRING, "", (LOG,), "which logs are shown", "forwarded; in no key"),
    V("TORCH_TRACE", Kind.PATH, "", (LOG,), "folder of structured traces", "forwarded; collected as an artifact"),
    V("MAST_HPC_JOB_NAME", Kind.STRING, "", (STRIP,), "name of a cluster job",
      "not sent: it is another process's identity"),
    V("ROLE_RANK", Kind.INT, "0", (STRIP,), "rank in that job", "not sent: it is another process's identity"),
    V("MAX_JOBS", Kind.COUNT, "", (SCHED,), "parallel compiles of an extension", "set from the memory budget"),
    V("PYTORCH_NVCC", Kind.PATH, "", (KEY,), "nvcc of an extension", _DIGEST),
    V("TORCH_CUDA_ARCH_LIST", Kind.STRING, "", (KEY,), "architectures of an extension",
      "those of kind extension where neither the target nor --arch names one; keyed", acts=True),
    V("PYTORCH_ROCM_ARCH", Kind.STRING, "", (KEY,), "architectures of an extension", _FORWARD),
    V("TORCH_EXTENSIONS_DIR", Kind.PATH, "", (CACHE,), "folder of built extensions", "a folder"),
    V("TORCH_NO_COMPILER_WRAPPER", Kind.ON_IF_1, "0", (SCHED,), "no ccache or sccache before the compiler",
      "set by `buildd run`: its stand-ins cache; in no key"),
    V("ROCM_HOME", Kind.PATH, "", (KEY,), "where ROCm is, for torch",
      "where hipcc is looked for; its content is keyed"),
)

_TRITON_ROWS = rows(
    Section.TRITON,
    V("TRITON_CACHE_DIR", Kind.PATH, "", (CACHE,), "Triton's cache", _PRIVATE),
    V("TRITON_HOME", Kind.PATH, "", (CACHE,), "parent of Triton's folders", _PRIVATE),
    V("TRITON_CACHE_MANAGER", Kind.STRING, "", (CACHE,), "class that keeps Triton's cache",
      "not passed to ahead-of-time compiles"),
    V("TRITON_REMOTE_CACHE_BACKEND", Kind.STRING, "", (CACHE,), "class of its remote cache",
      "not passed to ahead-of-time compiles"),
    V("TRITON_REDIS_*", Kind.STRING, "", (CACHE,), "server of its remote cache",
      "not passed to ahead-of-time compiles"),
    V("TRITON_ALWAYS_COMPILE", Kind.TRITON_SWITCH, "0", (CACHE,), "ignores Triton's cache",
      "the private cache is empty anyway"),
    V("TRITON_STORE_BINARY_ONLY", Kind.TRITON_SWITCH, "0", (CACHE,), "keeps only the binary",
      "every stage is kept as an artifact"),
    V("TRITON_CACHE_AUTOTUNING", Kind.TRITON_SWITCH, "0", (CACHE,), "keeps tuning results", _DRIVER),
    V("TRITON_PRINT_AUTOTUNING", Kind.TRITON_SWITCH, "0", (LOG,), "prints tuning results", _DRIVER),
    V("TRITON_KERNEL_DUMP", Kind.TRITON_SWITCH, "0", (LOG,), "dumps each stage", _DUMP),
    V("TRITON_DUMP_DIR", Kind.PATH, "", (LAYOUT,), "folder of dumps", _DUMP),
    V("TRITON_KERNEL_OVERRIDE", Kind.TRITON_SWITCH, "0", (KEY,), "replaces stages by files",
      "not passed: those files would be inputs that nobody declared"),
    V("TRITON_OVERRIDE_DIR", Kind.PATH, "", (KEY,), "folder of those files",
      "not passed: those files would be inputs that nobody declared"),
    V("TRITON_INTERPRET", Kind.TRITON_SWITCH, "0", (KEY,), "runs kernels in Python",
      "not passed: nothing would be compiled"),
    V("TRITON_LIBCUDA_PATH", Kind.PATH, "", (PASS,), "folder of libcuda", _DRIVER),
    V("TRITON_LIBHIP_PATH", Kind.PATH, "", (PASS,), "libamdhip64", _DRIVER),
    V("TRITON_PROTON_DISABLE", Kind.TRITON_SWITCH, "0", (PASS,), "no profiler", _DRIVER),
    V("TRITON_*", Kind.STRING, "", (KEY,), "code choices of Triton", "passed to its worker and keyed",
      families=_TRITON),
    V("AMDGCN_*", Kind.STRING, "", (KEY,), "code choices for AMD", "passed to its worker and keyed", families=_TRITON),
    V("NVPTX_*", Kind.STRING, "", (KEY,), "dumps for NVIDIA", "passed to its worker and keyed", families=_TRITON),
    V("MLIR_DUMP_PATH", Kind.PATH, "", (LOG,), "file of dumps", _DUMP),
    V("MLIR_*", Kind.STRING, "", (KEY,), "switches of MLIR", "passed to Triton's worker and keyed", families=_TRITON),
    V("LLVM_PASS_PLUGIN_PATH", Kind.PATH, "", (KEY,), "a plugin of LLVM",
      "not passed: that file would be an input that nobody declared"),
    V("LLVM_*", Kind.STRING, "", (KEY,), "switches of LLVM", "passed to Triton's worker and keyed", families=_TRITON),
    V("PTXAS_OPTIONS", Kind.FLAGS, "", (KEY,), "options for Triton's ptxas", "passed to its worker and keyed",
      families=_TRITON),
    V("DISABLE_LLVM_OPT", Kind.STRING, "", (KEY,), "leaves out LLVM passes", "passed to Triton's worker and keyed",
      families=_TRITON),
    V("DISABLE_PTXAS_OPT", Kind.TRITON_SWITCH, "0", (KEY,), "ptxas without optimisation",
      "passed to Triton's worker and keyed", families=_TRITON),
    V("DISABLE_MMA_*", Kind.TRITON_SWITCH, "0", (KEY,), "leaves out a generation of tensor cores",
      "passed to Triton's worker and keyed", families=_TRITON),
    V("ALLOW_LHS_TMEM_LAYOUT_CONVERSION", Kind.TRITON_SWITCH, "0", (KEY,), "a layout choice for Blackwell",
      "passed to Triton's worker and keyed", families=_TRITON),
    V("USE_IR_LOC", Kind.STRING, "", (KEY,), "line information of an intermediate stage",
      "passed to Triton's worker and keyed", families=_TRITON),
    V("PYTHONPATH", Kind.PATHS, "", (KEY,), "folders of Python modules",
      "a kernel's modules are looked for there; what is read is keyed",
      families=(Family.TRITON, Family.TORCH)),
)
# fmt: on

VARIABLES = _TORCH + _TRITON_ROWS
