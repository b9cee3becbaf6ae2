"""Finds a Python interpreter's package folders: from the layout of its virtual environment, else by a probe.

Knows no package, and imports none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import msgspec

from codegen.compilers.closure import Environment, which
from codegen.errors import RequestError
from codegen.plan import Knowledge, Probe
from codegen.reach import read_regular
from codegen.variables.environment import TOOL_PATH


def site_packages(
    interpreter: str, knowledge: Knowledge, variables: Mapping[str, str], search_path: str
) -> tuple[str, ...]:
    """Return the folders of an interpreter's installed packages.

    Args:
        interpreter: a path, or a name on `search_path`.
        variables: the request's variables.

    Raises:
        ProbesNeeded: the interpreter must be asked.
        RequestError: "bad-interpreter", it is missing or does not work.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    library = os.path.join(prefix, "lib")
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) and os.path.isdir(library):
        sites = [os.path.join(library, name, "site-packages") for name in sorted(os.listdir(library))]
        sites = [site for site in sites if os.path.isdir(site)]
        try:
            settings = read_regular(os.path.join(prefix, "pyvenv.cfg")).decode()
            alone = not re.search(r"(?im)^include-system-site-packages\s*=\s*true", settings)
        except (OSError, UnicodeDecodeError):
            alone = False
        if len(sites) == 1 and alone:
            return tuple(sites)
    code = "import json,site,sysconfig as s;print(json.dumps([s.get_path('purelib'),s.get_path('platlib')]"
    code += "+site.getsitepackages()+[site.getusersitepackages()]))"
    path = which(interpreter, search_path)
    if not path:
        raise RequestError(
            "bad-interpreter",
            f"there is no Python at {interpreter}",
            next_step="give the path of a Python 3 interpreter",
        )
    (answer,) = knowledge.ask(Probe(argv=(path, "-I", "-c", code), environment=_environment(variables), files=(path,)))
    try:
        return tuple(dict.fromkeys(msgspec.convert(json.loads(answer.stdout), list[str])))
    except (ValueError, msgspec.ValidationError) as error:
        said = answer.stderr.strip().splitlines()
        raise RequestError(
            "bad-interpreter",
            f"{interpreter} does not work as Python: {said[-1] if said else f'exit status {answer.status}'}",
            next_step="give the path of a Python 3 interpreter",
        ) from error


def _environment(variables: Mapping[str, str]) -> Environment:
    known = {"HOME": variables["HOME"]} if variables.get("HOME") else {}
    return tuple(sorted({**known, "PATH": TOOL_PATH, "LC_ALL": "C.UTF-8"}.items()))
