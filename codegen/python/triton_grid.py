"""The configurations of a Triton target: each list among its constants and launch settings is an axis of a grid.

Knows no architecture and no Triton; a configuration is numbers and a label.
"""

from __future__ import annotations

import itertools
import re
from typing import NoReturn

from codegen.errors import RequestError
from codegen.plan import Frozen
from codegen.project.target import TritonTarget, TritonValue

MOST = 256
"""Configurations of one target; each is a compile for each architecture."""
_SETTINGS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_MOST_REGISTERS = 255


class TritonConfig(Frozen, frozen=True):
    """One configuration of a kernel."""

    constants: dict[str, TritonValue]
    num_warps: int
    num_stages: int
    num_ctas: int
    maxnreg: int
    label: str = ""
    """What distinguishes it in its target: "BLOCK=512,num_warps=8"; empty if the target has one configuration."""

    @property
    def suffix(self) -> str:
        """The label as part of a file's name, with a dot before it; empty if there is no label."""
        return "." + re.sub(r"[^\w.,+-]", "-", self.label) if self.label else ""


def configurations(target: TritonTarget) -> tuple[TritonConfig, ...]:
    """Return all combinations, the last axis changing fastest.

    Raises:
        RequestError: bad-project.
    """
    axes: dict[str, tuple[TritonValue, ...]] = {}
    for name, value in target.constants.items():
        axes[name] = tuple(value) if isinstance(value, list) else (value,)
    for name in _SETTINGS:
        if name in axes:
            _refuse(target, f"{name} is a setting of the launch, not a constant", f"write {name} beside `constants`")
        value = getattr(target, name)
        axes[name] = value if isinstance(value, tuple) else (value,)
    for name, values in axes.items():
        if not values:
            _refuse(target, f"{name} has an empty list of values", "name at least one value")
        if len({(type(value), value) for value in values}) < len(values):
            _refuse(target, f"{name} has a value twice", "remove one of the two")
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST:
        _refuse(target, f"its lists make {count} configurations", f"shorten them: {MOST} are the most")
    found = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = ",".join(f"{name}={chosen[name]}" for name in axes if len(axes[name]) > 1)
        launch = {name: chosen.pop(name) for name in _SETTINGS}
        _check(target, launch)
        found.append(TritonConfig(constants=chosen, label=label, **launch))  # type: ignore[arg-type]
    if len({config.suffix for config in found}) < len(found):
        _refuse(target, "two configurations would write the same files", "give their constants other values")
    return tuple(found)


def check_for(target: TritonTarget, config: TritonConfig, arch: str) -> None:
    """Check a configuration for an architecture. Raises RequestError: bad-project."""
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if config.num_ctas > 1 and number is not None and int(number[1]) < 90:
        _refuse(target, f"num_ctas = {config.num_ctas} needs sm_90 or newer, not {arch}", "remove it, or the arch")
    if config.maxnreg and number is None:
        _refuse(target, f"maxnreg is for NVIDIA's GPUs, not for {arch}", "make a target for each vendor")


def _check(target: TritonTarget, launch: dict[str, TritonValue]) -> None:
    for name, value in launch.items():
        if not isinstance(value, int) or isinstance(value, bool):
            _refuse(target, f"{name} must be an integer, not {value!r}", "correct it")
    warps, stages, ctas, registers = (int(launch[name]) for name in _SETTINGS)
    if not 1 <= warps <= 32 or warps & (warps - 1):
        _refuse(target, f"num_warps must be a power of two up to 32, not {warps}", "correct it")
    if stages < 1:
        _refuse(target, f"num_stages must be at least 1, not {stages}", "correct it")
    if not 1 <= ctas <= 16 or ctas & (ctas - 1):
        _refuse(target, f"num_ctas must be a power of two up to 16, not {ctas}", "correct it")
    if not 0 <= registers <= _MOST_REGISTERS:
        _refuse(
            target, f"maxnreg must be from 1 to {_MOST_REGISTERS}, or 0 for no limit, not {registers}", "correct it"
        )


def _refuse(target: TritonTarget, message: str, next_step: str) -> NoReturn:
    raise RequestError("bad-project", f'target "{target.name}": {message}', file=target.where, next_step=next_step)
