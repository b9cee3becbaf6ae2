"""Workers: scripts of ours that run under the client's own interpreter, with the package that they are about.

Knows how such a worker is asked what is installed (`--identify`) and when it has to be asked again. Knows no package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from codegen.context import Context
from codegen.plan import Place, Probe, Ref, RequestError
from protocol.described import described

FOLDER = Path(__file__).parent.parent / "buildd"
"""Where the scripts are. Each is self-contained: they run under interpreters that have no buildd."""
_IDENTIFY_S = 120.0

IdentityT = TypeVar("IdentityT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of one request.

    Args:
        script: its file.
        package: what it imports, under the name that pip knows too.
        title: the package for people: "Triton".
        next_step: what to do where it is not installed.
        interpreter: absolute path of the client's.
        environment: what the worker sees.
    """

    script: Path
    package: str
    title: str
    next_step: str
    interpreter: str
    environment: tuple[tuple[str, str], ...]

    @property
    def program(self) -> Ref:
        """How an action calls the interpreter."""
        return Ref(place=Place.ROOT, name="python", suffix="/" + os.path.basename(self.interpreter))

    @property
    def argument(self) -> Ref:
        """How an action names the script."""
        return Ref(place=Place.ROOT, name="worker", suffix="/" + self.script.name)

    @property
    def roots(self) -> tuple[tuple[str, str], ...]:
        """What these two are relative to."""
        return (("python", os.path.dirname(self.interpreter)), ("worker", str(self.script.parent)))

    @property
    def python_path(self) -> tuple[str, ...]:
        """Folders of PYTHONPATH."""
        folders = dict(self.environment).get("PYTHONPATH", "").split(":")
        return tuple(folder for folder in folders if os.path.isabs(folder))

    def identity(self, context: Context, kind: type[IdentityT]) -> IdentityT:
        """What it says of what is installed, as `kind`.

        Raises:
            ProbesNeeded: it has to be asked.
            RequestError: "compiler-not-found", the package is not there or does not work.
        """
        probe = Probe(
            argv=(self.interpreter, str(self.script), "--identify"),
            environment=self.environment,
            files=self._installed(context),
            timeout_s=_IDENTIFY_S,
        )
        (answer,) = context.knowledge.ask(probe)
        try:
            return msgspec.json.decode(answer.stdout.encode(errors="surrogateescape"), type=described(kind))
        except msgspec.MsgspecError as error:
            said = [line for line in answer.stderr.splitlines() if line.strip()]
            reason = said[-1].removeprefix("error: ") if said else f"it ended with status {answer.status}"
            raise RequestError(
                "compiler-not-found", f"no {self.title}: {reason}", file=self.interpreter, next_step=self.next_step
            ) from error

    def _installed(self, context: Context) -> tuple[str, ...]:
        """Files whose change means that another package may be installed: the answer is asked for again."""
        files = [self.interpreter, os.path.realpath(self.interpreter), str(self.script)]
        files.append(os.path.join(os.path.dirname(os.path.dirname(self.interpreter)), "pyvenv.cfg"))
        folders = (*context.environment.get("PYTHONPATH", "").split(":"), *context.toolchains.site_packages())
        for folder in filter(None, folders):
            files.append(os.path.join(folder, self.package, "__init__.py"))
            files += sorted(str(path) for path in Path(folder).glob(f"{self.package}-*.dist-info/RECORD"))
        return tuple(dict.fromkeys(path for path in files if os.path.isfile(path)))


def worker_of(
    context: Context, script: str, package: str, title: str, environment: Iterable[tuple[str, str]]
) -> Worker:
    """A worker that runs under the client's interpreter.

    Args:
        script: its name in `FOLDER`.
        package, title, environment: as `Worker` has them.

    Raises:
        RequestError: "compiler-not-found", there is no such interpreter.
    """
    next_step = f"install it there with `pip install {package}` (or buildd[{package}])"
    interpreter = os.path.abspath(context.request.interpreter or sys.executable)
    if not os.access(interpreter, os.X_OK):
        raise RequestError("compiler-not-found", f"there is no Python at {interpreter}", next_step=next_step)
    return Worker(
        script=FOLDER / script,
        package=package,
        title=title,
        next_step=next_step,
        interpreter=interpreter,
        environment=tuple(sorted(environment)),
    )
