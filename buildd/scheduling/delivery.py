"""Writes the results of a foreign compile: its output and its depfile, as the command and the caller's umask say.

Knows how tools write these files, and which files only the tool may write; knows no build.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from buildd.builds.command import DEPFILE
from buildd.files.digests import Files
from buildd.scheduling.make_rules import make_rule, nvcc_rules, user_files, written
from buildd.store.store import Result, Store
from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import Compile, Family, Makes, PassThrough, Reason
from codegen.compilers.depfile import HeaderFolders, Rule
from codegen.foreign.compile_plan import DEPENDENCIES
from codegen.reach import Reach, reach_of
from codegen.steps.module_ids import NO_IDS, ModuleIds
from protocol import messages as m

_WARNING = re.compile(rb"^nvcc warning : .*\n", re.MULTILINE)
_LINKER_FAILED = re.compile(rb"^collect2: ", re.MULTILINE)
_ASSEMBLER_FAILED = re.compile(rb"^.+: Assembler messages:$", re.MULTILINE)
"""It names gcc's temporary file, or the source where lines of an asm come from there."""
_GCC_LEAVES = re.compile(rb"^(?!cc1)\S*(?:cc|[gc]\+\+)(?:-[\d.]+)?: (?:fatal )?error: ", re.MULTILINE)
_CLANG_LEAVES = re.compile(rb"^clang\S*: error: (?!.*(?:command failed|unable to execute))", re.MULTILINE)
"""Messages about options, after which these run nothing, and gcc's about a program that was killed."""
_HEADER_MISSING = re.compile(rb"fatal error: '.*' file not found")
"""What clang says where it removes its depfile."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where the results of a compile go, and how they are written.

    Args:
        folder: where the command was called.
        headers: folders that decide which headers -MMD leaves out.
        roots: folders that have another name each time.
        clang: clang would write the depfile; see `make_rules`.
        ids: of the module, if nvcc's steps make the object.
    """

    compile: Compile
    folder: str
    umask: int
    headers: HeaderFolders
    roots: temporary_roots.Roots = ()
    clang: bool = False
    ids: ModuleIds = NO_IDS

    def check(self, named: Iterable[str] = ()) -> None:
        """Check that the tool would only read files and write its outputs. Raises PassThrough where it would not.

        Args:
            named: files that the command may name to be read.
        """
        known: dict[str, str] = {}
        for path in dict.fromkeys(named):
            if path and reach_of(os.path.join(self.folder, path), known) is not Reach.EVERYONE:
                raise PassThrough(Reason.NO_FILE, path)
        depfile = self.compile.depfile
        if depfile and depfile.path and not depfile.is_output:
            made, listed = map(os.path.normpath, (self.compile.output, depfile.path))
            if made == listed:
                raise PassThrough(Reason.OUTPUT, f"{made} is the depfile")  # the tool decides which is left
        for path in filter(None, (self.compile.output, depfile.path if depfile else "")):
            place = os.path.join(self.folder, path)
            if reach_of(place, known) is Reach.CALLER:
                raise PassThrough(Reason.OUTPUT, path)
            if os.path.basename(path) in ("", DEPFILE) or not os.path.isdir(os.path.dirname(place)):
                raise PassThrough(Reason.OUTPUT, path)
            reads = [os.path.join(self.folder, read) for read in self.compile.objects or (self.compile.source,)]
            if os.path.normpath(place) in map(os.path.normpath, reads):
                raise PassThrough(Reason.OUTPUT, f"{path} is the source")
            if not os.path.lexists(place):
                continue
            if os.path.islink(place) or not os.path.isfile(place):
                raise PassThrough(Reason.OUTPUT, path)
            for read in reads:
                with contextlib.suppress(OSError):  # there is no such source: the compiler says it
                    if os.path.samefile(place, read):
                        raise PassThrough(Reason.OUTPUT, f"{path} is the source")

    def put_object(self, files: Files, digest: m.Digest, write: Callable[[Path], bool]) -> bool:
        """Put the object there, with a fresh time: make and ninja go by it. False where `write` fails."""
        place = os.path.join(self.folder, self.compile.output)
        fact, mode = files.fact(place), self.mode & ~self.umask
        if fact is not None and fact.digest == digest and os.lstat(place).st_mode == stat.S_IFREG | mode:
            os.utime(place)
            return True
        if not write(Path(place)):
            return False
        os.chmod(place, mode)
        return True

    def remove_outputs(self, said: bytes, *, by_clang: bool) -> None:
        """Remove what the tool would have removed after it failed.

        A make that has no rule for what the tool failed over takes an old program for a new one.

        Args:
            said: the tool's messages.
            by_clang: the tool is clang.
        """
        is_clang = by_clang and self.compile.family is Family.GCC
        if self._removes_output(said, is_clang=is_clang):
            self._remove(self.compile.output)
            if self.compile.depfile and self.compile.depfile.is_output:
                self._remove(self.compile.depfile.path)
        clang_lists = by_clang and self.compile.family is not Family.NVCC
        if clang_lists and self.compile.depfile and _HEADER_MISSING.search(said):
            self._remove(self.compile.depfile.path)

    def _removes_output(self, said: bytes, *, is_clang: bool) -> bool:
        """Tell whether the program that failed is the one that writes the output. Of others it is a temporary file."""
        flags, makes = self.compile.flags, self.compile.makes
        if makes is Makes.LINKED:
            return _LINKER_FAILED.search(said) is not None
        if self.compile.family is not Family.GCC:
            return _ASSEMBLER_FAILED.search(said) is not None
        has_assembler = makes is Makes.OBJECT and "-S" not in flags
        apart = "-fno-integrated-as" in flags if is_clang else "-pipe" not in flags
        if has_assembler and apart:
            return _ASSEMBLER_FAILED.search(said) is not None
        return (_CLANG_LEAVES if is_clang else _GCC_LEAVES).search(said) is None

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, path))

    @property
    def mode(self) -> int:
        """Mode of the object, before the umask."""
        return 0o777 if self.compile.makes is Makes.LINKED else 0o666

    def rules(self, listed: bytes) -> bytes:
        """The depfile that the command asks for; empty where it asks for none.

        Args:
            listed: the output `DEPENDENCIES`.
        """
        depfile = self.compile.depfile
        if depfile is None:
            return b""
        if (rule := self.rule(listed)) is not None:
            return written(rule)
        read, *own = temporary_roots.read_lists(listed, self.roots)
        files = own[0] if own else read
        source = self.compile.source
        if not depfile.system:
            files = own[1] if len(own) > 1 else user_files(files, self.headers)
        return nvcc_rules(depfile, source, [path for path in files if path != source])

    def rule(self, listed: bytes) -> Rule | None:
        """The names in the depfile that gcc or clang would write; None where there is none. Args: as `rules`."""
        depfile = self.compile.depfile
        if depfile is None or self.compile.family is Family.NVCC:
            return None
        read, *own = temporary_roots.read_lists(listed, self.roots)
        return make_rule(depfile, self.compile.source, own[0] if own else read, self.headers, clang=self.clang)

    @property
    def prints_rules(self) -> bool:
        """Whether the command writes make rules to standard output."""
        depfile = self.compile.depfile
        return depfile is not None and not depfile.path

    def said(self, store: Store, result: Result) -> tuple[bytes, bytes] | None:
        """Standard output and error of the command, in today's names; None where they are lost."""
        if result.stdout is None and result.stderr is None and not self.prints_rules:
            return b"", b""
        listed = next((store.get(output.digest) for output in result.outputs if output.name == DEPENDENCIES), None)
        texts = [b"" if digest is None else store.get(digest) for digest in (result.stdout, result.stderr)]
        if listed is None or texts[0] is None or texts[1] is None:
            return None
        moves = temporary_roots.moves(listed, self.roots)
        stdout = self.rules(listed) if self.prints_rules else self.ids.named(checkout_roots.replaced(texts[0], moves))
        return stdout, self.said_once(self.ids.named(checkout_roots.replaced(texts[1], moves)))

    def said_once(self, stderr: bytes) -> bytes:
        """Standard error without the words that an earlier part of the same command has said: nvcc warns of the same
        options again."""
        later = temporary_roots.part_number(self.compile.output) > 0
        again = later or any(map(temporary_roots.is_part, self.compile.objects))
        return _WARNING.sub(b"", stderr) if again else stderr

    def put_depfile(self, rules: bytes) -> None:
        """Write the depfile in place, as tools do: one that is there keeps its mode and its other names."""
        depfile = self.compile.depfile
        if depfile is None or self.prints_rules:
            return
        with open(self._opened(os.path.join(self.folder, depfile.path)), "r+b", buffering=0) as file:
            if file.read() == rules:
                # Not written again: ext4 takes two milliseconds for a file that was emptied.
                os.utime(file.fileno())
            else:
                file.seek(0)
                file.truncate()
                file.write(rules)

    def _opened(self, place: str) -> int:
        """Open a file to be read and written; a new one gets the mode that the caller's umask leaves."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(place, flags)
        except FileNotFoundError:
            made = os.open(place, flags | os.O_CREAT, 0o666)
            os.fchmod(made, 0o666 & ~self.umask)
            return made
