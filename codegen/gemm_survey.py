"""What is to be profiled for GEMMs, of targets and of models: problems, candidates in their order, how each is built.

Knows requests and targets; builds and measures nothing (`buildd/profiling`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codegen import nvcc
from codegen.aitemplate_flags import visible_devices
from codegen.capability import best_arch
from codegen.compiled import asked_archs, needs_arch
from codegen.environment import Settings
from codegen.gemm_candidates import Ranked, candidates
from codegen.gemm_choice import Sizes, batch_of, flags_of, is_open, library_version, problem_of, runs_in_ci
from codegen.gemm_decision import chosen, declared_sizes
from codegen.gemm_spec import ARCH_100, Triple, is_measurable, kernel_for, output_type, tolerance
from codegen.generate import Context, context_for
from codegen.model import gemm_target, largest_of
from codegen.model_ops import GemmLaunch
from codegen.model_spec import read_model
from codegen.plain import is_hip
from codegen.plan import Frozen, Knowledge, RequestError
from codegen.project import load_project
from codegen.target import GemmTarget, ModelTarget, OutputKind, Target
from protocol.messages import Request

PREFIX = "try_"
"""Of the names of targets that are candidates."""
_KEYS = (
    *("dtype", "output_dtype", "accumulator", "layout", "epilogue", "batched", "split_k"),
    *("flags", "define", "map_paths"),
)


class Case(Frozen, frozen=True):
    """One problem on one architecture."""

    target: str
    arch: str
    problem: str
    sizes: Triple
    spec: GemmTarget
    """The target, its sizes as they are in the project."""
    ranked: tuple[Ranked, ...]
    batch: int = 0
    """How many of them; 0 where it is not a batched one."""

    @property
    def output(self) -> str:
        return output_type(self.spec)

    @property
    def tolerance(self) -> float:
        """Largest relative error that rounding explains."""
        return tolerance(self.spec)

    @property
    def operations(self) -> float:
        """Of floating point, or of integers."""
        m, n, k = self.sizes
        return 2.0 * m * n * k * max(1, self.batch)

    @property
    def dimensions(self) -> str:
        """ "4096x4096x4096", of a batched one with how many before it."""
        return "x".join(map(str, (*((self.batch,) if self.batch else ()), *self.sizes)))


class Survey(Frozen, frozen=True):
    """Everything that a request asks to be profiled."""

    cases: tuple[Case, ...]
    toolkit: str
    library: str
    flags: dict[str, str]
    """Target -> what its kernels are compiled with."""
    build: str
    """Folder of all outputs, relative to the project."""
    cuda: str
    """The toolkit's folder."""
    host_compiler: str
    devices: tuple[str, ...] | None
    """The GPUs that may be used, as the request numbers them; None means all."""
    environment: dict[str, str]
    no_candidates: bool
    """DISABLE_PROFILER_CODEGEN: what is known has to do."""
    continuous_integration: bool
    """CI_FLAG: nothing is measured."""
    again: bool
    """FORCE_PROFILE."""
    only_known: bool
    """AIT_FORCE_PROFILER_CACHE."""
    notices: tuple[str, ...] = ()
    """For people: what is left out."""


def survey(
    request: Request,
    knowledge: Knowledge,
    problems: Sequence[Sizes] = (),
    *,
    ranks: bool = True,
    first_on: str = "",
) -> Survey:
    """What a request's targets need.

    Args:
        problems: sizes for targets that leave some open; of these the first that fits a target's fixed ones counts. A
            model's GEMMs have the largest of its sizes where none does.
        ranks: what could be tried is asked for; without, the targets are as the project has them.
        first_on: compute capability; then only what is to be measured on such a GPU before it is built, which
            targets say themselves (key `profile`), also those in `deps`.

    Raises:
        ProbesNeeded; RequestError: a target is no GEMM, names its kernel itself, or leaves a size open.
    """
    context, project = context_for(request, knowledge)
    variables = context.variables
    gemms: list[GemmTarget] = []
    largest: dict[str, Sizes] = {}
    others: list[Target] = []
    for wanted in project.targets:
        if not (getattr(wanted, "profile", False) if first_on else wanted.name in project.asked):
            continue
        of_model = _of_model(context, wanted) if isinstance(wanted, ModelTarget) and ranks else {}
        largest |= {gemm.name: sizes for gemm, sizes in of_model.items()}
        gemms += [wanted] if isinstance(wanted, GemmTarget) else of_model
        others += [] if isinstance(wanted, GemmTarget) or of_model else [wanted]
    if others and not first_on and (request.targets or not gemms):
        raise RequestError(
            "not-profilable",
            f'target "{others[0].name}" has no GEMM that can be measured',
            file=others[0].where,
            next_step='name targets of kind "gemm", or "model" with such operations',
        )
    gemms = [gemm for gemm in gemms if gemm.profile] if first_on else gemms
    for target in gemms:
        _check_measurable(target)
    _check(variables)
    compiler = context.toolchains.cuda()
    cases: list[Case] = []
    unknown: list[str] = []
    for target in gemms:
        archs = asked_archs(context, target, amd=False)
        needs_arch(target, archs, "sm_80")
        sizes = _sizes(target, (*problems, largest[target.name]) if target.name in largest else problems)
        archs = nvcc.normalised(archs, target.where)
        if first_on:
            arch = best_arch(archs, first_on)
            archs = (arch,) if arch and chosen(context, target, arch).wanted else ()
        for arch in archs:
            kernel_for(target, arch)
            if arch == ARCH_100:
                unknown.append(target.name)
                continue
            spec = _blank(target) if ranks else target
            ranked = candidates(context, spec, arch, sizes) if ranks else ()
            size = (sizes[-3], sizes[-2], sizes[-1])
            cases.append(Case(target.name, arch, problem_of(_blank(target), arch), size, spec, ranked, batch_of(sizes)))
    if unknown and not cases:
        raise RequestError(
            "not-profilable",
            f'target "{unknown[0]}": kernels for {ARCH_100} are compiled only, there is nothing to choose from',
            next_step="name another architecture with --arch",
        )
    forced = variables.is_on("FORCE_PROFILE")
    return Survey(
        cases=tuple(cases),
        toolkit=compiler.version,
        library=library_version(context.toolchains.cutlass()),
        flags={target.name: flags_of(context, target) for target in gemms},
        build=context.build,
        cuda=dict(compiler.tool.roots).get("cuda", ""),
        host_compiler=context.settings.host_compiler,
        devices=visible_devices(variables, "cuda"),
        environment=dict(context.environment),
        no_candidates=variables.is_on("DISABLE_PROFILER_CODEGEN") and not forced,
        continuous_integration=runs_in_ci(variables),
        again=forced,
        only_known=variables.is_on("AIT_FORCE_PROFILER_CACHE"),
        notices=tuple(f"{name}: kernels for {ARCH_100} are compiled only, and not profiled" for name in unknown),
    )


