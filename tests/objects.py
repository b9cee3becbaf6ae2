"""What is in an object of nvcc's, host's and devices', without what every run of nvcc names anew.

Knows the usual inspectors; where there is no cuobjdump, devices' code is left out.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path


def inspector() -> str:
    """cuobjdump of the toolkit on the PATH or of the PyPI wheels; empty where there is none."""
    wheels = importlib.util.find_spec("nvidia")
    folders = wheels.submodule_search_locations or () if wheels is not None else ()
    places = [place for folder in folders for place in Path(folder).glob("cu*/bin/cuobjdump")]
    return shutil.which("cuobjdump") or next((str(place) for place in places), "")


def anonymous(text: str) -> str:
    """Without the names of modules, of a source k.cu whose first function is `first`, and of temporary files."""
    text = re.sub(r"[\w.$]*_[0-9a-f]{8}_4_k_cu_(first|[0-9a-f]{8})", "ID", text)
    return re.sub(r"[^\s\"]*/(tmpxft_\w+-\d+_|job-\w+/)k\.(compute_80\.)?", "k.", text)


def contents(path: Path) -> dict[str, str]:
    """Symbols and code of an object, host's and devices'."""
    commands = {
        "symbols": ["nm", "--format=posix", "--no-sort", str(path)],
        "host code": ["objdump", "-d", "--no-show-raw-insn", str(path)],
    }
    if tool := inspector():
        commands |= {"machine code": [tool, "-elf", str(path)], "ptx": [tool, "-ptx", str(path)]}
    found = {}
    for name, command in commands.items():
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        match name:
            case "symbols":  # without sizes and offsets, which follow the length of the module's id
                text = "\n".join(" ".join(line.split()[:2]) for line in text.splitlines())
            case "machine code":  # sections of code and data; in the tables between them stand such offsets
                blocks = [block.strip() for block in text.split("\n\n")]
                text = "\n".join(block for block in blocks if block.startswith((".text", ".nv.constant", ".nv.g")))
            case "ptx":  # without debug information, which has the id letter by letter
                text = re.sub(r"^\.b\d+ .*\n", "", text, flags=re.MULTILINE)
        found[name] = anonymous(text.replace(str(path), ""))
    return found
