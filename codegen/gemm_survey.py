"""What is to be profiled for GEMMs and convolutions, of targets and models: problems, candidates, how each is built.

Knows requests and targets; builds and measures nothing (`buildd/profiling`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from codegen import nvcc
from codegen.aitemplate_flags import visible_devices
from codegen.capability import best_arch
from codegen.compiled import asked_archs, needs_arch
from codegen.conv2d import conv2d_kernel
from codegen.convolution import ImplicitGemm, conv_of, gemm_sizes, implicit_gemm
from codegen.environment import Settings
from codegen.gemm_candidates import Ranked, candidates
from codegen.gemm_choice import Sizes, batch_of, flags_of, is_open, library_version, problem_of, runs_in_ci
from codegen.gemm_decision import chosen, declared_sizes, fixed_sizes, size_names, typical_sizes
from codegen.gemm_kernel import ARCH_100, Triple
from codegen.gemm_spec import is_measurable, kernel_for, output_type, tolerance, wrong
from codegen.generate import Context, context_for
from codegen.model import gemms_of, nameless
from codegen.model_spec import read_model
from codegen.plain import is_hip
from codegen.plan import Frozen, Knowledge, RequestError
from codegen.project import load_project
from codegen.target import Conv2dTarget, GemmTarget, ModelTarget, OutputKind, Target
from protocol.messages import Request

PREFIX = "try_"
"""Of the names of targets that are candidates."""
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
    """The target, its sizes as they are in the project."""
    ranked: tuple[Ranked, ...]
    batch: int = 0
    """How many of them; 0 where it is not a batched one."""
    image: tuple[int, ...] = ()
    """Of a convolution: n, height, width, channels of x."""

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
        """ "4096x4096x4096", of a batched one with how many before it; of a convolution x, then "*" and the weight."""
        if isinstance(self.spec, ImplicitGemm):
            conv = self.spec.conv
            weight = (conv.filters, *conv.kernel, self.image[-1])
            return f"{'x'.join(map(str, self.image))}*{'x'.join(map(str, weight))}"
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
    hip: bool = False
    """For AMD's GPUs."""


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
        problems: sizes for targets that leave some open, of convolutions those of x; of these the first that fits a
            target's fixed ones counts. A model's operations have the largest of its sizes where none does.
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
        own = _own_gemm(context, wanted)
        gemms += own or of_model
        others += [] if own or of_model else [wanted]
    if others and not first_on and (request.targets or not gemms):
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
            next_step="name targets for one of them",
        )
    hip = any(vendors.values())
    compiler = context.toolchains.hip() if hip else context.toolchains.cuda()
    cases: list[Case] = []
    unknown: list[str] = []
    for target in gemms:
        archs = asked_archs(context, target, amd=hip)
        sizes = _sizes(target, (*problems, largest[target.name]) if target.name in largest else problems)
        archs = tuple(sorted(set(archs))) if hip else nvcc.normalised(archs, target.where)
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
            f'target "{unknown[0]}": kernels for {ARCH_100} are compiled only, there is nothing to choose from',
            next_step="name another architecture with --arch",
        )
    forced = variables.is_on("FORCE_PROFILE")
    return Survey(
        cases=tuple(cases),
        toolkit=compiler.version,
        library="" if hip else library_version(context.toolchains.cutlass()),
        flags={target.name: flags_of(context, target, hip=hip) for target in gemms},
        build=context.build,
        cuda=dict(compiler.tool.roots).get("cuda", ""),
        hip=hip,
        host_compiler=context.settings.host_compiler,
        devices=visible_devices(variables, "hip" if hip else "cuda"),
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
        if isinstance(target, GemmTarget):
            _check_measurable(target)
        elif not isinstance(target, Conv2dTarget):
            model = "; `buildd profile` measures a model's GEMMs" if isinstance(target, ModelTarget) else ""
            raise RequestError(
                "not-profilable",
                f'target "{target.name}" cannot be measured: --profile of a watch is for kinds "gemm" and "conv2d"',
                file=target.where,
                next_step=f"name targets of those kinds, or leave --profile out{model}",
            )


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
    """What is the same for candidates that one compile is enough for."""
    # A convolution's sizes are those of its entry point, which is compiled in no time.
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
    """What tells candidates of one kernel apart that targets compile with different flags; empty for those without."""
    ways = (target.flags, target.define, target.map_paths)
    if not any(ways):
        return ""
    return f"_f{hashlib.sha256(msgspec.json.encode(ways)).hexdigest()[:12]}"


def _own_gemm(context: Context, target: Target) -> list[GemmTarget]:
    """What a target of its own has to choose; nothing of other kinds."""
    if isinstance(target, Conv2dTarget):
        archs = asked_archs(context, target, amd=False)
        needs_arch(target, archs, "sm_80")
        conv2d_kernel(target, nvcc.normalised(archs, target.where))  # its own mistakes first
        return [implicit_gemm(target)]
    return [target] if isinstance(target, GemmTarget) else []


def _of_model(context: Context, target: ModelTarget) -> dict[GemmTarget, Sizes]:
    """A model's GEMMs that can be measured and whose kernel is ours to choose, each once, with their largest sizes."""
    if is_hip(context, target):
        return {}
    model = read_model(target, nvcc.normalised(asked_archs(context, target, amd=False), target.where))
    found: dict[GemmTarget, tuple[GemmTarget, Sizes]] = {}
    for gemm, sizes in gemms_of(target, model):
        if is_measurable(gemm) and is_open(gemm):
            found.setdefault(nameless(gemm), (gemm, sizes))
    return dict(found.values())


def _blank(target: GemmTarget) -> GemmTarget:
    """A target whose kernel nobody has chosen."""
    return msgspec.structs.replace(target, tile=None, warps=None, cluster=None, threads=None, stages=0, schedule="")


def _check(variables: Settings) -> None:
    if variables.is_on("FORCE_PROFILE") and variables.is_on("AIT_FORCE_PROFILER_CACHE"):
        raise RequestError(
            "bad-variable",
            "FORCE_PROFILE=1 asks to measure again and AIT_FORCE_PROFILER_CACHE=1 forbids to measure",
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
        f"it leaves {opened} open: there is nothing to measure",
        f"name a typical size, for example --problem {'x'.join(map(str, typical_sizes(target)))}",
    )