def check_watched(request: Request) -> None:
    """Refuse targets that a watch cannot measure. A mistake in the project file is its builds' to tell.

    Raises: RequestError.
    """
    try:
        project = load_project(request)
    except RequestError:
        return
    for target in project.targets:
        if target.name not in project.asked:
            continue
        if not isinstance(target, GemmTarget):
            model = "; `buildd profile` measures a model's GEMMs" if isinstance(target, ModelTarget) else ""
            raise RequestError(
                "not-profilable",
                f'target "{target.name}" cannot be measured: --profile of a watch is for kind "gemm"',
                file=target.where,
                next_step=f"name targets of that kind, or leave --profile out{model}",
            )
        _check_measurable(target)


def _check_measurable(target: GemmTarget) -> None:
    if not is_measurable(target):
        raise RequestError(
            "not-profilable",
            f'target "{target.name}" cannot be measured: no groups and no second operand of the epilogue are',
            file=target.where,
            next_step="name other targets, and give this one its `tile` yourself",
        )


def candidate_spec(case: Case, ranked: Ranked) -> tuple[str, dict[str, object]]:
    """Name and table of the target that builds a candidate: the same for all problems that share its kernel."""
    chosen = ranked.candidate.of(case.spec)
    kernel = kernel_for(chosen, case.arch)
    open_sizes = msgspec.structs.replace(chosen, m=0, n=0, k=0, alignment=kernel.align)
    shared = kernel_for(open_sizes, case.arch) == kernel
    table: dict[str, object] = {"kind": "gemm", "arch": [case.arch], "output": OutputKind.SHARED.value}
    for name in _KEYS:
        value = getattr(case.spec, name)
        table[name] = list(value) if isinstance(value, tuple) else value
    if shared:
        table["alignment"] = kernel.align
    else:
        table |= {"m": case.spec.m, "n": case.spec.n, "k": case.spec.k, "alignment": case.spec.alignment}
    for name in ("tile", "warps", "cluster", "stages", "schedule"):
        value = getattr(ranked.candidate, name)
        if value:
            table[name] = list(value) if isinstance(value, tuple) else value
    sizes = "" if shared else f"_{case.spec.m}x{case.spec.n}x{case.spec.k}"
    return f"{PREFIX}{ranked.kernel}{sizes}", table


def _of_model(context: Context, target: ModelTarget) -> dict[GemmTarget, Sizes]:
    """A model's GEMMs that can be measured and whose kernel is ours to choose, each once, with their largest sizes."""
    if is_hip(context, target):
        return {}
    model = read_model(target, nvcc.normalised(asked_archs(context, target, amd=False), target.where))
    found: dict[GemmTarget, tuple[GemmTarget, Sizes]] = {}
    for op in model.ops:
        if isinstance(op.launch, GemmLaunch) and is_measurable(op.launch.target) and is_open(op.launch.target):
            gemm = gemm_target(target, op.launch, model.sizes)
            same = msgspec.structs.replace(gemm, name="", where="", profile=False)
            found.setdefault(same, (gemm, largest_of(op.launch, model.sizes)))
    return dict(found.values())


def _blank(target: GemmTarget) -> GemmTarget:
    """A target whose kernel nobody has chosen."""
    return msgspec.structs.replace(target, tile=None, warps=None, cluster=None, stages=0, schedule="")


def _check(variables: Settings) -> None:
    if variables.is_on("FORCE_PROFILE") and variables.is_on("AIT_FORCE_PROFILER_CACHE"):
        raise RequestError(
            "bad-variable",
            "FORCE_PROFILE=1 asks to measure again and AIT_FORCE_PROFILER_CACHE=1 forbids to measure",
            next_step="unset one of them",
        )


def _sizes(target: GemmTarget, problems: Sequence[Sizes]) -> Sizes:
    fixed = (*(0,) * target.batched, target.m, target.n, target.k)
    if all(fixed):
        return fixed
    for sizes in (*problems, declared_sizes(target)) if target.profile else problems:
        if len(sizes) == len(fixed) and all(mine in (0, given) for mine, given in zip(fixed, sizes, strict=True)):
            return sizes
    names = ("batch", "m", "n", "k")[-len(fixed) :]
    example = [size or {"batch": 16}.get(name, 4096) for name, size in zip(names, fixed, strict=True)]
    opened = ", ".join(name for name, size in zip(names, fixed, strict=True) if not size)
    raise RequestError(
        "bad-gemm",
        f'target "{target.name}" leaves {opened} open: there is nothing to measure',
        file=target.where,
        next_step=f"name a typical size, for example --problem {'x'.join(map(str, example))}",
    )
