"""The macros of C sources as words: which of them could lead to a word such as `__LINE__` or `__FILE__`.

A word is *seeing* if it is one of the words that are looked for, or a macro whose definition anywhere holds a seeing
word, or could make one with `##`: of words that stand in some file. Conditions and #undef are left out of account, and
all files that were looked at count together, so too many words may be seeing, and never too few. Knows no result and no
key.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.snapshot import Snapshot
from buildd.native.bare_text import BareText
from codegen.plan import Action, Ref
from codegen.reach import read_regular

_SPLICE = re.compile(rb"\\[ \t\v\f\r]*\x03")
_WORD = re.compile(rb"[A-Za-z_$\x80-\xff][\w$\x80-\xff]*")
_BLANK = rb"(?:[ \t\v\f\r\x01]|/\*[^\n]*?\*/)*"
"""White space and comments: of those that a bare form keeps none holds a newline."""
_DIRECTIVE = re.compile(rb"^" + _BLANK + rb"(?:#|%:)([^\n]*)$", re.MULTILINE)
_DEFINITION = re.compile(
    _BLANK + rb"define\b" + _BLANK + rb"([A-Za-z_$\x80-\xff][\w$\x80-\xff]*)(\([^)\n]*\))?([^\n]*)", re.DOTALL
)
_LINE = re.compile(_BLANK + rb"(?:line\b|\d)")
_NAMED = re.compile(_BLANK + rb"(?:include|include_next|import)" + _BLANK + rb"(?:\"[^\"\n]*\"|<[^>\n]*>)")
"""An include whose words are a file's name. Macros are replaced in other includes only."""
_DEFINES = re.compile(_BLANK + rb"define\b")
_PASTED = re.compile(rb"([\w$\x80-\xff]+)[ \t\v\f\r\x01]*(?:##|%:%:)(?=[ \t\v\f\r\x01]*([\w$\x80-\xff]+))")
_GIVEN = re.compile(rb"([A-Za-z_]\w*)(?:\([^)]*\))?=(.*)", re.DOTALL)
"""A macro among the flags: -DNAME=BODY."""


_MOST_UNMADE = 64
"""So many words are looked at whenever there are others; of more, every one counts as made."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A definition of a macro."""

    name: bytes
    words: frozenset[bytes]
    pasted: tuple[tuple[bytes, bytes], ...] = ()
    """Beginnings and ends of words that its definition makes; both are empty where it could make any."""


class Macros:
    """The macros of the files that were looked at.

    Args:
        seeing: words with which the preprocessor or the compiler shows what is looked for.
        words: all words of the files, of which `##` makes others; it may grow. None if any word may be made.
    """

    def __init__(self, seeing: Iterable[bytes], words: Collection[bytes] | None = None) -> None:
        self.seeing = set(seeing)
        self._users: dict[bytes, list[bytes]] = {}
        """Word -> the macros that hold it."""
        self._pasted: list[tuple[bytes, bytes, bytes]] = []
        self._words = words
        self._looked_at = 0
        """So many words there were when it was last looked what they make."""
        self._unmade = set(self.seeing) if words is not None else set[bytes]()
        """Seeing words that no words of the files make together, as far as was looked."""

    def add(self, macros: Iterable[Macro]) -> None:
        for macro in macros:
            for word in macro.words:
                self._users.setdefault(word, []).append(macro.name)
            self._pasted += [(*ends, macro.name) for ends in macro.pasted]
            if not macro.words.isdisjoint(self.seeing) or any(self._makes_seeing(*ends) for ends in macro.pasted):
                self._spread([macro.name])

    def is_seeing(self, words: Iterable[bytes]) -> bool:
        """Whether one of the words shows what is looked for."""
        if self._words is not None and len(self._words) != self._looked_at:
            self._looked_at = len(self._words)
            for word in [word for word in self._unmade if _is_made_of(word, self._words)]:
                self._unmade.remove(word)
                self._spread(self._makers(word))
        return not self.seeing.isdisjoint(words)

    def _makes_seeing(self, begin: bytes, end: bytes) -> bool:
        return any(word.startswith(begin) and word.endswith(end) and word not in self._unmade for word in self.seeing)

    def _makers(self, word: bytes) -> list[bytes]:
        """The macros that make a word with `##`."""
        return [user for begin, end, user in self._pasted if word.startswith(begin) and word.endswith(end)]

    def _spread(self, names: list[bytes]) -> None:
        waiting = list(names)
        while waiting:
            word = waiting.pop()
            if word in self.seeing:
                continue
            self.seeing.add(word)
            waiting += self._users.get(word, ())
            if self._words is None or len(self._unmade) >= _MOST_UNMADE or _is_made_of(word, self._words):
                waiting += self._makers(word)
            else:
                self._unmade.add(word)


