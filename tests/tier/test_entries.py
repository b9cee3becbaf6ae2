"""Programs' entries in the tier: asked for and offered at a store's door, checked, and never in a program's way."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.commands import cache as push
from buildd.hooks import tier_door, triton_cache
from buildd.hooks.entries import Entry, Shelf
from buildd.store import signing
from buildd.store.signing import Signer
from buildd.store.values import compress, decompress
from buildd.tier import action_result, entry_uploader
from buildd.tier.entry_queue import EntryQueue
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import packed
from buildd.tier.records import EntryRecord, Kind, RefusedRecord, entry_key, name_of, opened, sealed
from buildd.tier.tier import Tier
from tests.support.tier_machines import TierMachine, serving, serving_tier
from tests.support.tiers import ALICE, MALLORY, Fault, HttpCache, http_cache
from tests.support.waiting import until

KEY, GROUP = "SOMEKEY", "add.json"
FILES = {"add.cubin": bytes(range(256)) * 40, GROUP: b'{"target": {"backend": "cuda"}}'}
EVIL = {**FILES, "add.cubin": b"of the attacker"}


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "keys"))
    monkeypatch.setattr(tier_door._Pause, "until_s", 0.0)
    monkeypatch.setattr(tier_door, "ANSWER_S", 20.0)


class Machine(TierMachine):
    """A daemon's side of a store, and a shelf of it as a program has it."""

    def __init__(self, folder: Path, tier: Tier) -> None:
        super().__init__(folder, tier)
        self.shelf = Shelf(self.folder, "triton")
        assert self.shelf.open()

    def make(self, files: dict[str, bytes] = FILES) -> None:
        """What a program does that compiled a kernel."""
        self.shelf.put(Entry(KEY, GROUP, files))
        tier_door.offer(self.shelf, KEY, GROUP)

    def find(self) -> dict[str, bytes] | None:
        """What a program does that lacks a kernel."""
        if not tier_door.fetch(self.shelf, KEY, GROUP):
            return None
        found = self.shelf.take(KEY, GROUP)
        return found.files if found is not None else None


def machine(
    folder: Path, url: str, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)
) -> AbstractContextManager[Machine]:
    return serving(Machine, folder, url, writer, believes)


