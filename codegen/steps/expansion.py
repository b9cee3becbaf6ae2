"""Instantiates a template of steps for a given source: the actions with their real names, and the module's id.

Pure. Knows which values of a step differ between sources, and which do not matter to a step that prints no line number.
`nvcc_steps` and `hipcc_steps` make the templates.
"""

from __future__ import annotations

import os
import re

import msgspec

from codegen.compilers.checkout_roots import moving
from codegen.compilers.temporary_roots import Roots, named, referring
from codegen.plan import BARE, Action, Argument, GeneratedFile, Place, Plan, Ref, Resources, Steps
from codegen.steps import line_info
from codegen.steps.module_ids import NAMED, ends_of, ids_of, module_id
from codegen.steps.step_kinds import (
    BUNDLE_EQUIVALENT,
    BUNDLE_FRAME,
    BUNDLE_TEXT,
    CHECKED,
    FOLDER,
    IMAGE,
    IMAGE_TEXT,
    MAIN,
    OBJECT,
    SOURCE,
    STEM,
    UNIT,
    USED,
    StepKind,
)

_ARCHITECTURE = re.compile(r"-D__CUDA_ARCH(_\w+)?(=.*)?")
"""Macros that depend on the list of architectures."""
_SHARES = {
    StepKind.PREPROCESS: (0.07, 0.1),
    StepKind.HEADERS: (0.01, 0.0),
    StepKind.CUDAFE: (0.35, 0.8),
    StepKind.CICC: (0.3, 1.0),
    StepKind.PTXAS: (0.05, 0.2),
    StepKind.FATBINARY: (0.01, 0.0),
    StepKind.FRAME: (0.01, 0.0),
    StepKind.DEVICE: (0.4, 1.0),
    StepKind.DEVICE_LINK: (0.02, 0.3),
    StepKind.BUNDLE: (0.02, 0.1),
    StepKind.HOST: (0.2, 0.6),
}
"""Each step's share of the whole compile's time and memory, until the step has a history."""
_LEAST_BYTES = 64 << 20
_MODULE = ".module_id"


def expand(steps: Steps, action: Action, project: str = "", roots: Roots = (), content: str = "") -> Plan:
    """Return a plan that does the same as an action, in steps. See `maker` for the one that makes the object.

    Args:
        action: an action with these `steps`; its last argument is the source, its first output the object.
        project: base folder of relative paths, if the result may contain its path; empty if the folder is a root.
        roots: folders that may be others in the next build, see `temporary_roots` and `checkout_roots`.
        content: see `ids_of`.
    """
    source = action.inputs[0] if isinstance(action.argv[-1], Ref) else action.argv[-1]
    stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", os.path.basename(source).rpartition(".")[0])
    made = action.outputs[0]
    folder = f"{ends_of(action, '')[1]}.steps"
    extension = os.path.splitext(source)[1]
    nvcc = any(step.kind == StepKind.CICC.value for step in steps.actions)
    ids = ids_of(steps, action, project, roots, content)
    # gcc uses the seed for names that no other object sees.
    identities = (steps.identity, content) if content else (steps.identity,)
    seed = module_id(identities, *(named(path, roots) for path in ends_of(action, project)))
    values = {SOURCE + extension: source, FOLDER: folder, STEM: stem, OBJECT: os.path.basename(made.path)}
    values |= {MAIN: os.path.basename(source), UNIT: ids.unit}
    pattern = re.compile("|".join(re.escape(value) for value in values))

    def put(text: str) -> str:
        return pattern.sub(lambda match: values[match[0]], text)

    def put_argument(argument: Argument) -> Argument:
        # nvcc names the source to its front ends. A step whose output shows the path of a root is bound to it.
        if isinstance(argument, str):
            is_source = nvcc and argument == SOURCE + extension
            return referring((put(argument),), moving(roots))[0] if is_source else put(argument)
        if argument.suffix == f"/{SOURCE}{extension}" and (project or source.startswith("/")):
            return referring((os.path.normpath(os.path.join(project, source)),), moving(roots))[0]
        changed = {"name": put(argument.name), "prefix": put(argument.prefix), "suffix": put(argument.suffix)}
        return msgspec.structs.replace(argument, **changed)

    environment = dict(action.environment)
    actions: list[Action] = []
    for step in steps.actions:
        kind = StepKind(step.kind)
        preprocess, host = kind is StepKind.PREPROCESS, kind is StepKind.HOST
        words = [put_argument(argument) for argument in step.argv]
        own = dict(step.environment)
        if kind is StepKind.CICC:
            own |= line_info.environment(words, roots)
        elif kind is StepKind.FATBINARY:
            words = [
                _named(line_info.ident(word, roots)) if ids.differ else line_info.ident(word, roots) for word in words
            ]
        actions.append(
            msgspec.structs.replace(
                step,
                name=f"{action.name}: {put(step.name)}",
                tool=action.tool,
                argv=(
                    *words,
                    *((f"-frandom-seed={seed}",) if host and nvcc else ()),
                ),
                environment=tuple(sorted({**environment, **own}.items())),
                inputs=(
                    *(action.inputs if preprocess else action.inputs[1:] if host else ()),
                    *(put(path) for path in step.inputs),
                ),
                outputs=tuple(msgspec.structs.replace(output, path=put(output.path)) for output in step.outputs),
                equivalents=tuple(put(path) for path in step.equivalents),
                search=action.search if preprocess or host or kind is StepKind.HEADERS else (),
                path_sensitive=action.path_sensitive or preprocess,
                resources=Resources(
                    memory_bytes=max(_LEAST_BYTES, int(action.resources.memory_bytes * _SHARES[kind][1])),
                    wall_s=action.resources.wall_s * _SHARES[kind][0],
                ),
                timeout_s=action.timeout_s,
            )
        )
    files = {put(BUNDLE_FRAME): BUNDLE_TEXT, put(f"{BUNDLE_FRAME}.{BARE}"): BUNDLE_EQUIVALENT}
    if nvcc:
        files = {put(f"{FOLDER}/{STEM}{_MODULE}"): ids.shared, IMAGE: IMAGE_TEXT}
    made_before = tuple(GeneratedFile(path=path, content=content) for path, content in files.items())
    return Plan(targets=(), actions=tuple(actions), files=made_before)


