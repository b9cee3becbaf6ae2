"""Runs only those statements of a script that define one name: the script's training must not run.

Knows nothing of buildd, nor of Triton: `replay_worker` loads it in the client's own interpreter."""

from __future__ import annotations
import __future__

import ast
import symtable
import sys
import types

_COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While)


def slice_of(path: str, name: str) -> types.ModuleType:
    """Return a module with only those statements of a script that `name` needs: the script's training must not run."""
    with open(path, "rb") as file:
        content = file.read()
    tree = ast.parse(content, path)
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    for statement in needed(tree.body, name):
        code = compile(ast.Module([statement], []), path, "exec", flags=flags, dont_inherit=True)
        exec(code, vars(module))
    return module


def needed(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    """Return the statements that define a name and, recursively, the names that these mention, in order."""
    wanted, before = {name}, -1
    while len(wanted) != before:
        before = len(wanted)
        for statement in body:
            if _binds(statement) & wanted:
                wanted |= _mentions(_reduced(statement, wanted))
    return [
        _reduced(statement, wanted)
        for statement in body
        if _binds(statement) & wanted
        and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")
    ]


def _reduced(statement: ast.stmt, wanted: set[str]) -> ast.stmt:
    """Return a compound statement without the parts that define no wanted name: `if __name__ == "__main__"` runs
    nothing."""
    if not isinstance(statement, _COMPOUND):
        return statement
    fields = dict(ast.iter_fields(statement))
    for field in ("body", "orelse", "finalbody"):
        if field in fields:
            kept = [_reduced(inner, wanted) for inner in fields[field] if _binds(inner) & wanted]
            fields[field] = kept or ([ast.Pass()] if field == "body" else [])
    if isinstance(statement, ast.Try):
        fields["handlers"] = [
            ast.copy_location(
                ast.ExceptHandler(one.type, one.name, [x for x in one.body if _binds(x) & wanted] or [ast.Pass()]), one
            )
            for one in statement.handlers
        ]
    return ast.fix_missing_locations(ast.copy_location(type(statement)(**fields), statement))


def _binds(statement: ast.AST) -> set[str]:
    """Return the module's names that a statement assigns."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Name):
        return {statement.id} if isinstance(statement.ctx, ast.Store) else set()
    if isinstance(statement, ast.Expr | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return set()
    return {name for child in ast.iter_child_nodes(statement) for name in _binds(child)}


def _mentions(statement: ast.stmt) -> set[str]:
    """Return the module's names that a statement reads, including reads inside functions, but not the functions' local
    names."""
    tables = [symtable.symtable(ast.unparse(statement), "statement", "exec")]
    found = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_referenced()}
    for table in tables:  # grows while it is walked
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return found
