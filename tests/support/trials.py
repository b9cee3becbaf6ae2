"""Numbered random trials of a campaign: seeds, bounds, and the smallest script that shows a failure again.

A trial is a list of steps, each of which JSON can hold: what is drawn is what a script carries out. Trial N of seed S
is always the same, whatever ran before. Knows nothing of what is tried.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

Steps = list[Any]
MINIMISE_S = 60.0
_MOST_FAULTS = 20


def parser(doc: str | None, *, trials: int) -> argparse.ArgumentParser:
    """A parser with the options that all campaigns of trials share."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--trials", type=int, default=trials, metavar="N")
    made.add_argument(
        "--seconds", type=float, default=0.0, metavar="S", help="stop after so long; 0: when all are done"
    )
    made.add_argument("--seed", type=int, default=None, metavar="N")
    made.add_argument("--steps", default="", metavar="JSON", help="carry out these steps alone")
    made.add_argument("--out", type=Path, default=Path("build/campaign"), help="folder of the scripts of failures")
    return made


def hold(
    name: str,
    options: argparse.Namespace,
    draw: Callable[[random.Random], Steps],
    check: Callable[[Steps], list[str]],
    passed: Sequence[str] = (),
) -> int:
    """Carry out the trials that the options ask for, and print faults and the seed; how many trials had a fault.

    Args:
        name: of the script in scripts/campaign.
        draw: the steps of a trial.
        check: carries steps out and returns what is wrong; must not depend on earlier trials.
        passed: options that the script of a failure needs, too.
    """
    if options.steps:
        faults = check(json.loads(options.steps))
        print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault")
        return len(faults)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    print(f"{name}: seed {seed}", flush=True)
    begun_s = time.monotonic()
    done = bad = 0
    while done < options.trials and bad < _MOST_FAULTS:
        if options.seconds and time.monotonic() - begun_s > options.seconds:
            break
        steps = draw(random.Random(f"{seed}/{done}"))
        if faults := check(steps):
            bad += 1
            smallest = minimised(steps, lambda some: bool(check(some)), within_s=MINIMISE_S)
            script = _write(options.out, f"{name}-{seed}-{done}", name, smallest, passed)
            print("\n".join(f"FAULT in trial {done}: {fault}" for fault in faults) + f"\n  again: {script}", flush=True)
        done += 1
    early = "" if done >= options.trials else f" (stopped before {options.trials})"
    print(
        f"{name}: {done} trials{early}, {bad} with faults, {time.monotonic() - begun_s:.0f} s, seed {seed}", flush=True
    )
    return bad


def minimised(steps: Steps, fails: Callable[[Steps], bool], *, within_s: float) -> Steps:
    """The fewest steps found that still fail: pieces are left out, halves first. At least one is kept."""
    deadline_s = time.monotonic() + within_s
    size = len(steps) // 2
    while size >= 1:
        at = 0
        while at < len(steps) and len(steps) > 1:
            fewer = [*steps[:at], *steps[at + size :]]
            if time.monotonic() > deadline_s:
                return steps
            if fewer and fails(fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def _write(folder: Path, file: str, name: str, steps: Steps, passed: Sequence[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / file
    command = [sys.executable, str(ROOT / "scripts/campaign" / name), *passed, "--steps", json.dumps(steps)]
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    script.chmod(0o755)
    return script
