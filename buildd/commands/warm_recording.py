"""`buildd warm --manifest FILE`: compiles what a recording holds into the store, or looks it up there.

Knows which options go with it; `warm_kernels` and `warm_calls` do the work.
"""

from __future__ import annotations

import os
from argparse import Namespace

from buildd.exits import FAILED, OK
from buildd.programs import recording_file
from codegen.errors import RequestError


def warm(options: Namespace) -> int:
    """Carry out `buildd warm --manifest`; 1 if something cannot be compiled, or, with --prove, is not in the store.

    Raises: RecordingError, RequestError, StoreError.
    """
    _check(options)
    found = recording_file.read(options.manifest)
    if not (found.kernels or found.calls):
        raise RequestError(
            "empty-recording",
            "the recording holds neither compiler calls nor Triton kernels, so there is nothing to compile or to prove",
            file=str(options.manifest),
            next_step="see which calls buildd run --record named as not recorded, and why",
        )
    statuses = []
    if found.kernels:
        from buildd.commands import warm_kernels

        statuses.append(warm_kernels.warm(options, found.kernels))
    if found.calls:
        from buildd.commands import warm_calls

        statuses.append(warm_calls.warm(options, found))
    worst = max(statuses)
    return worst if worst not in (OK, FAILED) else FAILED if FAILED in statuses else OK


def _check(options: Namespace) -> None:
    if options.targets or options.arch or options.file:
        raise RequestError(
            "bad-value",
            "with --manifest, the file names what is compiled, and for which architectures",
            next_step="leave out targets, --arch and -f",
        )
    if options.directory and not os.path.isdir(options.directory):
        raise RequestError("bad-project", f"no folder {options.directory}", next_step="check the argument of -C")
