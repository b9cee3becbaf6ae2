"""The GPUs of this machine: which there are, which a request may use, and who measures on one right now.

Knows nvidia-smi and kernel locks; starts no context on a GPU, so that it disturbs nobody's measurement. A lease is a
lock on a file named after the GPU's UUID in a folder that all users share: it ends with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

LEASES = "/dev/shm/buildd-gpus"
_MEMORY = "gpus.json"
_QUERY = "index,uuid,name,driver_version,compute_cap"
_ASK_S = 20.0
_POLL_S = 0.02


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    index: int
    uuid: str
    name: str
    driver: str
    capability: str
    """"9.0"."""


def find_gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str]:
    """All GPUs of this machine, and why there is none; the reason is empty where there is one.

    Args:
        environ: PATH is searched for nvidia-smi.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return (), "there is no nvidia-smi here, so no driver"
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi does not answer: {error}"
    if done.returncode:
        return (), f"nvidia-smi: {(done.stdout + done.stderr).strip()[:200]}"
    found = tuple(gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None)
    return found, "" if found else "nvidia-smi lists no GPU"


class _Seen(msgspec.Struct, frozen=True):
    machine: str
    gpus: tuple[Gpu, ...]


def remember(store: Path, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
    """Note what `find_gpus` has found, for `recall`. Nobody may rely on it: where it cannot be written, it is not."""
    place = store / "profiles" / _MEMORY
    aside = place.with_name(f".{_MEMORY}-{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.write_bytes(msgspec.json.encode(_Seen(_machine(environ), tuple(gpus))))
        aside.replace(place)


def recall(store: Path, environ: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """The GPUs that were found here last, without asking; None where this may be another machine or driver."""
    try:
        seen = msgspec.json.decode((store / "profiles" / _MEMORY).read_bytes(), type=_Seen)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return seen.gpus if seen.machine == _machine(environ) else None


def _machine(environ: Mapping[str, str]) -> str:
    """What is another one after a restart, with another driver, or in a container that is given other GPUs."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath)) or ""
    words: list[object] = [program]
    with contextlib.suppress(OSError):
        status = os.stat(program)
        words += [status.st_ino, status.st_size, status.st_mtime_ns]
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        words += sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    return " ".join(map(str, words))


def visible(gpus: Sequence[Gpu], devices: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Those that a request may use, in its order; one that is not there hides itself and all that follow (CUDA's rule).

    Args:
        devices: numbers or UUIDs, which may be cut short; None means all.
    """
    if devices is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for device in devices:
        if device.isdecimal():
            matching = [gpu for gpu in gpus if gpu.index == int(device)]
        else:
            matching = [gpu for gpu in gpus if gpu.uuid.startswith(device)]
        if len(matching) != 1 or matching[0] in found:
            break
        found += matching
    return tuple(found)


def strangers(gpu: Gpu, environ: Mapping[str, str]) -> int:
    """How many processes compute on a GPU now; 0 where that cannot be told."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return 0
    command = [program, f"--id={gpu.uuid}", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.strip().isdecimal() for line in done.stdout.splitlines()) if done.returncode == 0 else 0


@contextlib.asynccontextmanager
async def lease(gpu: Gpu, folder: str = LEASES) -> AsyncIterator[None]:
    """One at a time measures on a GPU, whatever user or daemon it is of. Waits for its turn; without a folder that
    can be shared it does not."""
    descriptor = _open(gpu, folder)
    try:
        while descriptor >= 0:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
            except OSError:
                break  # a file system without locks
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open(gpu: Gpu, folder: str) -> int:
    name = "".join(letter for letter in gpu.uuid if letter.isalnum() or letter == "-")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o1777)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(os.path.join(folder, name), flags)
        except FileNotFoundError:
            # Anybody may lock what they can read: no one has to write.
            return os.open(os.path.join(folder, name), flags | os.O_CREAT, 0o644)
    except OSError:
        return -1


def _gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5 or not parts[0].isdecimal() or not parts[1]:
        return None
    return Gpu(index=int(parts[0]), uuid=parts[1], name=parts[2], driver=parts[3], capability=parts[4])
