"""Programs under `buildd run`, with the ledger of their start and the time on the wall."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support.user import User

TIMED = """
import os, subprocess, sys, time
sys.exit(subprocess.call(sys.argv[1:], env={**os.environ, "BEGAN_S": str(time.monotonic())}))
"""
END = "import os, time\nprint(time.monotonic() - float(os.environ['BEGAN_S']))\n"


def started(user: User, program: str) -> tuple[float, dict[str, Any]]:
    """Seconds on the wall until a program's last line, from before its process was started; and its ledger."""
    place = user.folder / "program.py"
    place.write_text(program + END)
    status, said = user.buildd("run", "--", sys.executable, "-S", "-c", TIMED, sys.executable, str(place))
    assert status == 0, said
    wall_s = float(next(line for line in said.splitlines() if line.replace(".", "", 1).isdigit()))
    status, told = user.buildd("log", "last", "--json")
    assert status == 0
    starts = [json.loads(line)["body"] for line in told.splitlines() if '"program_start"' in line]
    return wall_s, starts[-1]
