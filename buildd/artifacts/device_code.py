"""Device code in files: each kernel's needs and a digest of its machine code, read from the ELF that the GPU loads.

Understands cubins, fatbins and the objects that hold them (NVIDIA), code objects and clang's offload bundles (AMD).
Runs no tool and decodes no instruction. PURE but for `kernels_of_file`. A file that it does not understand has no
kernels here; no build result depends on them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import zstandard
from blake3 import blake3

from protocol.messages import Kernel

MOST_BYTES = 256 << 20
"""Larger files are not read, and larger parts are not unpacked."""
_CODE_DIGITS = 16

_ELF = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOTE, _NOBITS = 2, 7, 8
_EM_CUDA, _EM_AMDGPU = 190, 224
_FUNCTION = 2

_FATBIN = struct.Struct("<IHHQ")
_FATBIN_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_ENTRY_ELF = 2
_OWN_FEATURES = ((0x100000, "a"), (0x200000, "f"))
"""Flags of an entry: of this architecture alone, of its family."""
_ZSTD = b"\x28\xb5\x2f\xfd"

_ENTRY_POINT = 0x10
"""In a symbol's `st_other`: a kernel, not a function that kernels call."""
_ARCH = re.compile(rb"-arch (sm_\w+)")
"""In the assembler's note, where it writes its options down."""
_REGISTERS, _FRAME, _STACK = 0x2F, 0x11, 0x12
"""Attributes of .nv.info, by symbol."""
_MAX_THREADS = 0x05
"""Attribute of a kernel's own .nv.info: three numbers."""

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_METADATA = 32
"""NT_AMDGPU_METADATA: llvm.org/docs/AMDGPUUsage.html#code-object-v3-note-records."""


def kernels_of_file(path: str) -> tuple[Kernel, ...]:
    """The kernels in a file; none where it cannot be read, or this process may not have the memory."""
    try:
        with open(path, "rb") as file:
            # `read` takes as much memory as it is given a number: the file's own size, not the limit.
            size_bytes = os.fstat(file.fileno()).st_size
            return kernels_of(file.read(size_bytes)) if size_bytes <= MOST_BYTES else ()
    except (OSError, MemoryError):
        return ()


def kernels_of(content: bytes) -> tuple[Kernel, ...]:
    """The kernels in an object, a library, a program, a cubin, a code object or a fatbin, in its order."""
    found: dict[tuple[str, str], Kernel] = {}
    try:
        for elf, arch in _device_elfs(content):
            kernels = _nvidia(elf, arch) if elf.machine == _EM_CUDA else _amd(elf, arch)
            found.update(((kernel.name, kernel.arch), kernel) for kernel in kernels)
    except (struct.error, ValueError, IndexError, KeyError, zstandard.ZstdError, msgspec.MsgspecError):
        return ()
    return tuple(found.values())


def amd_code_objects(content: bytes) -> list[tuple[bytes, tuple[Kernel, ...]]]:
    """AMD's code objects in a file, each with its kernels."""
    found = []
    try:
        for elf, arch in _device_elfs(content):
            if elf.machine == _EM_AMDGPU:
                found.append((elf.content, tuple(_amd(elf, arch))))
    except (struct.error, ValueError, IndexError, KeyError, zstandard.ZstdError, msgspec.MsgspecError):
        return []
    return found


# ---------------------------------------------------------------- files in files


def _device_elfs(content: bytes) -> Iterator[tuple[_Elf, str]]:
    """Each ELF for a GPU, and the architecture that its container names."""
    if content.startswith(_ELF):
        elf = _Elf(content)
        if elf.machine in (_EM_CUDA, _EM_AMDGPU):
            yield elf, ""
            return
        for section in elf.sections:
            if section.name in (".nv_fatbin", "__nv_relfatbin", ".hip_fatbin"):
                yield from _contained(elf.bytes_of(section))
    else:
        yield from _contained(content)