@pytest.fixture(params=["carried", "alone"])
def filled(tmp_path: Path, cache: HttpCache, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that Alice has filled. The kernel is in its record, or in `cas/`."""
    if request.param == "alone":
        monkeypatch.setattr(entry_uploader, "MOST_CARRIED_BYTES", -1)
    with machine(tmp_path / "first", cache.url, ALICE) as first:
        first.make()
        until(lambda: len(cache.records()) == 2)
        assert first.beside.waiting == 0 and first.count(TierAnswer.KEPT) == 1
    assert len(cache.blobs()) == (request.param == "alone")


@pytest.mark.usefixtures("filled")
def test_another_machine_finds_it(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "second", cache.url) as second:
        assert second.find() == FILES
        assert second.count(TierAnswer.HIT) == 1
        assert not tier_door.fetch(second.shelf, "OTHER", GROUP)
        assert not any(line.startswith("PUT") for line in cache.asked[-2:])


def test_without_a_daemon_a_program_goes_on(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "one", cache.url, ALICE) as one:
        shelf = one.shelf
    assert not (tmp_path / "one/tier/programs").exists()
    assert not tier_door.fetch(shelf, KEY, GROUP)
    tier_door.offer(shelf, KEY, GROUP)
    tier_door.offer(Shelf(str(tmp_path / "nowhere"), "triton"), KEY, GROUP)


def test_a_daemon_that_is_stopped_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_door, "ANSWER_S", 0.1)
    (tmp_path / "tier").mkdir()
    shelf = Shelf(str(tmp_path), "triton")
    with closing(socket.socket(socket.AF_UNIX)) as stopped:
        stopped.bind(str(tmp_path / "tier/programs"))
        stopped.listen(1)
        with pytest.raises(OSError, match="timed out"):
            tier_door.fetch(shelf, KEY, GROUP)
        assert not tier_door.fetch(shelf, KEY, GROUP)


def test_a_later_daemon_keeps_the_door(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "one", cache.url):
        with machine(tmp_path / "one", cache.url):
            pass
        assert not (tmp_path / "one/tier/programs").exists(), "the last one has closed its own"
    first = Machine(tmp_path / "one", serving_tier(cache.url))
    with machine(tmp_path / "one", cache.url) as second:
        first.close()
        assert not second.find() and second.count(TierAnswer.ABSENT) == 1


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[" * 3000 + b"\n", b'{"get": "../x"}\n', b"x" * 9000])
def test_odd_words_at_the_door_disturb_nobody(tmp_path: Path, cache: HttpCache, line: bytes) -> None:
    with machine(tmp_path / "one", cache.url) as one:
        with closing(socket.socket(socket.AF_UNIX)) as odd:
            odd.settimeout(20)
            odd.connect(str(tmp_path / "one/tier/programs"))
            odd.sendall(line)
            try:
                assert odd.recv(1) == b""
            except ConnectionError:
                pass  # it was closed with words unread
        assert not one.find() and one.count(TierAnswer.ABSENT) == 1


def test_a_long_path_has_a_door_too(tmp_path: Path, cache: HttpCache) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with machine(deep / "store", cache.url) as one:
        assert not one.find() and one.count(TierAnswer.ABSENT) == 1


def test_entries_wait_for_the_next_process(tmp_path: Path, cache: HttpCache) -> None:
    cache.fault = Fault.FULL
    with machine(tmp_path / "first", cache.url, ALICE) as first:
        first.make()
        until(lambda: first.count(TierAnswer.FAILED) > 0)
    cache.fault = Fault.NONE
    with machine(tmp_path / "first", cache.url, ALICE):
        until(lambda: len(kernels(cache.objects)) == 1)


def test_a_queue_outlives_its_process_and_names_only_entries(tmp_path: Path) -> None:
    queue = EntryQueue(tmp_path)
    places = ["triton/" + "0" * 32, "jax/" + "1" * 32, "inductor/" + "2" * 32]
    assert all(map(queue.add, places))
    (tmp_path / "entries/other-" / "x").mkdir(parents=True)
    again = EntryQueue(tmp_path)
    assert sorted(again.waiting()) == sorted(places) and len(again) == 3
    again.drop(places[0])
    assert len(EntryQueue(tmp_path)) == 2


@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("fault", [Fault.FROZEN, Fault.NO_RIGHTS, Fault.NO_HTTP])
def test_a_tier_that_fails_delays_a_program_by_a_moment(tmp_path: Path, cache: HttpCache, fault: Fault) -> None:
    cache.fault = fault
    with machine(tmp_path / "one", cache.url) as one:
        began_s = time.monotonic()
        assert not any(one.find() for _ in range(8))
        assert time.monotonic() - began_s < 15, "three failures, then it is left alone"
        assert one.count(TierAnswer.FAILED) <= 3
        cache.thawed.set()


def test_a_push_writes_kernels_too(tmp_path: Path, cache: HttpCache, capsys: pytest.CaptureFixture[str]) -> None:
    with machine(tmp_path / "first", cache.url) as first:
        first.make()
    environ = {**os.environ, "BUILDD_TIER": cache.url, "BUILDD_TIER_WRITE": "1"}
    own = signing.own(environ)
    assert push.run(["--store", str(tmp_path / "first"), "push"], environ=environ) == 0
    assert "1 kernel, graph or program written to the tier" in capsys.readouterr().out
    with machine(tmp_path / "second", cache.url, believes=(own,)) as second:
        assert second.find() == FILES


@pytest.mark.triton
def test_tritons_cache_asks_and_tells(tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own classes in this process, with a folder of their own on each machine."""
    base = pytest.importorskip("triton.runtime.cache").FileCacheManager
    for name in ("TRITON_CACHE_MANAGER", "TRITON_STORE_BINARY_ONLY", "BUILDD_DISABLE", "BUILDD_RECACHE"):
        monkeypatch.delenv(name, raising=False)

    def of(one: Machine) -> Any:
        monkeypatch.setenv("BUILDD_DIR", one.shelf.store)
        monkeypatch.setenv("TRITON_CACHE_DIR", f"{one.shelf.store}-local")
        return triton_cache.manager_of(base)(KEY)

    with machine(tmp_path / "first", cache.url, ALICE) as first:
        manager = of(first)
        assert manager.get_group(GROUP) is None
        manager.put_group(GROUP, {name: manager.put(data, name) for name, data in FILES.items()})
        until(lambda: first.count(TierAnswer.KEPT) == 1)
    with machine(tmp_path / "second", cache.url) as second:
        found = of(second).get_group(GROUP)
        assert {name: Path(path).read_bytes() for name, path in found.items()} == FILES


# ---------------------------------------------------------------- attacks


def of_mallory(tmp_path: Path) -> dict[str, bytes]:
    with http_cache() as own, machine(tmp_path / "mallory", own.url, MALLORY) as hers:
        hers.make(EVIL)
        until(lambda: len(own.records()) == 2)
        return dict(own.objects)


@pytest.mark.usefixtures("filled")
def test_a_pull_requests_kernel_is_of_nobody(tmp_path: Path, cache: HttpCache) -> None:
    cache.objects.update(of_mallory(tmp_path))
    with machine(tmp_path / "release", cache.url) as release:
        assert release.find() == FILES
    with machine(tmp_path / "believer", cache.url, believes=(MALLORY,)) as believer:
        assert believer.find() == EVIL, "for somebody who trusts her, the attack works: the test attacks in earnest"


def test_a_machine_without_the_key_writes_nothing(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "reader", cache.url) as reader:
        reader.make()
        assert not reader.find()  # the offer has been read by then
        assert reader.beside.waiting == 0
    assert cache.objects == {}


Plant = Callable[[dict[str, bytes], dict[str, bytes]], dict[str, bytes]]


def kernels(objects: dict[str, bytes]) -> dict[str, bytes]:
    """The records of entries; the trail is no such record."""
    return {path: data for path, data in objects.items() if "/ac/" in path and words_of(data)[1] == Kind.ENTRY.value}


def words_of(record: bytes) -> list[Any]:
    _, _, body = msgspec.msgpack.decode(action_result.auxiliary_of(record) or b"")
    words: list[Any] = msgspec.msgpack.decode(decompress(body, 1 << 20) or b"")
    return words


def under_alices_name(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    (evil,) = kernels(hers).values()
    return {path: evil if path in kernels(there) else data for path, data in there.items()}


def other_bytes(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data[:-1] + bytes([data[-1] ^ 1]) for path, data in there.items()}


def alices_words_with_an_evil_digest(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    """Alice's signature on a record that carries another kernel."""
    blob, stored = packed(Entry(KEY, GROUP, EVIL).encode())
    planted = dict(there)
    for path in kernels(there):
        writer, signature, body = msgspec.msgpack.decode(action_result.auxiliary_of(there[path]) or b"")
        record = msgspec.msgpack.decode(decompress(body, 1 << 20) or b"", type=EntryRecord)
        record = msgspec.structs.replace(record, blob=blob, object=stored)
        body = compress(msgspec.msgpack.encode(record))
        planted[path] = action_result.encode([], "x", msgspec.msgpack.encode([writer, signature, body]))
    return planted


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("plant", [under_alices_name, other_bytes, alices_words_with_an_evil_digest])
def test_who_may_write_to_the_place_gets_no_kernel_in(tmp_path: Path, cache: HttpCache, plant: Plant) -> None:
    cache.objects = plant(of_mallory(tmp_path), dict(cache.objects))
    with machine(tmp_path / "victim", cache.url) as victim:
        assert victim.find() is None
        assert victim.count(TierAnswer.REFUSED) > 0
        assert [name for name in os.listdir(victim.shelf.folder) if "." not in name] == []


def test_a_record_of_one_kernel_is_none_of_another(tmp_path: Path) -> None:
    """Yesterday's entry under today's name."""
    blob, stored = packed(Entry(KEY, GROUP, FILES).encode())
    one, other = entry_key("triton/" + "0" * 32), entry_key("triton/" + "1" * 32)
    name = name_of(Kind.ENTRY, one, ALICE.public)
    entry = sealed(EntryRecord(2, Kind.ENTRY, name, one, ALICE.public, 1, blob, stored), ALICE)
    assert opened(entry, EntryRecord, Kind.ENTRY, one, ALICE.public).object == stored
    with pytest.raises(RefusedRecord, match="another name"):
        opened(entry, EntryRecord, Kind.ENTRY, other, ALICE.public)


@pytest.mark.parametrize(
    "content", [b"no entry", Entry("K", GROUP, {"../../evil": b"x"}).encode(), Entry(KEY, GROUP, FILES).encode()[:-1]]
)
def test_what_a_trusted_writer_signs_is_still_checked(tmp_path: Path, cache: HttpCache, content: bytes) -> None:
    with machine(tmp_path / "victim", cache.url) as victim:
        place = f"triton/{victim.shelf.name_of(KEY, GROUP)}"
        key = entry_key(place)
        name = name_of(Kind.ENTRY, key, ALICE.public)
        blob, stored = packed(content)
        record = EntryRecord(2, Kind.ENTRY, name, key, ALICE.public, 1, blob, stored)
        cache.objects[f"/x/ac/{name.hex()}"] = sealed(record, ALICE)
        assert victim.find() is None and victim.count(TierAnswer.REFUSED) == 1
        assert not list(tmp_path.rglob("evil"))


def test_a_link_at_the_door_is_not_followed(tmp_path: Path) -> None:
    """Somebody has put a link in place of the folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store/tier").symlink_to(tmp_path / "elsewhere")
    with closing(socket.socket(socket.AF_UNIX)) as hers:
        hers.bind(str(tmp_path / "elsewhere/programs"))
        hers.listen(1)
        assert not tier_door.fetch(Shelf(str(tmp_path / "store"), "triton"), KEY, GROUP)
