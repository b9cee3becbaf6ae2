"""`buildd completion SHELL`: prints the completions of the command line for a shell."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from buildd.exits import OK
from buildd.ui.problems import parser

if TYPE_CHECKING:
    from buildd.ui.command_line import Command

SHELLS = ("bash", "zsh", "fish")
_DETAILS = """\
bash:  buildd completion bash > ~/.local/share/bash-completion/completions/buildd
zsh:   buildd completion zsh > FOLDER/_buildd, a FOLDER of your $fpath
fish:  buildd completion fish > ~/.config/fish/completions/buildd.fish"""


def run(arguments: list[str], commands: Mapping[str, tuple[str, str]]) -> int:
    """Carry out the command.

    Args:
        commands: `cli.COMMANDS`.
    """
    command = parser("completion", "Print the completions of this command line for a shell.", details=_DETAILS)
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    options = command.parse_args(arguments)
    from buildd.ui.completions import completion

    sys.stdout.write(completion(options.shell, all_commands(commands)))
    return OK


def all_commands(commands: Mapping[str, tuple[str, str]]) -> list[Command]:
    """Describe every command of `cli.COMMANDS`."""
    from buildd.ui.command_line import described

    found = []
    for name, (place, summary) in commands.items():
        module, _, function = place.partition(":")
        carry_out = getattr(importlib.import_module(f"buildd.commands.{module}"), function or "run")
        found.append(described(name, summary, (lambda given: run(given, {})) if carry_out is run else carry_out))
    return found
