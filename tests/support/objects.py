"""What an object file holds, section by section, without the names that nvcc makes anew for every run.

Two objects that are described alike do the same. These vary from one run of nvcc to the next, or between nvcc and its
steps run one by one, and so are called alike:

- module ids (`_1234abcd_4_k_cu_first`) and the lengths of names that hold one (`N55_GLOBAL__N__...`,
  `61__device_stub__ZN55_GLOBAL__N__...`);
- names of temporary files (`tmpxft_...`);
- that ptxas was to report (`-v`);
- offsets into sections that hold either, and those sections' sizes.

Knows ELF for x86-64 and cuobjdump. Objects of a plain host compiler vary in nothing: compare their bytes.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SYMTAB, _RELA, _STRTAB, _NOBITS, _GROUP = 2, 4, 3, 8, 17
_STRINGS = 0x20
_OF_SECTION = 3
_FATBINS = (".nv_fatbin", "__nv_relfatbin")
"""Device code, of a whole program and to be linked; cuobjdump reads both."""
_MODULE = rb"_[0-9a-f]{8}_\d+_[A-Za-z0-9_]*?_cu_(?:[0-9a-f]{8}_\d+|[0-9a-f]{8}|%s)"
_AROUND = re.compile(rb"\d+(?=__device_stub__\w*MODULE)")
"""The length of a stub's name that holds a module id."""
_DEVICE_BLOCKS = (".text", ".nv.constant", ".nv.global", ".nv.shared", ".nv.info", ".section .note.nv")


@dataclass(frozen=True, slots=True)
class Names:
    """What is called alike.

    Args:
        first: functions that nvcc may name a module after: the first external one of each source.
    """

    first: tuple[str, ...] = ()

    def pattern(self) -> re.Pattern[bytes]:
        known = "|".join(map(re.escape, sorted(self.first, key=len, reverse=True))) or "(?!)"
        module = _MODULE % known.encode()
        return re.compile(
            rb"(?:\d+_GLOBAL__N__?|\d*_INTERNAL_?\d*|__nv_static_\d+_?|\d+__nv_static_\d+_?)?" + module
            + rb"|(?:[^\s\"\0]*/)?tmpxft_[0-9a-f]+_[0-9a-f]+[-_]\d+_"
        )  # fmt: skip

    def same(self, data: bytes) -> bytes:
        data = self.pattern().sub(lambda match: b"" if b"tmpxft" in match[0] else b"MODULE", data)
        return _AROUND.sub(b"", data)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    link: int
    about: int


def described(path: Path, cuobjdump: str = "", names: Names | None = None) -> dict[str, str]:
    """Contents of an object by part: sections, their relocations, symbols, and device code.

    Args:
        cuobjdump: where there is device code to be looked at.
    """
    names = names or Names()
    sections = list(_sections(path.read_bytes()))
    found: dict[str, str] = {}
    varying = {
        index
        for index, section in enumerate(sections)
        if section.flags & _STRINGS or names.same(section.data) != section.data
    }
    symbols = next((list(_symbols(section, sections)) for section in sections if section.kind == _SYMTAB), [])
    for index, section in enumerate(sections):
        key = f"section {names.same(section.name.encode()).decode()}"
        while key in found:
            key += "'"
        if section.kind == _RELA:
            if section.name != ".rela.eh_frame":
                found[key] = "\n".join(_relocations(section, symbols, varying, names))
        elif section.kind not in (0, _SYMTAB, _STRTAB, _GROUP) and section.name not in _FATBINS:
            data = names.same(section.data)
            found[key] = repr(data) if index in varying else section.data.hex()
    lines = (f"{symbol.name} {symbol.info} {symbol.where}" for symbol in symbols if symbol.info & 15 != _OF_SECTION)
    found["symbols"] = "\n".join(
        # For several architectures nvcc's temporary files are named after one of them.
        sorted(re.sub(r"\.compute_\w+(?=\.cudafe1\.cpp )", "", names.same(line.encode()).decode()) for line in lines)
    )
    if cuobjdump and any(section.name in _FATBINS for section in sections):
        found |= _device(path, cuobjdump, names)
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names of the parts in which two descriptions differ."""
    return sorted(part for part in {*ours, *theirs} if ours.get(part) != theirs.get(part))


def _sections(data: bytes) -> Iterator[_Section]:
    """Sections in their order; raises ValueError for what is no object of this kind."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * number) for number in range(count)]
    names_at = headers[names_index][4]
    for name, kind, flags, _, offset, length, link, about, _, _ in headers:
        begin = names_at + name
        text = data[begin : data.index(b"\0", begin)].decode()
        yield _Section(text, kind, flags, b"" if kind == _NOBITS else data[offset : offset + length], link, about)


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    info: int
    where: str
    section: int


