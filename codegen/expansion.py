"""The steps of a compile for a given source: a template's actions under their own names, and a module's id.

Pure. Knows which of a step's values differ from source to source, and which do not matter to a step that says nothing;
where templates come from is `nvcc_steps`' and `hipcc_steps`' business.
"""

from __future__ import annotations

import os
import re

import msgspec
from blake3 import blake3

from codegen.moved import Roots, named
from codegen.plan import BARE, Action, Argument, GeneratedFile, Plan, Ref, Resources, Steps
from codegen.step_kinds import (
    BUNDLE_FRAME,
    BUNDLE_TEXT,
    BUNDLE_TWIN,
    FOLDER,
    IMAGE,
    IMAGE_TEXT,
    MAIN,
    OBJECT,
    SOURCE,
    STEM,
    UNIT,
    USED,
    Kind,
)

_ARCHITECTURE = re.compile(r"-D__CUDA_ARCH(_\w+)?(=.*)?")
"""Macros that differ with the list of architectures."""
_SHARES = {
    Kind.PREPROCESS: (0.07, 0.1),
    Kind.HEADERS: (0.01, 0.0),
    Kind.CUDAFE: (0.35, 0.8),
    Kind.CICC: (0.3, 1.0),
    Kind.PTXAS: (0.05, 0.2),
    Kind.FATBINARY: (0.01, 0.0),
    Kind.FRAME: (0.01, 0.0),
    Kind.DEVICE: (0.4, 1.0),
    Kind.DEVICE_LINK: (0.02, 0.3),
    Kind.BUNDLE: (0.02, 0.1),
    Kind.HOST: (0.2, 0.6),
}
"""Of the whole compile's time and memory, until a step has a history."""
_LEAST_BYTES = 64 << 20
_UNIT = "-cuid="


def expand(steps: Steps, action: Action, project: str = "", roots: Roots = (), content: str = "") -> Plan:
    """A plan that does what an action does, in steps; its last action makes the object.

    Args:
        action: one whose `steps` are these; its last argument is the source, its first output the object.
        project: folder that relative paths start from, where it may be seen in the result; else it is a root.
        roots: folders that have another name each time.
        content: digest of the source where there are such: other sources of one name are in other folders of that kind.
    """
    source = action.inputs[0] if isinstance(action.argv[-1], Ref) else action.argv[-1]
    stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", os.path.basename(source).rpartition(".")[0])
    made = action.outputs[0]
    folder = f"{made.path}.steps"
    extension = os.path.splitext(source)[1]
    ends = (named(os.path.join(project, path), roots) for path in (action.inputs[0], made.path))
    identity = _module_id("\0".join((steps.identity, content)) if content else steps.identity, *ends)
    units = [word.removeprefix(_UNIT) for word in action.argv if isinstance(word, str) and word.startswith(_UNIT)]
    values = {SOURCE + extension: source, FOLDER: folder, STEM: stem, OBJECT: os.path.basename(made.path)}
    values |= {MAIN: os.path.basename(source), UNIT: units[-1] if units else _hashed(identity)}
    pattern = re.compile("|".join(re.escape(value) for value in values))

    def put(text: str) -> str:
        return pattern.sub(lambda match: values[match[0]], text)

    def put_argument(argument: Argument) -> Argument:
        if isinstance(argument, str):
            return put(argument)
        if argument.suffix == f"/{SOURCE}{extension}" and (project or source.startswith("/")):
            return os.path.normpath(os.path.join(project, source))
        changed = {"name": put(argument.name), "prefix": put(argument.prefix), "suffix": put(argument.suffix)}
        return msgspec.structs.replace(argument, **changed)

    environment = dict(action.environment)
    nvcc = any(step.kind == Kind.CUDAFE.value for step in steps.actions)
    actions: list[Action] = []
    for step in steps.actions:
        kind = Kind(step.kind)
        preprocess, host = kind is Kind.PREPROCESS, kind is Kind.HOST
        actions.append(
            msgspec.structs.replace(
                step,
                name=f"{action.name}: {put(step.name)}",
                tool=action.tool,
                argv=(
                    *(put_argument(argument) for argument in step.argv),
                    *((f"-frandom-seed={identity}",) if host and nvcc else ()),
                ),
                environment=tuple(sorted({**environment, **dict(step.environment)}.items())),
                inputs=(
                    *(action.inputs if preprocess else action.inputs[1:] if host else ()),
                    *(put(path) for path in step.inputs),
                ),
                outputs=tuple(msgspec.structs.replace(output, path=put(output.path)) for output in step.outputs),
                twins=tuple(put(path) for path in step.twins),
                search=action.search if preprocess or host or kind is Kind.HEADERS else (),
                path_sensitive=action.path_sensitive or preprocess,
                resources=Resources(
                    memory_bytes=max(_LEAST_BYTES, int(action.resources.memory_bytes * _SHARES[kind][1])),
                    wall_s=action.resources.wall_s * _SHARES[kind][0],
                ),
                timeout_s=action.timeout_s,
            )
        )
    files = {put(BUNDLE_FRAME): BUNDLE_TEXT, put(f"{BUNDLE_FRAME}.{BARE}"): BUNDLE_TWIN}
    if nvcc:
        files = {put(f"{FOLDER}/{STEM}.module_id"): identity.encode(), IMAGE: IMAGE_TEXT}
    made_before = tuple(GeneratedFile(path=path, content=content) for path, content in files.items())
    return Plan(targets=(), actions=tuple(actions), files=made_before)


