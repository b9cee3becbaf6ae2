"""The folder of a job on a node, between the two errands of a job whose files the node lacks."""

from __future__ import annotations

from pathlib import Path

from buildd.cluster import node_task
from buildd.cluster.node_steps import Steps


def test_the_folder_is_gone_when_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    """The same job may come back at once, to another worker of the node, and make the folder again, which stays."""
    folder = tmp_path / "job"
    looked = False

    def lay(spec: object, digest_of: object) -> tuple[str, tuple[str, ...]]:
        nonlocal looked
        looked = folder.is_dir()
        return ("lacks", ("digest",))

    job = node_task.run({"files": {}, "folder": str(folder)}, lay, Steps)
    assert next(job) == ("lacks", ("digest",)) and looked and not folder.exists()
    folder.mkdir()
    assert not list(job) and folder.is_dir()
