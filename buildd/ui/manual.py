"""The manual page buildd(1), written from the description of the command line, for man.

Source of the macros: man(7). Knows no command by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from buildd.exits import DAEMON, FAILED, INTERRUPTED, NOT_WARM, OK, USAGE
from buildd.ui.command_line import Command, Word

_TOP = """\
.\\" Written by scripts/docs-manual from the parsers of the commands. Do not edit.
.TH BUILDD 1 "" "buildd @VERSION@" "User Commands"
.SH NAME
buildd \\- the build daemon for GPU kernels
.SH SYNOPSIS
.B buildd
[\\fB\\-C\\fR \\fIDIR\\fR] [\\fB\\-\\-color\\fR \\fIWHEN\\fR] \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]
.SH DESCRIPTION
buildd runs nvcc, hipcc, g++, Triton and torch's Inductor, keeps every result, and compiles only what it has not
compiled before. Its daemon is one background process of your user: the first command starts it, and it ends after an
hour without work. A project file is code, as a Makefile is: build only projects that you trust.
.SH OPTIONS
.TP
\\fB\\-C\\fR, \\fB\\-\\-directory\\fR \\fIDIR\\fR
Go to this folder first.
.TP
\\fB\\-\\-color\\fR \\fIWHEN\\fR
Colours of the output: auto, always or never. Stands before or behind \\fICOMMAND\\fR.
.TP
\\fB\\-h\\fR, \\fB\\-\\-help\\fR
Show the help; behind \\fICOMMAND\\fR that of the command.
.TP
\\fB\\-V\\fR, \\fB\\-\\-version\\fR
Show the version.
.SH COMMANDS
"""
_STATUSES = (
    (OK, "Success."),
    (FAILED, "A build failed, or \\fBwarm \\-\\-prove\\fR found something that would run."),
    (USAGE, "Wrong usage: an unknown target, a mistake in \\fIbuildd.toml\\fR, no compiler."),
    (DAEMON, "The daemon or the store failed; \\fBstatus\\fR: no daemon runs; \\fBdoctor\\fR: a check failed."),
    (NOT_WARM, "\\fBwarm \\-\\-prove \\-\\- COMMAND\\fR found something that would be compiled."),
    (INTERRUPTED, "Interrupted."),
)
_FILES = (
    ("buildd.toml", "The project file."),
    ("~/.cache/buildd", "The store of results (\\fBBUILDD_DIR\\fR)."),
    ("~/.config/buildd/config.toml", "Settings of the user for all projects."),
    ("~/.local/share/buildd", "Shims of the compilers."),
)


def page(commands: Sequence[Command], version: str) -> str:
    """The page as roff."""
    return "".join(_lines(commands, version))


def _lines(commands: Sequence[Command], version: str) -> Iterator[str]:
    yield _TOP.replace("@VERSION@", version)
    for command in commands:
        yield f".SS {_text(command.name)}\n"
        yield from _command(command)
    yield ".SH EXIT STATUS\n"
    for status, meaning in _STATUSES:
        yield f".TP\n.B {status}\n{meaning}\n"
    yield ".PP\n.B buildd run\nends with the status of its command; 127 or 126 if the command cannot be started.\n"
    yield ".SH FILES\n"
    for path, meaning in _FILES:
        yield f".TP\n.I {_text(path)}\n{meaning}\n"
    yield ".SH ENVIRONMENT\n.B buildd env \\-\\-all\nlists every variable that buildd uses.\n"
    yield ".SH SEE ALSO\n.BR nvcc (1),\n.BR ninja (1),\n.BR ccache (1)\n"


def _command(command: Command) -> Iterator[str]:
    yield f".PP\n.B {_text(command.usage)}\n.PP\n{_sentence(command.summary)}\n"
    if command.details:
        yield (
            f".PP\n.nf\n{_text(command.details)}\n.fi\n"
            if "  " in command.details
            else (f".PP\n{_text(command.details)}\n")
        )
    for word in (*command.arguments, *command.options):
        if word.names != ("-h", "--help") and word.help and word.names != ("--color",):
            yield f".TP\n{_word(word)}\n{_sentence(word.help)}\n"
    for action in command.below:
        yield from _command(action)


def _word(word: Word) -> str:
    value = f" \\fI{_text(word.metavar)}\\fR" if word.metavar else ""
    if not word.names:
        return value.strip()
    return ", ".join(f"\\fB{_text(name)}\\fR" for name in word.names) + value


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:] if re.match(r"[a-z]+[ ,]", text) else text
    return _text(text if text.endswith((".", ")")) else f"{text}.")


def _text(text: str) -> str:
    """Text with what roff would take for its own spelled out."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)
