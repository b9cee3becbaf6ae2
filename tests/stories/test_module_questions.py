"""A kernel's module chooses its code by what is in the file system, other than by a file that it reads."""

from __future__ import annotations

import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = [pytest.mark.triton, pytest.mark.slow]

KERNEL = """
import triton
import triton.language as tl

SCALE = tl.constexpr(float(chosen))

@triton.jit
def kernel(to, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + at, SCALE, mask=at < n)
"""
DATA = "os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')"
ASKS = {
    "imports": "try:\n    import tuned\n    chosen = 2\nexcept ImportError:\n    chosen = 1\n",
    "finds": "import importlib.util\nchosen = 2 if importlib.util.find_spec('tuned') else 1\n",
    "exists": f"import os\nchosen = 2 if os.path.exists({DATA} + '/more.json') else 1\n",
    "opens": f"import os\ntry:\n    open({DATA} + '/more.json')\n    chosen = 2\nexcept OSError:\n    chosen = 1\n",
    "lists": f"import os\nchosen = len(os.listdir({DATA}))\n",
    "globs": f"import os, pathlib\nchosen = len(list(pathlib.Path({DATA}).rglob('*.json')))\n",
    "stats": f"import os\nchosen = 2 if os.access({DATA} + '/more.json', os.R_OK) else 1\n",
}


@pytest.fixture
def user() -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="bdq", dir="/tmp") as made:
        one = User(Path(made))
        yield one
        assert one.end() == []


def target(name: str) -> str:
    return (
        f'[target.{name}]\nkind = "triton"\nsource = "kernels/{name}.py"\nkernel = "kernel"\narch = ["sm_90"]\n'
        'signature = { to = "*fp32", n = "i32" }\nconstants = { BLOCK = 128 }\n'
    )


def project(folder: Path, asks: dict[str, str]) -> None:
    (folder / "kernels/data").mkdir(parents=True)
    (folder / "kernels/data/one.json").write_text("{}")
    for name, code in asks.items():
        (folder / f"kernels/{name}.py").write_text(code + KERNEL)
    (folder / "buildd.toml").write_text("\n".join(map(target, asks)))


def scales(folder: Path, names: Iterator[str] | dict[str, str]) -> dict[str, int]:
    """The constant that each built kernel stores."""
    texts = {name: (folder / f"build/{name}/kernel.sm_90.ttir").read_text() for name in names}
    return {name: 2 if "2.000000e+00" in text else 1 if "1.000000e+00" in text else 0 for name, text in texts.items()}


def test_an_answer_that_changes_compiles_again(user: User) -> None:
    project(user.folder, ASKS)
    for _ in range(2):  # the second time by a build that looks up
        status, said = user.buildd("build", timeout_s=170)
        assert status == 0, said
    assert "7 hits, 0 compiled" in said
    assert scales(user.folder, ASKS) == dict.fromkeys(ASKS, 1)
    (user.folder / "kernels/data/more.json").write_text("{}")
    (user.folder / "kernels/tuned.py").touch()
    said = user.buildd("explain", timeout_s=60)[1]
    assert "input kernels/tuned.py: appeared" in said, said
    assert "input kernels/data: names in this folder changed" in said, said
    status, said = user.buildd("build", timeout_s=170)
    assert status == 0, said
    assert scales(user.folder, ASKS) == dict.fromkeys(ASKS, 2)
    (user.folder / "kernels/data/more.json").unlink()
    (user.folder / "kernels/tuned.py").unlink()
    status, said = user.buildd("build", timeout_s=170)
    assert status == 0 and "0 compiled" in said, said
    assert scales(user.folder, ASKS) == dict.fromkeys(ASKS, 1)
    (user.folder / "kernels/tuned").mkdir()  # a package without an __init__.py
    status, said = user.buildd("build", timeout_s=170)
    assert status == 0, said
    assert scales(user.folder, ("imports", "finds")) == {"imports": 2, "finds": 2}


READS = {
    "bytes": "chosen = open(b'kernels/data/scale').read()\n",
    "descriptor": (
        "import os\nfolder = os.open('kernels/data', os.O_RDONLY)\n"
        "chosen = os.read(os.open('scale', os.O_RDONLY, dir_fd=folder), 9)\n"
    ),
    "update": "chosen = open('kernels/data/scale', 'r+').read()\n",
    "database": (
        "import sqlite3\nwith sqlite3.connect('kernels/data/scales.db') as base:\n"
        "    chosen = base.execute('select scale from scales').fetchone()[0]\n"
    ),
    "started": "from started import chosen\n",
}


def test_files_that_are_read_in_rarer_ways(user: User) -> None:
    project(user.folder, READS)
    user.environ["PYTHONPATH"] += f":{user.folder}/path"
    (user.folder / "path").mkdir()
    (user.folder / "path/sitecustomize.py").write_text("import started\n")
    with sqlite3.connect(user.folder / "kernels/data/scales.db") as base:
        base.execute("create table scales (scale real)")
    base.close()
    for scale in (1, 2):
        (user.folder / "kernels/data/scale").write_text(str(scale))
        (user.folder / "path/started.py").write_text(f"chosen = {scale}\n")
        with sqlite3.connect(user.folder / "kernels/data/scales.db") as base:
            base.execute("delete from scales")
            base.execute("insert into scales values (?)", (scale,))
        base.close()
        status, said = user.buildd("build", timeout_s=170)
        assert status == 0, said
        assert scales(user.folder, READS) == dict.fromkeys(READS, scale)


