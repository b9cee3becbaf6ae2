"""Runs a command as `buildd run` does on a terminal: `python -m tests.support.relayed WORDS COMMAND...`.

The status line says WORDS from the beginning. Nothing else of buildd takes part.
"""

from __future__ import annotations

import subprocess
import sys

from buildd.ui.relay import Relay

relay = Relay(1, lambda columns: sys.argv[1][:columns])
process = subprocess.Popen(sys.argv[2:], stdout=relay.output, stderr=relay.output)
relay.follow(process.pid)
sys.exit(process.wait())
