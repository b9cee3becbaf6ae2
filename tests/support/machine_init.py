"""The first process of a machine of `machines`: sets the machine up and runs commands for a driver outside.

Runs as root in a kernel of its own. Its root is a private copy of the host's: what it writes, no other machine sees.
Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

PORT = 7000
SHARED = "/shared"
"""The folder that the server exports, and that clients mount."""
STATUS = b"\0status "
"""Ends what a command says; its exit status follows."""
MODULES = Path("/usr/lib/uml/modules")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LEASE_S = 10
"""So long after its start a server lets clients take back their locks, and does nothing else: the least for nfsd."""

_RNDADDENTROPY = 0x40085203
"""Source: random(4) and linux/random.h."""

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, data: str = "") -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    words = (source.encode(), target.encode(), kind.encode())
    if _libc.mount(*words, 0, data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {kind}: {os.strerror(ctypes.get_errno())}", target)


def call(*words: str) -> None:
    subprocess.run(words, check=True)


def take_private_root() -> None:
    """Put a folder in memory before the host's root, which is read-only, and make both the root."""
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/run", "tmpfs")
    (kernel,) = MODULES.iterdir()
    call("insmod", f"{kernel}/kernel/fs/overlayfs/overlay.ko")
    upper, work, root = "/run/upper", "/run/work", "/run/root"
    for folder in (upper, work):
        os.mkdir(folder)
    mount("overlay", root, "overlay", f"lowerdir=/,upperdir={upper},workdir={work}")
    for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("devpts", "/dev/pts")):
        mount(kind, root + place, kind)
    for place in ("/dev/shm", "/run", "/var/tmp", "/tmp", "/var/lib/nfs"):
        # What lies in the host's folders of this kind belongs to the host's processes, but for the sources of this one.
        if not str(Path(__file__)).startswith(f"{place}/"):
            mount("tmpfs", root + place, "tmpfs", "mode=1777")
    os.chroot(root)
    os.chdir("/")
    modules = Path("/run/modules/lib")
    modules.mkdir(parents=True)
    (modules / "modules").symlink_to(MODULES)


def load(module: str) -> None:
    call("modprobe", "-d", "/run/modules", module)


def be_random(seed: bytes) -> None:
    """Credit the kernel with random bits: without a device that makes some, those who ask wait for a minute."""
    with open("/dev/random", "wb") as device:
        fcntl.ioctl(device, _RNDADDENTROPY, struct.pack("ii", 8 * len(seed), len(seed)) + seed)


def join_network(address: str) -> None:
    # A server takes two clients of one name for one that has started again, and drops its locks and open files.
    socket.sethostname(f"machine-{address.rpartition('.')[2]}")
    for device, where in (("lo", "127.0.0.1/8"), ("vec0", f"{address}/24")):
        if device != "lo":
            call("ip", "addr", "add", where, "dev", device)
        call("ip", "link", "set", device, "up")


def serve_files() -> None:
    """Export the disk by NFS."""
    load("nfsd")
    mount("nfsd", "/proc/fs/nfsd", "nfsd")
    mount("/dev/ubda", SHARED, "ext4")
    os.chmod(SHARED, 0o777)
    for name in ("nfsv4leasetime", "nfsv4gracetime"):
        Path("/proc/fs/nfsd", name).write_text(str(_LEASE_S))
    for folder in ("v4recovery", "rpc_pipefs"):
        Path("/var/lib/nfs", folder).mkdir(exist_ok=True)
    for name in ("etab", "rmtab"):
        Path("/var/lib/nfs", name).touch()
    call("exportfs", "-i", "-o", "rw,no_root_squash,fsid=0,insecure,no_subtree_check", f"*:{SHARED}")
    call("rpcbind", "-w")
    call("rpc.mountd", "-V", "3", "-V", "4")
    call("rpc.nfsd", "-V", "3", "-V", "4", "-V", "4.2", "4")


def mount_files(server: str, options: str) -> None:
    load("nfs")
    load("nfsv4" if "vers=4" in options else "nfsv3")
    Path(SHARED).mkdir(exist_ok=True)
    place = "/" if "vers=4" in options else SHARED
    call("mount", "-t", "nfs", "-o", options, f"{server}:{place}", SHARED)


def answer(connection: socket.socket) -> None:
    """Run what a driver asks for, pass on what it says, and then its status; end it where the driver goes away."""
    with connection:
        with connection.makefile("rb") as stream:
            asked = json.loads(stream.readline())
        try:
            process = subprocess.Popen(
                asked["words"], cwd=asked["cwd"], env={"PATH": _PATH, **asked["environment"]},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            connection.sendall(f"{error}\n".encode() + STATUS + b"127\n")
            return
        with process:
            try:
                _pass_on(process, connection)
                connection.sendall(STATUS + f"{process.wait()}\n".encode())
            except ConnectionError:
                os.killpg(process.pid, signal.SIGKILL)


def _pass_on(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Pass on what a process says until it ends. Raises ConnectionError where the driver goes away first."""
    assert process.stdout is not None
    said, ended = process.stdout.fileno(), os.pidfd_open(process.pid)
    try:
        open_ends = [said, ended, connection.fileno()]
        while True:
            ready, _, _ = select.select(open_ends, (), ())
            if connection.fileno() in ready:
                raise ConnectionResetError
            if said in ready:
                if text := os.read(said, 1 << 16):
                    connection.sendall(text)
                else:
                    open_ends.remove(said)
            elif ended in ready:
                return  # a daemon that the process started may hold its output open
    finally:
        os.close(ended)


def main() -> None:
    role, address, server, options, seed = sys.argv[1:6]  # the kernel adds words of its own
    os.environ["PATH"] = _PATH
    take_private_root()
    be_random(bytes.fromhex(seed))
    join_network(address)
    if role == "server":
        serve_files()
    else:
        mount_files(server, options)
    listening = socket.create_server(("0.0.0.0", PORT), backlog=64)
    if os.fork() != 0:
        while True:
            os.wait()  # orphans come to the first process
    print("ready", flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