def _contained(content: bytes) -> Iterator[tuple[_Elf, str]]:
    if content.startswith(_BUNDLE):
        yield from _of_bundle(content)
    else:
        yield from _of_fatbins(content)


def _of_fatbins(content: bytes) -> Iterator[tuple[_Elf, str]]:
    """Several may follow each other, with padding between them."""
    at = 0
    while at + _FATBIN.size <= len(content):
        magic, _, header, size = _FATBIN.unpack_from(content, at)
        if magic != _FATBIN_MAGIC:
            at += 8
            continue
        end = at + header + size
        at += header
        while at + _ENTRY.size <= end:
            kind, _, head, padded, packed, _, _, _, arch, _, _, flags = _ENTRY.unpack_from(content, at)
            if not head:
                break
            data = content[at + head : at + head + padded]
            at += head + padded
            if kind == _ENTRY_ELF:
                if data.startswith(_ZSTD):
                    data = zstandard.ZstdDecompressor().decompress(data[: packed or None], max_output_size=MOST_BYTES)
                if data.startswith(_ELF):
                    suffix = "".join(letter for flag, letter in _OWN_FEATURES if flags & flag)
                    yield _Elf(data), f"sm_{arch}{suffix}"
        at = max(at, end)


def _of_bundle(content: bytes) -> Iterator[tuple[_Elf, str]]:
    """clang.llvm.org/docs/ClangOffloadBundler.html."""
    (count,) = struct.unpack_from("<Q", content, len(_BUNDLE))
    at = len(_BUNDLE) + 8
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", content, at)
        name = content[at + 24 : at + 24 + length].decode()
        at += 24 + length
        data = content[offset : offset + size]
        if data.startswith(_ELF):
            yield _Elf(data), name.partition("--")[2] or name.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int


class _Elf:
    """As much of an ELF file as it takes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        fields = _HEADER.unpack_from(content)
        self.machine: int = fields[2]
        start, size, count, names_index = fields[6], fields[11], fields[12], fields[13]
        raw = [_SECTION.unpack_from(content, start + index * size) for index in range(count)]
        names = content[raw[names_index][4] : raw[names_index][4] + raw[names_index][5]] if raw else b""
        self.sections = [
            _Section(_string(names, name), kind, address, offset, size, link)
            for name, kind, _, address, offset, size, link, _, _, _ in raw
        ]

    def bytes_of(self, section: _Section) -> bytes:
        return b"" if section.type == _NOBITS else self.content[section.offset : section.offset + section.size]

    @cached_property
    def by_name(self) -> dict[str, _Section]:
        return {section.name: section for section in self.sections}

    @cached_property
    def symbols(self) -> list[tuple[str, int, int, int, int, int]]:
        """Name, type, other, section, value, size."""
        table = next((section for section in self.sections if section.type == _SYMTAB), None)
        if table is None:
            return []
        names = self.bytes_of(self.sections[table.link])
        return [
            (_string(names, name), info & 15, other, index, value, size)
            for name, info, other, index, value, size in _SYMBOL.iter_unpack(self.bytes_of(table))
        ]


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode(errors="replace")


def _digest(code: bytes) -> str:
    return blake3(code).hexdigest()[:_CODE_DIGITS]


# ---------------------------------------------------------------- NVIDIA


def _nvidia(elf: _Elf, arch: str) -> Iterator[Kernel]:
    if not arch and ".note.nv.tkinfo" in elf.by_name:
        options = _ARCH.search(elf.bytes_of(elf.by_name[".note.nv.tkinfo"]))
        arch = "" if options is None else options[1].decode()
    by_symbol: dict[int, dict[int, int]] = {}
    if ".nv.info" in elf.by_name:
        for attribute, value in _attributes(elf.bytes_of(elf.by_name[".nv.info"])):
            if len(value) == 8:
                symbol, number = struct.unpack("<II", value)
                by_symbol.setdefault(symbol, {})[attribute] = number
    for index, (name, kind, other, section, _, _) in enumerate(elf.symbols):
        if kind != _FUNCTION or not other & _ENTRY_POINT or not 0 < section < len(elf.sections):
            continue
        needs = by_symbol.get(index, {})
        constants = [s.size for s in elf.sections if s.name.startswith(".nv.constant") and s.name.endswith(f".{name}")]
        shared = elf.by_name.get(f".nv.shared.{name}")
        yield Kernel(
            name=name,
            arch=arch,
            registers=needs.get(_REGISTERS, -1),
            shared_bytes=0 if shared is None else shared.size,
            constant_bytes=sum(constants),
            stack_bytes=needs.get(_FRAME, needs.get(_STACK, -1)),
            max_threads=_launch_bound(elf, name),
            code=_digest(elf.bytes_of(elf.sections[section])),
        )


def _launch_bound(elf: _Elf, name: str) -> int:
    """Threads of a block by the kernel's launch bounds; -1 if it has none."""
    section = elf.by_name.get(f".nv.info.{name}")
    for attribute, value in _attributes(elf.bytes_of(section)) if section is not None else ():
        if attribute == _MAX_THREADS and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            return int(x * y * z)
    return -1


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(content):
        shape, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if shape == 4:
            yield attribute, content[at : at + size]
            at += size


