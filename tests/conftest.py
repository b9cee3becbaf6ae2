"""Skips what needs a tool that is not on this machine, by marker, and says in the first lines which tools there are.

Continuous integration installs them all, so nothing is skipped there.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.estate import Estate, end_estate, end_guest, guest_of, make_estate
from tests.foreign import kept_up
from tests.household import LARDER, Household
from tests.serving import short_folder
from tests.toolkit import make_toolkit


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
        lambda: bool(shutil.which("g++")) and (bool(shutil.which("nvcc")) or _package("nvidia.cu13")),
        "no nvcc (pip install buildd[cuda]) or no g++",
    ),
    "hip": (
        lambda: bool(shutil.which("hipcc")),
        "no hipcc (Debian: apt install hipcc rocm-device-libs libamdhip64-dev)",
    ),
    "triton": (lambda: _package("triton"), "no triton (pip install buildd[triton])"),
    "torch": (lambda: _package("torch"), "no torch (scripts/test-torch installs it)"),
    "node": (lambda: bool(shutil.which("node") and shutil.which("npm")), "no node and npm"),
}


def pytest_configure() -> None:
    # A script that was started in the background or by nohup ignores these, and so would every process of a test.
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests sign with a key of their own: who runs them has one, and trusts others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


def pytest_report_header() -> list[str]:
    return [f"skipped, {reason}: tests marked {marker}" for marker in _TOOLS if (reason := missing(marker))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _TOOLS:
            if item.get_closest_marker(marker) and (reason := missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def larder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What one user of this process has compiled of our programs, the next one finds in the store."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LARDER, str(tmp_path_factory.mktemp("larder")))
        yield


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake toolkit of tests/toolkit.py; needs a host compiler."""
    folder = tmp_path_factory.mktemp("toolkit") / "cuda"
    make_toolkit(folder)
    return folder


@pytest.fixture
def estate(toolkit: Path) -> Iterator[Estate]:
    """A user of their own with the fake toolkit and a project; their daemon ends with the test."""
    estate = make_estate(toolkit)
    yield estate
    end_estate(estate)


@pytest.fixture(scope="module")
def host(toolkit: Path) -> Iterator[Estate]:
    """An estate for a whole file, whose daemon lives as long; it is what takes the longest to start."""
    host = make_estate(toolkit)
    with kept_up(host):
        yield host
    end_estate(host)


@pytest.fixture
def guest(host: Estate) -> Iterator[Estate]:
    """An estate that has the host's daemon, for tests that do not end it; the rest is its own."""
    guest = guest_of(host)
    yield guest
    end_guest(guest)


@pytest.fixture(scope="module")
def user() -> Iterator[Household]:
    """A user for a whole file: what is warm for its first test is so for the others."""
    with short_folder() as folder:
        household = Household(folder)
        yield household
        assert household.end() == []


@pytest.fixture(scope="module")
def kept_user() -> Iterator[Household]:
    """The same with a daemon that is up when a test begins."""
    with short_folder() as folder:
        household = Household(folder)
        with kept_up(household):
            yield household
        assert household.end() == []


@pytest.fixture
def triton_user() -> Iterator[Household]:
    """A user whose programs compile Triton kernels, which then warns of nothing."""
    with short_folder() as folder:
        household = Household(folder, {"TRITON_DEFAULT_FP_FUSION": "1"})
        yield household
        assert household.end() == []
