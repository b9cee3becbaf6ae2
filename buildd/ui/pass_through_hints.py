"""Says for each reason why a call was passed through how it could be cached. Words for people; knows no call."""

from __future__ import annotations

from codegen.compilers.command_parser import Reason

_HINTS = {
    Reason.UNKNOWN_OPTION: "leave the option out, if the compile does not need it",
    Reason.UNSUPPORTED_OPTION: "compiles with it are not cached: leave it out where it is not needed",
    Reason.MACHINE: "name the architecture, as -arch=sm_90, --offload-arch=gfx90a or -march=x86-64-v3",
    Reason.ENVIRONMENT: "unset the variable for the build",
    Reason.SEVERAL_SOURCES: "compile each source by a command of its own",
    Reason.STANDARD_INPUT: "write the source to a file",
    Reason.NO_FILE: "name a regular file",
    Reason.OUTPUT: "name a plain file in an existing folder with -o",
    Reason.RESPONSE_FILE: "write the options on the command line",
    Reason.TOO_LONG: "shorten the command line",
    Reason.WRAPPER: "call the compiler itself, or run the build under `buildd run`, which caches what a wrapper calls",
    Reason.HOST_WRAPPER: "name the compiler behind the wrapper with -ccbin, and its flags with -Xcompiler",
    Reason.OTHER_CACHE: "take the other cache out of the command",
    Reason.TOOL: "call nvcc, hipcc, gcc or clang under their own names",
    Reason.NOT_CARRIED_OUT: "see the daemon's log: buildd doctor names it",
}


_CHECKS = (Reason.QUERY.value, Reason.TRIAL.value)


def is_check(reason: str) -> bool:
    """Whether a call only asked the compiler something, or tried it out, as configure steps do: nothing is amiss.

    Args:
        reason: as for `hint_for`.
    """
    return reason.partition(":")[0] in _CHECKS


def hint_for(reason: str) -> str:
    """How to do without what a call was passed through for; empty if nothing need be done.

    Args:
        reason: the text of a `PassThrough`.
    """
    name = reason.partition(":")[0]
    return next((hint for kind, hint in _HINTS.items() if kind.value == name), "")
