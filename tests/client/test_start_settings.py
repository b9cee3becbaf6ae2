"""Settings that a running daemon does not obey, because it was started with others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from buildd.client.start_settings import digests, ignored
from buildd.store import signing
from protocol.endpoint import Endpoint
from tests.support.tiers import ALICE
from tests.support.toolkit import host_compiler
from tests.support.user import User

TIER = "[tier] of config.toml"
KEYS = "the trusted keys"


def run(user: User, *arguments: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", *arguments],
        cwd=user.folder,
        env={**user.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


def not_obeyed(daemons: Mapping[str, str], clients: Mapping[str, str]) -> list[str]:
    endpoint = Endpoint(
        pid=1, start_ticks=1, boot_id="b", instance="i", work="", control="", settings=digests(daemons, "i")
    )
    return list(ignored(clients, endpoint))


def home(folder: Path, config: str = "") -> dict[str, str]:
    (folder / ".config/buildd").mkdir(parents=True)
    if config:
        (folder / ".config/buildd/config.toml").write_text(config)
    return {"HOME": str(folder)}


def test_what_a_shell_sets_and_the_daemon_has_otherwise_is_named(tmp_path: Path) -> None:
    shell = home(tmp_path)
    assert not_obeyed(shell, shell) == []
    assert not_obeyed({**shell, "BUILDD_MEMORY": "4G"}, shell) == [], "this shell asks for nothing"
    assert not_obeyed(shell, {**shell, "BUILDD_MEMORY": "4G"}) == ["BUILDD_MEMORY"]
    assert not_obeyed({**shell, "BUILDD_MEMORY": "4G"}, {**shell, "BUILDD_MEMORY": "4096M"}) == [], "the same size"
    assert not_obeyed(shell, {**shell, "BUILDD_TIER": "no"}) == [], "there is none"
    assert not_obeyed({**shell, "BUILDD_TIER": "/t"}, {**shell, "BUILDD_TIER": "no"}) == ["BUILDD_TIER"]


def test_another_home_has_other_trusted_keys_and_another_file(tmp_path: Path) -> None:
    first, second = home(tmp_path / "d"), home(tmp_path / "e", '[tier]\nurl = "/t"\n')
    assert not_obeyed(second, second) == []
    assert not_obeyed(first, second) == [TIER, KEYS]
    assert not_obeyed({**first, "BUILDD_TIER": "/t"}, {**first, "BUILDD_TIER": "/t"}) == []
    assert not_obeyed({**first, "BUILDD_TIER": "/t"}, {**second, "BUILDD_TIER": "/t"}) == [KEYS]
    assert not_obeyed(second, first) == []


def test_the_values_are_not_in_the_endpoint_file(tmp_path: Path) -> None:
    shell = {**home(tmp_path), "BUILDD_TIER_HEADERS": "authorization=s3cret"}
    assert "s3cret" not in repr(digests(shell, "i"))
    assert digests(shell, "i")["BUILDD_TIER_HEADERS"] != digests(shell, "j")["BUILDD_TIER_HEADERS"]


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_every_command_names_a_tier_that_the_daemon_does_not_know(user: User, tmp_path: Path) -> None:
    (user.folder / "a.c").write_text("int a;\n")
    (user.folder / "buildd.toml").write_text('[target.a]\nkind = "extension"\nsources = ["a.c"]\n')
    assert "other settings" not in run(user, "run", "--", "gcc", "-c", "a.c")[1]
    other = {**home(tmp_path / "e"), "BUILDD_TIER": str(tmp_path)}
    says = f"the daemon was started with other settings and does not obey yours: BUILDD_TIER, {KEYS} (buildd down;"
    assert run(user, "run", "--", "gcc", "-c", "a.c", **other)[1].count(says) == 1
    assert run(user, "status", **other)[1].count(says) == 1
    assert run(user, "build", **other)[1].count(says) == 1
    found = run(user, "doctor", **other)[1]
    assert f"warn  daemon: it was started with other settings and does not obey yours: BUILDD_TIER, {KEYS}" in found
    assert run(user, "down")[0] == 0
    assert "other settings" not in run(user, "run", "--", "gcc", "-c", "a.c", **other)[1]


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_running_daemon_believes_a_key_that_is_trusted_now(user: User) -> None:
    run(user, "down")  # that of another test
    (user.folder / "tier").mkdir()
    (user.folder / "a.c").write_text("int c;\n")
    tier = {"BUILDD_TIER": str(user.folder / "tier")}
    assert "no key is trusted" in run(user, "run", "--", "gcc", "-c", "a.c", **tier)[1]
    daemon = user.daemon()
    signing.trust(user.environ, ALICE.public, "ci")
    (user.folder / "a.c").write_text("int b;\n")
    assert "no key is trusted" not in run(user, "run", "--", "gcc", "-c", "a.c", **tier)[1]
    status = run(user, "status", **tier)[1]
    assert "trusts ci" in status and "no key is trusted" not in status
    os.truncate(signing.trusted_file(user.environ), 0)
    assert "trusts nobody" in run(user, "status", **tier)[1]
    assert user.daemon() == daemon is not None
