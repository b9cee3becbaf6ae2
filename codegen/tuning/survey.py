"""Lists what to profile for the GEMMs and convolutions of targets and models: problems, candidates, and how to build
each.

Knows requests and targets; builds and measures nothing (see `buildd.profiling`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from codegen.arrays.array_kernel import is_hip
from codegen.compiled.recipe import asked_archs, needs_arch
from codegen.compilers import nvcc
from codegen.errors import RequestError
from codegen.gemm.arch_rules import wrong
from codegen.gemm.candidates import Ranked, candidates
from codegen.gemm.capability import best_arch
from codegen.gemm.conv2d import conv2d_kernel
from codegen.gemm.convolution import ImplicitGemm, conv_of, gemm_sizes, implicit_gemm
from codegen.gemm.decision import chosen, declared_sizes, fixed_sizes, size_names, typical_sizes
from codegen.gemm.kernel import ARCH_100, Triple
from codegen.gemm.kernel_options import Sizes, batch_of, flags_of, is_open, library_version, problem_of, runs_in_ci
from codegen.gemm.spec import is_measurable, kernel_for, output_type, tolerance
from codegen.generate import Context, context_for
from codegen.models.model import gemms_of, nameless
from codegen.models.spec import read_model
from codegen.plan import Frozen, Knowledge
from codegen.project.project_file import load_project
from codegen.project.target import Conv2dTarget, GemmTarget, ModelTarget, OutputKind, Target
from codegen.tuning.own_problem import OwnCall, is_own, own_calls
from codegen.variables.aitemplate_flags import visible_devices
from codegen.variables.settings import Settings
from protocol.messages import Request

PREFIX = "try_"
"""Prefix of the names of candidate targets."""
_KEYS = (
    *("dtype", "output_dtype", "accumulator", "layout", "epilogue", "batched", "split_k"),
    *("flags", "define", "map_paths"),
)
_CONV_KEYS = (
    *("filters", "kernel", "stride", "padding", "dilation", "dtype", "output_dtype", "epilogue"),
    *("flags", "define", "map_paths"),
)


class Case(Frozen, frozen=True):
    """One problem on one architecture."""

    target: str
    arch: str
    problem: str
    sizes: Triple
    spec: GemmTarget
    """The target, with its sizes as written in the project."""
    ranked: tuple[Ranked, ...]
    batch: int = 0
    """Number of problems; 0 if the GEMM is not batched."""
    image: tuple[int, ...] = ()
    """Convolutions only: n, height, width, channels of x."""

    @property
    def output(self) -> str:
        return output_type(self.spec)

    @property
    def tolerance(self) -> float:
        """Largest relative error that rounding can cause."""
        return tolerance(self.spec)

    @property
    def operations(self) -> float:
        """Number of floating-point or integer operations."""
        m, n, k = self.sizes
        return 2.0 * m * n * k * max(1, self.batch)

    @property
    def dimensions(self) -> str:
        """Sizes as text: "4096x4096x4096", with the number of problems first if batched; for a convolution x, "*" and
        the weight."""
        if isinstance(self.spec, ImplicitGemm):
            conv = self.spec.conv
            weight = (conv.filters, *conv.kernel, self.image[-1])
            return f"{'x'.join(map(str, self.image))}*{'x'.join(map(str, weight))}"
        return "x".join(map(str, (*((self.batch,) if self.batch else ()), *self.sizes)))


class Survey(Frozen, frozen=True):
    """Everything that a request wants profiled."""

    cases: tuple[Case, ...]
    toolkit: str
    library: str
    flags: dict[str, str]
    """Target -> the flags of its kernels."""
    build: str
    """Folder of all outputs, relative to the project."""
    cuda: str
    """The toolkit's folder."""
    host_compiler: str
    devices: tuple[str, ...] | None
    """The GPUs that may be used, by the request's numbering; None means all."""
    environment: dict[str, str]
    no_candidates: bool
    """DISABLE_PROFILER_CODEGEN: only known kernels are used."""
    continuous_integration: bool
    """CI_FLAG: nothing is measured."""
    again: bool
    """FORCE_PROFILE."""
    only_known: bool
    """AIT_FORCE_PROFILER_CACHE."""
    notices: tuple[str, ...] = ()
    """Notices for people: targets that are left out."""
    hip: bool = False
    """The survey is for AMD's GPUs."""
    own: tuple[OwnCall, ...] = ()
    """Calls of targets that name their problem themselves; only in a watch's survey."""


