"""`buildd warm`: fills the store without writing outputs, or proves that nothing is left to compile."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from pathlib import Path

from buildd.client.request import add_output_arguments, add_request_arguments
from buildd.commands.build import perform
from buildd.ui.problems import parser
from codegen.errors import RequestError
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "warm",
        "Compile ahead of time: fill the cache without writing outputs.",
        details="With --prove, buildd compiles nothing: it traces models in code and looks everything else up. If an "
        "action would run, buildd names it and ends with status 1. With --prove -- COMMAND, buildd runs COMMAND. "
        "Each of its compiles that neither the store nor the shared cache has fails, and buildd ends with status 86.",
    )
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets to compile (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command)
    add_output_arguments(command)
    command.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="after a failure, go on with everything that does not depend on it",
    )
    command.add_argument("--prove", action="store_true", help="compile nothing; fail if any action would run")
    manifest = "compile what `buildd run --record FILE` recorded (compiler calls, Triton kernels); needs no GPU"
    command.add_argument("--manifest", metavar="FILE", type=Path, default=None, help=manifest)
    python = "with --manifest: the program's Python (default: the first one like the recorded one)"
    command.add_argument("--python", metavar="PATH", default="", help=python)
    no_jit = (
        "with --prove -- COMMAND: also set the engines' own switches against compiling, so that their own caches "
        "must be complete (see docs/ci.md)"
    )
    command.add_argument("--no-jit", action="store_true", help=no_jit)
    command.add_argument(
        "--map-paths",
        action=BooleanOptionalAction,
        default=None,
        help="with --prove -- COMMAND: as for `buildd run`",
    )
    own, rest = arguments, None
    if "--" in arguments:
        own, rest = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    options = command.parse_args(own)
    if rest is not None and options.prove:
        from buildd.commands.prove_command import prove

        return prove(options, rest)
    if rest is not None or options.no_jit or options.map_paths is not None:
        raise RequestError(
            "bad-value",
            "a command after --, --no-jit and --map-paths need --prove -- COMMAND",
            next_step="buildd warm --prove -- COMMAND, or name targets without --",
        )
    if options.manifest is not None:
        from buildd.commands.warm_recording import warm

        return warm(options)
    if options.python:
        raise RequestError(
            "bad-value", "--python works only with --manifest", next_step="add --manifest FILE, or leave out --python"
        )
    return perform(options, Mode.PROVE if options.prove else Mode.WARM)
