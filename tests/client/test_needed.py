"""`buildd cache export TARGET`: the results that targets need, without those that are never stored."""

from __future__ import annotations

from tests.support.developer import Developer

ODD = """
[target.odd]
kind = "cuda"
sources = ["src/b.cu"]
flags = ["-Xcompiler=-fstack-usage"]
arch = ["sm_80"]
"""


def test_what_is_never_stored_is_left_out_and_what_is_missing_is_named(developer: Developer) -> None:
    project = developer.project / "buildd.toml"
    project.write_text(project.read_text() + ODD)
    export = ("cache", "export", "bundle", "demo", "odd", "-C", str(developer.project))
    status, said = developer.buildd(*export)
    assert status == 2 and "3 of 5 results are not in the store: demo/src/a.cu.o, demo/src/b.cu.o, demo/" in said, said
    assert "next: run `buildd warm` for these targets first" in said
    assert developer.buildd("warm", "-C", str(developer.project))[0] == 0
    status, said = developer.buildd(*export)
    assert status == 0 and "bundle: 3 results" in said, said
    assert "left out, because it is never stored: odd/" in said
