"""Checks whether a process that compiled a kernel is unchanged except for the kernel's module, and then removes that
module.

Loaded by `triton_worker` in a process that was forked for a job and may take another one. A module's statements are
inspected, not trusted: only statements that make kernels and values are accepted. Triton translates the kernels'
bodies; nothing runs them. Imports only the standard library.
"""

from __future__ import annotations

import ast
import functools
import sys

_MAKES = frozenset(("constexpr", "Config", "jit", "autotune", "heuristics", "cdiv", "next_power_of_2"))
"""Triton's functions that a module may call while it is imported: they make a value and change nothing."""
_DECORATES = frozenset(("jit", "autotune", "heuristics"))
_VALUES = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.UnaryOp,
    ast.BinOp,
    ast.Compare,
    ast.BoolOp,
    ast.IfExp,
    ast.Subscript,
    ast.Slice,
    ast.Starred,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.comprehension)


class Before:
    """The state of a process before a kernel's module is imported.

    Args:
        shown: the worker's list of folders and their replacements.
    """

    def __init__(self, shown: list[tuple[str, str]]) -> None:
        self._modules = dict(sys.modules)
        self._path = list(sys.path)
        self._shown = shown
        self._known = list(shown)

    def restore(self) -> bool:
        """Remove that module. Returns False if other traces of it may remain."""
        there = {name: module for name, module in sys.modules.items() if self._modules.get(name) is not module}
        if len(there) != 1 or len(sys.modules) != len(self._modules) + 1:
            return False
        name, module = there.popitem()
        # The text that was run: the file may have changed since.
        text = getattr(getattr(module, "__loader__", None), "text", None)
        if text is None or not is_plain(text):
            return False
        del sys.modules[name]
        sys.path[:] = self._path
        self._shown[:] = self._known
        return True


@functools.lru_cache(maxsize=64)
def is_plain(text: str) -> bool:
    """Tell whether a module only runs imports of Triton, values, and functions whose text Triton reads."""
    try:
        return _Module().is_plain(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return False


class _Module:
    def __init__(self) -> None:
        self.triton: set[str] = set()
        """Names bound to Triton or to one of its members."""

    def is_plain(self, tree: ast.Module) -> bool:
        return all(self._is_plain(statement) for statement in tree.body)

    def _is_plain(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return True
            case ast.Import(names=names):
                self.triton.update(name.asname or name.name.partition(".")[0] for name in names)
                return all(_is_triton(name.name) for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                self.triton.update(name.asname or name.name for name in names)
                return (_is_triton(module) and names[0].name != "*") or module == "__future__"
            case ast.Assign(targets=targets, value=value):
                return all(self._is_new(target) for target in targets) and self._is_value(value)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                return self._is_new(target) and self._is_value(annotation) and (value is None or self._is_value(value))
            case ast.FunctionDef(decorator_list=decorators):
                return bool(decorators) and self._is_kernel(statement)
            case ast.If(test=test, orelse=[]):
                return ast.unparse(test) == "__name__ == '__main__'"
        return False

    def _is_kernel(self, function: ast.FunctionDef) -> bool:
        given = function.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        evaluated = [*given.defaults, *filter(None, given.kw_defaults), *filter(None, [function.returns])]
        evaluated += [parameter.annotation for parameter in parameters if parameter.annotation is not None]
        return all(
            self._is_of_triton(decorator.func if isinstance(decorator, ast.Call) else decorator, _DECORATES)
            and self._is_value(decorator)
            for decorator in function.decorator_list
        ) and all(self._is_value(value) for value in evaluated)

    def _is_new(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Tuple):
            return all(self._is_new(element) for element in target.elts)
        return isinstance(target, ast.Name) and target.id not in self.triton and not target.id.startswith("__")

    def _is_of_triton(self, called: ast.expr, names: frozenset[str]) -> bool:
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        while isinstance(called, ast.Attribute):
            called = called.value
        return name in names and isinstance(called, ast.Name) and called.id in self.triton

    def _is_value(self, value: ast.AST) -> bool:
        """Tell whether evaluating an expression changes nothing."""
        match value:
            case ast.Lambda():  # heuristics: an ahead-of-time compile does not call them
                return True
            case ast.Call(func=called):
                if not self._is_of_triton(called, _MAKES):
                    return False
            case _ if not isinstance(value, _VALUES + _COMPREHENSIONS):
                return False
        return all(self._is_value(child) for child in ast.iter_child_nodes(value))


def _is_triton(module: str) -> bool:
    return module == "triton" or module == "triton.language" or module.startswith("triton.language.")
