"""Diagnostics: a compiler's output -> structured findings. PURE: text in, `Diagnostic`s out.

Understands nvcc and its parts (cudafe++ and cicc speak like EDG; ptxas, nvlink), gcc, clang and hipcc, the linkers,
CMake, and Python tracebacks. Knows no tool by its command line: every line is tried against every shape, so the output
of a wrapper that runs several of them is understood too. Lines that fit no shape are left out; they stay in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.messages import Diagnostic, Severity

MOST = 100
"""Findings kept at most: notes are dropped first, then warnings, then errors, the last ones first."""
_LINE_CHARACTERS = 4096

_SEVERITIES = {
    "error": Severity.ERROR,
    "fatal error": Severity.ERROR,
    "catastrophic error": Severity.ERROR,
    "internal error": Severity.ERROR,
    "internal compiler error": Severity.ERROR,
    "fatal": Severity.ERROR,
    "warning": Severity.WARNING,
    "note": Severity.NOTE,
    "remark": Severity.NOTE,
}

# a.cu(12): error #20-D: identifier "x" is undefined
_EDG = re.compile(
    r"(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): "
    r"(?P<severity>(?:catastrophic |internal |fatal )?error|warning|remark|note)(?: #(?P<code>[\w-]+))?: "
    r"(?P<message>.+)"
)
_CARET = re.compile(r" *\^ *")
_INSTANTIATION = re.compile(r" +(?P<what>.+) at line (?P<line>\d+)(?: of (?P<file>.+))?")
# a.cpp:12:3: error: ...   and without a column
_GCC = re.compile(
    r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? "
    r"(?P<severity>fatal error|internal compiler error|error|warning|note|remark): (?P<message>.+)"
)
_GCC_CODE = re.compile(r" \[-W(?P<code>[^\]\s]+)\]$")
_GCC_REQUIRED = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? +required (?P<what>.+)")
_CLANG_INSTANTIATION = re.compile(r"in instantiation of ")
# ptxas x.ptx, line 21; error   : ...
_PTX_LINE = re.compile(r"ptxas (?P<file>.+), line (?P<line>\d+); (?P<severity>fatal|error|warning)\s*: (?P<message>.+)")
# nvcc fatal   : ...
_NVIDIA = re.compile(
    r"(?P<tool>nvcc|cicc|cudafe\+\+|ptxas|nvlink|fatbinary|cuobjdump) "
    r"(?P<severity>fatal|error|warning)\s*: (?P<message>.+)"
)
# a.o: in function `main':
# a.cpp:(.text+0x15): undefined reference to `f()'
_REFERENCE = re.compile(
    r"(?:\S*\bld(?:\.\w+)?: )?(?:(?P<file>[^\s:][^:\n]*):(?:(?P<line>\d+)|\([^)]*\)): )?"
    r"(?P<message>(?:undefined reference to|multiple definition of) .+)"
)
_LLD_REFERENCE = re.compile(
    r">>> (?P<what>(?:referenced|defined) (?:by|at|in) (?P<file>[^\s:()]+)(?::(?P<line>\d+))?.*)"
)
# /usr/bin/ld: cannot find -lx: No such file or directory
_LD = re.compile(r"(?:\S*/)?ld(?:\.\w+)?: (?P<severity>warning: |error: )?(?P<message>.+)")
_LD_ERROR = re.compile(r"cannot find |final link failed|.*(?:file format not recognized|not found|No such file)")
# clang: error: ...   cc1plus: fatal error: ...   collect2: error: ...
_TOOL = re.compile(
    r"(?P<tool>[\w.+/-]+): (?P<severity>fatal error|internal compiler error|error|warning): (?P<message>.+)"
)
# CMake Error at src/CMakeLists.txt:2 (add_library):   and its message below, indented by two
_CMAKE = re.compile(
    r"CMake (?P<severity>Error|(?:Deprecation )?Warning)(?: \(dev\))? at (?P<file>.+?):(?P<line>\d+)(?: \(.*\))?:"
)
_SUMMARY = re.compile(
    r"ld returned \d+ exit status|linker command failed|ptx assembly aborted|command failed with exit code",
    re.IGNORECASE,
)
"""Messages that only say that something above went wrong."""
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in .+)?')
_EXCEPTION = re.compile(r"(?P<message>[A-Za-z_][\w.]*(?:: .*)?)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(slots=True)
class _Found:
    """A finding and the notes that belong to it."""

    head: Diagnostic
    notes: list[Diagnostic] = field(default_factory=list)


def diagnose(text: str) -> tuple[Diagnostic, ...]:
    """The findings in a tool's output, in its order; notes follow their finding. At most `MOST`."""
    parser = _Parser(text)
    parser.parse()
    found = parser.found
    if any(item.head.severity is Severity.ERROR and not _SUMMARY.search(item.head.message) for item in found):
        found = [item for item in found if not _SUMMARY.search(item.head.message)]
    unique: dict[tuple[object, ...], _Found] = {}
    for item in found:
        head = item.head
        # The compilers for the host and for each device report the same finding.
        unique.setdefault((head.severity, head.file, head.line, head.column, head.message), item)
    return tuple(_bounded(unique.values()))


