"""Whether the tokens of a file may stand in other lines: whether anything in it can see the number of a line.

Knows macros as words: a word is *seeing* if it is `__LINE__`, or a macro whose definition anywhere holds a seeing word,
or could make one with `##`. Conditions and #undef are left out of account, and the definitions of all files that this
process has looked at count together, so too many words may be seeing, and never too few. A call of a function cannot be
told from others: where a file of the compile has `__builtin_LINE` or `source_location` outside of a macro, perhaps as a
default argument, every call may see its line. What flags show of lines: `codegen.steps.text_use`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from buildd.native.bare_text import BareText
from codegen.plan import Action, Ref
from codegen.reach import read_regular
from protocol.messages import Digest

_BUILTINS = (b"__builtin_LINE", b"__builtin_COLUMN", b"__builtin_source_location", b"source_location")
_SEEING = (b"__LINE__", *_BUILTINS)
_SPLICE = re.compile(rb"\\[ \t\v\f\r]*\x03")
_WORD = re.compile(rb"[A-Za-z_$\x80-\xff][\w$\x80-\xff]*")
_BLANK = rb"(?:[ \t\v\f\r\x01]|/\*[^\n]*?\*/)*"
"""White space and comments: of those that a bare form keeps none holds a newline."""
_DIRECTIVE = re.compile(rb"^" + _BLANK + rb"(?:#|%:)([^\n]*)$", re.MULTILINE)
_DEFINITION = re.compile(
    _BLANK + rb"define\b" + _BLANK + rb"([A-Za-z_$\x80-\xff][\w$\x80-\xff]*)(\([^)\n]*\))?([^\n]*)", re.DOTALL
)
_DEFINES = re.compile(_BLANK + rb"define\b")
_PASTED = re.compile(rb"([\w$\x80-\xff]+)[ \t\v\f\r\x01]*(?:##|%:%:)(?=[ \t\v\f\r\x01]*([\w$\x80-\xff]+))")
_GIVEN = re.compile(rb"([A-Za-z_]\w*)(?:\([^)]*\))?=(.*)", re.DOTALL)
"""A macro among the flags: -DNAME=BODY."""
_MOST_FILES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Macro:
    name: bytes
    words: frozenset[bytes]
    pasted: tuple[tuple[bytes, bytes], ...] = ()
    """Beginnings and ends of words that its definition makes; both are empty where it could make any."""


class _Index:
    """The macros of all files that were looked at."""

    def __init__(self) -> None:
        self.files: dict[Digest, bool] = {}
        """File -> whether a function that it declares may see the line of its caller, or a definition is written in an
        unknown way."""
        self.seeing = set(_SEEING)
        self._users: dict[bytes, list[bytes]] = {}
        """Word -> the macros that hold it."""
        self._pasted: list[tuple[bytes, bytes, bytes]] = []

    def add(self, macros: Iterable[_Macro]) -> None:
        for macro in macros:
            for word in macro.words:
                self._users.setdefault(word, []).append(macro.name)
            self._pasted += [(*ends, macro.name) for ends in macro.pasted]
            if not macro.words.isdisjoint(self.seeing) or any(self._makes_seeing(*ends) for ends in macro.pasted):
                self._spread(macro.name)

    def _makes_seeing(self, begin: bytes, end: bytes) -> bool:
        return any(word.startswith(begin) and word.endswith(end) for word in self.seeing)

    def _spread(self, name: bytes) -> None:
        waiting = [name]
        while waiting:
            word = waiting.pop()
            if word in self.seeing:
                continue
            self.seeing.add(word)
            waiting += self._users.get(word, ())
            waiting += [user for begin, end, user in self._pasted if word.startswith(begin) and word.endswith(end)]


_index = _Index()
_lock = PatientLock()


def is_blind(snapshot: Snapshot, bare: BareText, action: Action, used: Sequence[str], moved: Iterable[str]) -> bool:
    """Whether no token of the files that moved can see its line. When in doubt: no.

    Args:
        used: every file that the action reads, declared or discovered.
        moved: those of them whose tokens are in other lines.
    """
    global _index
    with _lock.held():
        if len(_index.files) > _MOST_FILES:
            _index = _Index()
        _index.add(_given(action))
        if any(_is_open(snapshot, bare, path) for path in used):
            return False
        texts = [_text(snapshot, bare, path) for path in moved]
        return not any(text is None or _sees(text) for text in texts)


def _is_open(snapshot: Snapshot, bare: BareText, path: str) -> bool:
    """Whether other files may see lines through this one; its macros are in the index then."""
    fact = snapshot.fact(path)
    known = None if fact is None else _index.files.get(fact.digest)
    if known is None:
        text = _text(snapshot, bare, path)
        if text is None or fact is None:
            return True
        known, macros = _read(text)
        _index.add(macros)
        _index.files[fact.digest] = known
    return known


def _text(snapshot: Snapshot, bare: BareText, path: str) -> bytes | None:
    """The bare form of a file, without lines and with its spliced lines joined; None where it cannot be had."""
    fact = None if snapshot.is_produced(path) else snapshot.fact(path)
    if fact is None:
        return None
    try:
        content = read_regular(snapshot.absolute(path))
    except OSError:
        return None
    form = bare.form(content)
    if form is None or blake3(content).hexdigest() != fact.digest:
        return None
    return _SPLICE.sub(b"", bare.without_lines(form))


def _sees(text: bytes) -> bool:
    """Whether a text holds a seeing word. Those of a definition count where the macro is used."""
    conditions = [line for line in _DIRECTIVE.findall(text) if not _DEFINITION.fullmatch(line)]
    return any(not _index.seeing.isdisjoint(_WORD.findall(part)) for part in (_DIRECTIVE.sub(b"", text), *conditions))


def _read(text: bytes) -> tuple[bool, list[_Macro]]:
    """Whether a text is open, see `_Index.files`, and its macros."""
    macros, is_open = [], False
    for directive in _DIRECTIVE.findall(text):
        if _DEFINES.match(directive) is None:
            continue
        match = _DEFINITION.fullmatch(directive)
        if match is None:
            is_open = True
            continue
        parameters, body = match[2] or b"", match[3]
        pasted = tuple(_ends(parameters, body)) if b"##" in body or b"%:%:" in body else ()
        macros.append(_Macro(match[1], frozenset(_WORD.findall(body)), pasted))
    if any(word in text for word in _BUILTINS):
        # A feature test names a function without calling it.
        is_open = is_open or not set(_BUILTINS).isdisjoint(_WORD.findall(_DIRECTIVE.sub(b"", text)))
    return is_open, macros


def _ends(parameters: bytes, body: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The beginnings and ends of the words that `##` makes."""
    names = {*_WORD.findall(parameters), b"__VA_ARGS__"}
    for left, right in _PASTED.findall(body):
        yield (b"" if left in names else left, b"" if right in names else right)


def _given(action: Action) -> Iterable[_Macro]:
    """The macros among the flags, and more: any word before an equals sign."""
    for argument in action.argv:
        text = argument.prefix + argument.suffix if isinstance(argument, Ref) else argument
        for match in _GIVEN.finditer(text.encode(errors="surrogateescape")):
            yield _Macro(match[1].removeprefix(b"D"), frozenset(_WORD.findall(match[2])))
            yield _Macro(match[1], frozenset(_WORD.findall(match[2])))
