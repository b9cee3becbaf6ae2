"""Models exported by processes forked from one that has torch imported, with real torch: never with a former torch or
with another interpreter's, whatever models' modules do. Runs where torch is installed (`scripts/test-torch`)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

import pytest

from buildd.processes.warm_workers import HOST
from codegen.python.torch_export import WORKER
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
DEADLINE_S = 300.0
LATE_S = 20

# It is refused in the end: so nothing is compiled of it, which would take long.
MODULE = """
import torch

def net():
    with open("/proc/self/cmdline") as stream:
        by = "host" if "worker_host" in stream.read() else "itself"
    raise RuntimeError(f"{torch.__version__} by {by}")
"""
TARGET = """
[target.{name}]
kind = "torch"
source = "{name}.py"
function = "net"
factory = true
inputs = [{{ shape = [2, 2] }}]
timeout_s = {timeout_s}
"""


def project(folder: Path, **modules: str) -> Path:
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    targets = [TARGET.format(name=name, timeout_s=LATE_S if name == "hangs" else 600) for name in modules]
    (folder / "buildd.toml").write_text("".join(targets))
    return folder


def copied_torch(folder: Path) -> Path:
    """A folder of packages with a torch in it that can be changed."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    folder.mkdir()
    subprocess.run(["cp", "-rs", os.path.dirname(found.origin), str(folder / "torch")], check=True)
    return folder


def install(folder: Path, version: str) -> None:
    """Have the torch in a folder be another version, as an installer does it: by other files."""
    file = folder / "torch" / "version.py"
    (file.with_name("aside")).write_text(file.read_text().replace("__version__ = ", f"__version__ = {version!r} #"))
    os.replace(file.with_name("aside"), file)


