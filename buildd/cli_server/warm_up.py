"""Imports and makes once what every command would import and make again, each in its own process.

Knows which modules commands import when they need them, and no command.
"""

from __future__ import annotations

import gc
import importlib
import os

_IMPORTED = (
    "argparse",
    "difflib",
    "locale",
    "buildd.client.budget_share",
    "buildd.client.perform",
    "buildd.client.run_logs",
    "buildd.client.run_settings",
    "buildd.client.start_settings",
    "buildd.commands.build",
    "buildd.commands.daemon_control",
    "buildd.commands.explain",
    "buildd.commands.log",
    "buildd.commands.run",
    "buildd.commands.status",
    "buildd.commands.warm",
    "buildd.profiling.first_measurement",
    "buildd.shims.environment",
    "buildd.shims.framework_environment",
    "buildd.shims.interposition",
    "buildd.shims.jobserver",
    "buildd.shims.run_log",
    "buildd.shims.shim_folders",
    "buildd.store.aitemplate_profiles",
    "buildd.store.location",
    "buildd.store.profile_cache",
    "buildd.store.shared_kernels",
    "buildd.tier.tier_settings",
    "buildd.ui.daemon_status",
    "buildd.ui.live",
    "protocol.autostart",
    "protocol.client",
    "protocol.curve",
    "protocol.resubmission",
)
"""Modules that commands import when they need them."""


def import_all() -> None:
    """Import the commands' modules, and keep the garbage collector from touching, and so copying, shared memory."""
    for name in _IMPORTED:
        importlib.import_module(name)
    _use_once()
    gc.collect()
    gc.freeze()


def _use_once() -> None:
    """Make everything that is made at first use: the table of variables, decoders, patterns, facts of this machine.

    Each takes about 1 ms, and the look at make's version takes 5 ms."""
    from buildd.client import request
    from buildd.native import programs
    from buildd.shims import jobserver
    from buildd.ui import problems
    from codegen.compilers import processor
    from codegen.variables import environment
    from protocol import endpoint, places, wire
    from protocol.described import described
    from protocol.messages import Accepted, Pong

    environment.find("")
    described(endpoint.Endpoint)
    wire.decode_from_daemon(wire.encode(Pong()))
    wire.decode_from_control(wire.encode(Accepted()))
    places.place_name()
    jobserver.find_builders(os.environ)
    processor.features()
    programs.machine()
    parser = problems.parser("", "")
    request.add_request_arguments(parser)
    parser.parse_args([])
