"""The bridge's process ends with the daemon's interest in it, however early that ends."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from tests.support.clusters import environ, fake_settings
from tests.support.waiting import until_async


def test_an_engine_that_closes_while_its_bridge_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection takes longer than the engine lives, as under load."""
    pids = tmp_path / "pids"
    settings = fake_settings(tmp_path)
    script = Path(settings.python)
    script.write_text(script.read_text().replace("exec ", f"echo $$ >> {pids}\nexec "))
    connects = asyncio.Event()

    async def slow(**_: object) -> None:
        connects.set()
        await asyncio.Event().wait()

    async def run() -> None:
        engine = RayEngine(settings, environ())
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", slow)
            engine.wake()
            await connects.wait()
            await until_async(pids.exists, "the bridge runs")
            await engine.close()
        assert not engine.bridge_pid

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(run())
        gc.collect()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids.read_text().split())
