"""`buildd warm`: fill the store without writing outputs, or prove that nothing is left to compile."""

from __future__ import annotations

from pathlib import Path

from buildd.commands.build import perform
from buildd.commands.common import parser
from buildd.commands.request import add_request_arguments
from codegen.plan import RequestError
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "warm",
        "Compile ahead: fill the cache, write no outputs.",
        details="With --prove nothing runs; exit status 1 and the names of the actions that still would.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument("-k", "--keep-going", action="store_true", help="after a failure build what does not need it")
    command.add_argument("--prove", action="store_true", help="run nothing; fail if any action would")
    manifest = "compile the Triton kernels that `buildd run --record FILE` has written down; no GPU is needed"
    command.add_argument("--manifest", metavar="FILE", type=Path, default=None, help=manifest)
    python = "with --manifest: the Python of the program (default: the first that is like the recorded one)"
    command.add_argument("--python", metavar="PATH", default="", help=python)
    options = command.parse_args(arguments)
    if options.manifest is not None:
        from buildd.commands.warm_kernels import warm

        return warm(options)
    if options.python:
        raise RequestError("bad-value", "--python goes with --manifest", next_step="name a manifest, or leave it out")
    return perform(options, Mode.PROVE if options.prove else Mode.WARM)
