"""Which jobs may run on another machine, and what has to be the same there. Knows actions, no cluster.

A job travels if the other machine can be shown to have run the same compile: the files that it read are known at its
end (`Discovery`), and it needs nothing of this machine but files. Links, steps and Python workers stay here.
"""

from __future__ import annotations

from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import DEPFILE, output_path
from buildd.keys import depfiles
from codegen.plan import Action, Discovery, Kept
from protocol import messages as m

LEAST_S = 0.2
"""A job that was seen to take less is done here: on its way it would wait as long."""
_LISTED = (Discovery.GCC, Discovery.CLANG)
_MODES = (m.Mode.BUILD, m.Mode.WARM, m.Mode.COMPILE)


def travels(build: ActiveBuild, index: int) -> bool:
    """Whether the job of an action may run on another machine."""
    action = build.plan.actions[index]
    return (
        not build.is_steps
        and build.host is None
        and build.request.mode in _MODES
        and action.discovery in _LISTED
        and "-c" in action.argv
        and action.kept is Kept.FILES
        and not (action.uncacheable or action.served or action.warm or action.traces or action.apart)
        and build.resources[index].wall_s >= LEAST_S
        and all(map(_is_text, action.inputs))
    )


def outputs_of(action: Action, folder: str) -> tuple[str, ...]:
    """The files that come back, as paths in the job's folder."""
    return tuple(output_path(folder, action, output.name).removeprefix(f"{folder}/") for output in action.outputs)


def depfiles_of(action: Action) -> tuple[str, ...]:
    return tuple(f"{DEPFILE}{suffix}" for _, suffix in depfiles.parts(action.discovery))


def files_of(build: ActiveBuild, action: Action) -> tuple[str, ...]:
    """The files (absolute) that the other machine must have: those of the tool, and the declared inputs."""
    tool = build.tool(action)
    declared = [build.outputs.where(path) if path in build.products else path for path in action.inputs]
    absolute = map(build.inputs.snapshot.absolute, declared)
    return tuple(dict.fromkeys([*(file.path for file in tool.files), *absolute]))


def _is_text(path: str) -> bool:
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)
