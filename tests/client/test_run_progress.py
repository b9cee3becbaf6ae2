"""The names of running compiles in the status line of `buildd run`."""

from __future__ import annotations

from buildd.client.run_progress import shown_name


def test_a_file_of_inductors_has_a_short_name() -> None:
    digest = "c" + "7qz2bx4o" * 6 + "hy"
    assert shown_name(f"/tmp/torchinductor_me/7q/{digest}.main.cpp") == "Inductor's c7qz2b.main.cpp"
    assert shown_name("src/reduce.cu") == "reduce.cu"
    assert shown_name(f"src/{'long' * 20}.cu") == f"{'long' * 20}.cu"
