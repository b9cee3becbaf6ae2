"""The client without any library speaks to a real daemon: what SPEC.md promises, and odd requests."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.paths import ROOT
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = [pytest.mark.node, pytest.mark.skipif(not host_compiler(), reason="needs gcc")]


def test_a_client_written_from_the_spec_alone_finds_no_fault() -> None:
    with short_folder() as base:
        user = User(base)
        try:
            status, said = user.buildd("up")
            assert status == 0, said
            done = subprocess.run(
                ["node", ROOT / "scripts/campaign/client", "--rounds", "2"],
                env=user.environ,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.strip().endswith(" checks, 0 faults") and "FAULT" not in done.stdout
            (log,) = user.run_folder.rglob("daemon.log")
            assert "Traceback" not in log.read_text()
        finally:
            leftovers = user.end()
        assert not leftovers
