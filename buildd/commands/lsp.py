"""`buildd lsp`: the language server, for an editor to start."""

from __future__ import annotations

import os

from buildd.cli import OK, USAGE
from buildd.commands.common import parser, print_problem
from buildd.commands.request import add_request_arguments, request_from
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "lsp",
        "A language server on standard input and output: errors after each save, kernels' needs on hover.",
        details="For an editor to start, in the project's folder or with -C. Runs beside clangd; see buildd compdb.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets (default: the default ones)")
    add_request_arguments(command)
    options = command.parse_args(arguments)
    environ = dict(os.environ)
    try:
        from buildd.lsp import serve
    except ImportError as error:
        print_problem(f"the language server needs pygls: {error}", next_step='pip install "buildd[ide]"')
        return USAGE
    serve(request_from(options, tuple(options.targets), Mode.BUILD, environ), environ)
    return OK
