"""What a store keeps beside its results goes through every command by its area alone."""

from __future__ import annotations

from pathlib import Path

from buildd.store import figures, garbage_collection, verification
from buildd.store.areas import Area, Checked, Held
from buildd.store.store import Store
from tests.support.crash_store_writer import key_of, publish


class Shoes(Area):
    name = "shoes"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def settle(self) -> None:
        self.calls.append("settle")

    def held(self) -> Held:
        return Held(entries=2, bytes=20, note="of leather")

    def trim(self, limit_bytes: int) -> None:
        self.calls.append(f"trim {limit_bytes}")

    def verify(self) -> Checked:
        return Checked(entries=3, removed=1, repaired=1)

    def flush(self, *, everything: bool) -> None:
        self.calls.append(f"flush {everything}")


def test_an_area_from_above_is_counted_trimmed_checked_and_flushed(tmp_path: Path) -> None:
    shoes = Shoes()
    with Store.open(tmp_path / "store", limit_bytes=1 << 30, areas=(shoes,)) as store:
        publish(store, 1)
        assert figures.stats(store).areas["shoes"] == Held(entries=2, bytes=20, note="of leather")
        garbage_collection.gc(store)
        garbage_collection.gc(store, limit_bytes=5)
        garbage_collection.flush(store, "no such action")
        garbage_collection.flush(store)
        assert shoes.calls == ["settle", "settle", f"trim {1 << 30}", "settle", "trim 5", "flush False", "flush True"]
        found = verification.verify(store)
        assert found.removed == found.repaired == {"shoes": 1} and not found.is_sound


def test_each_table_of_values_is_an_area(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", limit_bytes=1 << 30) as store:
        store.remember_action(key_of("n", 1), b"components")
        store.save_record(key_of("n", 1), b"record")
        held = {name: area.entries for name, area in figures.stats(store).areas.items() if area.entries}
        assert held == {"actions": 1, "records": 1}
        garbage_collection.flush(store, "no such action")
        assert figures.stats(store).areas["actions"].entries == 1
        garbage_collection.flush(store)
        assert figures.stats(store).areas["actions"].entries == 0
