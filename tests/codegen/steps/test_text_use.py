"""Which flags let comments, or the lines of tokens, reach a result."""

from __future__ import annotations

import pytest

from codegen.plan import TextUse
from codegen.steps.text_use import is_older, text_use


def use(*flags: str, source: str = "a.cu", clang: bool = False, nvcc_whole: bool = False) -> TextUse:
    return text_use(source, flags, clang=clang, nvcc_whole=nvcc_whole)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-O3", "-std=c++17", "-Xcompiler=-fPIC,-Wall", "-Iinclude", "-gencode=arch=compute_80,code=sm_80"),
        ("-std", "c++20"),
        ("--std=c++17",),
        ("-x", "cu"),
        ("-Wextra", "-Wimplicit-fallthrough"),
        ("-g0",),
        ("-std=c++11",),
        ("--std", "c++03"),
        ("-x", "c", "-std=gnu17"),
        ("-xc", "-std=iso9899:1999"),
        ("-fdiagnostics-color=always",),
    ],
)
def test_of_most_compiles_only_tokens_count(flags: tuple[str, ...]) -> None:
    assert use(*flags) is TextUse.TOKENS


@pytest.mark.parametrize(
    "flags",
    [
        ("-g",),
        ("-lineinfo",),
        ("-G",),
        ("-Xcompiler=-O2,-g3",),
        ("-Xcompiler", "-fsanitize=undefined"),
        ("-DHERE=__LINE__",),
        ("-pg",),
    ],
)
def test_lines_count_where_a_flag_shows_them(flags: tuple[str, ...]) -> None:
    assert use(*flags) is TextUse.LINES


@pytest.mark.parametrize(
    "flags",
    [
        ("-C",),
        ("-Xcompiler=-CC",),
        ("-Xcompiler", "-fno-strict-aliasing,-traditional-cpp"),
        ("-save-temps",),
        ("-fverbose-asm",),
        ("-finput-charset=SHIFT-JIS",),
        ("-Wimplicit-fallthrough=1",),
        ("-Werror=implicit-fallthrough=1",),
        ("-std=c89",),
        ("--std", "gnu90"),
        ("-std=c++0y",),
        ("-ansi",),
        ("-x", "objective-c"),
        ("-xassembler-with-cpp",),
        ("-src-in-ptx", "-lineinfo"),
        ("-Wa,-adhln",),
        ("-Wdocumentation",),
        ("-Xclang", "-verify"),
        ("-fplugin=/x.so",),
        ("@more",),
        ("-fno-show-source-location",),
        ("-fdiagnostics-format=json",),
    ],
)
def test_all_counts_where_a_flag_lets_comments_through(flags: tuple[str, ...]) -> None:
    assert use(*flags) is TextUse.CONTENT


@pytest.mark.parametrize(
    ("source", "flags", "older"),
    [
        ("a.c", (), True),
        ("a.c", ("-std=gnu2x",), True),
        ("a.cc", ("-xc",), True),
        ("a.cc", ("-x", "c"), True),
        ("a.cu", ("-std", "c++11"), True),
        ("a.cpp", ("-std=gnu++98",), True),
        ("a.cpp", (), False),
        ("a.cu", ("-std=c++17", "-O2"), False),
        ("a.cpp", ("-std=c++14",), False),
    ],
)
def test_languages_that_read_some_texts_otherwise(source: str, flags: tuple[str, ...], older: bool) -> None:
    assert use(*flags, source=source) is TextUse.TOKENS
    assert is_older(source, flags) is older


@pytest.mark.parametrize("source", ["a.S", "a.ii", "a.i", "a.m", "a"])
def test_only_c_and_c_plus_plus_are_known(source: str) -> None:
    assert use(source=source) is TextUse.CONTENT


def test_clang_writes_lines_into_names_and_digests_of_files_into_debug_information() -> None:
    assert use(clang=True) is TextUse.LINES
    assert use("-g", clang=True) is TextUse.CONTENT
    assert use("-lineinfo", nvcc_whole=True) is TextUse.CONTENT
