"""Chooses the kernel of a GEMM target: the one that the project names, the best measured one, or the default.

Knows the files of best kernels and, for a target with the key `profile`, the ranking; knows no GPU. Every choice
computes the same and is part of the generated text, so no key depends on anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from codegen.context import Context
from codegen.errors import RequestError
from codegen.gemm import best_kernels as best
from codegen.gemm.arch_rules import is_amd, wrong
from codegen.gemm.candidates import candidates
from codegen.gemm.capability import height
from codegen.gemm.convolution import ImplicitGemm, gemm_sizes
from codegen.gemm.kernel import ARCH_100
from codegen.gemm.kernel_options import (
    Sizes,
    candidate_from,
    flags_of,
    is_open,
    library_version,
    problem_of,
    runs_in_ci,
    smallest,
)
from codegen.gemm.spec import is_measurable, kernel_for
from codegen.plan import Frozen, Unmeasured
from codegen.project.target import GemmTarget


class Choice(Frozen, frozen=True):
    """A target with the kernel chosen for one architecture."""

    target: GemmTarget
    read: tuple[str, ...] = ()
    notice: str = ""
    wanted: bool = False
    """The kernel is to be measured before the build, if there is such a GPU."""
    guessed: bool = False
    """The kernel is the likeliest one, because none was measured."""


def chosen(context: Context, target: GemmTarget, arch: str) -> Choice:
    """Return a target's kernel for an architecture.

    Raises:
        ProbesNeeded; RequestError: "bad-gemm"; "not-profiled" if AIT_FORCE_PROFILER_CACHE requires a profile and there
        is none.
    """
    variables = context.variables
    sizes = declared_sizes(target) if target.profile else None
    if arch == ARCH_100:
        words = f"{target.name}: the kernel for {arch} was only ever compiled, never run or measured"
        return Choice(target=target, notice=words)
    if not is_open(target):
        return Choice(target=target)
    if runs_in_ci(variables):
        small = smallest(target, arch)
        return Choice(
            target=small.of(target), notice=f"{target.name}: CI_FLAG=CIRCLECI: the smallest kernel for {arch}"
        )
    request, amd = context.request, is_amd(arch)
    places = best.folders(request.environment, request.store, request.project)
    found = best.choose(
        best.published(places),
        problem_of(target, arch),
        toolkit=(context.toolchains.hip() if amd else context.toolchains.cuda()).version,
        library="" if amd else library_version(context.toolchains.cutlass()),
        flags=flags_of(context, target, hip=amd),
        capability=arch.partition(":")[0] if amd else f"{int(re.sub(r'[^0-9]', '', arch)) / 10:.1f}",
    )
    read = tuple(f"{place}/{best.FILE}" for place in places)
    again = variables.is_on("FORCE_PROFILE") and sizes is not None
    candidate = candidate_from(found.candidate) if found is not None else None
    if found is not None and candidate is not None:
        better = candidate.of(target)
        try:
            kernel_for(better, arch)
        except RequestError:
            pass  # written by a buildd with other rules
        else:
            where = found.setting.gpu or "an imported profile"
            took = f", {found.time_us:.1f} us" if found.time_us else ""
            notice = f"{target.name}: {found.candidate} for {arch}, the best on {where}{took}"
            return Choice(target=better, read=read, notice=notice, wanted=again)
    if variables.is_on("AIT_FORCE_PROFILER_CACHE"):
        raise RequestError(
            "not-profiled",
            f'target "{target.name}": nothing was measured for {problem_of(target, arch)}, and'
            " AIT_FORCE_PROFILER_CACHE=1 requires a measurement",
            file=target.where,
            next_step=f"run `buildd profile {target.name}` on a machine with such a GPU, or unset the variable",
        )
    if sizes is None:
        return Choice(target=target, read=read)
    wanted = again or not variables.is_on("DISABLE_PROFILER_CODEGEN")
    return Choice(target=_likeliest(context, target, arch, sizes), read=read, wanted=wanted, guessed=True)


class ChosenForAll(Frozen, frozen=True):
    """A target with one kernel for all of its architectures."""

    target: GemmTarget
    choices: dict[str, tuple[Choice, ...]]
    """The choices for each architecture, for `unmeasured`."""
    notices: tuple[str, ...]
    read: tuple[str, ...]


def chosen_for_all(context: Context, target: GemmTarget, archs: tuple[str, ...]) -> ChosenForAll:
    """Return one kernel for all architectures: the best of the highest architecture with a measurement, if it fits all
    of them.

    Args:
        target: a valid target.

    Raises: as `chosen`.
    """
    choices = {arch: chosen(context, target, arch) for arch in sorted(archs, key=height, reverse=True)}
    others = [found for found in choices.values() if found.target != target and _fits(found, archs)]
    best = next((found for found in others if not found.guessed), others[0] if others else None)
    # If one is known, the other architectures need neither a guess nor a measurement before the build.
    known = best is not None and not best.guessed
    told = [found for found in choices.values() if found is best or found.target == target or not known]
    return ChosenForAll(
        target=best.target if best is not None else target,
        choices={arch: () if known and choices[arch].guessed else (choices[arch],) for arch in archs},
        notices=tuple(dict.fromkeys(found.notice for found in told if found.notice)),
        read=tuple(dict.fromkeys(path for found in choices.values() for path in found.read)),
    )


def _fits(found: Choice, archs: tuple[str, ...]) -> bool:
    try:
        for arch in archs:
            kernel_for(found.target, arch)
    except RequestError:
        return False
    return True


def _likeliest(context: Context, target: GemmTarget, arch: str, sizes: Sizes) -> GemmTarget:
    """Return the first kernel of the ranking; the default if CUTLASS has no lists, because that can be built, too."""
    try:
        ranked = candidates(context, target, arch, gemm_sizes(target, sizes))
    except RequestError as error:
        if error.code != "no-candidates":
            raise
        ranked = ()
    return ranked[0].candidate.of(target) if ranked else target


def declared_sizes(target: GemmTarget) -> Sizes:
    """Return the problem for measuring a target with the key `profile`. Raises RequestError with its kind's code."""
    names, fixed = size_names(target), fixed_sizes(target)
    given = target.profile if isinstance(target.profile, tuple) else fixed
    if not is_open(target):
        raise wrong(target, "it has the key `profile` but also names a kernel", "remove one of them")
    if not is_measurable(target):
        what = "groups and a second operand of the epilogue are not supported"
        raise wrong(target, f"it cannot be measured: {what}", "remove `profile`")
    if len(given) != len(names) or min(given) <= 0:
        raise wrong(
            target,
            f"`profile` needs a size for each of {', '.join(names)}",
            f"write for example profile = {list(typical_sizes(target))}",
        )
    if any(size not in (0, mine) for size, mine in zip(fixed, given, strict=True)):
        said = "shape says" if isinstance(target, ImplicitGemm) else "m, n, k say"
        raise wrong(target, f"profile = {list(given)} is not what {said}", "use profile = true if all sizes are fixed")
    return given


