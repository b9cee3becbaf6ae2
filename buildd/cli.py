"""The command line: runs the command that a word names, and turns errors into exit statuses.

Knows no command's arguments; each module under `commands` parses its own. Imports only what every command needs:
`buildd status` takes as long as `import zmq, msgspec`, and a test checks that.

Exit status: 0 built, 1 a build failed, 2 wrong usage, 3 the daemon or store failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

from buildd.exits import DAEMON, INTERRUPTED, OK, USAGE, Interrupted

TYPE_CHECKING = False  # `typing` costs milliseconds
if TYPE_CHECKING:
    from typing import NoReturn

    from buildd.cli_server.server import CliServer

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "write a buildd.toml for the sources of a folder"),
    "build": ("build", "build the targets of buildd.toml"),
    "watch": ("watch", "build now, and again on every save"),
    "run": ("run", "run any build command with its compiles cached"),
    "explain": ("explain", "say why targets were rebuilt, or would be"),
    "warm": ("warm", "fill the cache ahead of time; --prove: fail if anything would still compile"),
    "clean": ("clean", "remove the outputs of targets; the store keeps their results"),
    "profile": ("profile", "find the fastest kernels for GEMMs and convolutions on this machine's GPUs"),
    "topology": ("topology", "describe this machine's GPU, for machines that compile JAX for it"),
    "ejkernel": ("ejkernel", "build ejkernel's CUDA libraries ahead of time"),
    "compdb": ("compdb", "write compile_commands.json for clangd, .cu files included"),
    "lsp": ("lsp", "run the language server (editors start it)"),
    "log": ("log", "list recent builds, or show everything that one of them printed"),
    "ui": ("ui", "show builds, the cache and kernels in a browser, live"),
    "trace": ("trace", "write a build as a Chrome / Perfetto trace"),
    "cache": ("cache", "manage the store: stats, gc, verify, flush, export, import, push, pull, trust ..."),
    "redis": ("redis", "let stock torch use the store as its remote cache (Redis' protocol)"),
    "env": ("env", "list the environment variables that buildd uses"),
    "up": ("daemon_control:up", "start the daemon (other commands start it when they need it)"),
    "down": ("daemon_control:down", "stop the daemon once its work is done; --now: at once"),
    "status": ("status:status", "show what the daemon is doing"),
    "top": ("top", "show builds, jobs, memory, GPUs and hits a second, live"),
    "doctor": ("doctor", "check this machine; --bundle FILE: write a report for a bug tracker"),
    "completion": ("completion", "print the completions of this command line for bash, zsh or fish"),
    "install-launchers": ("run:install", "put compiler shims into a folder for your PATH"),
    "uninstall": ("uninstall", "stop the daemon; remove store, settings and keys"),
}
"""Command -> (module under `buildd.commands`, with a function other than `run` after a colon; help line)."""

OTHERS_SAY = {
    "install": "install-launchers",
    "start": "up",
    "stop": "down",
    "kill": "down",
    "restart": "down",
    "clear": "clean",
    "new": "init",
    "compile": "build",
    "targets": "build --list",
    "stats": "cache stats",
    "gc": "cache gc",
}
"""Words of other tools -> the command that does it here."""

HIDDEN: dict[str, tuple[str, str]] = {"serve": ("daemon_control:serve", "run the daemon in the foreground")}


def usage() -> str:
    lines = ["usage: buildd [-C DIR] [--color WHEN] COMMAND [ARGUMENT...]", "", "The build daemon for GPU kernels.", ""]
    lines += [f"  {name:<17} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += [
        "",
        "  -C DIR            go to this folder first",
        "  --color WHEN      auto, always or never; before or after COMMAND",
        "",
        "  buildd COMMAND --help says more; buildd --version the version.",
        "  A project file is code, as a Makefile is: build only projects that you trust.",
        "",
        "Exit status: 0 success, 1 a build failed, 2 wrong usage, 3 the daemon or the store failed, 130 interrupted;",
        "buildd run: the status of the command that it runs.",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status. As a program (no `arguments`), exit with it."""
    given = sys.argv[1:] if arguments is None else arguments
    rest, problem = _obeyed(given) if given and given[0].startswith("-") else (given, "")
    if problem:
        print(f"buildd: {problem}\n  next: buildd --help lists commands and options", file=sys.stderr)
        return USAGE
    if arguments is not None:
        return _run(rest)
    _restore_locale()
    status = _run_at_server(rest)
    if status is not None:
        _end(status)
    status = _run(rest)
    if rest[:1] == ["serve"]:
        return status
    # A normal exit of the interpreter and zmq's context costs a quarter of the time of `buildd status`, and more after
    # a build of ten thousand actions. The command has closed everything that has to be closed.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    _end(status)


