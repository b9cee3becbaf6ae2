"""Applies AITemplate's variables, and those of devices and clusters, to a request for buildd's own targets.

Knows no toolchain and no target. AITemplate's defaults (fast math, -O3, NDEBUG) apply to AITemplate-shaped targets; on
other targets a variable acts only if it is set.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from codegen.errors import RequestError
from codegen.plan import Recompile
from codegen.variables.settings import Resolved, Settings
from codegen.variables.variable import shown

Platform = Literal["cuda", "hip"]

_DEBUG_LEVELS = {"0": (), "1": ("-lineinfo",), "2": ("-g", "-G")}
_PTXAS_INFO = (
    "--ptxas-options=--warn-on-local-memory-usage",
    "--ptxas-options=--warn-on-spills",
    "--resource-usage",
    "--source-in-ptx",
)
_PATH_SENSITIVE = ("-g", "-G", "-lineinfo", "--generate-line-info", "--device-debug", "--debug", "--source-in-ptx")


@dataclass(frozen=True, slots=True)
class AITemplateFlags:
    """The additions of the variables to a compile."""

    flags: tuple[str, ...] = ()
    """Added flags, other than `optimization`."""
    optimization: tuple[str, ...] | None = None
    """Replaces the target's own -O, because nvcc refuses two of them; None if no variable sets it."""
    host_compiler: str = ""
    """Value of -ccbin; empty if no variable sets it."""
    device_lto: bool = False
    """Adds lto_<arch> to the code of each -gencode."""
    keep_ptx: bool = False
    """The annotated PTX of each source is an artifact too."""
    path_sensitive: bool = False
    """A flag puts absolute paths into the result."""
    applied: tuple[str, ...] = ()
    """A line for each variable that acts, for `explain` and notices: "AIT_NDEBUG=1 (environment): -DNDEBUG"."""


class _Collector:
    """Reads variables one by one and records which of them acted, and how."""

    def __init__(self, settings: Settings, aitemplate_shaped: bool) -> None:
        self._settings = settings
        self._shaped = aitemplate_shaped
        self.flags: list[str] = []
        self.applied: list[str] = []

    def ask(self, name: str) -> Resolved | None:
        """Return the variable, or None if it must not act."""
        resolved = self._settings.value(name)
        return resolved if resolved.is_set or self._shaped else None

    def say(self, resolved: Resolved, effect: Sequence[str]) -> None:
        if resolved.is_set:
            self.applied.append(f"{resolved.origin}: {shlex.join(effect) or 'no flag'}")

    def add(self, name: str, flags: Sequence[str]) -> bool:
        """Add `flags` if the switch is on. Returns whether it is on."""
        resolved = self.ask(name)
        if resolved is None:
            return False
        effect = tuple(flags) if resolved.value is True else ()
        self.flags += effect
        self.say(resolved, effect)
        return resolved.value is True


def aitemplate_flags(
    settings: Settings, platform: Platform, *, aitemplate_shaped: bool, own: Sequence[str] = ()
) -> AITemplateFlags:
    """Return the flags that AITemplate's variables of class key stand for.

    Args:
        settings: the request's variables.
        platform: some variables apply to CUDA only.
        aitemplate_shaped: AITemplate's defaults apply; otherwise only variables that are set act.
        own: the target's own flags; its -O goes before AITemplate's default.

    Raises:
        RequestError: "bad-variable".
    """
    asked = _Collector(settings, aitemplate_shaped)
    optimization: tuple[str, ...] | None = None
    level = asked.ask("AIT_COMPILER_OPT")
    if level is not None and (level.is_set or not any(flag.startswith(("-O", "--optimize")) for flag in own)):
        optimization = level.value if isinstance(level.value, tuple) else ()
        asked.say(level, optimization)
    if platform == "hip":
        asked.add("AIT_NDEBUG", ("-DNDEBUG",))
        return AITemplateFlags(
            flags=tuple(asked.flags),
            optimization=optimization,
            path_sensitive=_shows_paths(optimization or ()),
            applied=tuple(asked.applied),
        )
    if (debug := asked.ask("AIT_CUDA_DEBUG_LEVEL")) is not None:
        words = _debug_words(debug)
        asked.flags += words
        asked.say(debug, words)
    keep_ptx = asked.add("AIT_ENABLE_PTXAS_INFO", _PTXAS_INFO)
    if (trace := asked.ask("CUTLASS_DEBUG_TRACE_LEVEL")) is not None:
        define = f"-DCUTLASS_DEBUG_TRACE_LEVEL={trace.value}"
        asked.flags.append(define)
        asked.say(trace, (define,))
    asked.add("AIT_NDEBUG", ("-DNDEBUG",))
    asked.add("AIT_USE_FAST_MATH", ("--use_fast_math", "-DAIT_USE_FAST_MATH=1"))
    asked.add("AIT_USE_TANH_FOR_SIGMOID", ("-DAIT_USE_TANH_FOR_SIGMOID=1", "-DCUTLASS_USE_TANH_FOR_SIGMOID=1"))
    device_lto = settings.value("AIT_ENABLE_CUDA_LTO")
    asked.say(device_lto, ("lto_<arch>",) if device_lto.value else ())
    host = settings.value("AIT_NVCC_CCBIN")
    asked.say(host, ("-ccbin", host.raw))
    return AITemplateFlags(
        flags=tuple(asked.flags),
        optimization=optimization,
        host_compiler=host.raw,
        device_lto=device_lto.value is True,
        keep_ptx=keep_ptx,
        path_sensitive=_shows_paths((*asked.flags, *(optimization or ()))),
        applied=tuple(asked.applied),
    )


