"""The command line: which command a word stands for, and which exit status an error becomes.

Knows no command's arguments; each module under `commands` parses its own. Nothing is imported here but what every
command needs: `buildd status` is answered in the time of `import zmq, msgspec`, and a test holds that.

Exit status: 0 built, 1 a build failed, 2 wrong usage, 3 the daemon or store failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("build", "build targets of buildd.toml"),
    "watch": ("watch", "build now, and again on every save"),
    "run": ("run", "any command, with its compilers going through the daemon"),
    "explain": ("explain", "say why targets were, or would be, built again"),
    "warm": ("warm", "fill the cache ahead; --prove: fail if anything would still compile"),
    "profile": ("profile", "find the fastest kernels for GEMMs and convolutions, on this machine's GPUs"),
    "compdb": ("compdb", "compile_commands.json for clangd, .cu files too"),
    "lsp": ("lsp", "a language server for editors"),
    "log": ("log", "recent builds, or everything one of them said"),
    "trace": ("trace", "a build as a Chrome / Perfetto trace"),
    "cache": ("cache", "the store: stats, gc, verify, flush, export, import"),
    "redis": ("redis", "the store as a remote cache for stock torch, by Redis' protocol"),
    "env": ("env", "every environment variable honoured: value, source, effect"),
    "up": ("daemon_control:up", "start the daemon (commands start it by themselves)"),
    "down": ("daemon_control:down", "stop the daemon when its work is done; --now: at once"),
    "status": ("daemon_control:status", "what the daemon does right now"),
    "doctor": ("doctor", "check this machine; --bundle FILE: a report for a bug tracker"),
    "install-launchers": ("run:install", "stand-ins of the compilers in a folder, for good"),
    "uninstall": ("uninstall", "stop the daemon and remove everything that buildd keeps"),
}
"""Command -> (module under `buildd.commands`, with a function other than `run` after a colon; help line)."""

HIDDEN: dict[str, tuple[str, str]] = {"serve": ("daemon_control:serve", "run the daemon in the foreground")}

OK, FAILED, USAGE, DAEMON, INTERRUPTED = 0, 1, 2, 3, 130


class Interrupted(KeyboardInterrupt):
    """A signal that asks to stop, taken as Ctrl-C is. `status` is what the shell expects for it."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def usage() -> str:
    lines = ["usage: buildd COMMAND [ARGUMENT...]", "", "The build daemon for GPU kernels.", ""]
    lines += [f"  {name:<17} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += [
        "",
        "  buildd COMMAND --help says more; buildd --version the version.",
        "",
        "Exit status: 0 built, 1 a build failed, 2 wrong usage, 3 the daemon or store failed.",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status; as a program (no `arguments`), end with it."""
    if arguments is not None:
        return _run(arguments)
    status = _handed_over(sys.argv[1:])
    if status is not None:
        os._exit(status)
    status = _run(sys.argv[1:])
    if sys.argv[1:2] == ["serve"]:
        return status
    # Taking the interpreter and zmq's context down costs a quarter of the time of `buildd status`, and more after a
    # build of ten thousand actions. Everything that has to be closed was closed by its command.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    os._exit(status)


def _handed_over(arguments: list[str]) -> int | None:
    """The status of a command that ran where everything is imported; None where it has to run here."""
    from buildd import cli_client

    try:
        return cli_client.run(arguments) if arguments else None
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    try:
        status = _dispatch(arguments)
        if not sys.stdout.closed:  # a language server closes its own
            sys.stdout.flush()
        return status
    except Interrupted as stop:
        return stop.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        from buildd.ui.view import silence

        silence(sys.stdout)
        return 128 + 13  # What a shell shows for a program that SIGPIPE ended.


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help", "help"):
        if arguments[1:2] and arguments[1] in COMMANDS:
            return _dispatch([arguments[1], "--help"])
        print(usage())
        return OK
    if name in ("-V", "--version", "version"):
        from buildd import __version__

        print(f"buildd {__version__}")
        return OK
    command = COMMANDS.get(name) or HIDDEN.get(name)
    if command is None:
        _unknown(name)
        return USAGE
    module_name, _, function = command[0].partition(":")
    try:
        import importlib

        _import_msgspec()
        module = importlib.import_module(f"buildd.commands.{module_name}")
        status: int = getattr(module, function or "run")(arguments[1:])
        return status
    except SystemExit as leave:  # argparse has said what was wrong.
        return leave.code if isinstance(leave.code, int) else OK if leave.code is None else USAGE
    except Exception as error:
        return _reported(error)


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which it prefers to `typing` where another package brought it along:
    with it comes `inspect`, and both take a fifth of the time of a short command. `typing` has all of it since 3.11."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    import importlib

    from buildd.later import put_off

    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # importing it now fails, as if it were not there
    try:
        with put_off("textwrap"):
            importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def _unknown(name: str) -> None:
    if not name:
        print(usage(), file=sys.stderr)
        return
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    print(f"buildd: no command {os.fsencode(name).decode(errors='backslashreplace')!r}{hint}", file=sys.stderr)
    print("  next: buildd --help lists them", file=sys.stderr)


def _reported(error: Exception) -> int:
    """Print an error and return its exit status. One that is not meant for people is a bug, and comes with its story:
    were it to leave here, Python would exit with 1, which means that a build failed."""
    # Imported when something is already wrong: they cost nothing on the good way.
    try:
        from buildd.commands.common import print_problem
        from buildd.errors import BuilddError
        from codegen.plan import RequestError
        from protocol.errors import ProtocolError
    except Exception as broken:
        print(f"error: this installation of buildd is damaged: {broken!r}\n  next: install it again", file=sys.stderr)
        return DAEMON

    if isinstance(error, RequestError):
        print_problem(error.message, file=error.file, next_step=error.next_step)
        return USAGE
    if isinstance(error, BuilddError):
        print_problem(error.message, file=error.file, command=error.command, next_step=error.next_step)
        return USAGE if error.is_usage else DAEMON
    if isinstance(error, ProtocolError):
        print_problem(error.message, next_step=error.next_step)
        return DAEMON
    if isinstance(error, BrokenPipeError):
        raise error
    import traceback

    traceback.print_exception(error)
    print_problem(f"internal error: {error!r}", next_step="report it, with the file that buildd doctor --bundle writes")
    return DAEMON
