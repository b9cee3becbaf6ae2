"""Where a Python interpreter keeps its packages: read from the layout of a virtual environment, else asked.

Knows no package. Imports nothing of what it finds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import msgspec

from codegen.closure import Environment, which
from codegen.environment import TOOL_PATH
from codegen.plan import Knowledge, Probe, RequestError


def site_packages(
    interpreter: str, knowledge: Knowledge, variables: Mapping[str, str], search_path: str
) -> tuple[str, ...]:
    """Folders of installed packages.

    Args:
        interpreter: a path, or a name on `search_path`.
        variables: the request's.

    Raises:
        ProbesNeeded: it has to be asked.
        RequestError: "bad-interpreter".
    """
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    library = os.path.join(prefix, "lib")
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) and os.path.isdir(library):
        sites = [os.path.join(library, name, "site-packages") for name in sorted(os.listdir(library))]
        sites = [site for site in sites if os.path.isdir(site)]
        try:
            with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as stream:
                alone = not re.search(r"(?im)^include-system-site-packages\s*=\s*true", stream.read())
        except (OSError, UnicodeDecodeError):
            alone = False
        if len(sites) == 1 and alone:
            return tuple(sites)
    code = "import json,site,sysconfig as s;print(json.dumps([s.get_path('purelib'),s.get_path('platlib')]"
    code += "+site.getsitepackages()+[site.getusersitepackages()]))"
    path = which(interpreter, search_path)
    if not path:
        raise RequestError(
            "bad-interpreter", f"there is no Python at {interpreter}", next_step="give the path of a Python 3"
        )
    (answer,) = knowledge.ask(Probe(argv=(path, "-I", "-c", code), environment=_environment(variables), files=(path,)))
    try:
        return tuple(dict.fromkeys(msgspec.convert(json.loads(answer.stdout), list[str])))
    except (ValueError, msgspec.ValidationError) as error:
        said = answer.stderr.strip().splitlines()
        raise RequestError(
            "bad-interpreter",
            f"{interpreter} does not work as a Python: {said[-1] if said else f'status {answer.status}'}",
            next_step="give the path of a Python 3",
        ) from error


def _environment(variables: Mapping[str, str]) -> Environment:
    known = {"HOME": variables["HOME"]} if variables.get("HOME") else {}
    return tuple(sorted({**known, "PATH": TOOL_PATH, "LC_ALL": "C.UTF-8"}.items()))