def maker(plan: Plan) -> Action:
    """Return the step that makes the object: the last one that does not only check another's output."""
    return next(action for action in reversed(plan.actions) if action.outputs[0].name != CHECKED)


def fatbin_apart(plan: Plan) -> str:
    """Return the path of the fatbin that a frame replaces in the host compile; empty if the host compile includes the
    fatbin."""
    host = maker(plan)
    if host.kind != StepKind.HOST.value:
        return ""
    made = [a.outputs[0].path for a in plan.actions if a.kind in (StepKind.FATBINARY.value, StepKind.BUNDLE.value)]
    return next((path for path in made if path not in host.inputs), "")


def frame_of(host: Action) -> str:
    """Return the path of the file that a host compile includes; the object's equivalence digest is named after it."""
    return host.outputs[-1].path.removesuffix(USED)


def unframed(plan: Plan) -> Plan:
    """Return the steps with a host compile that includes the fatbin itself, as the compiler's own does."""
    fatbin, frame = fatbin_apart(plan), frame_of(plan.actions[-1])
    if not fatbin:
        return plan
    actions = []
    for action in plan.actions:
        if action.outputs[0].path == fatbin:
            outputs = [msgspec.structs.replace(o, path=o.path.replace(fatbin, frame, 1)) for o in action.outputs]
            actions.append(msgspec.structs.replace(action, outputs=tuple(outputs)))
        elif action.kind != StepKind.FRAME.value:
            actions.append(action)
    files = tuple(file for file in plan.files if file.path not in (frame, f"{frame}.{BARE}"))
    return msgspec.structs.replace(plan, actions=tuple(actions), files=files)


def barely(action: Action) -> Action:
    """Return a step as it is filed if it prints no line number: with equivalence digests (`BARE`) as inputs, and
    without the list of architectures, which matters to host code only through its headers."""
    host = action.kind == StepKind.HOST.value
    return msgspec.structs.replace(
        action,
        argv=tuple(a for a in action.argv if not (host and isinstance(a, str) and _ARCHITECTURE.fullmatch(a))),
        inputs=tuple(f"{path}.{BARE}" if path in action.equivalents else path for path in action.inputs),
        equivalents=(),
    )


def _named(word: Argument) -> Argument:
    """Return a word of fatbinary's command line; an image is read with the module's own id."""
    if isinstance(word, Ref) and word.place is Place.INPUT:
        return msgspec.structs.replace(word, name=word.name + NAMED)
    return word