def fatbin_apart(plan: Plan) -> str:
    """Path of the fatbin that the host compile does not take in, but another one in its place; empty where it does."""
    host = plan.actions[-1]
    made = [a.outputs[0].path for a in plan.actions if a.kind in (Kind.FATBINARY.value, Kind.BUNDLE.value)]
    return next((path for path in made if path not in host.inputs), "")


def frame_of(host: Action) -> str:
    """Path of what a host compile takes in; its twin of the object is named after it."""
    return host.outputs[-1].path.removesuffix(USED)


def unframed(plan: Plan) -> Plan:
    """Steps whose host compile takes in the fatbin itself, as the compiler has it done."""
    fatbin, frame = fatbin_apart(plan), frame_of(plan.actions[-1])
    if not fatbin:
        return plan
    actions = []
    for action in plan.actions:
        if action.outputs[0].path == fatbin:
            outputs = [msgspec.structs.replace(o, path=o.path.replace(fatbin, frame, 1)) for o in action.outputs]
            actions.append(msgspec.structs.replace(action, outputs=tuple(outputs)))
        elif action.kind != Kind.FRAME.value:
            actions.append(action)
    files = tuple(file for file in plan.files if file.path not in (frame, f"{frame}.{BARE}"))
    return msgspec.structs.replace(plan, actions=tuple(actions), files=files)


def barely(action: Action) -> Action:
    """A step as it is filed where it says nothing: with `BARE` twins, and without the architectures that host code is
    compiled beside, which count as far as they reach its headers."""
    host = action.kind == Kind.HOST.value
    return msgspec.structs.replace(
        action,
        argv=tuple(a for a in action.argv if not (host and isinstance(a, str) and _ARCHITECTURE.fullmatch(a))),
        inputs=tuple(f"{path}.{BARE}" if path in action.twins else path for path in action.inputs),
        twins=(),
    )


def _module_id(identity: str, source: str, made: str) -> str:
    """In the shape of cudafe++'s own. It becomes part of global symbols: another file of the same program must not have
    it, and it must not change with the content, or every step would run again after every edit."""
    digest = _hashed("\0".join((identity, source, made)))
    name = re.sub(r"[^A-Za-z0-9]", "_", os.path.basename(source))
    return f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}"


def _hashed(text: str) -> str:
    return blake3(text.encode(errors="surrogateescape")).hexdigest()[:16]
