"""Programs of torch in fresh processes, with local caches of their own: stock, and below `buildd run`.

Knows how a run is started and what it prints last (a line of JSON), how local caches are emptied, and where a store
says what was compiled. Nothing of what a program computes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.user import User

_LIMIT_S = 500.0


@dataclass
class Runner:
    """A way to run a program.

    Args:
        user: whose HOME and store it has.
        local: folder of the local caches. No blank in it: torch does not quote the paths of its commands.
        ours: it runs below `buildd run`.
    """

    user: User
    local: Path
    ours: bool

    def forget(self) -> None:
        """Empty all local caches, as on another machine."""
        # Not removed: for minutes ext4 looks at each inode that was freed before it takes another one.
        if self.local.exists():
            self.local.rename(self.local.with_name(f"former-{time.monotonic_ns()}"))

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start `python COMMAND...`."""
        (self.local / "tmp").mkdir(parents=True, exist_ok=True)
        through = (sys.executable, "-P", "-m", "buildd", "run", "--quiet", "--") if self.ours else ()
        return subprocess.Popen(
            [*through, sys.executable, "-W", "ignore", *command],
            cwd=self.user.folder,
            env={
                **os.environ,
                **self.user.environ,
                "PATH": os.environ["PATH"],
                "TORCHINDUCTOR_CACHE_DIR": str(self.local / "inductor"),
                "TRITON_CACHE_DIR": str(self.local / "triton"),
                # Inductor's precompiled header is below the temporary folder.
                "TMPDIR": str(self.local / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def told(name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a program, which must succeed, has printed last."""
    output, errors = process.communicate(timeout=_LIMIT_S)
    if process.returncode:
        raise SystemExit(f"{name}: ended with status {process.returncode}\n{output[-2000:]}\n{errors[-4000:]}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Compiled:
    """What was compiled through a user's store so far."""

    kernels: list[dict[str, Any]]
    """A line of `buildd explain --kernels` each, with Triton's key."""
    sources: int
    """Sources of C and C++: kernels for the CPU, and Triton's launchers, each time in another temporary folder."""

    def since(self, before: Compiled) -> Compiled:
        return Compiled(self.kernels[len(before.kernels) :], self.sources - before.sources)

    @property
    def keys(self) -> Counter[str]:
        return Counter(line["key"] for line in self.kernels)

    @property
    def figures(self) -> dict[str, int]:
        return {"kernels": len(self.keys), "compiles": len(self.kernels), "sources": self.sources}

    @property
    def said(self) -> str:
        return f"{len(self.kernels)} compiles of {len(self.keys)} kernels, {self.sources} C and C++ sources"


def compiled(user: User) -> Compiled:
    status, said = user.buildd("cache", "stats", "--json")
    if status:
        raise SystemExit(said)
    log = user.store / "triton-why" / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    kernels = [line for line in lines if line["target"] != "inductor"]
    return Compiled(kernels, int(json.loads(said)["counters"].get("misses", 0)))


def tell_others(alone: Compiled, together: Compiled) -> bool:
    """Print what several processes compiled beyond what one needs; whether they compiled none of it twice."""
    for line in together.kernels:
        times = together.keys[line["key"]]
        if times > 1 or line["key"] not in alone.keys:
            which = f"compiled {times} times" if times > 1 else "not compiled by one process"
            print(f"  {which}: {line['kernel']} for {line['target']}, {line['key'][:12]}: {'; '.join(line['reasons'])}")
    return max(together.keys.values(), default=0) <= 1