def _is_made_of(made: bytes, words: Collection[bytes]) -> bool:
    """Whether `##` makes a word of at least two others. What begins with a digit may be of any form."""
    ends = {0}
    for end in range(1, len(made) + 1):
        if any(
            made[begin : begin + 1].isdigit() or made[begin:end] in words for begin in ends if end - begin < len(made)
        ):
            ends.add(end)
    return len(made) in ends


class Definitions:
    """The directives of a text and its other words.

    Args:
        text: see `joined_text`.
    """

    def __init__(self, text: bytes) -> None:
        self.macros: list[Macro] = []
        self.is_unclear = False
        """A definition is written in an unknown way."""
        self.sets_lines = False
        """A directive gives the lines behind it other numbers, perhaps in the name of another file."""
        self._text = text
        self._conditions: list[bytes] = []
        for directive in _DIRECTIVE.findall(text):
            match = _DEFINITION.fullmatch(directive)
            if match is None:
                self.is_unclear = self.is_unclear or _DEFINES.match(directive) is not None
                self.sets_lines = self.sets_lines or _LINE.match(directive) is not None
                if not _NAMED.match(directive):
                    self._conditions.append(directive)
                continue
            parameters, body = match[2] or b"", match[3]
            pasted = tuple(_ends(parameters, body)) if b"##" in body or b"%:%:" in body else ()
            self.macros.append(Macro(match[1], frozenset(_WORD.findall(body)), pasted))

    def words_of_code(self) -> frozenset[bytes]:
        """The words outside of directives."""
        return frozenset(_WORD.findall(_DIRECTIVE.sub(b"", self._text)))

    def words(self) -> frozenset[bytes]:
        """The words outside of definitions, whose own words count where the macro is used."""
        return self.words_of_code() | self.words_of_conditions()

    def words_of_conditions(self) -> frozenset[bytes]:
        """The words of directives other than definitions."""
        return frozenset[bytes]().union(*map(_WORD.findall, self._conditions))


def joined_text(snapshot: Snapshot, bare: BareText, path: str) -> bytes | None:
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


def _ends(parameters: bytes, body: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The beginnings and ends of the words that `##` makes."""
    names = {*_WORD.findall(parameters), b"__VA_ARGS__"}
    for left, right in _PASTED.findall(body):
        yield (b"" if left in names else left, b"" if right in names else right)


def given_macros(action: Action) -> Iterable[Macro]:
    """The macros among the flags, and more: any word before an equals sign."""
    for argument in action.argv:
        text = argument.prefix + argument.suffix if isinstance(argument, Ref) else argument
        for match in _GIVEN.finditer(text.encode(errors="surrogateescape")):
            yield Macro(match[1].removeprefix(b"D"), frozenset(_WORD.findall(match[2])))
            yield Macro(match[1], frozenset(_WORD.findall(match[2])))


def shows_types(action: Action) -> bool:
    """Whether `__PRETTY_FUNCTION__` may show the file of a lambda or of a type without a name: clang's does.

    C has no templates that are given such types.
    """
    is_c = bool(action.inputs) and all(path.endswith(".c") for path in action.inputs) and "-x" not in action.argv
    return action.discovery.is_clang and not is_c
