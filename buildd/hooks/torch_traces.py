"""Keeps in the store what Dynamo made of a frame, so that a later process does not trace it again.

A trace is Dynamo's bytecode, its guards, and the key under which AOTAutograd has the graph. It is taken from the store
only if the frame's code and all that was traced through are the same (`trace_sources`), settings and devices too
(`trace_key`), and its guards, built on this frame's own values, say the same as before (`trace_guards`). What cannot be
told in these words is not kept: frames with graph breaks, sizes that vary, CUDA graphs, own kernels and operators. If
anything goes wrong, Dynamo traces. Runs in the user's own process; standard library and torch only.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from typing import Any

from . import collector, ledger, tier_door, trace_key
from .entries import FOUND_TRACE, Entry, Shelf, is_on, note_found, tell
from .trace_frame import NEEDED, Frame, frame_of
from .trace_guards import RefusedError, watch
from .trace_record import TraceCapture, capturing, found_trace, record_of, watch_backend, watch_guards

SWITCH = "BUILDD_TORCH_TRACES"
FOLDER = "inductor"
"""The shelf of `inductor_cache`."""
GROUP = "trace"
SLOTS = 4
"""So many traces of a frame are kept that differ only in what is deep inside its inputs."""
_log = logging.getLogger("buildd.inductor")


def is_wanted() -> bool:
    """Whether traces of this process are kept: the user asks for it."""
    # While kernels are recorded, a trace from the store would report none.
    return is_on(SWITCH) and "BUILDD_RECORD" not in os.environ


def begin(convert_frame: Any, store: str) -> None:
    """Keep traces from now on.

    Args:
        convert_frame: the module torch._dynamo.convert_frame, just imported.
        store: the folder of the store.
    """
    import torch._dynamo.guards as guards

    original = convert_frame._compile
    signature = inspect.signature(original)
    if not set(signature.parameters) >= NEEDED:
        return
    watch(guards)
    watch_guards(guards)
    is_watched = False

    @functools.wraps(original)
    def _compile(*arguments: Any, **named: Any) -> Any:
        nonlocal is_watched
        if "skip" in signature.parameters:
            named["skip"] = named.get("skip", 0) + 1  # this function, in stacks that Dynamo shows
        frame, shelf, slots = None, None, []
        try:
            frame = frame_of(signature, arguments, named)
            shelf = _shelf(store) if frame is not None else None
            if frame is not None and shelf is not None:
                if not is_watched:
                    watch_backend()
                    is_watched = True
                key = trace_key.key_of(frame.place, frame.backend, frame.asked, frame.f_locals, shelf.folder)
                slots = [f"{key}-{number}" for number in range(SLOTS)]
                with collector.paused():
                    found = _taken(frame, shelf, slots)
                if found is not None:
                    note_found(store, FOUND_TRACE)
                    return found
        except Exception as error:
            # The edge to the user's program: Dynamo traces.
            tell(_log, "trace not looked up", error)
        if frame is None or shelf is None or not slots:
            return original(*arguments, **named)
        with capturing() as capture:
            answer = original(*arguments, **named)
        try:
            _keep(frame, capture, answer, shelf, slots)
        except RefusedError as error:
            _log.info("buildd: trace of %s not kept: %s", frame.code.co_name, error)
        except Exception as error:
            tell(_log, "trace not kept", error)
        return answer

    convert_frame._compile = _compile


def _shelf(store: str) -> Shelf | None:
    if is_on("BUILDD_DISABLE"):
        return None
    shelf = Shelf(store, FOLDER)
    return shelf if shelf.open() else None


def _taken(frame: Frame, shelf: Shelf, slots: list[str]) -> Any:
    """The answer of the trace that holds for a frame, or None.

    Args:
        slots: where a trace may be; those that may be written stay in it, the best one first.
    """
    if is_on("BUILDD_RECACHE"):
        return None
    here = ledger.present()
    place = here.enter(ledger.TRACING) if here is not None else 0
    found, others = None, []
    try:
        for slot in list(slots):
            entry = shelf.take(slot, GROUP)
            if entry is None and tier_door.fetch(shelf, slot, GROUP):
                entry = shelf.take(slot, GROUP)
            if entry is None:
                break
            slots.remove(slot)
            try:
                found = found_trace(frame, entry.files[GROUP])
                return found
            except Exception as error:  # a frame that lacks what the guards ask for, say
                _log.info("buildd: trace %s of %s: %s: %s", slot, frame.code.co_name, type(error).__name__, error)
                others.append(slot)
        return None
    finally:
        slots += others
        if here is not None:
            here.leave(place, ledger.TRACES_FOUND if found is not None else ledger.TRACING, int(found is not None))


def _keep(frame: Frame, capture: TraceCapture, answer: Any, shelf: Shelf, slots: list[str]) -> None:
    content = record_of(frame, capture, answer)
    shelf.put(Entry(slots[0], GROUP, {GROUP: content}))
    tier_door.offer(shelf, slots[0], GROUP)
