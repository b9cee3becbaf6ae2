"""One operation of a model as written in the project file: its kind, its inputs, and the keys of its kind.

Knows the names of the keys, not their meaning (`operations`, `views`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from codegen.errors import RequestError, nearest
from codegen.models.tensors import Tensor
from codegen.project.target import (
    Conv2dTarget,
    ElementwiseTarget,
    GemmTarget,
    GeneratedTarget,
    OptionValue,
    RowwiseTarget,
)
from protocol.described import described

VIEWS = {"reshape": ("shape",), "permute": ("axes",), "slice": ("start", "stop"), "split": ("sizes",), "concat": ()}
"""Kinds that launch nothing, and their keys."""
KEYS: dict[str, tuple[str, ...]] = {
    "gemm": (
        *("layout", "dtype", "output_dtype", "accumulator", "epilogue", "split_k"),
        *("tile", "warps", "cluster", "stages", "schedule", "alignment"),
    ),
    "conv2d": ("stride", "padding", "dilation", "dtype", "output_dtype", "epilogue", "tile", "warps", "stages"),
    "rowwise": ("op", "axes", "output_dtype", "weight", "bias", "eps"),
    "elementwise": ("expression", "output_dtype"),
    **VIEWS,
}
"""Kind -> its keys in an operation, besides `kind` and `inputs`."""
_TARGETS: dict[str, type[GeneratedTarget]] = {
    "gemm": GemmTarget,
    "conv2d": Conv2dTarget,
    "rowwise": RowwiseTarget,
    "elementwise": ElementwiseTarget,
}
StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation as written in the project file."""

    name: str
    title: str
    """For errors: "mlp.ops.h"."""
    where: str
    kind: str
    inputs: tuple[str, ...]
    keys: Mapping[str, OptionValue]

    def wrong(self, message: str, next_step: str, code: str = "bad-model") -> RequestError:
        return RequestError(code, f'target "{self.title}": {message}', file=self.where, next_step=next_step)


def asked_op(model: str, name: str, table: Mapping[str, OptionValue], where: str) -> Asked:
    """Read an operation's table. Its kind reads its own keys later. Raises RequestError: "bad-model"."""
    op = Asked(name, f"{model}.ops.{name}", where, str(table.get("kind", "")), (), {})
    if op.kind not in KEYS:
        what = f'has the unknown kind "{op.kind}"{nearest(op.kind, KEYS)}' if op.kind else "has no kind"
        raise op.wrong(what, "kinds: " + ", ".join(KEYS))
    known = ("kind", "inputs", *KEYS[op.kind])
    for key in table:
        if key not in known:
            made = op.kind in _TARGETS and key in _TARGETS[op.kind].__struct_fields__
            what = (
                f'"{key}" is not a key of an operation: it follows from the inputs, or belongs to the model'
                if made
                else f'unknown key "{key}"'
            )
            raise op.wrong(what + ("" if made else nearest(key, known)), "keys: " + ", ".join(known))
    inputs = table.get("inputs", [])
    names = [inputs] if isinstance(inputs, str) else inputs if isinstance(inputs, list) else []
    if not names or not all(isinstance(one, str) for one in names):
        raise op.wrong("`inputs` must be a list of tensors", 'write for example inputs = ["x", "weight"]')
    keys = {key: value for key, value in table.items() if key not in ("kind", "inputs")}
    return Asked(name, op.title, where, op.kind, tuple(map(str, names)), keys)


def converted(op: Asked, struct: type[StructT], table: Mapping[str, object]) -> StructT:
    """Convert a table into a kind's struct. Raises RequestError: "bad-model", a key has the wrong type."""
    try:
        return msgspec.convert(table, described(struct))
    except msgspec.ValidationError as error:
        message = re.sub(r" - at `\$\.?(.*)`$", r' for "\1"', str(error)).replace("`", "")
        raise op.wrong(message[:1].lower() + message[1:], "correct this key") from error


def check_count(op: Asked, given: tuple[Tensor, ...], wanted: tuple[str, ...]) -> None:
    """Raise RequestError "bad-model" if the operation takes another number of inputs."""
    if len(given) != len(wanted):
        raise op.wrong(f"it has {len(given)} inputs but takes {len(wanted)}", "inputs: " + ", ".join(wanted))
