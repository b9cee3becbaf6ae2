"""Variables that host compilers, binutils, nvcc and HIP read: the only ones that reach tools of buildd's own targets.

Knows no request. `families` names the tools that receive a variable. A variable that reaches a tool is part of its
action's key.
"""

from __future__ import annotations

from codegen.variables.variable import (
    CACHE,
    KEY,
    LOG,
    SCHED,
    SOURCE,
    STRIP,
    Kind,
    Section,
    SetIn,
    ToolFamily,
    Variable,
    rows,
)

V = Variable
_ALL = (ToolFamily.HOST, ToolFamily.CUDA, ToolFamily.HIP, ToolFamily.TORCH)
_EVERY = (*_ALL, ToolFamily.TRITON, ToolFamily.JAX)
_CUDA = (ToolFamily.CUDA,)
_HIP = (ToolFamily.HIP,)
_KEYED = "passed to buildd's tools and keyed"
_SEARCH = "passed to buildd's tools and keyed; files found there are keyed by content"
_LINKS = "; a compile of a foreign build does not get it"
_FOUND = "buildd looks for the tool there; its content is keyed"
_SIDE = "none: not sent, because it would write beside a cached result; buildd gathers the inputs itself"
_CMAKE = "none: buildd's own targets name their flags and tools; CMake and make read it under `buildd run`"
_OWN = "none: each job has a folder of its own, so that a tool's temporary files stay in the job's folder"