def _symbols(table: _Section, sections: list[_Section]) -> Iterator[_Symbol]:
    strings = sections[table.link].data
    for offset in range(0, len(table.data), 24):
        name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", table.data, offset)
        text = strings[name : strings.index(b"\0", name)].decode(errors="surrogateescape")
        where = sections[section].name if section < len(sections) else hex(section)
        yield _Symbol(text or (where if info & 15 == _OF_SECTION else ""), info, where, section)


def _relocations(table: _Section, symbols: list[_Symbol], varying: set[int], names: Names) -> Iterator[str]:
    inside = table.about in varying
    for offset in range(0, len(table.data), 24):
        at, info, addend = struct.unpack_from("<QQq", table.data, offset)
        symbol = symbols[info >> 32]
        name = names.same(symbol.name.encode(errors="surrogateescape")).decode(errors="surrogateescape")
        unknown = symbol.info & 15 == _OF_SECTION and symbol.section in varying
        yield f"{'' if inside else at} {info & 0xFFFFFFFF} {name} {'' if unknown else addend}"


def _device(path: Path, cuobjdump: str, names: Names) -> dict[str, str]:
    """Code and data for each architecture; not disassembled, which takes a tool that PyPI's wheels do not have."""
    said = {}
    for option in ("-elf", "-ptx"):
        done = subprocess.run([cuobjdump, option, str(path)], capture_output=True, check=True)
        text = names.same(done.stdout.replace(bytes(path), b"FILE")).decode(errors="replace")
        # A target's ptxas is asked what kernels need; that is written down, and changes nothing.
        text = re.sub(r"(?m)^(\s*Tool Command Line Arguments:|ptxasOptions =)(?: +-v(?= |$))? *", r"\1 ", text)
        said[option] = re.sub(r"(?m)^(  NVIDIA Corp +)\d+", r"\1", text)
    # In the tables between sections of code and data stand offsets of names.
    blocks = [block.strip() for block in said["-elf"].split("\n\n")]
    code = [block for block in blocks if block.startswith(_DEVICE_BLOCKS)]
    # Debug information has the module's id letter by letter.
    ptx = re.sub(r"(?m)^\.b\d+ .*\n", "", said["-ptx"])
    archs = re.findall(r"(?m)^Fatbin (\w+) code:|^arch = (\w+)", said["-elf"] + said["-ptx"])
    return {
        "machine code": "\n".join(block for block in code if block.startswith(".text")),
        "device data": "\n".join(block for block in code if not block.startswith(".text")),
        "PTX": re.sub(r"(?m)^(host|identifier|compile_size|handle) = .*$", "", ptx),
        "architectures": repr(archs),
    }


# ---------------------------------------------------------------- of one source k.cu, as text


def inspector() -> str:
    """cuobjdump of the toolkit on the PATH or of the PyPI wheels; empty where there is none."""
    wheels = importlib.util.find_spec("nvidia")
    folders = wheels.submodule_search_locations or () if wheels is not None else ()
    places = [place for folder in folders for place in Path(folder).glob("cu*/bin/cuobjdump")]
    return shutil.which("cuobjdump") or next((str(place) for place in places), "")


def anonymous(text: str) -> str:
    """Without the names of modules, of a source k.cu whose first function is `first`, and of temporary files."""
    text = re.sub(r"[\w.$]*_[0-9a-f]{8}_4_k_cu_(first|[0-9a-f]{8})", "ID", text)
    return re.sub(r"([^\s\"]*/(tmpxft_\w+-\d+_|job-\w+/)|/tmp/)k\.(compute_80\.)?", "k.", text)


def contents(path: Path) -> dict[str, str]:
    """Symbols and code of an object, host's and devices'."""
    commands = {
        "symbols": ["nm", "--format=posix", "--no-sort", str(path)],
        "host code": ["objdump", "-d", "--no-show-raw-insn", str(path)],
    }
    if tool := inspector():
        commands |= {"machine code": [tool, "-elf", str(path)], "ptx": [tool, "-ptx", str(path)]}
    found = {}
    for name, command in commands.items():
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        match name:
            case "symbols":  # without sizes and offsets, which follow the length of the module's id
                text = "\n".join(" ".join(line.split()[:2]) for line in text.splitlines())
            case "machine code":  # sections of code and data; in the tables between them stand such offsets
                blocks = [block.strip() for block in text.split("\n\n")]
                text = "\n".join(block for block in blocks if block.startswith((".text", ".nv.constant", ".nv.g")))
            case "ptx":  # without debug information, which has the id letter by letter
                text = re.sub(r"^\.b\d+ .*\n", "", text, flags=re.MULTILINE)
        found[name] = anonymous(text.replace(str(path), ""))
    return found
