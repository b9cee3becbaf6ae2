"""A make project of eight C++ compiles that are worth a journey, and where they ran."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCES = 8
_MAKEFILE = """parts := $(patsubst %.cpp,%.o,$(wildcard *.cpp))
lib.a: $(parts)
\tar rcs $@ $^
%.o: %.cpp
\tg++ -O1 -c $< -o $@
"""


def write_sources(folder: Path) -> None:
    for number in range(SOURCES):
        code = f"#include <regex>\nint f{number}(char const* s) {{ return std::regex_match(s, std::regex(s)); }}\n"
        (folder / f"f{number}.cpp").write_text(code)
    (folder / "Makefile").write_text(_MAKEFILE)


def places(environ: Mapping[str, str]) -> list[str]:
    """Where each compile of the last build ran: "buildd" for the build's own machine, or a node's name."""
    trace = [sys.executable, "-m", "buildd", "trace"]
    events = json.loads(subprocess.check_output(trace, env=dict(environ), text=True))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    return [names[event["pid"]] for event in events if event.get("cat") == "g++"]
