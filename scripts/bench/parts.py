"""A part of a CMake project from its sdist: some of its objects, in a folder that is named as pip names one.

Knows no measurement. Two objects count as equal if their machine code is: host code section by section, and each
section of the device code. Paths, debug information and the ids that nvcc makes of a path may differ.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sdists import said_by

_SECTION = re.compile(r"\[ *\d+\] (\S+) +(\S+) +\w+ (\w+) (\w+)")
_CODE = (".text", ".nv.constant")
_ID = re.compile(r"\d*(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_\d+_(\w+?)_c[up]p*_[0-9a-f]{8}(_\d+)?")
"""What nvcc makes of a source's path, with the length of the whole name before it."""


class Part:
    """A project's tree.

    Args:
        archive: the sdist.
        folder: for the tree; a new folder with names as pip's is made there.
    """

    def __init__(self, archive: Path, project: str, folder: Path) -> None:
        top = folder / f"pip-install-{secrets.token_hex(4)}"
        top.mkdir(parents=True)
        with tarfile.open(archive) as packed:
            packed.extractall(top, filter="data")
        (unpacked,) = top.iterdir()
        self.source = unpacked.rename(top / f"{project}_{secrets.token_hex(16)}")
        self.build = self.source / "build"

    def configure(self, before: Sequence[str], options: Sequence[str], environ: Mapping[str, str]) -> None:
        """Configure the tree. Args: before: words before cmake's, as `buildd run --`."""
        said_by([*before, "cmake", "-S", str(self.source), "-B", str(self.build), "-G", "Ninja", *options], environ)

    def targets(self, sources: Sequence[str]) -> list[str]:
        """The objects of these sources, which are named by the ends of their paths."""
        listed = subprocess.run(
            ["ninja", "-C", str(self.build), "-t", "targets", "all"], capture_output=True, text=True, check=True
        ).stdout
        known = [line.partition(":")[0] for line in listed.splitlines() if line.partition(":")[0].endswith(".o")]
        found = [next((name for name in known if name.endswith(f"/{source}.o")), "") for source in sources]
        if "" in found:
            raise SystemExit(f"the tree has no object of {sources[found.index('')]}")
        return found

    def objects(self) -> dict[str, Path]:
        """What was built so far, by its path below the build folder."""
        found = {str(path.relative_to(self.build)): path for path in self.build.rglob("*.o")}
        return {name: path for name, path in found.items() if not re.match(r"CMakeFiles/([0-9.]+|CMakeScratch)/", name)}


def differences(plain: Part, ours: Part, cuobjdump: str) -> Iterator[str]:
    """Each section of machine code that differs, with its object."""
    theirs = plain.objects()
    for name, path in ours.objects().items():
        left, right = (_code(each, cuobjdump) for each in (theirs[name], path))
        yield from (
            f"{name}: {section}" for section in sorted({*left, *right}) if left.get(section) != right.get(section)
        )


def _code(path: Path, cuobjdump: str) -> dict[str, list[bytes]]:
    """The code of an object, and of each cubin in it, by its section's name."""
    found = _sections(path, "")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([cuobjdump, "-xelf", "all", str(path)], cwd=folder, capture_output=True, check=False)
        for cubin in sorted(Path(folder).iterdir()):
            found |= _sections(cubin, f"{''.join(re.findall(r'sm_[0-9a-z]+', cubin.name))} ")
    return found


def _sections(path: Path, before: str) -> dict[str, list[bytes]]:
    listed = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True, errors="replace", check=True)
    content, found = path.read_bytes(), dict[str, list[bytes]]()
    for name, kind, offset, size in _SECTION.findall(listed.stdout):
        if name.startswith(_CODE) and kind != "NOBITS":
            begin = int(offset, 16)
            plain = re.sub(r"\d+(?=_INTERNAL_|_GLOBAL__N__)", "", _ID.sub(r"\1\2", name))
            found.setdefault(before + plain, []).append(content[begin : begin + int(size, 16)])
    return {name: sorted(parts) for name, parts in found.items()}
