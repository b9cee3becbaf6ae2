"""`buildd lsp`: runs the language server; editors start it."""

from __future__ import annotations

import os
from argparse import SUPPRESS

from buildd.client.request import add_request_arguments, request_from
from buildd.exits import OK, USAGE
from buildd.ui.problems import parser, print_problem
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "lsp",
        "Run a language server on standard input and output: errors after each save, kernels' registers on hover.",
        details="Editors start it, in the project's folder or with -C. It runs beside clangd; see buildd compdb.",
    )
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets to build (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command, in_process=SUPPRESS, json=SUPPRESS)
    options = command.parse_args(arguments)
    environ = dict(os.environ)
    try:
        from buildd.editor.lsp import serve
    except ImportError as error:
        from codegen.compilers.pip_command import install_extra

        print_problem(
            f"the language server needs pygls: {error}",
            next_step=f"install it: {install_extra('ide')}",
        )
        return USAGE
    serve(request_from(options, tuple(options.targets), Mode.BUILD, environ), environ)
    return OK
