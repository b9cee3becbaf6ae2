"""Several long builds at once, in turns of a moment each: while one runs, the others are frozen.

Builds of a minute, one after another, meet another machine each time (clock rates, neighbours): their times differ by
more than what is measured. In turns all meet the same. Needs a freezer cgroup (v1, or v2) that this user may make;
where there is none they come one after another.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from common import Cost

TURN_S = 0.25


class Freezer:
    """A cgroup whose processes can all be stopped at once. Raises OSError where none can be made."""

    def __init__(self, name: str) -> None:
        text = Path("/proc/mounts").read_text()
        mounts = [found.groups() for found in re.finditer(r"^\S+ (\S+) (cgroup2?) (\S+)", text, re.M)]
        old = [Path(place) for place, kind, options in mounts if kind == "cgroup" and "freezer" in options.split(",")]
        new = [Path(place) for place, kind, _ in mounts if kind == "cgroup2"]
        if not old + new:
            raise OSError("no cgroup file system is mounted")
        self._folder = (old + new)[0] / f"buildd-{os.getpid()}-{name}"
        self._folder.mkdir()
        self._control, self._words = ("freezer.state", ("THAWED", "FROZEN")) if old else ("cgroup.freeze", ("0", "1"))
        self._since_s = 0.0
        self._stopped_s = 0.0

    def take(self, pids: Sequence[int]) -> None:
        """Take processes in; what they start from now on comes with them."""
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def around(self, command: Sequence[str]) -> list[str]:
        """A command line that does the same inside."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def freeze(self) -> None:
        self._since_s = time.perf_counter()
        (self._folder / self._control).write_text(self._words[1])

    def thaw(self) -> None:
        (self._folder / self._control).write_text(self._words[0])
        if self._since_s:
            self._stopped_s += time.perf_counter() - self._since_s
        self._since_s = 0.0

    @property
    def stopped_s(self) -> float:
        """Seconds for which it has been frozen so far."""
        return self._stopped_s

    def release(self) -> None:
        """Move the processes that are inside out, and let them go on."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended
                (self._folder.parent / "cgroup.procs").write_text(pid)

    def close(self) -> None:
        """Let it go; what is still inside is ended, where the benchmark was broken off."""
        self.thaw()
        begun_s = time.monotonic()
        while inside := (self._folder / "cgroup.procs").read_text().split():
            if time.monotonic() > begun_s + 5:
                for pid in inside:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        self._folder.rmdir()


@contextmanager
def freezers(names: Sequence[str]) -> Iterator[dict[str, Freezer]]:
    """One for each name. Raises OSError where this machine has none."""
    made: dict[str, Freezer] = {}
    try:
        for name in names:
            made[name] = Freezer(name)
        yield made
    finally:
        for freezer in made.values():
            freezer.close()


def may_freeze() -> str:
    """Why there are no freezers here; empty where there are."""
    try:
        with freezers(("try",)) as made:
            made["try"].freeze()
    except OSError as error:
        return str(error)
    return ""


def in_turns(contestants: Mapping[str, Callable[[], Cost]], freezer_of: Mapping[str, Freezer]) -> dict[str, Cost]:
    """Run contestants at once, each only in its own turns; their costs, the wall time without the others' turns.

    Args:
        contestants: each runs its command inside of its freezer (`Freezer.around`).
    """
    costs: dict[str, Cost] = {}

    def one(name: str) -> None:
        freezer, before_s = freezer_of[name], freezer_of[name].stopped_s
        cost = contestants[name]()
        costs[name] = Cost(cost.wall_s - (freezer.stopped_s - before_s), cost.cpu_s)

    threads = {name: threading.Thread(target=one, args=(name,), daemon=True) for name in contestants}
    line = list(contestants)
    for name in line[1:]:
        freezer_of[name].freeze()
    for thread in threads.values():
        thread.start()
    while line:
        active = line.pop(0)
        threads[active].join(TURN_S)
        if threads[active].is_alive():
            if line:
                freezer_of[active].freeze()
            line.append(active)
        if line:
            freezer_of[line[0]].thaw()
    if len(costs) != len(contestants):
        raise SystemExit("one of the builds failed")
    return costs
