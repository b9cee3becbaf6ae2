"""Measurements of kernels in the tier: one record for each writer, with all rows that the writer has.

A row is about a GPU, a driver, a toolkit and a library, which it names, so rows of any machine may stand beside each
other. A writer adds its rows to those that are there; of two rows about one candidate the later measurement stays. A
put of another machine with the same key can be lost, and the next push writes its rows again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable

from buildd.store.profiles import Profile
from buildd.store.signing import Signer
from buildd.tier.carrier import Patience, for_up_to
from buildd.tier.figures import TierAnswer
from buildd.tier.records import FORMAT, MOST_PROFILES, Kind, ProfilesRecord, RefusedRecord, name_of, opened, sealed
from buildd.tier.tier import Tier
from buildd.tier.uploader import SILENCE_S, patience_for
from codegen.gemm.best_kernels import Setting

KEY = hashlib.sha256(b"buildd profiles").digest()
READ_S = 60.0


def write(tier: Tier, signer: Signer, rows: Iterable[Profile]) -> int:
    """Add rows to this writer's; how many were new. Raises `CarrierError`."""
    if not (mine := list(rows)):
        return 0
    there = _of_writer(tier, signer.public)
    merged = _latest([*there, *mine])
    new = len(set(merged) - set(there))
    if new:
        name = name_of(Kind.PROFILES, KEY, signer.public)
        record = ProfilesRecord(FORMAT, Kind.PROFILES, name, KEY, signer.public, int(time.time()), merged)
        entry = sealed(record, signer)
        tier.put(name.hex(), entry, patience_for(len(entry)))
    return new


def read(tier: Tier, patience: Patience | None = None) -> list[Profile]:
    """The rows of all trusted writers. Raises `CarrierError`.

    Args:
        patience: of a build that waits; None: as long as a push or a pull waits.
    """
    return _latest(row for writer, _ in tier.settings.believed for row in _of_writer(tier, writer, patience))


def _of_writer(tier: Tier, writer: bytes, patience: Patience | None = None) -> list[Profile]:
    """A writer's rows; none where the record cannot be believed."""
    patience = patience or for_up_to(READ_S, SILENCE_S)
    entry = tier.get(name_of(Kind.PROFILES, KEY, writer).hex(), patience)
    if entry is None:
        return []
    try:
        rows = opened(entry, ProfilesRecord, Kind.PROFILES, KEY, writer).rows
        if not all(row.is_possible for row in rows):
            raise RefusedRecord("a row has impossible numbers")
    except RefusedRecord as why:
        tier.figures.count(TierAnswer.REFUSED, f"refused profiles: {why}")
        return []
    return rows


def _latest(rows: Iterable[Profile]) -> list[Profile]:
    """The latest measurement of each candidate; as many as a record may have, the newest."""
    found: dict[tuple[Setting, str, str], Profile] = {}
    for row in rows:
        about = (row.setting, row.problem, row.candidate)
        known = found.get(about)
        if known is None or known.measured_ns < row.measured_ns:
            found[about] = row
    return sorted(found.values(), key=lambda row: -row.measured_ns)[:MOST_PROFILES]