def _end(status: int) -> NoReturn:
    if "buildd.caller" in sys.modules:
        from buildd import caller

        caller.end(status)
    os._exit(status)


def _obeyed(given: list[str]) -> tuple[list[str], str]:
    """Carry out the options before the command; returns the command with its arguments, and a mistake, if any."""
    rest, later = list(given), list[str]()
    while rest and rest[0].startswith("-"):
        word, _, value = rest[0].partition("=") if rest[0].startswith("--") else (rest[0][:2], "", rest[0][2:])
        if word not in ("-C", "--directory", "--color"):
            break
        if not value and len(rest) < 2:
            return [], f"{word} needs an argument"
        if not value:
            value = rest.pop(1)
        rest.pop(0)
        if word == "--color":
            later = [f"--color={value}"]  # each command's parser knows it
            continue
        try:
            os.chdir(value)
        except OSError as error:
            return [], f"cannot go to {os.fsencode(value).decode(errors='backslashreplace')}: {error.strerror}"
    return rest[:1] + later + rest[1:], ""


def _restore_locale() -> None:
    """Take LC_CTYPE away if the interpreter has added it (PEP 538): a program under `buildd run` must not see it."""
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return
    try:
        with open("/proc/self/environ", "rb") as file:  # as this process was started
            if b"\0LC_CTYPE=" not in b"\0" + file.read():
                del os.environ["LC_CTYPE"]
    except OSError:
        pass


def _run_at_server(arguments: list[str]) -> int | None:
    """The status of a command that the server ran with everything imported; None if it has to run here."""
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
        return 128 + 13  # the status that a shell shows for a program that SIGPIPE ended


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
        carry_out = getattr(module, function or "run")
        needed = {"serve": (_begin_commands,), "completion": (COMMANDS,)}.get(name, ())
        status: int = carry_out(arguments[1:], *needed)
        return status
    except SystemExit as leave:  # argparse has printed the error
        return leave.code if isinstance(leave.code, int) else OK if leave.code is None else USAGE
    except Exception as error:
        return _reported(error)


def _begin_commands(place: str) -> CliServer:
    """Start the process that runs later commands for the daemon in the runtime folder `place`; raises OSError."""
    from buildd.cli_server import server

    return server.begin(place, main)


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which msgspec prefers to `typing` if it is installed: that imports
    `inspect`, and both take a fifth of the time of a short command. Since 3.11 `typing` has all that msgspec needs."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    import importlib

    from buildd.lazy import put_off

    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # now its import fails, as if it were not installed
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

    near = [OTHERS_SAY[name]] if name in OTHERS_SAY else difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    print(f"buildd: no command {os.fsencode(name).decode(errors='backslashreplace')!r}{hint}", file=sys.stderr)
    print("  next: buildd --help lists them", file=sys.stderr)


def _reported(error: Exception) -> int:
    """Print an error and return its exit status. An unexpected error is a bug and is printed with its traceback: if it
    left here, Python would exit with 1, which means that a build failed."""
    # Imported here: they cost time only after an error.
    try:
        from buildd.errors import BuilddError
        from buildd.ui.problems import print_problem
        from codegen.errors import RequestError
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