# ---------------------------------------------------------------- AMD


def _amd(elf: _Elf, arch: str) -> Iterator[Kernel]:
    code: dict[str, bytes] = {}
    for name, kind, _, index, value, size in elf.symbols:
        if kind == _FUNCTION and 0 < index < len(elf.sections):
            at = elf.sections[index].offset + value - elf.sections[index].address
            code[name] = elf.content[at : at + size]
    for section in elf.sections:
        if section.type != _NOTE:
            continue
        for metadata in _notes(elf.bytes_of(section)):
            target = metadata.target.rpartition("--")[2] or arch
            for kernel in metadata.kernels:
                yield Kernel(
                    name=kernel.name,
                    arch=target.partition(":")[0],
                    registers=kernel.vgprs,
                    scalar_registers=kernel.sgprs,
                    shared_bytes=kernel.group,
                    stack_bytes=kernel.private,
                    max_threads=kernel.threads,
                    spilled_registers=kernel.spilled_vgprs + kernel.spilled_sgprs,
                    code=_digest(code[kernel.name]) if kernel.name in code else "",
                )


class _AmdKernel(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name=".name")
    vgprs: int = msgspec.field(name=".vgpr_count", default=-1)
    sgprs: int = msgspec.field(name=".sgpr_count", default=-1)
    group: int = msgspec.field(name=".group_segment_fixed_size", default=-1)
    private: int = msgspec.field(name=".private_segment_fixed_size", default=-1)
    threads: int = msgspec.field(name=".max_flat_workgroup_size", default=-1)
    spilled_vgprs: int = msgspec.field(name=".vgpr_spill_count", default=0)
    spilled_sgprs: int = msgspec.field(name=".sgpr_spill_count", default=0)


class _Metadata(msgspec.Struct, frozen=True):
    kernels: list[_AmdKernel] = msgspec.field(name="amdhsa.kernels", default_factory=list)
    target: str = msgspec.field(name="amdhsa.target", default="")


_metadata_decoder = msgspec.msgpack.Decoder(_Metadata)


def _notes(content: bytes) -> Iterator[_Metadata]:
    at = 0
    while at + 12 <= len(content):
        name, size, kind = struct.unpack_from("<III", content, at)
        start = at + 12 + _padded(name)
        if kind == _METADATA and content[at + 12 : at + 12 + name].rstrip(b"\0") == b"AMDGPU":
            yield _metadata_decoder.decode(content[start : start + size])
        at = start + _padded(size)


def _padded(size: int) -> int:
    return (size + 3) & ~3
