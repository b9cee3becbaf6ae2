"""XLA's flags are tried in another process: what XLA would end with SIGABRT becomes an error that names the flag."""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from buildd.hooks import jax_flags


def xla(parse: Callable[[], object]) -> Any:
    return types.SimpleNamespace(CompileOptions=parse)


def aborting() -> None:
    """As XLA ends a process."""
    os.write(2, b"F0101 00:00:00.1 7 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --xla_a=1 --xla_b\n")
    os.abort()


def test_an_unknown_flag_is_named_and_the_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b")
    with pytest.raises(jax_flags.UnknownFlagError) as caught:
        jax_flags.prepare(xla(aborting))
    said = str(caught.value)
    assert "does not know --xla_a=1 --xla_b, and XLA would abort" in said
    assert "next: remove it from XLA_FLAGS" in said and "EASYDEL_AUTO=0" in said


@pytest.mark.parametrize("parse", [lambda: None, lambda: 1 / 0, os.abort, lambda: os._exit(3)])
def test_whatever_else_happens_there_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, parse: Callable[[], object]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    jax_flags.prepare(xla(parse))


def test_a_try_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    monkeypatch.setattr(jax_flags, "_MOST_WAIT_S", 0.05)
    # Other tests of this process may keep a daemon meanwhile.
    before = set(psutil.Process().children())
    jax_flags.prepare(xla(lambda: time.sleep(600)))
    assert set(psutil.Process().children()) <= before


def test_a_flag_counts_once_and_the_last_value_stays_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b=2 --xla_a=3 --xla_b=2 --xla_a=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--x --x")
    jax_flags.prepare(xla(lambda: None))
    assert os.environ["XLA_FLAGS"] == "--xla_a=3 --xla_b=2 --xla_a=1" and os.environ["LIBTPU_INIT_ARGS"] == "--x"


def test_a_file_of_flags_is_read_since_the_key_has_the_variable_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for content in ("--xla_a=1\n--xla_b=2\n", "--xla_a=2"):
        (tmp_path / "flags").write_text(content)
        monkeypatch.setenv("XLA_FLAGS", f" {tmp_path}/flags")
        jax_flags.prepare(xla(lambda: None))
        assert os.environ["XLA_FLAGS"].split() == content.split()
    monkeypatch.setenv("XLA_FLAGS", f"{tmp_path}/none")
    jax_flags.prepare(xla(lambda: None))
    assert os.environ["XLA_FLAGS"] == f"{tmp_path}/none"


def test_the_first_backend_is_what_it_waits_for_and_without_flags_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    bridge: Any = types.SimpleNamespace(backends=lambda: started.append("started") or ["cpu"], xla_client=xla(aborting))
    jax_flags.begin(bridge)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert bridge.backends() == ["cpu"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    assert bridge.backends() == ["cpu"], "it is too late to try them: XLA has read its flags"
    later: Any = types.SimpleNamespace(backends=bridge.backends, xla_client=xla(aborting))
    jax_flags.begin(later)
    with pytest.raises(jax_flags.UnknownFlagError):
        later.backends()
    monkeypatch.setenv("BUILDD_DISABLE", "1")
    off: Any = types.SimpleNamespace(backends=bridge.backends, xla_client=xla(aborting))
    jax_flags.begin(off)
    assert off.backends() == ["cpu"]
