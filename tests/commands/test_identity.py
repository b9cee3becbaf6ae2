"""Which buildd this is, told by its files' stamps or by their content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd import identity
from protocol.endpoint import read_endpoint, runtime_folder
from tests.support.developer import Developer
from tests.support.toolkit import host_compiler


def stamp() -> str:
    return identity.package_stamp.__wrapped__()


def test_a_stamp_is_of_these_very_files_and_says_nothing_of_young_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "a.py", tmp_path / "b.py"
    file.write_text("a = 1\n")
    other.write_text("a = 2\n")
    status = file.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))

    def sources() -> Iterator[tuple[str, str]]:
        yield "buildd/a.py", str(file)

    monkeypatch.setattr(identity, "_sources", sources)
    monkeypatch.setattr(identity, "YOUNG_NS", 3600 * 10**9)
    assert stamp() == ""
    monkeypatch.setattr(identity, "YOUNG_NS", -(10**9))
    before = stamp()
    assert before and before == stamp()
    os.replace(other, file)  # as long and as old
    assert stamp() not in ("", before)


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_daemon_tells_the_stamp_of_its_code(developer: Developer) -> None:
    assert developer.build().status == 0
    endpoint = read_endpoint(runtime_folder(developer.environ))
    assert endpoint is not None and endpoint.package_digest == identity.package_digest()
    assert endpoint.package_stamp in (stamp(), "")  # empty: the code came to this machine just now
