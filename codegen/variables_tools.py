"""Variables that host compilers, binutils, nvcc and HIP read: the only ones that reach tools of our own targets.

Knows no request. `families` says which tools get to see a variable; what reaches a tool is part of its action's key.
"""

from __future__ import annotations

from codegen.variable import CACHE, KEY, LOG, SCHED, SOURCE, STRIP, Family, Kind, Section, Variable, rows

V = Variable
_ALL = (Family.HOST, Family.CUDA, Family.HIP, Family.TORCH)
_EVERY = (*_ALL, Family.TRITON)
_CUDA = (Family.CUDA,)
_HIP = (Family.HIP,)
_KEYED = "passed to our tools and keyed"
_SEARCH = "passed to our tools and keyed; what is found there is keyed by content"
_FOUND = "where the tool is looked for; its content is keyed"
_SIDE = "not sent: it would write beside a cached result; buildd gathers the inputs itself"
_CMAKE = "passed to `buildd run`; our own targets name their architectures and tools"
_OWN = "set by buildd, so that a tool's temporary names stay in the job's folder"

# fmt: off
VARIABLES = rows(
    Section.TOOLS,
    V("CPATH", Kind.PATHS, "", (KEY,), "include folders of gcc and clang, after -I", _SEARCH, families=_ALL),
    V("C_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for C", _SEARCH, families=_ALL),
    V("CPLUS_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for C++", _SEARCH, families=_ALL),
    V("OBJC_INCLUDE_PATH", Kind.PATHS, "", (KEY,), "include folders for Objective-C", _SEARCH, families=_ALL),
    V("LIBRARY_PATH", Kind.PATHS, "", (KEY,), "library folders of the linker", _SEARCH, families=_ALL),
    V("LD_RUN_PATH", Kind.PATHS, "", (KEY,), "run path that ld writes into a program", _KEYED, families=_ALL),
    V("COMPILER_PATH", Kind.PATHS, "", (KEY,), "where gcc looks for cc1plus, as and ld", _KEYED, families=_ALL),
    V("GCC_EXEC_PREFIX", Kind.PATH, "", (KEY,), "prefix of gcc's subprograms", _KEYED, families=_ALL),
    V("GCC_COMPARE_DEBUG", Kind.STRING, "", (KEY,), "compiles twice and compares", _KEYED, families=_ALL),
    V("COLLECT_NO_DEMANGLE", Kind.STRING, "", (KEY,), "raw symbols in the linker's messages", _KEYED, families=_ALL),
    V("GNUTARGET", Kind.STRING, "", (KEY,), "object format of ld", _KEYED, families=_ALL),
    V("LDEMULATION", Kind.STRING, "", (KEY,), "emulation of ld", _KEYED, families=_ALL),
    V("SOURCE_DATE_EPOCH", Kind.INT, "", (KEY,), "time that __DATE__ and __TIME__ show, seconds since 1970", _KEYED,
      families=_ALL),
    V("CCC_OVERRIDE_OPTIONS", Kind.STRING, "", (KEY,), "edits clang's command line", _KEYED, families=_HIP),
    V("DEPENDENCIES_OUTPUT", Kind.PATH, "", (STRIP,), "file that gcc writes its headers into", _SIDE),
    V("SUNPRO_DEPENDENCIES", Kind.PATH, "", (STRIP,), "the same with system headers", _SIDE),
    V("CC_PRINT_HEADERS_FILE", Kind.PATH, "", (STRIP,), "file that clang writes its headers into", _SIDE),
    V("CC_PRINT_*", Kind.STRING, "", (STRIP,), "reports of clang", _SIDE),
    V("CC", Kind.PATH, "", (SOURCE,), "the C compiler",
      "passed to `buildd run`; nvcc's host compiler is named by NVCC_CCBIN"),
    V("CXX", Kind.PATH, "g++", (SOURCE, KEY), "the C++ compiler; a string in Inductor's key",
      _FOUND + ", which Inductor leaves out"),
    V("CFLAGS", Kind.FLAGS, "", (KEY,), "flags for C in make and cmake", _CMAKE),
    V("CXXFLAGS", Kind.FLAGS, "", (KEY,), "flags for C++ in make and cmake", _CMAKE),
    V("LDFLAGS", Kind.FLAGS, "", (KEY,), "flags for linking in make and cmake", _CMAKE),
    V("CUDAFLAGS", Kind.FLAGS, "", (KEY,), "flags for CUDA in cmake", _CMAKE),
    V("HIPFLAGS", Kind.FLAGS, "", (KEY,), "flags for HIP in cmake", _CMAKE),
    V("CUDAARCHS", Kind.STRING, "", (KEY,), "architectures in cmake", _CMAKE),
    V("CUDAHOSTCXX", Kind.PATH, "", (KEY,), "nvcc's host compiler in cmake", _CMAKE),
    V("HIPCXX", Kind.PATH, "", (KEY,), "the HIP compiler in cmake", _CMAKE),
    V("CUDACXX", Kind.PATH, "", (SOURCE, KEY), "nvcc in cmake and in Inductor", _FOUND + ", which Inductor leaves out"),
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
    V("CUDA_DEVICE_ORDER", Kind.STRING, "", (SCHED,), "how CUDA numbers devices", "used when devices are counted"),
    V("CUDA_CACHE_*", Kind.STRING, "", (CACHE,), "the driver's own cache of compiled PTX",
      "forwarded to programs that run; no compile reads it"),
    V("HIPCC_COMPILE_FLAGS_APPEND", Kind.FLAGS, "", (KEY,), "flags after hipcc's own when it compiles", _KEYED,
      families=_HIP),
    V("HIPCC_LINK_FLAGS_APPEND", Kind.FLAGS, "", (KEY,), "flags after hipcc's own when it links", _KEYED,
      families=_HIP),
    V("HIPCC_VERBOSE", Kind.INT, "", (LOG,), "hipcc prints its steps", "not passed: it would be part of a cached log"),
    V("HIP_PLATFORM", Kind.CHOICE, "amd", (KEY,), "amd or nvidia behind hipcc", _KEYED, choices=("amd", "nvidia"),
      families=_HIP),
    V("HIP_COMPILER", Kind.STRING, "", (KEY,), "compiler behind hipcc", _KEYED, families=_HIP),
    V("HIP_RUNTIME", Kind.STRING, "", (KEY,), "run time behind hipcc", _KEYED, families=_HIP),
    V("HIP_PATH", Kind.PATH, "", (KEY,), "where HIP is", _KEYED + "; where hipcc is looked for", families=_HIP,
      acts=True),
    V("HIP_CLANG_PATH", Kind.PATH, "", (KEY,), "folder of hipcc's clang", _KEYED, families=_HIP),
    V("HIP_LIB_PATH", Kind.PATH, "", (KEY,), "folder of HIP's libraries", _KEYED, families=_HIP),
    V("HSA_PATH", Kind.PATH, "", (KEY,), "where the HSA run time is", _KEYED, families=_HIP),
    V("HIP_DEVICE_LIB_PATH", Kind.PATH, "", (KEY,), "folder of the device libraries", _KEYED, families=_HIP),
    V("DEVICE_LIB_PATH", Kind.PATH, "", (KEY,), "folder of the device libraries", _KEYED, families=_HIP),
    V("HCC_AMDGPU_TARGET", Kind.LIST, "", (KEY,), "architectures where hipcc is given none", _KEYED, families=_HIP),
    V("ROCM_TARGET_LST", Kind.PATH, "", (KEY,), "file of architectures where hipcc is given none", _KEYED,
      families=_HIP),
    V("ROCR_VISIBLE_DEVICES", Kind.STRING, "", (SCHED,), "the GPUs that ROCm shows",
      "devices of programs that run; no compile reads it"),
    V("LD_LIBRARY_PATH", Kind.PATHS, "", (KEY,), "libraries that the tools themselves load", _KEYED, families=_EVERY),
    V("LD_PRELOAD", Kind.STRING, "", (KEY,), "libraries put into every process", _KEYED, families=_EVERY),
    V("LANG", Kind.STRING, "C.UTF-8", (KEY,), "language of messages",
      "C.UTF-8 unless set; passed to our tools and keyed", families=_EVERY),
    V("LC_*", Kind.STRING, "C.UTF-8", (KEY,), "language of messages by category",
      "LC_ALL=C.UTF-8 unless LANG or one is set", families=_EVERY),
    V("LANGUAGE", Kind.STRING, "", (KEY,), "languages of messages in order", _KEYED, families=_EVERY),
    V("GCC_COLORS", Kind.STRING, "", (LOG,), "colours of gcc's messages",
      "not passed: they would be part of a cached log"),
    V("TMPDIR", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("TMP", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("TEMP", Kind.PATH, "", (STRIP,), "folder of temporary files", _OWN),
    V("PWD", Kind.PATH, "", (STRIP,), "current folder as the shell spells it",
      "not sent: tools run in the project's folder"),
    V("MAKEFLAGS", Kind.FLAGS, "", (STRIP,), "flags and jobserver of make",
      "not sent: the tools have tokens of our own"),
    V("PATH", Kind.PATHS, "", (SOURCE,), "where programs are looked for",
      "where compilers are looked for; tools get a fixed one with the toolchain's folders", acts=True),
)
