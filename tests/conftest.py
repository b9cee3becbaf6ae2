"""Skips what needs a tool that is not on this machine, by marker, and says in the first lines which tools there are.

Continuous integration installs them all, so nothing is skipped there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.developer import (
    Developer,
    end_another_developer,
    end_developer,
    make_another_developer,
    make_developer,
)
from tests.support.foreign_project import kept_up
from tests.support.own_programs import PROGRAM_CACHE
from tests.support.pages import CHROMIUM
from tests.support.serving import short_folder
from tests.support.toolkit import has_nvcc, make_toolkit
from tests.support.user import User


def _package(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return (not parent or _package(parent)) and importlib.util.find_spec(name) is not None


@cache
def missing(marker: str) -> str:
    """Why tests with this marker cannot run here; empty where they can."""
    there, reason = _TOOLS[marker]
    return "" if there() else reason


_TOOLS: dict[str, tuple[Callable[[], bool], str]] = {
    "cuda": (
        lambda: shutil.which("g++") is not None and has_nvcc(),
        "no nvcc (pip install buildd[cuda]) or no g++",
    ),
    "hip": (
        lambda: bool(shutil.which("hipcc")),
        "no hipcc (Debian: apt install hipcc rocm-device-libs libamdhip64-dev)",
    ),
    "triton": (lambda: _package("triton"), "no triton (pip install buildd[triton])"),
    "torch": (lambda: _package("torch"), "no torch (scripts/test-torch installs it)"),
    "jax": (lambda: _package("jax"), "no jax (scripts/test-jax installs it)"),
    "ray": (lambda: _package("ray"), "no ray (scripts/test-ray installs it)"),
    "browser": (
        lambda: _package("playwright") and os.access(CHROMIUM, os.X_OK),
        f"no {CHROMIUM} (Debian: apt install chromium) or no playwright",
    ),
    "node": (lambda: bool(shutil.which("node")), "no node"),
}


def pytest_configure() -> None:
    # A script that was started in the background or by nohup ignores these, and so would every process of a test.
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests sign with a key of their own, and make shims in a folder of their own: the user who runs them has both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


def pytest_report_header() -> list[str]:
    return [f"skipped, {reason}: tests marked {marker}" for marker in _TOOLS if (reason := missing(marker))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _TOOLS:
            if item.get_closest_marker(marker) and (reason := missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def program_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs of buildd that one test has compiled: the next one, of whichever worker, finds them in its store."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "program_cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PROGRAM_CACHE, str(folder))
        yield


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake toolkit of tests/support/toolkit.py; needs a host compiler."""
    folder = tmp_path_factory.mktemp("toolkit") / "cuda"
    make_toolkit(folder)
    return folder


@pytest.fixture
def developer(toolkit: Path) -> Iterator[Developer]:
    """A user with the fake toolkit and a project; the daemon ends with the test."""
    developer = make_developer(toolkit)
    yield developer
    end_developer(developer)


@pytest.fixture(scope="module")
def kept_developer(toolkit: Path) -> Iterator[Developer]:
    """A developer for a whole file, whose daemon is up all the while: a daemon takes the longest to start."""
    kept_developer = make_developer(toolkit)
    with kept_up(kept_developer):
        yield kept_developer
    end_developer(kept_developer)


@pytest.fixture
def another_developer(kept_developer: Developer) -> Iterator[Developer]:
    """A developer served by the daemon of `kept_developer`, for tests that do not end it; the rest is its own."""
    another_developer = make_another_developer(kept_developer)
    yield another_developer
    end_another_developer(another_developer)


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """A user for a whole file: what is warm for its first test is so for the others."""
    with short_folder() as folder:
        user = User(folder)
        yield user
        assert user.end() == []


@pytest.fixture(scope="module")
def kept_user() -> Iterator[User]:
    """The same with a daemon that is up when a test begins."""
    with short_folder() as folder:
        user = User(folder)
        with kept_up(user):
            yield user
        assert user.end() == []


@pytest.fixture
def triton_user() -> Iterator[User]:
    """A user whose programs compile Triton kernels, which then warns of nothing."""
    with short_folder() as folder:
        user = User(folder, {"TRITON_DEFAULT_FP_FUSION": "1"})
        yield user
        assert user.end() == []
