"""What a launch needs to run on another machine: the files that must be the same there, and those that come back.

Plain data; knows no action and no cluster.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field

from buildd.cluster.cargo import Cargo

PLACE = "/tmp"
"""Folders of jobs are made here on every node. Their whole path is chosen beforehand: it stands in arguments."""


def new_folder() -> str:
    """The path of a folder that exists on no node."""
    return f"{PLACE}/buildd-node-{os.getuid()}-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files of one launch.

    Args:
        folder: made on the node, removed at the end.
        outputs: files that come back, as paths in the folder.
        depfiles: likewise; the node digests the files that they list.
        files: path -> SHA-256 of each file that the node must have.
        search: folders that the tool searches.
        cpus: how many CPUs of a node the job takes.
        memory_bytes: how much of a node's memory.
        gpus: how many of a node's GPUs; see `wire.Errand`.
        cargo: the files that it reads, which a node may lack.
        blobs: SHA-256 -> content of those that the node has said it lacks.
        node: id of the only node that may have it; empty for any.
        beside: id of the node that has the same job already, and does not get this one; empty where none has it.
    """

    folder: str = field(default_factory=new_folder)
    outputs: tuple[str, ...] = ()
    depfiles: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    search: tuple[str, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    cargo: Cargo = field(default_factory=Cargo)
    blobs: dict[str, bytes] = field(default_factory=dict)
    node: str = ""
    beside: str = ""