def test_modules_that_an_editable_install_or_the_module_itself_chooses(user: User) -> None:
    asks = {
        "installed": "from chosen_package import chosen\n",
        "searched": "import sys\nsys.path[:0] = ['first', 'second']\nfrom chosen_module import chosen\n",
    }
    project(user.folder, asks)
    environment = user.folder / "venv/lib/python/site-packages"
    environment.mkdir(parents=True)
    # A site of its own: sitecustomize adds it as Python adds those of a virtual environment.
    (user.folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(environment)!r})\n")
    user.environ["PYTHONPATH"] = f"{user.folder}:{user.environ['PYTHONPATH']}"
    for scale, folder in ((1, "one"), (2, "two")):
        (user.folder / folder / "chosen_package").mkdir(parents=True)
        (user.folder / folder / "chosen_package/__init__.py").write_text(f"chosen = {scale}\n")
    (user.folder / "first").mkdir()
    (user.folder / "second").mkdir()
    (user.folder / "second/chosen_module.py").write_text("chosen = 1\n")
    for scale, folder in ((1, "one"), (2, "two")):
        (environment / "chosen.pth").write_text(f"{user.folder}/{folder}\n")
        if scale == 2:
            (user.folder / "first/chosen_module.py").write_text("chosen = 2\n")
        status, said = user.buildd("build", timeout_s=170)
        assert status == 0, said
        assert scales(user.folder, asks) == dict.fromkeys(asks, scale)


def test_a_library_that_a_library_loads(user: User) -> None:
    compiler = host_compiler()
    if not compiler:
        pytest.skip("no gcc (Debian: apt install gcc)")
    asks = "import ctypes\nchosen = ctypes.CDLL('./libouter.so').chosen()\n"
    project(user.folder, {"loads": asks})
    (user.folder / "outer.c").write_text("int inner(void);\nint chosen(void) { return inner(); }\n")
    for scale in (1, 2):
        (user.folder / "inner.c").write_text(f"int inner(void) {{ return {scale}; }}\n")
        link = [compiler, "-shared", "-fPIC", "inner.c", "-o", "libinner.so"]
        subprocess.run(link, cwd=user.folder, check=True)
        if scale == 1:
            outer = [compiler, "-shared", "-fPIC", "outer.c", "-L.", "-linner", f"-Wl,-rpath,{user.folder}"]
            subprocess.run([*outer, "-o", "libouter.so"], cwd=user.folder, check=True)
        status, said = user.buildd("build", timeout_s=170)
        assert status == 0, said
        assert scales(user.folder, {"loads": ""}) == {"loads": scale}


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp"])
def test_a_project_whose_place_or_name_is_like_a_tools(user: User, place: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bdq", dir=place) as made:
        folder = Path(made) / "project"
        (folder / "triton").mkdir(parents=True)
        (folder / "triton/a.py").write_text("from beside import chosen\n" + KERNEL)
        (folder / "buildd.toml").write_text(target("a").replace("kernels/", "triton/"))
        for scale in (1, 2):
            (folder / "triton/beside.py").write_text(f"chosen = {scale}\n")
            status, said = user.buildd("build", "-C", str(folder), timeout_s=170)
            assert status == 0, said
            assert scales(folder, {"a": ""}) == {"a": scale}


def test_a_name_that_no_question_is_about_compiles_nothing(user: User) -> None:
    project(user.folder, {"imports": ASKS["imports"], "exists": ASKS["exists"]})
    assert user.buildd("build", timeout_s=170)[0] == 0
    (user.folder / "kernels/data/other.json").write_text("{}")
    (user.folder / "kernels/other.py").touch()
    status, said = user.buildd("build", timeout_s=170)
    assert status == 0 and "2 hits, 0 compiled" in said, said


def test_what_a_child_reads_is_not_seen(user: User) -> None:
    asks = "import subprocess\nchosen = subprocess.run(['cat', 'scale'], capture_output=True, check=True).stdout\n"
    project(user.folder, {"starts": asks})
    for scale in (1, 2):
        (user.folder / "scale").write_text(str(scale))
        status, said = user.buildd("build", timeout_s=170)
        assert status == 0 and "it starts cat, and nobody sees what that reads" in said, said
        assert scales(user.folder, {"starts": ""}) == {"starts": scale}


@pytest.mark.parametrize(
    "asks", ["chosen = open(above + '/scale').read()\n", "chosen = 1 + os.path.exists(above + '/x')\n"]
)
def test_a_path_outside_of_the_project_is_found_through_the_project(user: User, asks: str) -> None:
    above = "import os\nabove = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n"
    for scale in (1, 2):
        folder = user.folder / f"checkout{scale}/project"
        project(folder, {"above": above + asks})
        (folder.parent / "scale").write_text(str(scale))
        if scale == 2:
            (folder.parent / "x").touch()
        status, said = user.buildd("build", "-C", str(folder), timeout_s=170)
        assert status == 0, said
        assert scales(folder, {"above": ""}) == {"above": scale}
