"""What Python's functions, classes and modules are made of, as digests that hold in another process too.

Dynamo traces through functions and takes most of what they reach for granted while one process lives: methods,
functions of modules, torch's own functions have no guards. So a trace that is kept notes them here, by name and by
content, and another process computes the same note from its own modules. Knows nothing of torch. Standard library only.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
from collections.abc import Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_NATIVE = (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
_DEEPEST = 12
_NOWHERE = "nowhere"


class UnnamedError(ValueError):
    """Something that has no name or content by which another process could know it."""


def code_digest(code: CodeType, with_lines: bool = False) -> str:
    """Digest of what a code object does, without the place of its file.

    Args:
        with_lines: the lines count too, as tracebacks show them.
    """
    return _code_digest(code, with_lines)


@functools.cache
def _code_digest_by_id(place: int, with_lines: bool, code: _Kept) -> str:
    return _digest_of_code(code.code, with_lines)


class _Kept:
    """A code object, kept alive by the table that has its digest: equal code objects are not the same one."""

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.code is other.code

    def __hash__(self) -> int:
        return id(self.code)


def _code_digest(code: CodeType, with_lines: bool) -> str:
    return _code_digest_by_id(id(code), with_lines, _Kept(code))


def _digest_of_code(code: CodeType, with_lines: bool) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    head = (
        code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_name, qualname_of(code),
        getattr(code, "co_exceptiontable", b""),
    )  # fmt: skip
    hasher.update(repr(head).encode())
    for constant in code.co_consts:
        text = _code_digest(constant, with_lines) if isinstance(constant, CodeType) else _constant(constant)
        hasher.update(text.encode("utf-8", "surrogatepass") + b"\0")
    if with_lines:
        hasher.update(repr((code.co_firstlineno, code.co_linetable)).encode())
    return hasher.hexdigest()


def qualname_of(code: CodeType) -> str:
    """Its qualified name; before Python 3.11 only its name."""
    return getattr(code, "co_qualname", code.co_name)


def _constant(value: object) -> str:
    if isinstance(value, frozenset):
        return "frozenset" + repr(sorted(map(_constant, value)))
    if isinstance(value, tuple):
        return "tuple" + repr(list(map(_constant, value)))
    return f"{type(value).__name__} {value!r}"


class Census:
    """Digests of functions and classes, and all code that was seen on the way.

    A name stands for what it leads to now; what is seen twice counts once.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        """Digests of the code of all functions."""
        self._known: dict[int, str] = {}
        self._held: list[object] = []

    def identity(self, value: object) -> str:
        """What stands for an object in another process. Raises UnnamedError."""
        if isinstance(value, enum.Enum):
            # Dynamo puts the value into the graph and guards the member alone. A flag's value may have no name.
            return f"{_name_of(type(value))}.{value.name} {self.identity(_value_of(value))}"
        if isinstance(value, _PLAIN):
            return _constant(value)
        if isinstance(value, CodeType):
            self._add(value)
            return "code " + code_digest(value)
        if isinstance(value, ModuleType):
            if sys.modules.get(value.__name__) is not value:
                raise UnnamedError(f"module {value.__name__}")
            return "module " + value.__name__
        if isinstance(value, type):
            return self.class_digest(value)
        if isinstance(value, MethodType):
            return f"method {self.identity(value.__func__)} of {self.identity(value.__self__)}"
        if isinstance(value, _NATIVE) and not _is_of_a_name(value):
            raise UnnamedError(repr(value))
        text = self.member(value)
        if text.startswith("a "):
            raise UnnamedError(repr(type(value)))
        return text

    def member(self, value: object, depth: int = 0) -> str:
        """What stands for something that a name leads to; an object of another kind is only told by its class."""
        if depth > _DEEPEST:
            return "deep"
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, FunctionType):
            return self._remember(value, self._function(value, depth))
        if isinstance(value, type):
            return self.class_digest(value)
        if isinstance(value, classmethod | staticmethod):
            return f"{type(value).__name__} {self.member(value.__func__, depth + 1)}"
        if isinstance(value, property):
            parts = [self.member(one, depth + 1) for one in (value.fget, value.fset, value.fdel)]
            return f"property {parts}"
        if isinstance(value, functools.cached_property):
            return "cached " + self.member(value.func, depth + 1)
        if isinstance(value, functools.partial):
            parts = [self.member(one, depth + 1) for one in (value.func, *value.args, *value.keywords.values())]
            return f"partial {parts} {list(value.keywords)}"
        if isinstance(value, MethodType):
            return f"method {self.member(value.__func__, depth + 1)}"
        if isinstance(value, _NATIVE):
            return f"native {getattr(value, '__module__', None)}.{getattr(value, '__qualname__', '')}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, CodeType):
            return self.identity(value)
        if isinstance(value, _PLAIN):
            return "plain"
        wrapped = getattr(type(value), "__wrapped__", None) is None and vars_of(value).get("__wrapped__")
        if wrapped:
            return f"a {_name_of(type(value))} of {self.member(wrapped, depth + 1)}"
        return f"a {_name_of(type(value))}"

    def _function(self, function: FunctionType, depth: int) -> str:
        self._known[id(function)] = "itself"
        self._held.append(function)
        self._add(function.__code__)
        cells = []
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                cells.append("empty")
                continue
            cells.append(_constant(content) if isinstance(content, _PLAIN) else self.member(content, depth + 1))
        defaults = [
            _constant(one) if isinstance(one, _PLAIN) else self.member(one, depth + 1)
            for one in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        ]
        wrapped = function.__dict__.get("__wrapped__")
        parts = [code_digest(function.__code__), cells, defaults, list(function.__kwdefaults__ or {})]
        if wrapped is not None:
            parts.append(self.member(wrapped, depth + 1))
        return "function " + _short(repr(parts))

    def class_digest(self, kind: type) -> str:
        """Digest of all functions that a class and its bases have, with its name."""
        if id(kind) in self._known:
            return self._known[id(kind)]
        self._known[id(kind)] = f"class {_name_of(kind)}"
        self._held.append(kind)
        lines = []
        for base in type.mro(kind) if kind is not type else (type,):
            if base.__module__ == "builtins":
                lines.append(_name_of(base))
                continue
            for name, value in sorted(vars_of(base).items(), key=lambda item: str(item[0])):
                if name == "__annotations__" and isinstance(value, dict):
                    lines.append(f"{_name_of(base)} {name} {_annotations(value)}")
                    continue
                if isinstance(value, enum.Enum):
                    lines.append(f"{_name_of(base)} {name} {self._told(_value_of(value))}")
                    continue
                text = self.member(value, 1)
                if not text.startswith(("a ", "plain")):
                    lines.append(f"{_name_of(base)} {name} {text}")
        return self._remember(kind, f"class {_name_of(kind)} {_short(repr(lines))}")

    def _told(self, value: object) -> str:
        return _constant(value) if isinstance(value, _PLAIN) else self.member(value, 1)

    def names(self, module: ModuleType, wanted: Iterable[str]) -> list[str]:
        """What names lead to in a module, and in the modules that it leads to by these names."""
        found: list[str] = []
        names, done, waiting = sorted(set(wanted)), set[str](), [module]
        while waiting:
            here = waiting.pop()
            if here.__name__ in done:
                continue
            done.add(here.__name__)
            inside = vars_of(here)
            for name in names:
                if name not in inside:
                    if here is module:
                        found.append(f"{here.__name__} {name} {_NOWHERE}")
                    continue
                value = inside[name]
                if isinstance(value, ModuleType):
                    waiting.append(value)
                found.append(f"{here.__name__} {name} {self.member(value)}")
        return found

    def _add(self, code: CodeType) -> None:
        self.seen.add(code_digest(code))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add(constant)

    def _remember(self, value: object, text: str) -> str:
        self._known[id(value)] = text
        self._held.append(value)
        return text


def _is_of_a_name(value: Any) -> bool:
    """Whether a native function belongs to a class or a module, so that its name says which one it is."""
    if isinstance(getattr(value, "__self__", None), type | None | ModuleType):
        return True
    return getattr(sys.modules.get(str(getattr(value, "__module__", ""))), value.__name__, None) is value


def names_in(code: CodeType) -> set[str]:
    """The names that a code object, and those inside it, look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_in(constant)
    return found


def vars_of(value: object) -> dict[str, object]:
    """An object's own attributes."""
    found = getattr(value, "__dict__", None)
    return dict(found) if found is not None else {}


def _value_of(member: enum.Enum) -> object:
    """The value of a member, of which a mixed-in type may have made another one."""
    return getattr(member, "_value_", None)


def _annotations(found: dict[object, object]) -> list[tuple[str, str]]:
    return sorted((str(name), _name_of(one) if isinstance(one, type) else str(one)) for name, one in found.items())


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