def _shows_paths(flags: Sequence[str]) -> bool:
    return any(flag in _PATH_SENSITIVE or flag.startswith("-g") for flag in flags)


def _debug_words(debug: Resolved) -> tuple[str, ...]:
    raw = debug.raw.strip()
    if raw in _DEBUG_LEVELS:
        return _DEBUG_LEVELS[raw]
    try:
        words = tuple(shlex.split(raw))
    except ValueError as error:
        raise _bad_debug(debug) from error
    # AITemplate asserts on a number above 2; nvcc would read a word that is not an option as a file.
    if any(not word.startswith("-") for word in words[:1]):
        raise _bad_debug(debug)
    return words


def _bad_debug(debug: Resolved) -> RequestError:
    return RequestError(
        "bad-variable",
        f'{debug.name}={shown(debug.raw)} cannot be read; accepted: 0, 1, 2 or options for nvcc such as "-lineinfo"',
        next_step=f"unset {debug.name} or give it another value",
    )


def job_cap(settings: Settings) -> int | None:
    """Return the most jobs of the request at once (NUM_BUILDERS, SLURM_CPUS_ON_NODE); None if neither is set."""
    caps = [cap for name in ("NUM_BUILDERS", "SLURM_CPUS_ON_NODE") if (cap := settings.number(name)) is not None]
    return min(caps, default=None)


def recompiles(settings: Settings) -> Recompile:
    """Return the meaning of AIT_RECOMPILE. If it is not set, content decides, unlike in AITemplate."""
    resolved = settings.value("AIT_RECOMPILE")
    if not resolved.is_set:
        return Recompile.BY_CONTENT
    return Recompile.AGAIN if resolved.value is True else Recompile.NEVER


def visible_devices(settings: Settings, platform: Platform) -> tuple[str, ...] | None:
    """Return the GPUs that the request may profile on, by the request's numbering. None means all, an empty tuple none.

    HIP obeys CUDA_VISIBLE_DEVICES if HIP_VISIBLE_DEVICES is not set.
    """
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if platform == "hip" else ("CUDA_VISIBLE_DEVICES",)
    for name in names:
        resolved = settings.value(name)
        if resolved.is_set:
            return resolved.value if isinstance(resolved.value, tuple) else None
    return None


def step_line(name: str, wall_s: float, peak_rss_bytes: int) -> str:
    """Return AIT_TIME_COMPILATION's line for one step of a job. A step whose result was found took no time."""
    return f"  step {name}: elapsed_sec={wall_s:.2f} peak_rss_kib={peak_rss_bytes // 1024}"


def time_line(
    argv: Sequence[str],
    *,
    exit_status: int,
    wall_s: float,
    user_s: float,
    system_s: float,
    peak_rss_bytes: int,
) -> str:
    """Return AIT_TIME_COMPILATION's line for one job: GNU time's fields as in AITemplate, then buildd's own figures."""
    return (
        f'exit_status={exit_status} elapsed_sec={wall_s:.2f} argv="{shlex.join(argv)}"'
        f" user_sec={user_s:.2f} system_sec={system_s:.2f} peak_rss_kib={peak_rss_bytes // 1024}"
    )
