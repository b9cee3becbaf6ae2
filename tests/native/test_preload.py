"""Large fills: the same bytes as memset's, without the pages that nobody looks at."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from buildd.native import preload
from codegen.foreign.called_tool import sent_variables

PROGRAM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LARGE = 64 << 20, ODD = 5003 };

static long sum(unsigned char const *bytes, size_t from, size_t to)
{
    long all = 0;
    for (size_t i = from; i < to; ++i)
        all += bytes[i];
    return all;
}

int main(int count, char **arguments)
{
    char const *how = arguments[1];
    if (count > 2)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    if (!strcmp(how, "faults")) {
        unsigned char *table = malloc(LARGE);
        memset(table, 0xdb, LARGE);
        table[LARGE / 2] = 1;
        struct rusage used;
        getrusage(RUSAGE_SELF, &used);
        printf("%ld %d\n", used.ru_minflt, table[LARGE / 3]);
        free(table);
    } else if (!strcmp(how, "bytes")) {
        /* Inside of a larger piece, ends in the middle of pages, what is beside them stays; filled twice; moved. */
        unsigned char *table = malloc(LARGE);
        memset(table, 1, ODD);
        memset(table + LARGE - ODD, 2, ODD);
        memset(table + 77, 0xdb, LARGE - 77 - 99);
        printf("%ld %ld %ld\n", sum(table, 0, 77), sum(table, 77, LARGE - 99), sum(table, LARGE - 99, LARGE));
        table[LARGE / 2] = 5;
        printf("%ld\n", sum(table, 77, LARGE - 99));
        memset(table + 77, 0, LARGE - 77 - 99);
        printf("%ld %ld\n", sum(table, 0, LARGE - 99), sum(table, LARGE - 99, LARGE));
        memset(table, 3, LARGE);
        table = realloc(table, 2 * (size_t)LARGE);
        printf("%ld\n", sum(table, 0, LARGE));
        free(table);
    } else {
        /* A file that others see, and one that only this process changes. */
        int shared = !strcmp(how, "shared");
        int file = memfd_create("file", 0);
        if (ftruncate(file, LARGE))
            return 1;
        unsigned char *table =
            mmap(NULL, LARGE, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, file, 0);
        memset(table, 0xdb, LARGE);
        unsigned char byte;
        if (pread(file, &byte, 1, LARGE / 2) != 1)
            return 1;
        printf("%d %d\n", byte, table[LARGE / 2]);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filling")
    (folder / "fill.c").write_text(PROGRAM)
    # Its own calls are to reach the preloaded function, as those of a tool that is linked to libc do.
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", folder / "fill", folder / "fill.c"], check=True)
    return folder / "fill"


def run(program: Path, how: str, library: str = "", *more: str) -> list[int]:
    environment = {"LD_PRELOAD": library} if library else {}
    done = subprocess.run(
        [program, how, *more], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("how", ["bytes", "shared", "private"])
def test_what_is_read_is_what_memset_writes(how: str, program: Path, tmp_path: Path) -> None:
    assert run(program, how, preload.library(tmp_path)) == run(program, how)


def test_pages_that_nobody_looks_at_are_not_made(program: Path, tmp_path: Path) -> None:
    faults, byte = run(program, "faults")
    pages = (64 << 20) // resource.getpagesize()
    assert faults > pages / 2 and byte == 0xDB, "else this test shows nothing"
    fewer, byte = run(program, "faults", preload.library(tmp_path))
    assert fewer < pages / 8 and byte == 0xDB


def test_where_no_file_can_be_made_memset_does_it(program: Path, tmp_path: Path) -> None:
    library = preload.library(tmp_path)
    assert run(program, "bytes", library, "no more files") == run(program, "bytes")


def test_one_that_cannot_be_preloaded_is_not(tmp_path: Path) -> None:
    odd = tmp_path / "a space"
    odd.mkdir()
    assert preload.library(odd) == "", "the loader takes a space for the end of the name"


def test_one_that_went_away_is_not_asked_for(tmp_path: Path) -> None:
    library = preload.library(tmp_path)
    assert os.path.exists(library) and preload.library(tmp_path) == library
    os.unlink(library)
    assert preload.library(tmp_path) == ""


def test_without_a_compiler_nothing_is_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert preload.library(tmp_path) == ""


def test_a_shim_hands_the_switch_on() -> None:
    assert "BUILDD_PRELOAD" in sent_variables()
