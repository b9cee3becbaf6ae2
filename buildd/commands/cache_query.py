"""`buildd cache query`: prints rows of the store's index as a table, as CSV or as JSON. Changes nothing."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from buildd.store.inspection import Inspection, Value

FORMATS = ("table", "csv", "json")
_WIDEST = 60
_MOST_SHOWN_BYTES = 32


def query(folder: Path, asked: str, form: str, limit: int) -> int:
    """Print the answer; returns the exit status.

    Args:
        folder: the store's.
        asked: SQL, or the name of a table; empty for the list of tables.
        form: one of `FORMATS`.
        limit: most rows; 0 for all.

    Raises: StoreError if the index cannot be read, or refuses the statement.
    """
    with Inspection(folder) as index:
        rows: Iterator[dict[str, Value]] = (
            index.rows(asked) if asked else ({"table": name, "rows": count} for name, count in index.tables().items())
        )
        shown = itertools.islice(rows, limit) if limit else rows
        _PRINT[form]([{name: _plain(value) for name, value in row.items()} for row in shown])
        if limit and next(rows, None) is not None:
            print(f"the first {limit} rows; --limit 0 prints all", file=sys.stderr)
    return 0


def _plain(value: Value) -> str | int | float | None:
    if not isinstance(value, bytes):
        return value
    return value.hex() if len(value) <= _MOST_SHOWN_BYTES else f"<{len(value)} bytes>"


def _table(rows: list[dict[str, str | int | float | None]]) -> None:
    if not rows:
        return
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())


def _cell(value: str | int | float | None) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text


def _csv(rows: list[dict[str, str | int | float | None]]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _json(rows: list[dict[str, str | int | float | None]]) -> None:
    print(json.dumps(rows, indent=1))


_PRINT: dict[str, Callable[[list[dict[str, str | int | float | None]]], None]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
}
