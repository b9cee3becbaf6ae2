"""Command lines of foreign builds: what they come to, and which are left to the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.compilers.command_parser import Compile, Family, Makes, PassThrough, Reason
from codegen.compilers.depfile import Depfile, quoted
from codegen.foreign.command_line import TOOLS, parse


def parsed(*command: str, folder: str = "/somewhere", **environment: str) -> Compile:
    return parse((f"/usr/bin/{command[0]}", *command[1:]), folder, tuple(environment.items()))


def refused(*command: str, **environment: str) -> Reason:
    with pytest.raises(PassThrough) as why:
        parsed(*command, **environment)
    return why.value.reason


@pytest.mark.parametrize(
    "options",
    [
        ("-O2", "-g", "-std=c++17", "-Wall", "-Wno-unused-variable", "-Werror=format", "-fPIC", "-pthread", "-pipe"),
        ("-I", "inc", "-Iother", "-isystem", "/opt/x", "-isystem/opt/y", "-iquote", "q", "-idirafter", "z"),
        ("-D", "A", "-DB=1", "-DC(x)=x y", '-DD="a b"', "-U", "E", "-UF", "-include", "pre.h"),
        ("-x", "c++", "-fvisibility=hidden", "-fstack-protector-strong", "-ffile-prefix-map=/a=b", "-mavx2", "-m64"),
        (
            "-Wp,-D_FORTIFY_SOURCE=2",
            "-Wa,--noexecstack",
            "-Wl,-O1",
            "-L/usr/lib",
            "-lm",
            "--param",
            "ggc-min-heapsize=8192",
        ),
        ("-march=x86-64-v3", "-mtune=generic", "-fabi-version=11", "-fno-exceptions", "-fdiagnostics-color=always"),
        ("-D_GLIBCXX_USE_CXX11_ABI=0", "-fdebug-prefix-map=/build=.", "-flto=auto", "-ffat-lto-objects", "-fopenmp"),
    ],
    ids=lambda options: options[0],
)
def test_gccs_usual_options_are_kept_in_their_order(options: tuple[str, ...]) -> None:
    found = parsed("g++", *options, "-c", "a.cpp", "-o", "out/a.o")
    assert found.arguments == (*options, "-c", "a.cpp")
    assert (found.family, found.source, found.output) == (Family.GCC, "a.cpp", "out/a.o")
    assert found.flags == (*options, "-c")
    assert found.depfile is None


@pytest.mark.parametrize(
    "options",
    [
        ("-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-O3", "--expt-relaxed-constexpr", "-std=c++17"),
        ("--generate-code=arch=compute_90a,code=sm_90a", "-Xcompiler=-fPIC", "-x", "cu", "-rdc=true"),
        ("-forward-unknown-to-host-compiler", "-Wall", "-fPIC", "-arch=sm_80", "-lineinfo"),
        ("--compiler-options", "'-fPIC'", "-Xptxas", "-v,-O3", "--ptxas-options=-v", "--use_fast_math"),
        ("-Xcudafe", "--diag_suppress=177,--display_error_number", "-t", "4", "-DX=1", "-I/a/b", "-isystem=/c", "-w"),
        (
            "-Xcompiler",
            "-Wall,-O2,-fno-strict-aliasing",
            "--threads=0",
            "-maxrregcount=64",
            "--default-stream",
            "per-thread",
        ),
        ("-Xfatbin=-compress-all", "-t0", "-brief-diag=true", "--forward-unknown-opts", "-g0", "--shared"),
        ("-Xfatbin", "--compress-all,-compress-mode=size", "-t", "0", "--brief-diagnostics", "true", "-rdc=true"),
        ("--fatbin-options=-compress-all", "-t12"),
        ("--fatbin-options", "'-compress-all'", "--compiler-options", "'-fPIC'"),
        (
            "-diag-suppress",
            "20012",
            "--extended-lambda",
            "-U__CUDA_NO_HALF_OPERATORS__",
            "-DTORCH_EXTENSION_NAME=x",
            "-G",
        ),
    ],
    ids=lambda options: options[0],
)
def test_nvccs_usual_options_are_kept_in_their_order(options: tuple[str, ...]) -> None:
    found = parsed("nvcc", *options, "-c", "a.cu", "-o", "a.o")
    assert found.arguments == (*options, "-c", "a.cu")
    assert found.relocatable == ("-rdc=true" in options)


@pytest.mark.parametrize(
    ("option", "made"),
    [
        ("--cubin", "a.cubin"),
        ("-fatbin", "a.fatbin"),
        ("-ptx", "a.ptx"),
        ("--ltoir", "a.ltoir"),
        ("-optix-ir", "a.optixir"),
    ],
)
def test_nvcc_makes_device_code_alone(option: str, made: str) -> None:
    found = parsed("nvcc", option, "-dlto", "a.cu")
    assert (found.makes, found.output, found.arguments) == (Makes.OBJECT, made, (option, "-dlto", "a.cu"))


def test_nvccs_host_compiler_and_other_ways_to_say_compile() -> None:
    assert parsed("nvcc", "-ccbin", "/usr/bin/g++", "-dc", "a.cu").host == "/usr/bin/g++"
    found = parsed("nvcc", "--compiler-bindir=clang++", "--device-c", "x.cu.cpp", "--output-file", "b.o")
    assert (found.host, found.relocatable, found.output, found.arguments) == (
        "clang++",
        True,
        "b.o",
        ("--device-c", "x.cu.cpp"),
    )


def test_hipcc_makes_device_code_alone() -> None:
    """AMD's usual way to code objects. Each architecture's compile writes the depfile anew."""
    for option in ("--genco", "--cuda-device-only", "--offload-device-only"):
        made = parsed("hipcc", option, "--offload-arch=gfx906", "-MD", "a.cpp", "-o", "a.hsaco")
        assert (made.makes, made.output) == (Makes.OBJECT, "a.hsaco")
        for words in (("--offload-arch=gfx906,gfx90a", "-o", "x"), ("--offload-arch=gfx906",)):
            assert refused("hipcc", option, "-c", "a.cpp", *words) is Reason.UNSUPPORTED_OPTION


def test_hipcc_needs_an_architecture() -> None:
    assert parsed("hipcc", "--offload-arch=gfx90a", "-fgpu-rdc", "-c", "a.hip").output == "a.o"
    assert refused("hipcc", "-c", "a.hip") is Reason.MACHINE
    assert refused("hipcc", "--offload-arch=gfx90a", "-c", "a.hip", HIP_PLATFORM="nvidia") is Reason.ENVIRONMENT


def test_nvccs_lists_of_includes_go_to_standard_output_or_a_file() -> None:
    found = parsed("nvcc", "-MM", "-dc", "a.cu", "-Iinc")
    assert (found.makes, found.output, found.flags) == (Makes.RULES, "", ("-MM", "-dc", "-Iinc"))
    assert parsed("nvcc", "--generate-dependencies", "a.cu", "-o", "a.d").output == "a.d"


def test_options_of_composable_kernels_builds_are_kept() -> None:
    options = (
        *(
            "-mllvm",
            "-enable-post-misched=0",
            "-mllvm",
            "--lsr-drop-solution=1",
            "-mllvm",
            "-amdgpu-early-inline-all=true",
        ),
        *(
            "--offload-compress",
            "-parallel-jobs=4",
            "-fno-offload-uniform-block",
            "-Weverything",
            "-fbracket-depth=512",
        ),
        *(
            "--gpu-max-threads-per-block=256",
            "-fgpu-flush-denormals-to-zero",
            "-mllvm",
            "-amdgpu-coerce-illegal-types=1",
        ),
    )
    found = parsed("hipcc", "--offload-arch=gfx942", *options, "-c", "a.hip")
    assert found.flags == ("--offload-arch=gfx942", *options, "-c")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("-MD",), Depfile(path="out/a.d", targets=("out/a.o",))),
        (("-MMD", "-MP"), Depfile(path="out/a.d", targets=("out/a.o",), phony=True, system=False)),
        (("-MD", "-MF", "x.d", "-MT", "t", "-MTu"), Depfile(path="x.d", targets=("t", "u"))),
        (("-MD", "-MFx.d", "-MQ", "a b$"), Depfile(path="x.d", targets=("a\\ b$$",))),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_concerns_the_depfile_is_taken_out(options: tuple[str, ...], wanted: Depfile) -> None:
    found = parsed("gcc", *options, "-c", "a.c", "-o", "out/a.o")
    assert found.depfile == wanted
    assert found.arguments == ("-c", "a.c")


def test_the_depfile_of_a_hidden_object_has_no_name_but_its_ending() -> None:
    for tool in ("gcc", "clang", "nvcc"):
        for output, path in ((".a", ".d"), ("b.c/.a", "b.c/.d"), (".a.o", ".a.d"), ("a.", "a.d"), ("b.c/a", "b.c/a.d")):
            depfile = parsed(tool, "-MD", "-c", "a.cu" if tool == "nvcc" else "a.c", "-o", output).depfile
            assert depfile is not None and depfile.path == path, (tool, output)


def test_the_depfile_of_assembler_text_names_an_object_unless_the_command_names_the_text() -> None:
    assert parsed("gcc", "-S", "-MD", "a.c").depfile == Depfile(path="a.d", targets=("a.o",))
    assert parsed("gcc", "-S", "-MD", "a.c", "-o", "b.s").depfile == Depfile(path="b.d", targets=("b.s",))


def test_nvccs_depfile_options() -> None:
    found = parsed("nvcc", "-c", "a.cu", "-MD", "-MT", "t.o", "-MF", "t.d", "-o", "t.o")
    assert found.depfile == Depfile(path="t.d", targets=("t.o",))
    spelled = ("--generate-dependencies-with-compile", "--dependency-output", "x.o.d")
    found = parsed("nvcc", *spelled, "-c", "a.cu", "-o", "x.o")
    assert found.depfile == Depfile(path="x.o.d", targets=("x.o",))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("gcc a.c b.c", Reason.LINK),
        ("gcc a.c b.o", Reason.LINK),
        ("gcc a.o -o a", Reason.LINK),
        ("gcc -c", Reason.NO_SOURCE),
        ("gcc -c a.c b.c", Reason.SEVERAL_SOURCES),
        ("gcc -c -", Reason.STANDARD_INPUT),
        ("gcc -E a.c", Reason.PREPROCESS),
        ("gcc -MM -MD a.c", Reason.DEPENDENCIES_ONLY),
        ("gcc -c a.s", Reason.ASSEMBLER),
        ("gcc -c a.f90", Reason.LANGUAGE),
        ("gcc -x c-header -S a.h", Reason.LANGUAGE),
        ("gcc -c a.f90", Reason.LANGUAGE),
        ("gcc -c a.c -MG -MD", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -MF x", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -fplugin=x.so", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -fsanitize-blacklist=list", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -fprofile-use=x", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -fauto-profile=data.afdo", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c --coverage", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -fdump-tree-all", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -fstack-usage", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -gsplit-dwarf", Reason.UNSUPPORTED_OPTION),
        ("g++ -c a.cc -fvtv-counts", Reason.UNSUPPORTED_OPTION),
        ("clang -c a.c -flto=thin -fthin-link-bitcode=x", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -Wp,-w,x.d", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -Wa,-al=x.lst", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -Bopt", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -B opt", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c --sysroot=opt", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c --sysroot=/opt -I=/include", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c --sysroot=/opt -isystem =/include", Reason.UNSUPPORTED_OPTION),
        ("gcc a.c -B /opt -o a", Reason.LINK),
        ("hipcc --offload-arch=gfx90a -c a.hip -B /opt", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xcompiler -B/opt", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -specs=x", Reason.UNKNOWN_OPTION),
        ("hipcc -c a.cpp --offload-arch=gfx90a -march=native", Reason.MACHINE),
        ("nvcc -c a.cu -Xcompiler -march=native", Reason.MACHINE),
        ("clang++ --rocm-path=/r --hip-link -shared a.o b.o -o liba.so", Reason.LINK),
        ("g++ --unheard-of a.o b.cpp -o prog", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -v", Reason.UNSUPPORTED_OPTION),  # prints the names of temporary files
        ("gcc -c a.c -H", Reason.UNKNOWN_OPTION),
        ("gcc -v", Reason.QUERY),
        ("gcc -v -E -", Reason.QUERY),
        ("cc -Wl,--version", Reason.QUERY),
        ("cc -cpp -x c -E -dM -", Reason.PREPROCESS),
        ("g++ -dumpfullversion -dumpversion", Reason.QUERY),
        ("clang -print-search-dirs", Reason.QUERY),
        ("gcc -### -c a.c", Reason.QUERY),
        ("nvcc --version", Reason.QUERY),
        ("nvcc -Xcompiler=-print-sysroot", Reason.QUERY),
        ("nvcc -Xcompiler -print-sysroot,-v", Reason.QUERY),
        ("nvcc -Xcompiler -print-file-name=libc.so -c a.cu", Reason.QUERY),
        ("gcc --target-help", Reason.QUERY),
        ("gcc -c a.c -o", Reason.UNKNOWN_OPTION),
        ("gcc -c a.c -o a.o -o b.o", Reason.OUTPUT),
        ("gcc -c a.c -x c++", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c -D__DATE__=__TIME__", Reason.UNSUPPORTED_OPTION),
        ("gcc -c a.c @missing", Reason.RESPONSE_FILE),
        ("clang -c a.c -Xclang -load", Reason.UNKNOWN_OPTION),
        ("clang -c a.c -mllvm -x", Reason.UNSUPPORTED_OPTION),
        ("clang -c a.c --target=arm", Reason.UNKNOWN_OPTION),
        *(
            (f"hipcc -c a.hip --offload-arch=gfx90a -mllvm {option}", Reason.UNKNOWN_OPTION)
            for option in (
                "-pass-remarks-output=x",
                "-dot-cfg",
                "-stats",
                "-load=x.so",
                "-x=a/b",
                "-sample-profile-file=x",
                "x",
            )
        ),
        ("ld a.o", Reason.TOOL),
        ("nvcc a.cu b.cu -o a", Reason.LINK),
        ("nvcc a.cu b.o -o a", Reason.LINK),
        ("nvcc a.cu -shared -rdc=true -o a", Reason.LINK),
        ("nvcc a.cu -rdc=true -o a", Reason.LINK),
        ("nvcc a.cu -Xlinker -Tscript -o a", Reason.LINK),
        ("nvcc a.cu -Xcompiler -fprofile-arcs -o a", Reason.LINK),
        ("nvcc a.cu -MD -o a", Reason.LINK),
        ("nvcc -c a.cu -keep", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu --dryrun", Reason.QUERY),
        ("nvcc -c a.cu -v", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu -Xcompiler -v", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu --keep-dir=x", Reason.UNSUPPORTED_OPTION),
        ("nvcc -ptx -cubin a.cu", Reason.UNSUPPORTED_OPTION),
        ("nvcc -ptx -optix-ir a.cu", Reason.UNSUPPORTED_OPTION),
        ("nvcc -dlink a.cu", Reason.LINK),
        ("nvcc -dlink a.o b.a", Reason.LINK),
        ("nvcc -dlink -c a.o", Reason.LINK),
        ("nvcc -dlink a.o -Xnvlink -v", Reason.LINK),
        ("nvcc -E a.cu", Reason.PREPROCESS),
        ("nvcc -M a.cu -MF a.d", Reason.DEPENDENCIES_ONLY),
        ("nvcc -c a.ptx", Reason.LANGUAGE),
        ("nvcc -c a.cu -arch=native -code=sm_80", Reason.MACHINE),
        ("nvcc -c a.cu -arch native -gencode arch=compute_80,code=sm_80", Reason.MACHINE),
        ("nvcc -c a.cu -Wall", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xcompiler -save-temps", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xcompiler -MD", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xcompiler -o,x", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xptxas --output-file=x", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xfatbin -g", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -Xfatbin -compress-all,--create=x", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -t4x", Reason.UNKNOWN_OPTION),
        ("nvcc -c a.cu -DX=`id`", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu --time=x", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu -jobserver", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu -odir out", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu -forward-unknown-to-host-compiler -fplugin=x", Reason.UNSUPPORTED_OPTION),
        ("nvcc -c a.cu -gencode arch=native", Reason.MACHINE),
    ],
)
def test_what_is_not_understood_is_left_to_the_tool(command: str, reason: Reason) -> None:
    assert refused(*command.split()) is reason


def test_of_several_options_for_the_host_compiler_the_refused_one_is_named() -> None:
    with pytest.raises(PassThrough, match="-Xcompiler --unheard-of"):
        parsed("nvcc", "-c", "a.cu", "-Xcompiler", "-Wall,--unheard-of,-fPIC")


@pytest.mark.parametrize("name", ['a"b', "a$b", "a`b", "a\\b", "a\nb"])
def test_names_that_nvccs_shell_would_read_are_left_to_nvcc(name: str) -> None:
    assert refused("nvcc", "-c", f"{name}.cu") is Reason.FILE_NAME
    assert refused("nvcc", "-c", "a.cu", "-o", f"{name}.o") is Reason.FILE_NAME
    assert parsed("g++", "-c", f"{name}.cpp").source == f"{name}.cpp"
    assert refused("nvcc", "-c", f"{name}/a.cu") is Reason.FILE_NAME


def test_fatbinary_reads_the_name_of_a_source() -> None:
    assert refused("nvcc", "-c", "d/a,b.cu") is Reason.FILE_NAME
    assert parsed("nvcc", "-c", "x,y/a b'&;é.cu", "-o", "a,b'&;é.o").source == "x,y/a b'&;é.cu"


def test_nvccs_own_calls_of_the_host_compiler_are_told_from_the_builds() -> None:
    temporary = "/tmp/tmpxft_00005ef2_00000000-6_k"
    defined = ("-D__CUDACC__", "-D__NVCC__")
    for command in (
        ("gcc", "-E", "-x", "c++", *defined, "k.cu", "-o", f"{temporary}.cpp4.ii"),
        ("gcc", "-E", "-x", "c++", *defined, "k.cu", "-o", "kept/k.cpp4.ii"),
        ("g++", "-c", "-x", "c++", "-O2", f"{temporary}.cudafe1.cpp", "-o", "k.o"),
        ("g++", "-m64", "-Wl,--start-group", f"{temporary}.o", "-o", "k"),
    ):
        assert refused(*command) is Reason.INSIDE_NVCC
    assert parsed("g++", "-c", "-D__CUDACC__", "tmpxft.cpp").source == "tmpxft.cpp"


def test_options_that_say_where_gcc_has_its_parts_describe_the_tool() -> None:
    """Those of Python in conda, and of Bazel."""
    compile = parsed(
        "gcc", "-pthread", "-B", "/env/compat", "-B/other", "--sysroot=/", "-no-canonical-prefixes", "-c", "a.c"
    )
    assert compile.parts == ("-B", "/env/compat", "-B/other", "--sysroot=/", "-no-canonical-prefixes")
    assert set(compile.parts) <= set(compile.flags)
    redacted = ('-D__DATE__="redacted"', '-D__TIME__="redacted"', "-Wp,-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=3")
    assert set(redacted) < set(parsed("gcc", *redacted, "-c", "a.c").flags)


def test_nvccs_shell_replaces_nothing() -> None:
    for flags in (["-D", "A=$B"], ["-U$B"], ["-Xcompiler", "-include,~/x"], ["-e", "k`date`"], ["-frandom-seed=$B"]):
        assert refused("nvcc", "-c", *flags, "a.cu") is Reason.UNSUPPORTED_OPTION, flags
    forwarded = ("-forward-unknown-to-host-compiler", "-Wl,-rpath,$B")
    assert refused("nvcc", "-c", *forwarded, "a.cu") is Reason.UNSUPPORTED_OPTION
    assert parsed("nvcc", "-c", "-I$B", "-DA=~", "a.cu").flags == ("-c", "-I$B", "-DA=~")
    assert parsed("nvcc", "-Xlinker=-rpath,$ORIGIN", "a.o", "-o", "a").makes is Makes.LINKED
    assert parsed("gcc", "-c", "-DA=$B", "a.c").source == "a.c"


def test_flags_in_the_environment_must_be_plain_flags() -> None:
    assert parsed("nvcc", "-c", "a.cu", NVCC_APPEND_FLAGS="-lineinfo -Xcompiler -Wall").source == "a.cu"
    assert parsed("nvcc", "-c", "a.cu", NVCC_PREPEND_FLAGS=" -ccbin=/env/bin/x86_64-conda-linux-gnu-c++").host == ""
    for flags in ("-o x", "-c", "-MD", "b.cu", "-keep", "'"):
        assert refused("nvcc", "-c", "a.cu", NVCC_PREPEND_FLAGS=flags) in (
            Reason.ENVIRONMENT,
            Reason.UNSUPPORTED_OPTION,
        ), flags
    for flags in ("-DA=$B", "-I $B", "-Xcompiler -fstack-usage", "-DA=__TIME__", "-Xcompiler -march=native"):
        assert refused("nvcc", "-c", "a.cu", NVCC_APPEND_FLAGS=flags) is Reason.ENVIRONMENT, flags
        hipccs = {"HIPCC_COMPILE_FLAGS_APPEND": flags.removeprefix("-Xcompiler ")}
        assert refused("hipcc", "--offload-arch=gfx906", "-c", "a.hip", **hipccs) is Reason.ENVIRONMENT, flags
    for name in ("SUNPRO_DEPENDENCIES", "DEPENDENCIES_OUTPUT", "LD_PRELOAD", "CC_PRINT_HEADERS_FILE"):
        assert refused("gcc", "-c", "a.c", **{name: "x"}) is Reason.ENVIRONMENT


def test_folders_of_gccs_parts_are_absolute() -> None:
    """Probes run in another folder, and would not see what gcc finds in a relative one."""
    for name in ("COMPILER_PATH", "GCC_EXEC_PREFIX"):
        assert parsed("gcc", "-c", "a.c", **{name: "/a/b"}).source == "a.c"
        for folders in ("b", "./b", ""):
            assert refused("gcc", "-c", "a.c", **{name: folders}) is Reason.ENVIRONMENT
    assert parsed("gcc", "-c", "a.c", COMPILER_PATH="/a:/b").source == "a.c"
    for folders in ("/a:b", "/a:", ":/a"):
        for tool in ("gcc", "clang", "nvcc", "hipcc"):
            source = ("--offload-arch=gfx906", "a.hip") if tool == "hipcc" else ("a.c",)
            assert refused(tool, "-c", *source, COMPILER_PATH=folders) is Reason.ENVIRONMENT


def test_response_files_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "one").write_text('-O2 "-DX=a b"\n-c a.cu')
    (tmp_path / "two").write_text("@one")
    (tmp_path / "three").write_text("-DX=a\\ b")
    (tmp_path / "four").write_text("-DX " * 30_000)
    (tmp_path / "five").write_text("'-DX=a'")
    found = parsed("nvcc", "--options-file", "one", "-o", "x.o", folder=str(tmp_path))
    assert found.arguments == ("-O2", "-DX=a b", "-c", "a.cu") and found.read == (str(tmp_path / "one"),)
    reasons = {"four": Reason.TOO_LONG, **dict.fromkeys(("two", "three", "five"), Reason.RESPONSE_FILE)}
    for name, reason in reasons.items():
        with pytest.raises(PassThrough) as why:
            parsed("nvcc", "-optf", name, folder=str(tmp_path))
        assert why.value.reason is reason
    # nvcc itself does not know them under this name.
    with pytest.raises(PassThrough):
        parsed("nvcc", "@one", "-o", "x.o", folder=str(tmp_path))


def test_gcc_reads_response_files_in_response_files(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("-c a.c")
    (tmp_path / "two").write_text("-O2 @one -g")
    (tmp_path / "loop").write_text("@loop")
    found = parsed("gcc", "@two", "-S", folder=str(tmp_path))
    assert found.arguments == ("-O2", "-c", "a.c", "-g", "-S") and found.output == "a.s"
    assert found.read == (str(tmp_path / "two"), str(tmp_path / "one"))
    with pytest.raises(PassThrough) as why:
        parsed("gcc", "@loop", folder=str(tmp_path))
    assert why.value.reason is Reason.RESPONSE_FILE
    assert refused("gcc", "-c", "a.c", "-flto=linker-plugin") is Reason.UNSUPPORTED_OPTION


def test_names_are_quoted_for_make() -> None:
    assert quoted("a/b.o") == "a/b.o"
    assert quoted("a b#c$d") == "a\\ b\\#c$$d"
    assert quoted("a\\ b") == "a\\\\\\ b"


def test_every_tool_has_its_family() -> None:
    assert {name for name, family in TOOLS.items() if family is Family.GCC} == {
        *("gcc", "g++", "cc", "c++", "clang", "clang++")
    }


def test_one_step_links_and_precompiled_headers_are_told_apart() -> None:
    linked = parsed("g++", "a.cpp", "-shared", "-o", "a.so", "-lgomp", "-L/l", "-Wl,-rpath,/l", "-fopenmp")
    assert (linked.makes, linked.output) == (Makes.LINKED, "a.so")
    assert parsed("gcc", "a.c").output == "a.out"
    header = parsed("g++", "-x", "c++-header", "d/a.h")
    assert (header.makes, header.output) == (Makes.HEADER, "d/a.h.gch")
    for name in ("d/a.h", "d/a.hpp", "d/a.H", "d/a.hh"):
        header = parsed("g++", "-c", name)
        assert (header.makes, header.output) == (Makes.HEADER, f"{name}.gch")
    assert parsed("g++", "-MM", "a.hpp").makes is Makes.RULES
    # Meson's, for each source with a precompiled header.
    assert parsed("g++", "-fpch-preprocess", "-include", "a.hpp", "-c", "b.cpp").makes is Makes.OBJECT
    assert refused("g++", "-fpch-deps", "-c", "b.cpp") is Reason.UNSUPPORTED_OPTION
    assert parsed("gcc", "-c", "-x", "c-header", "a.h", "-o", "b").makes is Makes.HEADER
    assert parsed("gcc", "-c", "a.c").makes is Makes.OBJECT


def test_flags_that_mean_this_processor_are_told() -> None:
    assert parsed("gcc", "-c", "a.c", "-march=native", "-mtune=native").native == ("-march=native", "-mtune=native")
    assert parsed("gcc", "-c", "a.c", "-march=x86-64").native == ()


@pytest.mark.parametrize(
    "options",
    [
        *("-flto", "-foffload=disable", "-fopenacc", "-m32", "-L=/l", "-L =/l", "-Xlinker -s", "-MD"),
        *(
            "-Wl,-Map=x",
            "-Wl,-T,x",
            "-Wl,--version-script=x",
            "-Wl,--dependency-file=x",
            "-Wl,@x",
            "-Wl,-rpath,/l,-Map,x",
        ),
        *("-Wl,--build-id=uuid", "-Wl,--plugin,x", "-Wl,--out-implib=x"),
    ],
)
def test_links_that_write_or_read_more_are_left_to_the_tool(options: str) -> None:
    assert parsed("gcc", "a.c", "-o", "a").makes is Makes.LINKED
    assert refused("gcc", "a.c", "-o", "a", *options.split()) is Reason.UNSUPPORTED_OPTION
