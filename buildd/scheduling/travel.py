"""Which jobs may run on another machine, and what has to be the same there. Knows actions, no cluster.

A job travels if the other machine can be shown to have run the same compile: the files that it read are known at its
end (`Discovery`), and it needs nothing of this machine but files. The steps of nvcc and hipcc that compile device code
read what is declared. Links, other steps and Python workers stay here.
"""

from __future__ import annotations

from dataclasses import replace

from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import DEPFILE, output_path
from buildd.keys import depfiles
from buildd.processes.launch import Launch
from codegen.plan import Action, Discovery, Kept
from codegen.steps.step_kinds import StepKind
from protocol import messages as m

LEAST_S = 0.2
"""A job that was seen to take less is done here: on its way it would wait as long."""
_LISTED = (Discovery.GCC, Discovery.CLANG, Discovery.CLANG_RULES)
_FAR_STEPS = (StepKind.CICC.value, StepKind.PTXAS.value, StepKind.DEVICE.value)
_MODES = (m.Mode.BUILD, m.Mode.WARM, m.Mode.COMPILE)


def travels(build: ActiveBuild, index: int) -> bool:
    """Whether the job of an action may run on another machine."""
    action = build.plan.actions[index]
    return (
        (build.host is None or not build.host.limits.has_limits)
        and build.request.mode in _MODES
        and action.kept is Kept.FILES
        and (_is_far_step(action) if build.is_steps else _is_compile(action))
        and not (action.uncacheable or action.served or action.warm or action.traces)
        and build.resources[index].wall_s >= LEAST_S
        and all(map(_is_text, action.inputs))
    )


def _is_compile(action: Action) -> bool:
    return action.discovery in _LISTED and "-c" in action.argv and not action.apart


def _is_far_step(action: Action) -> bool:
    """A step of nvcc or hipcc that reads its declared inputs alone and takes long: the one for each architecture."""
    return action.discovery is Discovery.NONE and action.kind in _FAR_STEPS


def outputs_of(action: Action, folder: str) -> tuple[str, ...]:
    """The files that come back, as paths in the job's folder."""
    return tuple(output_path(folder, action, output.name).removeprefix(f"{folder}/") for output in action.outputs)


def depfiles_of(action: Action) -> tuple[str, ...]:
    return tuple(f"{DEPFILE}{suffix}" for _, suffix in depfiles.parts(action.discovery))


def tool_files(build: ActiveBuild, action: Action) -> tuple[str, ...]:
    """The files (absolute) that the other machine must have itself: those of the tool."""
    return tuple(dict.fromkeys(build.inputs.snapshot.absolute(file.path) for file in build.tool(action).files))


def declared_files(build: ActiveBuild, action: Action) -> tuple[str, ...]:
    """The declared inputs (absolute)."""
    # A step finds some of its files by a bare name: only their place says where they are.
    declared = [
        build.outputs.where(path) if path in build.products or build.is_steps else path for path in action.inputs
    ]
    return tuple(dict.fromkeys(map(build.inputs.snapshot.absolute, declared)))


def listing(launch: Launch, action: Action) -> Launch:
    """A launch that compiles nothing, and whose depfile lists the files that a compile will read."""
    # nvcc preprocesses once for the host and for each architecture if it is asked for a depfile, -E does one of them.
    asks = "-M" if action.kind.startswith("nvcc") else "-E"
    return replace(launch, argv=tuple(asks if word == "-c" else word for word in launch.argv))


def _is_text(path: str) -> bool:
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)
