"""A plan is kept while making it anew would give the same, and no longer."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from buildd.builds import up_to_date
from buildd.builds.plan_cache import Plans
from buildd.files.sweep import Sweep
from codegen.plan import Plan
from protocol.messages import Request
from tests.support.carry_out import plan_for, request_for

PROJECT = """\
[project]
name = "kept"

[target.kept]
kind = "cuda"
sources = ["one.cu", "src/*.cu"]
arch = ["sm_80"]
"""
OLD_NS = 3_600_000_000_000
"""Everything that a test has just written counts as old when the plan is made so much later."""


class Home:
    """A user with a project, a toolkit and a folder before it on the PATH."""

    def __init__(self, folder: Path, toolkit: Path) -> None:
        self.folder, self.project, self.toolkit = folder, folder / "project", folder / "cuda"
        shutil.copytree(toolkit, self.toolkit)
        for name in ("early", "home/.config", "project/src", "elsewhere"):
            (folder / name).mkdir(parents=True)
        for name in ("one.cu", "src/a.cu", "src/b.cu", "../elsewhere/c.cu"):
            (self.project / name).write_text(name)
        (self.project / "src" / "c.cu").symlink_to(folder / "elsewhere" / "c.cu")
        (self.project / "buildd.toml").write_text(PROJECT)
        path = f"{folder}/early:{self.toolkit}/bin:/usr/bin:/bin"
        self.request = request_for(
            self.project, environment={"PATH": path, "HOME": f"{folder}/home"}, file="buildd.toml"
        )
        self.plans = Plans(Sweep(folder / "native"))

    def keep(self) -> Plan:
        plan = plan_for(self.request)
        self.plans.keep(self.request, plan, time.time_ns() + OLD_NS)
        return plan


@pytest.fixture
def home(tmp_path: Path, toolkit: Path) -> Home:
    return Home(tmp_path, toolkit)


def write_beside(path: Path, text: str) -> None:
    """As most editors save."""
    aside = path.with_name(f"{path.name}~")
    aside.write_text(text)
    os.replace(aside, path)


def test_a_save_leaves_the_plan_as_it_is(home: Home) -> None:
    plan = home.keep()
    assert home.plans.recall(home.request) is plan
    (home.project / "src" / "a.cu").write_text("in its place")
    write_beside(home.project / "src" / "b.cu", "renamed over it")
    write_beside(home.project / "one.cu", "renamed over it")
    os.utime(home.project / "src", ns=(1, 1))
    assert home.plans.recall(home.request) is plan
    assert plan_for(home.request) == plan


def rewrite_project(home: Home) -> None:
    write_beside(home.project / "buildd.toml", PROJECT.replace("sm_80", "sm_90"))


def add_source(home: Home) -> None:
    (home.project / "src" / "new.cu").write_text("new")


def remove_source(home: Home) -> None:
    (home.project / "src" / "b.cu").unlink()


def remove_named_source(home: Home) -> None:
    (home.project / "one.cu").unlink()


def make_source_a_folder(home: Home) -> None:
    (home.project / "src" / "b.cu").unlink()
    (home.project / "src" / "b.cu").mkdir()


def break_link(home: Home) -> None:
    (home.folder / "elsewhere" / "c.cu").unlink()


def replace_toolkit(home: Home) -> None:
    nvcc = home.toolkit / "bin" / "nvcc"
    aside = nvcc.with_name("other")
    aside.write_bytes(nvcc.read_bytes() + b"other")
    aside.chmod(0o755)
    os.replace(aside, nvcc)


def put_another_nvcc_first(home: Home) -> None:
    (home.folder / "early" / "nvcc").symlink_to(home.toolkit / "bin" / "nvcc")
    os.utime(home.folder / "early", ns=(1, 1))  # coarse clocks would leave it as it is


def write_user_settings(home: Home) -> None:
    (home.folder / "home" / ".config" / "buildd").mkdir()
    (home.folder / "home" / ".config" / "buildd" / "config.toml").write_text("[environment]\nAIT_NVCC_KEEP_PTX = 1\n")


@pytest.mark.parametrize(
    "change",
    [
        rewrite_project,
        add_source,
        remove_source,
        remove_named_source,
        make_source_a_folder,
        break_link,
        replace_toolkit,
        put_another_nvcc_first,
        write_user_settings,
    ],
)
def test_what_the_plan_was_made_of_is_looked_at(home: Home, change: Callable[[Home], None]) -> None:
    home.keep()
    assert home.plans.recall(home.request) is not None
    change(home)
    assert home.plans.recall(home.request) is None
    # Nor is it taken for true again when the change is taken back.
    assert home.plans.recall(home.request) is None


def environment_of(request: Request, **values: str) -> Request:
    return msgspec.structs.replace(request, environment={**request.environment, **values})


def test_another_request_has_another_plan(home: Home) -> None:
    plan = home.keep()
    request = home.request
    assert home.plans.recall(environment_of(request, NVCC_APPEND_FLAGS="-O1")) is None
    assert home.plans.recall(environment_of(request, CUDA_HOME=str(home.toolkit))) is None
    assert home.plans.recall(msgspec.structs.replace(request, arch=("sm_90",))) is None
    assert home.plans.recall(msgspec.structs.replace(request, targets=("kept",))) is None
    (home.folder / "link").symlink_to(home.project)
    assert home.plans.recall(msgspec.structs.replace(request, project=str(home.folder / "link"))) is None
    assert home.plans.recall(msgspec.structs.replace(request, jobs=1)) is plan


def test_what_was_written_a_moment_before_keeps_no_plan(home: Home) -> None:
    """It could be written again without another stamp."""
    plan = plan_for(home.request)
    home.plans.keep(home.request, plan, (home.project / "buildd.toml").stat().st_mtime_ns + 1)
    assert home.plans.recall(home.request) is None


def test_what_is_written_while_stamps_are_taken_keeps_no_plan(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has heard the end of its build already."""
    plan, real = plan_for(home.request), up_to_date.held

    def held(path: str, since_ns: int, moved: dict[str, bool]) -> bool:
        answer = real(path, since_ns, moved)
        if path.endswith("buildd.toml"):
            write_beside(Path(path), PROJECT + 'flags = ["-O1"]\n')
        return answer

    monkeypatch.setattr(up_to_date, "held", held)
    home.plans.keep(home.request, plan, time.time_ns() + OLD_NS)
    assert home.plans.recall(home.request) is None
