"""Workers: buildd's scripts that run under the client's own interpreter and import one package there.

Knows how to ask a worker for the installed package (`--identify`) and when to ask again. Knows no package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from codegen.compilers.pip_command import pip_install
from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Place, Probe, Ref
from protocol.described import described

FOLDER = Path(__file__).parent.parent / "workers"
"""Folder of the scripts. Each is self-contained, because the interpreters that run them have no buildd."""
_IDENTIFY_S = 120.0

IdentityT = TypeVar("IdentityT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker for one request.

    Args:
        script: the script's file.
        package: the package that it imports, which has the same name for pip.
        title: the package's name for people: "Triton".
        next_step: what to do if the package is not installed.
        interpreter: absolute path of the client's interpreter.
        environment: the worker's environment.
        beside: patterns of the names of other distributions that the package works with, as pip records them.
    """

    script: Path
    package: str
    title: str
    next_step: str
    interpreter: str
    environment: tuple[tuple[str, str], ...]
    beside: tuple[str, ...] = ()

    @property
    def program(self) -> Ref:
        """The interpreter as an argument of an action."""
        return Ref(place=Place.ROOT, name="python", suffix="/" + os.path.basename(self.interpreter))

    @property
    def argument(self) -> Ref:
        """The script as an argument of an action."""
        return Ref(place=Place.ROOT, name="worker", suffix="/" + self.script.name)

    @property
    def roots(self) -> tuple[tuple[str, str], ...]:
        """The roots of `program` and `argument`."""
        return (("python", os.path.dirname(self.interpreter)), ("worker", str(self.script.parent)))

    @property
    def python_path(self) -> tuple[str, ...]:
        """Folders of PYTHONPATH."""
        folders = dict(self.environment).get("PYTHONPATH", "").split(":")
        return tuple(folder for folder in folders if os.path.isabs(folder))

    def identity(self, context: Context, kind: type[IdentityT]) -> IdentityT:
        """Return the worker's answer about the installed package, as `kind`.

        Raises:
            ProbesNeeded: the worker must be asked.
            RequestError: "compiler-not-found", the package is missing or does not work.
        """
        probe = Probe(
            argv=(self.interpreter, str(self.script), "--identify"),
            environment=self.environment,
            files=self.installed(context),
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

    def installed(self, context: Context) -> tuple[str, ...]:
        """Return the files whose change may mean that another version is installed; then the worker is asked again."""
        files = [self.interpreter, os.path.realpath(self.interpreter), str(self.script)]
        files.append(os.path.join(os.path.dirname(os.path.dirname(self.interpreter)), "pyvenv.cfg"))
        folders = (*context.environment.get("PYTHONPATH", "").split(":"), *context.toolchains.site_packages())
        for folder in filter(None, folders):
            files.append(os.path.join(folder, self.package, "__init__.py"))
            for name in (self.package, *self.beside):
                files += sorted(str(path) for path in Path(folder).glob(f"{name}-*.dist-info/RECORD"))
        return tuple(dict.fromkeys(path for path in files if os.path.isfile(path)))


def worker_of(
    context: Context,
    script: str,
    package: str,
    title: str,
    environment: Iterable[tuple[str, str]],
    beside: tuple[str, ...] = (),
) -> Worker:
    """Return a worker that runs under the client's interpreter.

    Args:
        script: its name in `FOLDER`.
        package, title, environment, beside: as in `Worker`.

    Raises:
        RequestError: "compiler-not-found", there is no such interpreter.
    """
    interpreter = os.path.abspath(context.request.interpreter or sys.executable)
    next_step = f"install it there: {pip_install(package, python=interpreter)}"
    if not os.access(interpreter, os.X_OK):
        raise RequestError("compiler-not-found", f"there is no Python at {interpreter}", next_step=next_step)
    return Worker(
        script=FOLDER / script,
        package=package,
        title=title,
        next_step=next_step,
        interpreter=interpreter,
        environment=tuple(sorted(environment)),
        beside=beside,
    )