def survey(
    request: Request,
    knowledge: Knowledge,
    problems: Sequence[Sizes] = (),
    *,
    ranks: bool = True,
    first_on: str = "",
) -> Survey:
    """Return the survey of a request's targets.

    Args:
        problems: sizes for targets that leave some open (for convolutions the sizes of x); the first that fits a
            target's fixed sizes is used. A model's operations use its largest sizes if none fits.
        ranks: rank the candidates; otherwise the survey has the targets as in the project.
        first_on: compute capability of a GPU; then the survey has only targets with the key `profile`, including those
            in `deps`, that are to be measured on such a GPU before the build.

    Raises:
        ProbesNeeded; RequestError: a target is not a GEMM, names its kernel itself, or leaves a size open.
    """
    context, project = context_for(request, knowledge)
    variables = context.variables
    gemms: list[GemmTarget] = []
    largest: dict[str, Sizes] = {}
    others: list[Target] = []
    calls: list[OwnCall] = []
    for wanted in project.targets:
        if not (getattr(wanted, "profile", False) if first_on else wanted.name in project.asked):
            continue
        if is_own(wanted) and not ranks and not first_on:
            calls += own_calls(wanted, context.request.arch)
            continue
        of_model = _of_model(context, wanted) if isinstance(wanted, ModelTarget) and ranks else {}
        largest |= {gemm.name: sizes for gemm, sizes in of_model.items()}
        own = _own_gemm(context, wanted)
        gemms += own or of_model
        others += [] if own or of_model else [wanted]
    if others and not first_on and (request.targets or not (gemms or calls)):
        raise RequestError(
            "not-profilable",
            f'target "{others[0].name}" has no GEMM or convolution that can be measured',
            file=others[0].where,
            next_step='name targets of kind "gemm" or "conv2d", or "model" with such operations',
        )
    gemms = [gemm for gemm in gemms if gemm.profile] if first_on else gemms
    for target in gemms:
        _check_measurable(target)
    _check(variables)
    vendors = {target.name: is_hip(context, target) for target in gemms}
    if len(set(vendors.values())) > 1:
        raise RequestError(
            "not-profilable",
            f"{', '.join(vendors)} are for GPUs of two vendors: only one is measured at a time",
            next_step="name targets for one vendor",
        )
    hip = any(vendors.values())
    compiler = None
    if gemms or not calls:
        compiler = context.toolchains.hip() if hip else context.toolchains.cuda()
    cases: list[Case] = []
    unknown: list[str] = []
    for target in gemms:
        archs = asked_archs(context, target, amd=hip)
        sizes = _sizes(target, (*problems, largest[target.name]) if target.name in largest else problems)
        archs = tuple(sorted(set(archs))) if hip else nvcc.normalised(archs, target.at("arch"))
        if first_on:
            arch = best_arch(archs, first_on)
            archs = (arch,) if arch and chosen(context, target, arch).wanted else ()
        for arch in archs:
            kernel_for(target, arch)
            if arch == ARCH_100:
                unknown.append(target.name)
                continue
            spec, product = _blank(target) if ranks else target, gemm_sizes(target, sizes)
            cases.append(
                Case(
                    target=target.name,
                    arch=arch,
                    problem=problem_of(_blank(target), arch),
                    sizes=(product[-3], product[-2], product[-1]),
                    spec=spec,
                    ranked=candidates(context, spec, arch, product) if ranks else (),
                    batch=batch_of(product),
                    image=sizes if isinstance(target, ImplicitGemm) else (),
                )
            )
    if unknown and not cases:
        raise RequestError(
            "not-profilable",
            f'target "{unknown[0]}": kernels for {ARCH_100} are only compiled; there are no candidates',
            next_step="name another architecture with --arch",
        )
    forced = variables.is_on("FORCE_PROFILE")
    return Survey(
        cases=tuple(cases),
        toolkit=compiler.version if compiler else "",
        library="" if hip or not compiler else library_version(context.toolchains.cutlass()),
        flags={target.name: flags_of(context, target, hip=hip) for target in gemms},
        build=context.build,
        cuda=dict(compiler.tool.roots).get("cuda", "") if compiler else "",
        hip=hip,
        host_compiler=context.settings.host_compiler,
        devices=visible_devices(variables, "hip" if hip else "cuda"),
        environment=dict(context.environment),
        no_candidates=variables.is_on("DISABLE_PROFILER_CODEGEN") and not forced,
        continuous_integration=runs_in_ci(variables),
        again=forced,
        only_known=variables.is_on("AIT_FORCE_PROFILER_CACHE"),
        own=tuple(calls),
        notices=tuple(f"{name}: kernels for {ARCH_100} are only compiled, not profiled" for name in unknown),
    )


def check_watched(request: Request) -> None:
    """Raise RequestError for targets that a watch cannot measure. The watch's builds report mistakes in the project
    file.

    Raises: RequestError.
    """
    try:
        project = load_project(request)
    except RequestError:
        return
    for target in project.targets:
        if target.name not in project.asked:
            continue
        if isinstance(target, GemmTarget):
            _check_measurable(target)
        elif is_own(target):
            own_calls(target, request.arch)
        elif not isinstance(target, Conv2dTarget):
            if "measure" in target.__struct_fields__:
                step = f"say how it is called and what it computes, in [target.{target.name}.measure]"
            elif isinstance(target, ModelTarget):
                step = "drop --profile; `buildd profile` measures a model's GEMMs"
            else:
                step = "name targets of those kinds, or drop --profile"
            raise RequestError(
                "not-profilable",
                f'target "{target.name}" cannot be measured: --profile of a watch supports kinds "gemm" and "conv2d",'
                ' and "cuda" and "triton" with the table `measure`',
                file=target.where,
                next_step=step,
            )


