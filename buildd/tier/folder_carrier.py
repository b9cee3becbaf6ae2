"""A folder as a carrier: NFS, a volume that CI mounts, a disk that was cloned.

Laid out as Bazel's disk cache: `cas/ab/abcd...`. An object appears by rename, so two writers leave one whole object.
Nothing is flushed to the disk: a torn object has another digest, or no signature, and is a miss.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from buildd.tier.carrier import MAX_OBJECT_BYTES, Carrier, CarrierError, LargeObject, ObjectKind, Patience, Trouble
from codegen.reach import read_regular

_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FolderCarrier(Carrier):
    """A folder, which must exist: an absent one is a volume that is not mounted."""

    words = "a folder"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        patience.left_s()
        place = self._place(kind, name)
        try:
            return read_regular(str(place), most_bytes)
        except FileNotFoundError:
            if os.path.isdir(self._folder):
                return None
            raise CarrierError(Trouble.UNREACHABLE, f"there is no folder {self._folder}") from None
        except OSError as error:
            if _size_of(place) > most_bytes:
                raise LargeObject from error
            raise _trouble(error) from error

    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        patience.left_s()
        place = self._place(kind, name)
        temporary = place.with_name(f".{name}-{os.getpid()}-{os.urandom(6).hex()}")
        try:
            if not os.path.isdir(self._folder):
                raise CarrierError(Trouble.UNREACHABLE, f"there is no folder {self._folder}")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                os.replace(temporary, place)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError as error:
            raise _trouble(error) from error

    def _place(self, kind: ObjectKind, name: str) -> Path:
        return self._folder / kind.value / name[:2] / name


def _size_of(place: Path) -> int:
    try:
        return os.stat(place).st_size
    except (OSError, ValueError):
        return 0


def _trouble(error: OSError) -> CarrierError:
    if error.errno in _RIGHTS:
        return CarrierError(Trouble.RIGHTS, error.strerror or "")
    if error.errno in _FULL:
        return CarrierError(Trouble.FULL, error.strerror or "")
    return CarrierError(Trouble.UNREACHABLE, error.strerror or "")
