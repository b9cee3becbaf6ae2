"""Notes why Inductor compiled a graph: compares the parts of its key with those of earlier compiles, kept in the store.

Runs in the user's own process; standard library and torch only. Knows Inductor's own lines about a key; `triton_why`
keeps and reports them. The notes hold most parts as digests only. Nothing here affects a compile: if it fails, the
graph just has no reason.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

PLACE = "inductor"
_KEPT, _KEPT_OF_PROGRAM = 32, 8
_LINE = re.compile(r"\[(\w+)\] ([\w.]+)(?:\[(.*?)\])?: (.*)", re.DOTALL)
_SHAPE = re.compile(r"dtype=(?:torch\.)?(\w+).*?shape=torch\.Size\(\[(.*?)\]\)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SHORT = 60
_PENDING = 256

_GONE = "it was compiled before, but neither the store nor Inductor's own cache has it any more"

Facts = dict[str, list[str]]
"""Part of the key -> digest and, where it is short, text."""

_WORDS = {
    "gm": "the graph: other operations, constants or attributes",
    "torch_version": "torch, or a file of it",
    "system_info": "the GPU, its driver's version, or Triton",
    "user_defined_triton_source": "a Triton kernel that it calls",
    "cpp_runtime_thread_count": "the number of threads (OMP_NUM_THREADS, torch.set_num_threads, cores)",
    "cache_key_tag": "the processor, ATEN_CPU_CAPABILITY or TORCH_COMPILE_CACHE_KEY_TAG",
}


def facts_of(lines: list[str]) -> Facts:
    """The parts of a key, from Inductor's lines about it."""
    facts: Facts = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        digest, part, entry, text = found.groups()
        text = _ADDRESS.sub("", text)
        shape = _SHAPE.search(text) if part == "example_inputs" else None
        if shape is not None:
            text = f"{shape[1]} [{shape[2]}]"
        name = f"{part}[{entry}]" if entry else part
        facts[name] = [digest[:12], text if len(text) <= _SHORT and "\n" not in text else ""]
    return facts


def reasons(facts: Facts, before: list[Facts], program: str) -> list[str]:
    """The differences from the most similar earlier compile, in words.

    Args:
        before: of the same program.
        program: its name.
    """
    before = [one for one in before if _role(one) == _role(facts)]
    if not before:
        return [f"no {_role(facts)} graph of {program} was compiled here before"]
    likest = min(reversed(before), key=lambda one: ("gm" in _differences(facts, one), len(_differences(facts, one))))
    names = _differences(facts, likest)
    return [_words(name, likest.get(name), facts.get(name)) for name in names] or [
        "something that buildd does not record"
    ]


def _role(facts: Facts) -> str:
    """A training step has a forward and a backward graph: neither is a later version of the other."""
    found = (value[1] for name, value in facts.items() if "is_backward" in name)
    return "backward" if next(found, "") == "True" else "forward"


def _differences(now: Facts, before: Facts) -> list[str]:
    return sorted(name for name in {*now, *before} if now.get(name) != before.get(name))


def _words(name: str, before: list[str] | None, now: list[str] | None) -> str:
    part, _, entry = name.partition("[")
    entry = entry.removesuffix("]")
    if part == "example_inputs":
        words = f"input {entry}"
    elif part == "inductor_config":
        words = f"option {entry}"
    else:
        words = _WORDS.get(part, name)
    was, is_ = (("" if side is None else side[1]) for side in (before, now))
    if before is None or now is None:
        return f"{words}: {'new' if before is None else 'gone now'}"
    # Digests can differ where the texts are equal or missing.
    return f"{words}: {was} before, {is_} now" if was != is_ and was and is_ else f"{words}: changed"


def begin(codecache: Any, notes: Any, store: str) -> None:
    """Note why Inductor compiles a graph, from now on, when the compile has ended.

    Args:
        codecache: the module torch._inductor.codecache.
        notes: the module triton_why.
        store: the folder of the store.
    """
    make, save = codecache.compiled_fx_graph_hash, getattr(codecache.FxGraphCache, "_save_graph", None)
    if save is None:
        return  # a torch that keeps graphs in another way
    asked: dict[str, Facts] = {}

    def compiled_fx_graph_hash(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        with notes.careful("the parts of a graph's key cannot be recorded"):
            key, lines = made
            if len(asked) >= _PENDING:
                asked.clear()  # most keys hit
            asked[key] = facts_of(lines)
        return made

    def _save_graph(key: str, *arguments: Any, **named: Any) -> Any:
        with notes.careful("why a graph was compiled cannot be recorded"):
            if (facts := asked.pop(key, None)) is not None:
                note(key, facts, notes, store)
        return save(key, *arguments, **named)

    codecache.compiled_fx_graph_hash = compiled_fx_graph_hash
    codecache.FxGraphCache._save_graph = staticmethod(_save_graph)


def note(key: str, facts: Facts, notes: Any, store: str) -> None:
    """Note that a graph was compiled, and why. Raises OSError, ValueError."""
    if not os.path.isdir(store):
        return
    folder, program = notes.folder_in(store), os.path.basename(sys.argv[0]) or "python"
    place = os.path.join(folder, PLACE)
    with notes.alone(folder):
        known = [one for one in notes.read(place) if isinstance(one, dict) and isinstance(one.get("facts"), dict)]
        again = any(one.get("key") == key for one in known)
        # Two programs have different graphs anyway.
        its = [one for one in known if one.get("program") == program]
        others = [one for one in known if one.get("program") != program]
        why = [_GONE] if again else reasons(facts, [one["facts"] for one in its], program)
        name = f"torch graph ({_role(facts)}) of {program}"
        notes.tell(folder, {"time_s": time.time(), "kernel": name, "target": "inductor", "reasons": why})
        if not again:
            its = [*its, {"key": key, "program": program, "facts": facts}][-_KEPT_OF_PROGRAM:]
            notes.write(place, [*others, *its][-_KEPT:])