def _bounded(found: Iterable[_Found]) -> list[Diagnostic]:
    everything = [diagnostic for item in found for diagnostic in (item.head, *item.notes)]
    excess = len(everything) - MOST
    dropped: set[int] = set()
    for severity in (Severity.NOTE, Severity.WARNING, Severity.ERROR):
        for index in range(len(everything) - 1, -1, -1):
            if excess > 0 and everything[index].severity is severity:
                dropped.add(index)
                excess -= 1
    return [diagnostic for index, diagnostic in enumerate(everything) if index not in dropped]


class _Parser:
    def __init__(self, text: str) -> None:
        self.found: list[_Found] = []
        self._lines = [line[:_LINE_CHARACTERS].rstrip() for line in text.split("\n")]
        self._next = 0
        self._required: Diagnostic | None = None
        """gcc's way to a template, which it prints before the error in the template."""
        self._chained: Diagnostic | None = None
        """The exception before the one that is being read."""

    def parse(self) -> None:
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if not line:
                continue
            if line.startswith("  File "):
                self._traceback(line)
            elif line[0] != " " and not (self._located(line) or self._link(line)):
                self._unlocated(line)

    def _located(self, line: str) -> bool:
        """Findings with a file and a line."""
        if match := _EDG.fullmatch(line):
            self._edg(match)
        elif match := _GCC.fullmatch(line):
            self._gcc(match)
        elif match := _GCC_REQUIRED.fullmatch(line):
            # Only the beginning of the way, in the user's code, is kept: each line replaces the one before.
            self._required = _note(match, f"required {match['what']}")
        elif match := _CMAKE.fullmatch(line):
            self._cmake(match)
        elif match := _PTX_LINE.fullmatch(line):
            self._add(_SEVERITIES[match["severity"]], match["message"], match["file"], int(match["line"]))
        else:
            return False
        return True

    def _link(self, line: str) -> bool:
        """Linkers' messages."""
        if match := _REFERENCE.fullmatch(line):
            self._add(Severity.ERROR, match["message"], match["file"] or "", int(match["line"] or 0))
        elif match := _LLD_REFERENCE.fullmatch(line):
            if self.found and not self.found[-1].notes:  # the first place is enough
                self.found[-1].notes.append(_note(match, match["what"]))
        elif match := _LD.fullmatch(line):
            severity = (match["severity"] or "").removesuffix(": ")
            if severity:
                self._add(_SEVERITIES[severity], match["message"])
            elif _LD_ERROR.match(match["message"]):
                self._add(Severity.ERROR, match["message"])
        else:
            return False
        return True

    def _unlocated(self, line: str) -> None:
        """A tool's messages about itself: its options, its input, its end."""
        if match := _NVIDIA.fullmatch(line) or _TOOL.fullmatch(line):
            self._add(_SEVERITIES[match["severity"]], match["message"], code=match["tool"].rpartition("/")[2])
        elif line.startswith(_CHAINED) and self.found:
            self._chained = self.found.pop().head

    # ---------------------------------------------------------------- shapes of several lines

    def _edg(self, match: re.Match[str]) -> None:
        """A finding of cudafe++ or cicc: message, its source line, a caret, how a template was reached."""
        start = self._next
        end = start
        while end < len(self._lines) and self._lines[end] and end - start < 200:
            if not self._lines[end].startswith(" "):
                break
            end += 1
        block = self._lines[start:end]
        self._next = end
        message, column = match["message"], 0
        for index, line in enumerate(block[:12]):
            if _CARET.fullmatch(line) and index > 0:
                # The source is shown two columns to the right; where __global__ is shown expanded, columns are lost.
                column = 0 if "__attribute__((" in block[index - 1] else max(0, line.index("^") - 1)
                message = " ".join([message, *(text.strip() for text in block[: index - 1])])
                break
        self._add(
            _SEVERITIES[match["severity"]], message, match["file"], int(match["line"]), column, match["code"] or ""
        )
        self._fold_instantiations(match["file"], block)

    def _cmake(self, match: re.Match[str]) -> None:
        message: list[str] = []
        while self._next < len(self._lines) and self._lines[self._next][:1] in ("", " "):
            message += [text] if (text := self._lines[self._next].strip()) else []
            self._next += 1
        severity = Severity.ERROR if match["severity"] == "Error" else Severity.WARNING
        self._add(severity, "\n".join(message), match["file"], int(match["line"]))

    def _fold_instantiations(self, file: str, block: list[str]) -> None:
        """Only the last line of "detected during" is kept: it is the one in the user's code.

        A step without a file is in the file of the step before.
        """
        steps = [found for line in block if (found := _INSTANTIATION.fullmatch(line))]
        for step in steps:
            file = step["file"] or file
        if steps:
            more = f" ({len(steps) - 1} more between)" if len(steps) > 1 else ""
            self._attach(
                Diagnostic(
                    severity=Severity.NOTE, message=steps[-1]["what"] + more, file=file, line=int(steps[-1]["line"])
                )
            )

    def _gcc(self, match: re.Match[str]) -> None:
        severity, message, code = _SEVERITIES[match["severity"]], match["message"], ""
        if found := _GCC_CODE.search(message):
            code, message = found["code"].removeprefix("error=").removeprefix("error,-W"), message[: found.start()]
        if severity is Severity.NOTE and self.found:
            self._gcc_note(_note(match, message.strip()))
            return
        self._add(severity, message, match["file"], int(match["line"]), int(match["column"] or 0), code)
        if self._required is not None:
            self._attach(self._required)
            self._required = None

    def _gcc_note(self, note: Diagnostic) -> None:
        notes = self.found[-1].notes
        if notes and _CLANG_INSTANTIATION.match(note.message) and _CLANG_INSTANTIATION.match(notes[-1].message):
            notes.pop()  # the way to a template: its beginning, told last, is in the user's code
        self._attach(note)

    def _traceback(self, line: str) -> None:
        """A Python traceback, from its first frame on: the last frame's place, the exception's words."""
        file, number = "", 0
        while True:
            if match := _FRAME.fullmatch(line):
                file, number = match["file"], int(match["line"])
            elif line and not line.startswith(" "):
                break
            if self._next >= len(self._lines):
                return
            line = self._lines[self._next]
            self._next += 1
        match = _EXCEPTION.fullmatch(line)
        if match is None:
            self._next -= 1
            return
        self._add(Severity.ERROR, match["message"], file, number)
        if self._chained is not None:
            earlier = self._chained
            self._chained = None
            self._attach(
                Diagnostic(severity=Severity.NOTE, message=earlier.message, file=earlier.file, line=earlier.line)
            )

    # ---------------------------------------------------------------- collecting

    def _add(
        self, severity: Severity, message: str, file: str = "", line: int = 0, column: int = 0, code: str = ""
    ) -> None:
        found = Diagnostic(severity=severity, message=message, file=file, line=line, column=column, code=code)
        if severity is Severity.NOTE and self.found:
            self._attach(found)
        else:
            self.found.append(_Found(found))

    def _attach(self, note: Diagnostic) -> None:
        notes = self.found[-1].notes
        if len(notes) < MOST:
            notes.append(note)


def _note(match: re.Match[str], message: str) -> Diagnostic:
    groups = match.groupdict()
    return Diagnostic(
        severity=Severity.NOTE,
        message=message,
        file=match["file"],
        line=int(match["line"] or 0),
        column=int(groups.get("column") or 0),
    )