def size_names(target: GemmTarget) -> tuple[str, ...]:
    """Return the names of the sizes of a target's problems."""
    if isinstance(target, ImplicitGemm):
        return ("n", "height", "width", "channels")
    return (*(("batch",) if target.batched else ()), "m", "n", "k")


def fixed_sizes(target: GemmTarget) -> Sizes:
    """Return the sizes that a target fixes; 0 for a size that is known only at run time."""
    if isinstance(target, ImplicitGemm):
        return target.conv.shape
    return (*(0,) * target.batched, target.m, target.n, target.k)


def typical_sizes(target: GemmTarget) -> Sizes:
    """Return an example of a problem, for messages."""
    usual = {"batch": 16, "height": 56, "width": 56} | ({"n": 16} if isinstance(target, ImplicitGemm) else {})
    pairs = zip(size_names(target), fixed_sizes(target), strict=True)
    return tuple(size or usual.get(name, 4096) for name, size in pairs)


def unmeasured(name: str, archs: Sequence[str], choices: Mapping[str, Iterable[Choice]]) -> tuple[Unmeasured, ...]:
    """Return the `Unmeasured` of a target whose kernels were chosen.

    Args:
        choices: choices for each of its architectures.
    """
    wanted = tuple(arch for arch in archs if any(choice.wanted for choice in choices[arch]))
    guessed = tuple(arch for arch in archs if any(choice.guessed for choice in choices[arch]))
    if not wanted and not guessed:
        return ()
    return (Unmeasured(target=name, archs=tuple(archs), wanted=wanted, guessed=guessed),)
