"""Which calls only try the compiler out."""

from __future__ import annotations

import pytest

from codegen.foreign.trial_compile import is_trial

SCRATCH = "/w/build/CMakeFiles/CMakeScratch/TryCompile-Fq1"


@pytest.mark.parametrize(
    ("folder", "words", "expected"),
    [
        (SCRATCH, "g++ -o CMakeFiles/cmTC_1.dir/t.cxx.o -c /w/build/CMakeFiles/t.cxx", True),
        (SCRATCH, "g++ -v -o CMakeFiles/cmTC_1.dir/a.o -c /usr/share/cmake/Modules/CMakeCXXCompilerABI.cpp", True),
        (SCRATCH, "gcc -c t.c", True),
        ("/w/build", "gcc -c t.c -oCMakeFiles/CMakeTmp/t.o", True),
        ("/w/build/meson-private/tmp8f", "cc /w/build/meson-private/tmp8f/testfile.c -o output.obj -c", True),
        ("/w/b/CMakeFiles/3.25.1/CompilerIdCXX", "c++ --ec++ CMakeCXXCompilerId.cpp", True),
        ("/w", "gcc -c conftest.c", True),
        ("/w", "gcc conftest.c -o conftest", True),
        ("/w", "cc /w/b/meson-private/tmp1_a/testfile.c -E -P -O0", True),
        ("/w", "cc /w/b/meson-private/tmp1_a/testfile.c /w/a.c -E", False),
        ("/w", "nvcc -v __cmake_determine_cuda", True),
        ("/w", "gcc -Wa,-q -S -o /dev/null -xc /dev/null", True),
        ("/w", "gcc -x c /dev/null -c -o .tmp/t.o", True),
        ("/w", "gcc -xc - -c -o /dev/null", True),
        ("/w", "gcc -w -o/tmp/go-build1/b001//_cgo_.o -c -I /tmp/go-build1/b001/ -I . /tmp/cgo-gcc-input-24.c", True),
        ("/tmp/go-link-54", "gcc -m64 -no-pie trivial.c", True),
        ("/w", "gcc -m64 -no-pie trivial.c", False),
        ("/w", "gcc -include /dev/null -c a.c -o a.o", False),
        # A real compile, though something of it has such a name.
        (SCRATCH, "g++ -c /w/src/a.cpp -o /w/build/a.o", False),
        (SCRATCH, "g++ -c t.cpp -o ../../../a.o", False),
        ("/w/CMakeFiles/CMakeScratch", "g++ -c a.cpp", False),
        ("/home/meson-private/app", "g++ -c a.cpp", False),
        ("/w", "gcc -c conftest.c -o app.o", False),
        ("/w", "gcc -c conftest.c app.c", False),
        ("/w", "gcc -c src/app.c -o conftest.o", False),
        ("/w", "gcc", False),
    ],
)
def test_only_what_is_made_in_a_scratch_folder_is_a_trial(folder: str, words: str, expected: bool) -> None:
    assert is_trial(words.split(), folder) is expected