def _check_measurable(target: GemmTarget) -> None:
    if not is_measurable(target):
        raise RequestError(
            "not-profilable",
            f'target "{target.name}" cannot be measured: groups and a second operand of the epilogue are not supported',
            file=target.where,
            next_step="name other targets, and set the `tile` of this one yourself",
        )


def candidate_spec(case: Case, ranked: Ranked) -> tuple[str, dict[str, object]]:
    """Return name and table of the target that builds a candidate: the same for all problems that share its kernel."""
    chosen = ranked.candidate.of(case.spec)
    if isinstance(chosen, ImplicitGemm):
        return _conv_spec(case, chosen, ranked)
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
    for name in ("tile", "warps", "cluster", "threads", "stages", "schedule"):
        value = getattr(ranked.candidate, name)
        if value:
            table[name] = list(value) if isinstance(value, tuple) else value
    sizes = "" if shared else f"_{case.spec.m}x{case.spec.n}x{case.spec.k}"
    return f"{PREFIX}{ranked.kernel}{sizes}{_mark(case.spec)}", table


def compiled_for(case: Case, ranked: Ranked) -> str:
    """Return an id that candidates share if one compile serves them all."""
    # A convolution's sizes are only in its entry point, which compiles fast.
    return f"{ranked.kernel}{_mark(case.spec)}" if case.image else candidate_spec(case, ranked)[0]


def _conv_spec(case: Case, gemm: ImplicitGemm, ranked: Ranked) -> tuple[str, dict[str, object]]:
    conv = conv_of(gemm)
    table: dict[str, object] = {"kind": "conv2d", "arch": [case.arch], "output": OutputKind.SHARED.value}
    table |= {"shape": [0, 0, 0, conv.shape[3]]}
    for name in (*_CONV_KEYS, "tile", "warps", "stages"):
        value = getattr(conv, name)
        table[name] = list(value) if isinstance(value, tuple) else value
    numbers = (conv.shape[3], conv.filters, *conv.kernel, *conv.stride, *conv.padding, *conv.dilation)
    return f"{PREFIX}{ranked.kernel}_{case.arch}_{'x'.join(map(str, numbers))}{_mark(conv)}", table


def _mark(target: GemmTarget | Conv2dTarget) -> str:
    """Return a mark that distinguishes candidates of one kernel compiled with different flags; empty without flags."""
    ways = (target.flags, target.define, target.map_paths)
    if not any(ways):
        return ""
    return f"_f{hashlib.sha256(msgspec.json.encode(ways)).hexdigest()[:12]}"


def _own_gemm(context: Context, target: Target) -> list[GemmTarget]:
    """Return the GEMM of a single target; nothing for other kinds."""
    if isinstance(target, Conv2dTarget):
        archs = asked_archs(context, target, amd=False)
        needs_arch(target, archs, "sm_80")
        conv2d_kernel(target, nvcc.normalised(archs, target.at("arch")))  # checks the target's own keys first
        return [implicit_gemm(target)]
    return [target] if isinstance(target, GemmTarget) else []


def _of_model(context: Context, target: ModelTarget) -> dict[GemmTarget, Sizes]:
    """Return a model's GEMMs that can be measured and whose kernel buildd chooses, each once, with their largest
    sizes."""
    if is_hip(context, target):
        return {}
    model = read_model(target, nvcc.normalised(asked_archs(context, target, amd=False), target.at("arch")))
    found: dict[GemmTarget, tuple[GemmTarget, Sizes]] = {}
    for gemm, sizes in gemms_of(target, model):
        if is_measurable(gemm) and is_open(gemm):
            found.setdefault(nameless(gemm), (gemm, sizes))
    return dict(found.values())


def _blank(target: GemmTarget) -> GemmTarget:
    """Return a target without a chosen kernel."""
    return msgspec.structs.replace(target, tile=None, warps=None, cluster=None, threads=None, stages=0, schedule="")


def _check(variables: Settings) -> None:
    if variables.is_on("FORCE_PROFILE") and variables.is_on("AIT_FORCE_PROFILER_CACHE"):
        raise RequestError(
            "bad-variable",
            "FORCE_PROFILE=1 asks for new measurements, but AIT_FORCE_PROFILER_CACHE=1 forbids measuring",
            next_step="unset one of them",
        )


def _sizes(target: GemmTarget, problems: Sequence[Sizes]) -> Sizes:
    fixed = fixed_sizes(target)
    if all(fixed):
        return fixed
    for sizes in (*problems, declared_sizes(target)) if target.profile else problems:
        if len(sizes) == len(fixed) and all(mine in (0, given) for mine, given in zip(fixed, sizes, strict=True)):
            return sizes
    opened = ", ".join(name for name, size in zip(size_names(target), fixed, strict=True) if not size)
    raise wrong(
        target,
        f"it leaves {opened} open, so there is no problem to measure",
        f"name a typical size, for example --problem {'x'.join(map(str, typical_sizes(target)))}",
    )
