"""`buildd warm`: fill the store without writing outputs, or prove that nothing is left to compile."""

from __future__ import annotations

from buildd.commands.build import perform
from buildd.commands.common import parser
from buildd.commands.request import add_request_arguments
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
    options = command.parse_args(arguments)
    return perform(options, Mode.PROVE if options.prove else Mode.WARM)