def begun(user: User, folder: Path, interpreter: str = sys.executable) -> subprocess.Popen[str]:
    """`buildd build` of a model, by an interpreter."""
    return subprocess.Popen(
        [interpreter, "-P", "-m", "buildd", "build", "-C", str(folder)],
        cwd=user.folder,
        env=user.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Which torch exported the model, and whether that had been imported before."""
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1 and "RuntimeError: " in said, said
    version, _, by = said.partition("RuntimeError: ")[2].splitlines()[0].partition(" by ")
    return version, by.strip()


def exported(user: User, folder: Path) -> tuple[str, str]:
    return told(begun(user, folder))


def by_host(user: User, folder: Path) -> str:
    """Exports one after another until one comes from a process that had torch imported; its torch."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        version, by = exported(user, folder)
        if by == "host":
            return version
    raise AssertionError("no process with torch imported within the deadline")


EXPORT = """
import importlib.util, json, os, sys
def module(path):
    found = importlib.util.spec_from_file_location("host", path)
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made
host = module(sys.argv[2])
worker = host.load(sys.argv[1])
assert host.may_fork(), os.listdir("/proc/self/task")
before = set(sys.modules)
worker.export(json.load(sys.stdin), "model.pt2", "inputs")
print(json.dumps(sorted(name for name in set(sys.modules) - before)))
"""


def exported_in(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A model exported as by a process that is forked for it."""
    (folder / "net.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(2, 2)\n")
    spec = {
        "source": "net.py",
        "function": "net",
        "factory": True,
        "arguments": {},
        "inputs": [{"shape": ["rows", 2]}],
        "keyword_inputs": {},
        "dims": {},
        "strict": False,
        "check": True,
        "check_tolerance": 1e-5,
        "check_inputs": [],
        "device": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(WORKER), str(HOST)],
        input=json.dumps(spec),
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_what_models_are_exported_from_has_all_imported_and_may_be_forked(tmp_path: Path) -> None:
    done = exported_in(tmp_path, EXPORT)
    assert json.loads(done.stdout.splitlines()[-1]) == ["net"] and "note:" not in done.stderr


COMPILE = """
os.environ["TMPDIR"] = os.path.join(os.getcwd(), "private")
worker = host.load(os.path.join(os.path.dirname(sys.argv[1]), "torch_worker.py"))
assert host.may_fork(), os.listdir("/proc/self/task")
before = set(sys.modules)
try:
    spec = {"name": "m", "mode": "", "options": {}, "threads": 1, "compiler": "g++", "device": "cpu"}
    worker.compile_model(spec, "model.pt2", "p.pt2", "d")
except worker.Refused as error:
    assert "this compiler compiles nothing" in str(error), error
    print(json.dumps(sorted(name for name in set(sys.modules) - before)))
"""


def test_what_models_are_compiled_from_has_nearly_all_imported_and_may_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "private").mkdir()
    fails = "echo error: this compiler compiles nothing >&2; exit 1"
    asks = f'exec {shutil.which("g++")} "$@"'
    (tmp_path / "bin/g++").write_text(f'#!/bin/sh\ncase "$*" in *.cpp*) {fails};; *) {asks};; esac\n')
    (tmp_path / "bin/g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    exported_in(tmp_path, EXPORT)
    code = EXPORT.partition("worker = host.load")[0] + COMPILE
    later = json.loads(exported_in(tmp_path, code).stdout.splitlines()[-1])
    assert len(later) < 40, "nearly two hundred without what it imports beforehand"


def test_that_a_first_export_fails_is_told_by_the_exports_that_follow(tmp_path: Path) -> None:
    fails = "import torch.export\nreal, torch.export.Dim = torch.export.Dim, None\n"
    load = "worker = host.load(sys.argv[1])\n"
    code = EXPORT.replace(load, f"{fails}{load}torch.export.Dim = real\n")
    said = exported_in(tmp_path, code).stderr
    assert "net.py: note: torch could not export a model of one layer" in said and "TypeError" in said, said
    assert (tmp_path / "model.pt2").exists()


def test_torch_upgraded_under_a_running_pool_is_the_torch_of_the_next_export(user: User) -> None:
    folder = project(user.folder / "upgraded", net=MODULE)
    packages = copied_torch(user.folder / "packages")
    before = user.environ["PYTHONPATH"]
    user.environ["PYTHONPATH"] = f"{before}{os.pathsep}{packages}"
    try:
        install(packages, "1.former")
        assert by_host(user, folder) == "1.former"
        install(packages, "2.latter")
        assert exported(user, folder) == ("2.latter", "itself")
        assert by_host(user, folder) == "2.latter"
    finally:
        user.environ["PYTHONPATH"] = before


def test_two_interpreters_with_different_torch_at_once_have_each_their_own(user: User) -> None:
    folders = [project(user.folder / name, net=MODULE) for name in ("here", "there")]
    packages = copied_torch(user.folder / "others")
    install(packages, "3.other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(user.folder / "venv")], check=True)
    (site,) = (user.folder / "venv/lib").glob("python*/site-packages")
    # What comes first is found first.
    (site / "all.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n")
    interpreters = (sys.executable, str(user.folder / "venv/bin/python"))
    deadline_s = time.monotonic() + DEADLINE_S
    by = ["itself", "itself"]
    while by != ["host", "host"]:
        assert time.monotonic() < deadline_s, "no two processes with torch imported within the deadline"
        both = [begun(user, folder, python) for folder, python in zip(folders, interpreters, strict=True)]
        found = [told(process) for process in both]
        assert [version for version, _ in found] == [metadata.version("torch"), "3.other"]
        by = [how for _, how in found]


BAD = {
    "raises": ("import nothing_such", "raises.py:1: error: cannot be imported: ModuleNotFoundError: No module named"),
    "quits": ("raise SystemExit(0)", "quits.py:1: error: cannot be imported: SystemExit: 0"),
    "exits": ("import os\nos._exit(0)", "export succeeded but did not write build/exits/exits.exported.pt2"),
    "crashes": ("import ctypes\nctypes.string_at(0)", "export was killed by signal 11"),
    "hangs": ("import time\ntime.sleep(600)", f"ended after {LATE_S} s"),
    "prints": ("import os\nprint('word\\n' * 3000)\nos.write(1, bytes(range(256)))\n" + MODULE, "RuntimeError: "),
    "threads": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" + MODULE,
        "RuntimeError: ",
    ),
    "forks": ("import os, time\nif os.fork() == 0:\n    time.sleep(600)\n" + MODULE, "RuntimeError: "),
}


def test_whatever_a_module_does_is_told_and_harms_no_other_export(user: User) -> None:
    good = project(user.folder / "good", net=MODULE)
    bad = project(user.folder / "bad", **{name: text for name, (text, _) in BAD.items()})
    by_host(user, good)
    status, said = user.buildd("build", "-k", "-C", str(bad), timeout_s=DEADLINE_S)
    assert status == 1 and f"failed: {len(BAD)} actions failed" in said, said
    for name, (_, says) in BAD.items():
        assert says in said, (name, said)
    assert "word" in said and "\x1b" not in said
    assert exported(user, good)[1] == "host"