# fmt: off
VARIABLES = rows(
    Section.TOOLS,
    V("CPATH", Kind.PATHS, "", (KEY,), "include folders of gcc and clang, after -I", _SEARCH, families=_ALL),
    V("C_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for C", _SEARCH, families=_ALL),
    V("CPLUS_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for C++", _SEARCH, families=_ALL),
    V("OBJC_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for Objective-C", _SEARCH, families=_ALL),
    V("LIBRARY_PATH", Kind.PATHS, "", (KEY,), "library folders of the linker", _SEARCH, families=_ALL),
    V("LD_RUN_PATH", Kind.PATHS, "", (KEY,), "run path that ld writes into a program", _KEYED + _LINKS, families=_ALL),
    V("COMPILER_PATH", Kind.PATHS, "", (KEY,), "where gcc looks for cc1plus, as and ld", _KEYED, families=_ALL),
    V("GCC_EXEC_PREFIX", Kind.PATH, "", (KEY,), "prefix of gcc's subprograms", _KEYED, families=_ALL),
    V("GCC_COMPARE_DEBUG", Kind.STRING, "", (KEY,), "compiles twice and compares", _KEYED, families=_ALL),
    V("GCC_EXTRA_DIAGNOSTIC_OUTPUT", Kind.STRING, "", (KEY,), "gcc adds corrections for editors to its messages",
      _KEYED, families=_ALL),
    V("COLLECT_NO_DEMANGLE", Kind.STRING, "", (KEY,), "raw symbols in the linker's messages", _KEYED, families=_ALL),
    V("GNUTARGET", Kind.STRING, "", (KEY,), "object format of ld", _KEYED, families=_ALL),
    V("LDEMULATION", Kind.STRING, "", (KEY,), "emulation of ld", _KEYED, families=_ALL),
    V("SOURCE_DATE_EPOCH", Kind.INT, "", (KEY,), "time that __DATE__ and __TIME__ show, seconds since 1970", _KEYED,
      families=_ALL),
    V("TZ", Kind.STRING, "", (KEY,), "time zone that __DATE__, __TIME__ and __TIMESTAMP__ show", _KEYED, families=_ALL),
    V("CCC_OVERRIDE_OPTIONS", Kind.STRING, "", (KEY,), "edits clang's command line", _KEYED, families=_HIP),
    V("DEPENDENCIES_OUTPUT", Kind.PATH, "", (STRIP,), "file that gcc writes its headers into", _SIDE),
    V("SUNPRO_DEPENDENCIES", Kind.PATH, "", (STRIP,), "the same, with system headers", _SIDE),
    V("CC_PRINT_HEADERS_FILE", Kind.PATH, "", (STRIP,), "file that clang writes its headers into", _SIDE),
    V("CC_PRINT_*", Kind.STRING, "", (STRIP,), "reports of clang", _SIDE),
    V("CC", Kind.PATH, "", (SOURCE,), "the C compiler",
      "none: NVCC_CCBIN names nvcc's host compiler; other tools read it under `buildd run`"),
    V("CXX", Kind.PATH, "g++", (SOURCE, KEY), "the C++ compiler; a string in Inductor's key",
      "host compiler of kinds torch and extension; its content is keyed", acts=True),
    V("CFLAGS", Kind.FLAGS, "", (KEY,), "flags for C in make and cmake", _CMAKE),
    V("CXXFLAGS", Kind.FLAGS, "", (KEY,), "flags for C++ in make and cmake", _CMAKE),
    V("LDFLAGS", Kind.FLAGS, "", (KEY,), "flags for linking in make and cmake", _CMAKE),
    V("CUDAFLAGS", Kind.FLAGS, "", (KEY,), "flags for CUDA in cmake", _CMAKE),
    V("HIPFLAGS", Kind.FLAGS, "", (KEY,), "flags for HIP in cmake", _CMAKE),
    V("CUDAARCHS", Kind.STRING, "", (KEY,), "architectures in cmake", _CMAKE),
    V("CUDAHOSTCXX", Kind.PATH, "", (KEY,), "nvcc's host compiler in cmake", _CMAKE),
    V("HIPCXX", Kind.PATH, "", (KEY,), "the HIP compiler in cmake", _CMAKE),
    V("CUDACXX", Kind.PATH, "", (SOURCE, KEY), "nvcc in cmake and in Inductor",
      "buildd's nvcc, a path or a name on the PATH; its content is keyed", acts=True),
    V("CUTLASS_PATH", Kind.PATH, "", (SOURCE,), "where CUTLASS is: the folder that holds include/cutlass", _FOUND,
      acts=True),
    V("CUDA_HOME", Kind.PATH, "", (SOURCE, KEY), "where the CUDA toolkit is", _FOUND, acts=True),
    V("CUDA_PATH", Kind.PATH, "", (SOURCE, KEY), "where the CUDA toolkit is", _FOUND, acts=True),
    V("NVCC_CCBIN", Kind.PATH, "", (KEY,), "nvcc's host compiler",
      _KEYED + "; that compiler is part of the tool's identity", acts=True, families=_CUDA),
    V("NVCC_PREPEND_FLAGS", Kind.FLAGS, "", (KEY,), "flags before nvcc's own", _KEYED, families=_CUDA),
    V("NVCC_APPEND_FLAGS", Kind.FLAGS, "", (KEY,), "flags after nvcc's own", _KEYED, families=_CUDA),
    V("CICC_PATH", Kind.PATH, "", (KEY,), "where nvcc looks for cicc", _KEYED, families=_CUDA),
    V("NVVMIR_LIBRARY_DIR", Kind.PATH, "", (KEY,), "where nvcc looks for libdevice", _KEYED, families=_CUDA),
    V("CUDA_DEVICE_ORDER", Kind.STRING, "", (SCHED,), "how CUDA numbers devices",
      "none: buildd numbers GPUs as nvidia-smi does"),
    V("CUDA_CACHE_*", Kind.STRING, "", (CACHE,), "the driver's own cache of compiled PTX",
      "none: no compile reads it"),
    V("HIPCC_COMPILE_FLAGS_APPEND", Kind.FLAGS, "", (KEY,), "flags after hipcc's own when it compiles", _KEYED,
      families=_HIP),
    V("HIPCC_LINK_FLAGS_APPEND", Kind.FLAGS, "", (KEY,), "flags after hipcc's own when it links", _KEYED,
      families=_HIP),
    V("HIPCC_VERBOSE", Kind.INT, "", (LOG,), "hipcc prints its steps",
      "none: not passed to tools, because its output would become part of a cached log"),
    V("HIP_PLATFORM", Kind.CHOICE, "amd", (KEY,), "amd or nvidia behind hipcc", _KEYED, choices=("amd", "nvidia"),
      families=_HIP),
    V("HIP_COMPILER", Kind.STRING, "", (KEY,), "compiler behind hipcc", _KEYED, families=_HIP),
    V("HIP_RUNTIME", Kind.STRING, "", (KEY,), "run time behind hipcc", _KEYED, families=_HIP),
    V("HIP_PATH", Kind.PATH, "", (KEY,), "where HIP is", _KEYED + "; buildd looks for hipcc there", families=_HIP,
      acts=True),
    V("ROCM_PATH", Kind.PATH, "", (KEY,), "where ROCm is", _KEYED + "; buildd looks for hipcc there", families=_HIP,
      acts=True),
    V("HIP_CLANG_PATH", Kind.PATH, "", (KEY,), "folder of hipcc's clang", _KEYED, families=_HIP),
    V("HIP_LIB_PATH", Kind.PATH, "", (KEY,), "folder of HIP's libraries", _KEYED, families=_HIP),
    V("HSA_PATH", Kind.PATH, "", (KEY,), "where the HSA run time is", _KEYED, families=_HIP),
    V("HIP_DEVICE_LIB_PATH", Kind.PATH, "", (KEY,), "folder of the device libraries", _KEYED, families=_HIP),
    V("DEVICE_LIB_PATH", Kind.PATH, "", (KEY,), "folder of the device libraries", _KEYED, families=_HIP),
    V("HCC_AMDGPU_TARGET", Kind.LIST, "", (KEY,), "architectures if hipcc is given none", _KEYED, families=_HIP),
    V("ROCM_TARGET_LST", Kind.PATH, "", (KEY,), "file of architectures if hipcc is given none", _KEYED,
      families=_HIP),
    V("ROCR_VISIBLE_DEVICES", Kind.STRING, "", (SCHED,), "the GPUs that ROCm shows",
      "none: no compile reads it"),
    V("LD_LIBRARY_PATH", Kind.PATHS, "", (KEY,), "libraries that the tools themselves load",
      _KEYED + ", without folders that hold no library", families=_EVERY),
    V("LD_PRELOAD", Kind.STRING, "", (KEY,), "libraries loaded into every process", _KEYED, families=_EVERY),
    V("LANG", Kind.STRING, "C.UTF-8", (KEY,), "language of messages",
      "C.UTF-8 unless set; passed to buildd's tools; the locale that results is keyed", families=_EVERY),
    V("LC_*", Kind.STRING, "C.UTF-8", (KEY,), "language of messages by category",
      "LC_ALL=C.UTF-8 unless LANG or one of them is set", families=_EVERY),
    V("LANGUAGE", Kind.STRING, "", (KEY,), "languages of messages in order", _KEYED, families=_EVERY),
    V("GCC_COLORS", Kind.STRING, "", (LOG,), "colours of gcc's messages",
      "on a terminal, a compile under `buildd run` that is no hit has them", acts=True, set_in=SetIn.SHELL),
    V("TMPDIR", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("TMP", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("TEMP", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("PWD", Kind.PATH, "", (STRIP,), "current folder as the shell spells it",
      "the shims spell the current folder as it does", acts=True, set_in=SetIn.SHELL),
    V("MAKEFLAGS", Kind.FLAGS, "", (STRIP,), "flags and jobserver of make",
      "`buildd run -j N` adds -jN to it; a jobserver that it names is used", acts=True, set_in=SetIn.SHELL),
    V("PATH", Kind.PATHS, "", (SOURCE,), "where programs are found",
      "buildd looks for compilers there; tools get a fixed PATH with the toolchain's folders", acts=True,
      set_in=SetIn.SHELL),
)
