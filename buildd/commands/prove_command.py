"""`buildd warm --prove -- COMMAND`: runs a command with everything only looked up, and names what is missing.

A compile that is not in the store fails at once: shims, Triton's cache and the daemon obey BUILDD_PROVE. So a proof
compiles nothing, costs no compile's time, and fills no cache. Knows the notes; `run` knows how a command is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from buildd.client.request import store_of
from buildd.client.run_summary import RunSummary
from buildd.commands import run
from buildd.exits import NOT_WARM, USAGE
from buildd.hooks.proof import FOLDER as PROVE
from buildd.hooks.proof import NEEDED
from buildd.scheduling import call_notes
from buildd.scheduling.call_notes import Needed
from buildd.shims import interposition
from buildd.ui.problems import is_on, print_note, print_problem
from buildd.ui.text import clean, count

SWITCHES = {"FLASHINFER_DISABLE_JIT": "1", "SGLANG_CRASH_ON_JIT_COMPILE": "1"}
"""Switches with which engines fail where their own caches have no kernel, though the store may have it."""
_MOST_SHOWN = 100
_SUMMARY = "summary.json"


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag="proof"):
    """The output of `--json`."""

    needed: list[Needed]
    exit_status: int
    """The command's."""
    trials: int
    """Calls of a configure step that tried the compiler out; they ran."""
    queries: int
    """Questions to compilers, such as --version; they ran."""


def prove(options: Namespace, command: Sequence[str]) -> int:
    """Carry out the proof; 0: the command ended with 0 and needed nothing, NOT_WARM: something would be compiled, 3:
    nothing could be looked up, else the command's own status. Raises StoreError."""
    environ = dict(os.environ)
    if options.targets or options.manifest or options.arch or options.file or not command:
        print_problem(
            "--prove with -- needs a command, and takes no targets, --manifest, --arch or -f",
            command="buildd warm --prove -- python serve.py",
            next_step="put the command after --, and leave out the rest",
        )
        return USAGE
    if is_on(environ, "BUILDD_DISABLE"):
        print_problem("BUILDD_DISABLE is set, so nothing can be looked up", next_step="unset BUILDD_DISABLE")
        return USAGE
    environ["BUILDD_DIR"] = store_of(environ)
    if options.no_jit:
        environ.update({name: value for name, value in SWITCHES.items() if name not in environ})
    if options.directory:
        os.chdir(options.directory)
    with tempfile.TemporaryDirectory(prefix="buildd-prove-") as notes:
        environ[PROVE] = notes
        settings = Namespace(
            jobs=options.jobs,
            map_paths=options.map_paths,
            record=None,
            quiet=True,
            summary=Path(notes, _SUMMARY),
            fail_on_miss=False,
        )
        with _stdout_to_stderr() if options.json else nullcontext():
            status = run.run_command(settings, list(command), environ)
        trials, queries = (call_notes.ran(Path(notes), kind) for kind in (call_notes.TRIAL, call_notes.QUERY))
        needed = list(dict.fromkeys(_needed(Path(notes, NEEDED))))
        unchecked = _unchecked(Path(notes, _SUMMARY))
    if options.json:
        sys.stdout.write(
            msgspec.json.encode(Proof(needed=needed, exit_status=status, trials=trials, queries=queries)).decode()
            + "\n"
        )
    elif needed:
        print_note(f"buildd: not warm: {count(len(needed), 'compile')} would run:")
        for one in needed[:_MOST_SHOWN]:
            print_note(f"  {clean(one.what)}: {clean(one.name)}" + (f": {clean(one.why)}" if one.why else ""))
        if len(needed) > _MOST_SHOWN:
            print_note(f"  and {len(needed) - _MOST_SHOWN} more: --json names all")
    elif status == 0:
        print_note(f"buildd: warm: the command compiled nothing{_ran(trials, queries)}")
        if unchecked and not trials:
            print_note(f"buildd: {unchecked}")
    if not interposition.folder_of(environ):
        print_note("buildd: compilers that were called by their path were not watched: see `buildd doctor`")
    return NOT_WARM if needed else status


def _unchecked(summary: Path) -> str:
    """That a proof has looked nothing up, in words; empty if it has, or if nobody counted, as within another run."""
    if not summary.exists():
        return ""
    counted = msgspec.json.decode(summary.read_bytes(), type=RunSummary)
    if counted.hits or any(counted.from_store.values()):
        return ""
    why = "" if counted.passed_through else ": the build was up to date"
    return f"nothing was looked up{why}; to check the cache, build in an empty folder"


def _ran(trials: int, queries: int) -> str:
    """What ran all the same, in words; empty if nothing did."""
    parts = [
        *([f"{count(trials, 'call')} of configure steps, to try the compiler out"] if trials else ()),
        *([count(queries, "question to compilers", "questions to compilers")] if queries else ()),
    ]
    return f"; these ran: {' and '.join(parts)}" if parts else ""


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Let the command write to this process's standard error, so that standard output holds JSON alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _needed(notes: Path) -> Iterator[Needed]:
    if not notes.exists():
        return
    for line in notes.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError, ValueError):  # torn
            yield msgspec.json.decode(line, type=Needed)
