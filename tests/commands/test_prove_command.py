"""`buildd run --record`, `buildd warm --manifest` and `buildd warm --prove -- COMMAND`, with a real compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.programs import recording_file
from buildd.programs.recording_file import RecordingError
from tests.support.own_programs import lend_programs
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")

ENGINE = """
set -e
mkdir -p ../cache/gen
for n in 1 2; do echo '#include "unit.h"' > ../cache/gen/k$n.c; echo "int k$n = UNIT * $n;" >> ../cache/gen/k$n.c; done
cd ../cache/gen
gcc --version > version
gcc -v 2> version
gcc -E -I ../../app/include k1.c > text
gcc -O1 -I $HERE/include -c k1.c -o k1.o
gcc -O1 -I $HERE/include -c k2.c -o k2.o || true
test ! -e k2.o || gcc -shared k1.o k2.o -o k.so
"""


class Machine:
    """The user with a program in a folder and a store of their own."""

    def __init__(self, user: User, name: str) -> None:
        self.folder = user.folder / name
        self.app = self.folder / "app"
        (self.app / "include").mkdir(parents=True)
        (self.app / "include/unit.h").write_text("#define UNIT 3\n")
        (self.app / "serve.sh").write_text(ENGINE)
        lend_programs(self.folder / "store")
        self.environ = {**user.environ, "HERE": str(self.app), "BUILDD_DIR": str(self.folder / "store")}

    def buildd(self, *arguments: str, folder: Path | None = None, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "buildd", *arguments],
            cwd=folder or self.app,
            env={**self.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout


def test_a_proof_compiles_nothing_and_names_what_is_missing(kept_user: User) -> None:
    machine = Machine(kept_user, "proof")
    prove = ("warm", "--prove", "--", "sh", "serve.sh")
    made = machine.folder / "cache/gen"

    # BUILDD_PROVE reaches the shims: the first compile fails, and what only preprocesses runs.
    status, said = machine.buildd(*prove)
    assert status == 86 and not list(made.glob("*.o")) and (made / "text").stat().st_size > 10
    assert f"buildd: not warm: 1 compile would run:\n  gcc: {made}/k1.c: never built before\n" in said
    assert "not compiled, because this run has to find everything in the cache" in said

    assert machine.buildd("run", "--quiet", "--", "sh", "serve.sh")[0] == 0
    for each in made.iterdir():
        each.unlink()
    status, said = machine.buildd(*prove)
    assert (status, said) == (
        0,
        "buildd: warm: the command compiled nothing; these ran: 2 questions to compilers\n",
    ) and (made / "k.so").exists()

    # The program goes on without its second kernel and ends well: the proof has seen it all the same.
    (machine.app / "serve.sh").write_text(ENGINE.replace("gcc -O1", "echo 'int more;' >> k2.c; gcc -O1", 1))
    for each in made.iterdir():
        each.unlink()
    status, said = machine.buildd("warm", "--prove", "--json", "--", "sh", "serve.sh")
    proof = json.loads(said.splitlines()[-1])
    assert status == 86 and proof["needed"][0][:2] == ["gcc", f"{made}/k2.c"] and proof["exit_status"] == 0

    assert machine.buildd("warm", "--prove", "--", "sh", "-c", "exit 7")[0] == 7
    switches = (
        "warm",
        "--prove",
        "--no-jit",
        "--",
        "sh",
        "-c",
        "test $FLASHINFER_DISABLE_JIT$SGLANG_CRASH_ON_JIT_COMPILE = 11",
    )
    assert machine.buildd(*switches)[0] == 0
    assert machine.buildd(*prove, BUILDD_DISABLE="1")[0] == 2
    assert machine.buildd("warm", "--", "true")[0] == 2


def test_a_proof_of_a_build_that_is_up_to_date_says_that_nothing_was_looked_up(kept_user: User) -> None:
    machine = Machine(kept_user, "fresh")
    (machine.app / "a.c").write_text("int a;\n")
    (machine.app / "Makefile").write_text("a.o: a.c; gcc -c a.c\nnone: ; @gcc --version > version\n")
    assert machine.buildd("run", "--quiet", "--", "make")[0] == 0
    way = "; to check the cache, build in an empty folder\n"
    fresh = f"buildd: nothing was looked up: the build was up to date{way}"
    status, said = machine.buildd("warm", "--prove", "--", "make")
    assert status == 0 and said.endswith(f"buildd: warm: the command compiled nothing\n{fresh}"), said
    status, said = machine.buildd("warm", "--prove", "--", "make", "none")
    assert status == 0 and said.endswith(f"these ran: 1 question to compilers\nbuildd: nothing was looked up{way}"), (
        said
    )
    (machine.app / "a.o").unlink()
    status, said = machine.buildd("warm", "--prove", "--", "make")
    assert status == 0 and said.endswith("buildd: warm: the command compiled nothing\n"), said


def test_a_proof_asks_the_shared_cache_and_says_what_it_answered(user: User) -> None:
    tier = {"BUILDD_TIER": str(user.folder / "tier"), "BUILDD_TIER_WRITE": "1"}
    (user.folder / "tier").mkdir()
    lend_programs(user.folder / "second")
    first, second = Machine(user, "first"), {"BUILDD_DIR": str(user.folder / "second")} | tier
    first.buildd("cache", "key")
    assert first.buildd("run", "--quiet", "--", "sh", "serve.sh", **tier)[0] == 0
    status, said = first.buildd("cache", "push", **tier)
    assert status == 0, said
    made = first.folder / "cache/gen"
    for each in made.iterdir():
        each.unlink()
    prove = ("warm", "--prove", "--", "sh", "serve.sh")
    status, said = first.buildd(*prove, **second)
    assert status == 0 and "the command compiled nothing" in said and (made / "k2.o").exists(), said

    (first.app / "include/unit.h").write_text("#define UNIT 4\n")
    status, said = first.buildd(*prove, **second)
    assert status == 86 and f"k1.c: input {first.app}/include/unit.h: content changed; " in said, said
    assert f"not found in the shared cache {tier['BUILDD_TIER']}" in said


CONFIGURE = """
set -e
work=build/CMakeFiles/CMakeScratch/TryCompile-a1
mkdir -p $work && echo 'int main(void) { return 0; }' > $work/test.c
(cd $work && gcc -v -o abi.c.o -c ../../../../abi.c 2> ../../said && gcc -o test.o -c test.c)
echo 'int i;' > conftest.c && gcc -c conftest.c && gcc -c -o conftest.o conftest.c
gcc -dumpmachine > build/machine
"""


def test_a_proof_lets_configure_steps_try_the_compiler_out(kept_user: User) -> None:
    machine = Machine(kept_user, "configure")
    (machine.app / "abi.c").write_text("int abi;\n")
    status, said = machine.buildd("warm", "--prove", "--", "sh", "-c", CONFIGURE)
    ran = "these ran: 4 calls of configure steps, to try the compiler out and 1 question to compilers"
    assert (status, said) == (0, f"buildd: warm: the command compiled nothing; {ran}\n")
    # The same source elsewhere is a compile.
    status, said = machine.buildd("warm", "--prove", "--", "gcc", "-c", "abi.c", "-o", "build/abi.o")
    assert status == 86 and not (machine.app / "build/abi.o").exists()
    # An option with which nothing is kept hides no compile either.
    assert machine.buildd("warm", "--prove", "--", "gcc", "-v", "-c", "abi.c")[0] == 86


def test_a_proof_takes_the_options_of_run_and_keeps_standard_output_for_json(kept_user: User) -> None:
    machine = Machine(kept_user, "options")
    other = machine.folder / "other"
    for folder in (machine.app, other):
        folder.mkdir(exist_ok=True)
        (folder / "p.c").write_text("const char *p = __FILE__;\n")
    compile = ("--", "sh", "-c", "echo hello; gcc -c $PWD/p.c")
    assert machine.buildd("run", "--map-paths", "--quiet", *compile)[0] == 0
    assert machine.buildd("warm", "--prove", *compile, folder=other)[0] == 86
    assert machine.buildd("warm", "--prove", "--map-paths", *compile, folder=other)[0] == 0
    assert machine.buildd("warm", "--map-paths", folder=other)[0] == 2
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "warm", "--prove", "--json", "--map-paths", *compile],
        cwd=other,
        env=machine.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["proof"]
    assert done.stderr.startswith("hello\n")


def test_what_one_machine_recorded_another_one_compiles_ahead(kept_user: User) -> None:
    serving, ci = Machine(kept_user, "serving"), kept_user.folder / "ci"
    recording = kept_user.folder / "serve.jsonl"
    status, said = serving.buildd("run", "--quiet", "--record", str(recording), "--", "sh", "serve.sh")
    assert status == 0 and "buildd: 2 compiler calls recorded in" in said
    again = kept_user.folder / "again.jsonl"
    serving.buildd("run", "--quiet", "--record", str(again), "--", "sh", "serve.sh")
    assert again.read_bytes() == recording.read_bytes()  # also where the store has everything

    # Another store, another folder, none of the program's files: as in CI.
    ci.mkdir()
    lend_programs(ci / "store")
    other = {"BUILDD_DIR": str(ci / "store")}
    warm = ("warm", "--manifest", str(recording))
    status, said = serving.buildd(*warm, "--prove", folder=ci, **other)
    assert status == 1 and "not warm: 2 of 2 compiler calls would be compiled" in said
    status, said = serving.buildd(*warm, folder=ci, **other)
    assert status == 0 and "2 compiler calls: 0 hits, 2 compiled" in said and sorted(ci.iterdir()) == [ci / "store"]
    assert "warm: nothing would be compiled, 2 hits" in serving.buildd(*warm, "--prove", folder=ci, **other)[1]

    # The program finds all that with that store.
    for each in (serving.folder / "cache/gen").iterdir():
        each.unlink()
    assert serving.buildd("warm", "--prove", "--", "sh", "serve.sh", **other)[0] == 0

    # A checkout that has gone on is compiled as it is now.
    (ci / "include").mkdir()
    (ci / "include/unit.h").write_text("#define UNIT 4\n")
    status, said = serving.buildd(*warm, folder=ci, **other)
    assert status == 0 and "1 file of this folder is not as recorded" in said and "0 hits, 2 compiled" in said


def test_what_holds_for_one_folder_is_not_recorded(kept_user: User) -> None:
    machine = Machine(kept_user, "bound")
    (machine.app / "a.c").write_text("int a;\nint main() { return a; }\n")
    script = "gcc -g -c $HERE/a.c -o $HERE/a.o && gcc $HERE/a.c -o $HERE/a && gcc -c $HERE/a.c -o $HERE/b.o"
    status, said = machine.buildd("run", "--record", "r", "--", "sh", "-c", script)
    assert status == 0 and "buildd: 2 compiler calls recorded in r" in said
    assert said.count("not recorded: gcc") == 1 and "its result holds for its own folder alone" in said
    outputs = {line.call.output for line in recording_file.read(machine.app / "r").calls}
    assert outputs == {f"{machine.app}/a", f"{machine.app}/b.o"}


def lines_with(**changed: object) -> bytes:
    call = {
        "command": ["/usr/bin/gcc", "-c", "/w/a.c"],
        "folder": "/w",
        "variables": {},
        "output": "/w/a.o",
        "files": {"/w/a.c": "0" * 64},
    }
    line = {"kind": "call", "call": call | changed, "root": "/w"}
    return b'{"buildd":"recording","version":2}\n' + json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"command": ["/bin/rm", "-r", "/"]}, "calls no compiler"),
        ({"command": ["gcc", "-c", "a.c"]}, "'gcc' is not a plain absolute path"),
        ({"files": {"/w/../etc/x": "0" * 64}}, "is not a plain absolute path"),
        ({"files": {"/w/a.c": "../../x"}}, "a file has no digest"),
        ({"output": "w/a.o"}, "is not a plain absolute path"),
        ({"variables": {"LD_PRELOAD": "/w/evil.so"}}, "LD_PRELOAD is not a variable of compilers"),
        ({"variables": {"BUILDD_RECACHE": "1"}}, "BUILDD_RECACHE is not"),
        ({"shell": "true"}, "unknown field"),
    ],
)
def test_a_strange_recording_is_refused(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    (tmp_path / "r").write_bytes(lines_with(**changed))
    with pytest.raises(RecordingError, match=says) as caught:
        recording_file.read(tmp_path / "r")
    assert caught.value.file == f"{tmp_path / 'r'}:2"


def test_a_recorded_call_that_buildd_would_not_take_runs_nothing(kept_user: User) -> None:
    machine = Machine(kept_user, "strange")
    place = machine.folder / "r.jsonl"
    for words, why in ((["-fplugin=/w/evil.so"], "unsupported-option"), (["--unheard-of"], "unknown-option")):
        command = ["/usr/bin/gcc", *words, "-c", "/w/a.c", "-o", "/w/a.o"]
        place.write_bytes(lines_with(command=command, files={}))
        status, said = machine.buildd("warm", "--manifest", str(place))
        assert status == 1 and "failed gcc: a.o" in said and why in said
    place.write_bytes(lines_with())
    assert (
        "/w/a.c is neither in the recording nor in this folder" in machine.buildd("warm", "--manifest", str(place))[1]
    )
