"""Stock JAX on the CPU under `buildd run`: its programs come from the store, whole and checked, and are compiled once.

Runs where jax is installed (`scripts/test-jax`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.hooks import jax_cache
from tests.support.jax_program import PROGRAM, JaxProgram, damaged, entries_of
from tests.support.user import User
from tests.support.waiting import until

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]


@pytest.fixture
def program(kept_user: User) -> JaxProgram:
    shutil.rmtree(kept_user.store / "jax", ignore_errors=True)
    return JaxProgram(kept_user)


def folder_of(user: User, name: str) -> Path:
    folder = user.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def test_a_second_process_in_another_folder_compiles_nothing(program: JaxProgram) -> None:
    first = program.run()
    assert first.compiled == len(entries_of(program.user)) > 1
    assert first.folder == "None"
    second = program.run(cwd=folder_of(program.user, "elsewhere"))
    assert (second.compiled, second.loss) == (0, first.loss)
    assert f"buildd: {second.hits} JAX programs from the store" in second.errors
    status, said = program.user.buildd("cache", "stats")
    assert status == 0 and "programs of JAX" in said
    plain = program.run(through_us=False)
    assert (plain.hits, plain.loss) == (0, first.loss)


@pytest.mark.parametrize("how", ["torn", "empty", "altered"])
def test_a_damaged_entry_is_compiled_again_and_replaced(program: JaxProgram, how: str) -> None:
    first = program.run()
    for path in entries_of(program.user):
        damaged(path, how)
    again = program.run()
    assert (again.compiled, again.loss) == (first.compiled, first.loss) and "Error reading" not in again.errors
    assert program.run().compiled == 0


def test_an_entry_of_somebody_else_is_not_run(program: JaxProgram) -> None:
    theirs = program.run(BUILDD_KEY_DIR=str(folder_of(program.user, "other-keys")))
    assert program.run().compiled == theirs.compiled
    assert program.run().compiled == 0


def test_the_users_own_folder_is_filled_and_asked_first(program: JaxProgram) -> None:
    one, two = folder_of(program.user, "one"), folder_of(program.user, "two")
    least = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    first = program.run(JAX_COMPILATION_CACHE_DIR=str(one), **least)
    kept = sorted(path.name for path in one.iterdir() if path.name.endswith("-cache"))
    assert len(kept) == first.compiled and first.folder == str(one)
    # From the store into another folder, although its path is in JAX's key until 0.10.
    second = program.run(JAX_COMPILATION_CACHE_DIR=str(two), **least)
    assert second.compiled == 0 and len([path for path in two.iterdir() if path.name.endswith("-cache")]) == len(kept)
    assert program.run(through_us=False, JAX_COMPILATION_CACHE_DIR=str(two), **least).compiled == 0
    # JAX by itself never repairs a torn file, and compiles at each start.
    for path in two.iterdir():
        if path.name.endswith("-cache"):
            path.write_bytes(path.read_bytes()[:20])
    third = program.run(JAX_COMPILATION_CACHE_DIR=str(two), **least)
    assert third.compiled == 0 and "Error reading" not in third.errors
    assert program.run(through_us=False, JAX_COMPILATION_CACHE_DIR=str(two), **least).compiled == 0, "they are replaced"


@pytest.mark.parametrize("limit", [-1, 100_000_000])
def test_a_file_that_was_cut_off_is_replaced_by_what_is_compiled(program: JaxProgram, limit: int) -> None:
    if limit > 0:
        pytest.importorskip("filelock")  # JAX bounds a folder with it
    folder = folder_of(program.user, f"torn{limit}")
    variables = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_COMPILATION_CACHE_MAX_SIZE": str(limit)}
    first = program.run(through_us=False, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", **variables)
    files = [path for path in folder.iterdir() if path.name.endswith("-cache")]
    for path in files:
        path.write_bytes(path.read_bytes()[:20])
    assert program.run(**variables).compiled == first.compiled == len(files)
    assert program.run(through_us=False, **variables).compiled == 0


def test_without_a_threshold_of_theirs_their_folder_gets_what_jax_would_put_there(program: JaxProgram) -> None:
    folder = folder_of(program.user, "slow-only")
    ran = program.run(JAX_COMPILATION_CACHE_DIR=str(folder))
    assert len(entries_of(program.user)) == ran.compiled
    assert len([path for path in folder.iterdir() if path.name.endswith("-cache")]) < ran.compiled


def test_a_threshold_of_the_users_own_counts(program: JaxProgram) -> None:
    ran = program.run(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000")
    assert ran.asked > 1 and entries_of(program.user) == []


def test_processes_at_once_compile_each_program_once(program: JaxProgram) -> None:
    running = [program.start() for _ in range(8)]
    ran = [program.end(process) for process in running]
    assert sum(one.compiled for one in ran) == len(entries_of(program.user))
    assert len({one.loss for one in ran}) == 1
    assert not list((program.user.store / "jax").glob("*.lock"))


def test_a_process_killed_while_it_compiles_stops_nobody(program: JaxProgram) -> None:
    first = program.start("640")

    def holder() -> int | None:
        for lock in (program.user.store / "jax").glob("*.lock"):
            with contextlib.suppress(OSError, ValueError):
                return int(lock.read_text())
        return None

    os.kill(until(holder, "a compile"), signal.SIGKILL)
    first.communicate()
    assert first.returncode != 0
    assert program.run("640").asked > 0
    assert program.run("640").compiled == 0


def test_the_users_switches_count(program: JaxProgram) -> None:
    first = program.run()
    assert program.run(BUILDD_DISABLE="1").hits == 0
    assert program.run(BUILDD_RECACHE="1").hits == 0
    assert program.run(JAX_ENABLE_COMPILATION_CACHE="false").asked == 0
    assert program.run(XLA_FLAGS="--xla_cpu_enable_fast_math=true").compiled == first.compiled
    assert program.run().compiled == 0


def test_the_users_file_sets_them_too(program: JaxProgram) -> None:
    folder = folder_of(program.user, "named-in-a-file")
    with program.configured("config.toml", JAX_COMPILATION_CACHE_DIR=str(folder)):
        assert program.run().folder == str(folder)
    kept = entries_of(program.user)
    with program.configured("config.toml", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000"):
        assert program.run("40").compiled > 0 and entries_of(program.user) == kept
    with program.configured("config.toml", JAX_ENABLE_COMPILATION_CACHE="false"):
        assert program.run().asked == 0


def test_a_store_that_cannot_be_written_disturbs_nobody(program: JaxProgram) -> None:
    first = program.run()
    (program.user.store / "jax").chmod(0o777)
    assert program.run().loss == first.loss
    shutil.rmtree(program.user.store / "jax")
    (program.user.store / "jax").write_text("no folder")
    try:
        assert program.run().loss == first.loss
    finally:
        (program.user.store / "jax").unlink()


def test_the_reasons_name_the_argument_and_the_flag(program: JaxProgram) -> None:
    shutil.rmtree(program.user.store / "triton-why", ignore_errors=True)
    program.run("32")
    program.run("48")
    program.run("48", XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    status, said = program.user.buildd("explain", "--kernels", "jit_step")
    assert status == 0
    newest, older, oldest = said.split("compiled jit_step for jax cpu")[1:]
    assert "flag --xla_cpu_enable_fast_math=true: absent before, given now" in newest
    with program.configured("config.toml", LIBTPU_INIT_ARGS="--xla_mine=1"):
        program.run("48")
    assert "flag --xla_mine=1: absent before" in program.user.buildd("explain", "--kernels", "jit_step")[1]
    assert "argument 0: tensor<32x32xf32> before, tensor<48x48xf32> now" in older
    assert "no program of this name was compiled here before" in oldest
    program.run("32")  # from the store
    assert program.user.buildd("explain", "--kernels", "jit_step")[1].count("compiled jit_step") == 4


def test_without_buildd_run_the_folder_is_named_after_us(program: JaxProgram) -> None:
    folder = folder_of(program.user, "plain")
    first = program.run(through_us=False, cwd=folder, JAX_COMPILATION_CACHE_DIR="buildd://")
    second = program.run(through_us=False, cwd=folder, JAX_COMPILATION_CACHE_DIR="buildd://")
    assert (first.compiled, second.compiled) == (len(entries_of(program.user)), 0) and first.folder == "None"
    assert program.run(JAX_COMPILATION_CACHE_DIR="buildd://", cwd=folder).compiled == 0
    assert list(folder.iterdir()) == []
    # A store that cannot be used: plain JAX, and one line.
    odd = program.run(
        through_us=False, cwd=folder, JAX_COMPILATION_CACHE_DIR="buildd://", BUILDD_DIR="/proc/nowhere/store"
    )
    assert odd.hits == 0 and "JAX keeps no programs" in odd.errors and list(folder.iterdir()) == []


def test_a_lock_is_given_back_when_a_compile_fails(program: JaxProgram) -> None:
    failing = (
        PROGRAM
        + "\nimport jax._src.compiler as c\n"
        + (
            "lock = []\n"
            "def fail(*a, **k):\n    lock.append(len([n for n in os.listdir(sys.argv[2]) if n.endswith('.lock')]))\n"
            "    raise RuntimeError('no')\n"
            "c.backend_compile_and_load = fail\n"
            "try:\n    jax.jit(lambda x: x * 77)(1.0)\nexcept RuntimeError:\n    pass\n"
            "lock.append(len([n for n in os.listdir(sys.argv[2]) if n.endswith('.lock')]))\n"
            "print(json.dumps(lock))\n"
        )
    )
    jax = str(program.user.store / jax_cache.FOLDER)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "-c", failing, "64", jax],
        cwd=program.user.folder,
        env={**program.user.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [1, 0], done.stderr[-2000:]
