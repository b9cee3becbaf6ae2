"""The variables of EasyDeL and ejkernel under `buildd run`, with the real JAX, and ejkernel where it is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.hooks.ejkernel_profiles import GUESSED, TUNED, ProfileFile
from tests.support.jax_program import PROGRAM, JaxProgram
from tests.support.user import User

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]
needs_ejkernel = pytest.mark.skipif(not importlib.util.find_spec("ejkernel"), reason="no ejkernel")

ATTENTION = """
import json, os, sys
import jax, jax.numpy as jnp
from ejkernel.callib import _ejit
from ejkernel.modules import flash_attention
given = [jnp.ones((1, int(sys.argv[1]), 2, 16))] * 3
jax.block_until_ready(flash_attention(*given))
print(json.dumps([str(jax.config.jax_compilation_cache_dir), _ejit.ECACHE_COMPILES]))
"""


@pytest.fixture
def program(kept_user: User) -> JaxProgram:
    shutil.rmtree(kept_user.store / "jax", ignore_errors=True)
    return JaxProgram(kept_user)


def start(program: JaxProgram, code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "-c", code, *arguments],
        cwd=program.user.folder,
        env={**program.user.environ, "JAX_PLATFORMS": "cpu", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=200)
    return process.returncode, output.strip(), errors


def test_a_flag_that_jaxlib_does_not_know_is_an_error(program: JaxProgram) -> None:
    with program.configured("config.toml", XLA_FLAGS="--xla_no_such_flag=1 --xla_cpu_enable_fast_math=true"):
        status, output, errors = end(start(program, PROGRAM))
    assert (status, output) == (1, "") and "Fatal" not in errors and "Aborted" not in errors
    assert "does not know --xla_no_such_flag=1, and XLA would abort" in errors and "EASYDEL_AUTO=0" in errors


def test_flags_that_are_appended_twice_are_the_same_key(program: JaxProgram) -> None:
    flag = "--xla_cpu_enable_fast_math=true"
    # As EasyDeL does it: after JAX is imported, and again in each child that has the parent's environment.
    appending = PROGRAM.replace(
        "import jax\n", f"import jax\nos.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' {flag}'\n"
    )
    found = []
    for variables in ({}, {"XLA_FLAGS": flag}, {"XLA_FLAGS": f"{flag} {flag}"}):
        status, output, errors = end(start(program, appending, **variables))
        assert status == 0, errors
        said = json.loads(output.splitlines()[-1])
        found.append((said["asked"] - said["hits"], said["loss"]))
    assert found[0][0] > 0 and found[1:] == [(0, found[0][1])] * 2


def test_easydels_word_for_compiling_again_counts(program: JaxProgram) -> None:
    first = program.run()
    with program.configured("config.toml", EASYDEL_RECOMPILE_FORCE="Yes"):
        assert program.run().compiled == first.asked
    assert program.run(EASYDEL_RECOMPILE_FORCE="on").compiled == 0, "no word of EasyDeL's"


@needs_ejkernel
def test_importing_ejkernel_leaves_the_users_folder_and_keeps_no_pickles(program: JaxProgram) -> None:
    mine, theirs = program.user.folder / "mine", program.user.folder / "theirs"
    own = {"JAX_COMPILATION_CACHE_DIR": str(mine), "EASYDEL_CACHE_COMPILES": "1"}
    status, output, errors = end(start(program, ATTENTION, "32", **own))
    assert status == 0 and json.loads(output.splitlines()[-1]) == [str(mine), False], errors
    assert errors.count("EASYDEL_CACHE_COMPILES is on") == 1 and "not obeyed" in errors
    assert not list(Path(program.user.environ["HOME"]).rglob("compiled.executable"))
    with program.configured("config.toml", COMPILE_FUNC_DIR=str(theirs)):
        status, output, errors = end(start(program, ATTENTION, "32", **own))
    assert status == 0 and json.loads(output.splitlines()[-1]) == [str(theirs), False], errors


@needs_ejkernel
def test_ejkernels_tuners_at_once_lose_nothing(program: JaxProgram) -> None:
    folder = program.user.folder / "tuned"
    shutil.rmtree(folder, ignore_errors=True)
    with program.configured("config.toml", EJKERNEL_PERSISTENT_CACHE_DIR=str(folder)):
        tuners = [start(program, ATTENTION, str(size)) for size in (32, 48, 64)]
        assert [end(process)[0] for process in tuners] == [0, 0, 0]
        files = ProfileFile(str(folder / "flash-attn.json"))
        assert [files.source(*row) for row in files.rows().items()] == [TUNED] * 3
        notes = json.loads(Path(files.sources).read_text()).values()
        assert all(0 < note["seconds"] < 60 and note["candidates"] > 0 for note in notes), notes
        for policy, source in (("heuristics", GUESSED), ("autotune", TUNED)):
            status, _, errors = end(start(program, ATTENTION, "80", EJKERNEL_AUTOTUNE_POLICY=policy))
            rows = files.rows()
            assert status == 0 and len(rows) == 4, errors
            assert files.source(*list(rows.items())[-1]) == source
        Path(files.path).write_text("{ torn")
        status, _, errors = end(start(program, ATTENTION, "32"))
        assert status == 0 and "flash-attn.json is damaged" in errors and len(files.rows()) == 1
