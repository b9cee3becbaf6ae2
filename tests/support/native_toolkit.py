"""A toolkit whose nvcc finds given GPUs: the program that it asks for them is replaced."""

from __future__ import annotations

from pathlib import Path

from tests.support.toolkit import copy_toolkit, small_toolkit

_QUERY = """\
#!/bin/sh
[ "${CUDA_VISIBLE_DEVICES-unset}" = "" ] && exit 1
printf '%s' '@'
"""
"""What nvcc asks for the GPUs; like the driver, it finds none if CUDA_VISIBLE_DEVICES is empty."""


def toolkit_with(toolkit: Path, gpus: str) -> Path:
    """The toolkit in this folder, made if it is not there, with these GPUs, as "80, 90"."""
    if not toolkit.exists():
        copy_toolkit(small_toolkit(), toolkit, "bin/__nvcc_device_query")
    query = toolkit / "bin/__nvcc_device_query"
    query.unlink()
    query.write_text(_QUERY.replace("@", gpus))
    query.chmod(0o755)
    return toolkit
