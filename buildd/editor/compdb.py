"""Writes a plan as compile_commands.json, for clangd and other readers of compilation databases.

Knows the format (clang.llvm.org/docs/JSONCompilationDatabase.html) and which actions compile a source; `codegen.clangd`
translates their options for clang.
"""

from __future__ import annotations

import json
from pathlib import Path

from buildd.builds.command import plain_arguments
from buildd.files.atomic_write import replace_file
from codegen import clangd
from codegen.plan import Action, Plan, Tool

FILE = "compile_commands.json"


def entries(plan: Plan, project: str, *, compilers: bool) -> list[dict[str, object]]:
    """Make one entry for each compile of a source.

    Args:
        project: absolute path.
        compilers: give the real compilers' command lines, not clang's.
    """
    tools = {tool.name: tool for tool in plan.tools}
    found: list[dict[str, object]] = []
    for action in plan.actions:
        if action.kind in ("nvcc", "hipcc") and action.outputs and "-c" in action.argv:
            source = action.inputs[0]
            found.append(
                {
                    "directory": project,
                    "file": source,
                    "arguments": _arguments(action, tools[action.tool], source, compilers=compilers),
                    "output": action.outputs[0].path,
                }
            )
    return found


def write(path: Path, found: list[dict[str, object]]) -> bool:
    """Write the file unless it has this content already: clangd would index everything again. Raises OSError.

    Returns: whether it was written.
    """
    content = (json.dumps(found, indent=1) + "\n").encode(errors="surrogateescape")
    try:
        if path.read_bytes() == content:
            return False
    except OSError:
        pass
    replace_file(path, content)
    return True


def _arguments(action: Action, tool: Tool, source: str, *, compilers: bool) -> list[str]:
    plain = plain_arguments(action, tool)
    if compilers:
        return plain
    output = plain.index("-o")
    options = [*plain[1:output], *plain[output + 2 : -1]]
    options.remove("-c")
    words = clangd.from_nvcc(options, dict(tool.roots)["cuda"]) if action.kind == "nvcc" else clangd.from_hipcc(options)
    return [*words, "-c", source]
