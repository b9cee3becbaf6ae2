"""A copy of CUTLASS that the fake compiler can read: the real Python lists, and headers without content."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT


def cutlass_in(folder: Path) -> Path:
    """CUTLASS's lists, and headers without content: what the fake compiler can read."""
    import cutlass_library

    package = folder / "cutlass_library"
    (package / "source").mkdir(parents=True)
    real = Path(next(iter(cutlass_library.__path__)))
    for file in real.glob("*.py"):
        (package / file.name).symlink_to(file)
    templates = ROOT / "codegen" / "templates"
    choice = re.compile(r'\{\{ "(\w+)" if \w+(?: else "(\w+)")? \}\}')
    text = "\n".join(file.read_text() for file in templates.glob("gemm_sm*"))
    for side in (1, 2):
        chosen = choice.sub(lambda match, side=side: match[side] or "", text)
        for name in re.findall(r'^#include "([^"]+)"$', chosen, re.MULTILINE):
            header = package / "source" / "include" / name
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text("")
    return package / "source"
