"""Attacks on shared caches that were published, each in the middle of a build. None gets in.

- A build of a pull request writes an object that the release is then made of.
- The folder of a cache, or one above it, can be written by others, who put an entry of theirs there.
- A project's own folder names the cache that its programs are loaded from.
- An entry is used before its manifest is checked, or through a link that leads elsewhere.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from buildd.store.bundle_manifest import BundledResult
from buildd.store.store import Store
from buildd.store.values import compress, decompress
from buildd.tier import action_result
from buildd.tier.carrier import ObjectKind, for_up_to
from buildd.tier.figures import TierAnswer
from buildd.tier.folder_carrier import FolderCarrier
from buildd.tier.packed_blobs import packed
from buildd.tier.records import (
    Carried,
    InputsRecord,
    Kind,
    RefusedRecord,
    ResultRecord,
    SharedInputs,
    name_of,
    opened,
    sealed,
)
from buildd.tier.upload_queue import UploadQueue
from protocol import messages as m
from tests.support.scheduler_harness import Story, Workspace
from tests.support.tier_builds import built, machine
from tests.support.tiers import ALICE, HTTP_AND_GRPC, MALLORY, HttpCache, cache_of, http_cache, tier_at, write_all

EVIL = b"an object of the attacker's"


@pytest.fixture(params=HTTP_AND_GRPC)
def cache(request: pytest.FixtureRequest) -> Iterator[HttpCache]:
    with cache_of(request.param) as made:
        yield made


@pytest.fixture(params=["carried", pytest.param("alone", marks=pytest.mark.slow)])
def filled(tmp_path: Path, cache: HttpCache, request: pytest.FixtureRequest) -> Workspace:
    """A machine that has filled the tier. Results are inside the records that lead to them, or in `cas/` alone."""
    if request.param == "alone":
        request.getfixturevalue("alone")
    first = machine(tmp_path, "first")
    built(first, tier_at(cache.url, writer=ALICE))
    write_all(first.store, cache.url)
    return first


def of_mallory(tmp_path: Path) -> dict[str, bytes]:
    """What Mallory would write for the same actions, with objects of hers."""
    with http_cache() as own:
        hers = machine(tmp_path, "mallory")
        built(hers, None)
        with Store.open(hers.store) as store:
            rows = store.database.rows("SELECT key, min(first) FROM input_sets GROUP BY key")
            results = [(store.result(m.Digest(key.hex())), first) for key, first in rows]
            evil = store.put_bytes(EVIL)
            for result, first in results:
                assert result is not None
                known = store.input_sets(m.Digest(first.hex()))[0]
                outputs = tuple(replace(output, digest=evil, size_bytes=len(EVIL)) for output in result.outputs)
                store.publish(m.Digest(first.hex()), known, replace(result, outputs=outputs))
                UploadQueue(store.folder, own.url).add(result.key, m.Digest(first.hex()))
        assert write_all(hers.store, own.url, MALLORY) == 0
        return dict(own.objects)


def right(story: Story, workspace: Workspace, filled: Workspace) -> None:
    """Nothing of the attacker's is in what was built, or in the store."""
    assert story.done.outcome is m.Outcome.BUILT
    assert workspace.library == filled.library
    with Store.open(workspace.store) as store:
        assert store.get(m.Digest(_digest(EVIL))) is None


def _digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def test_a_pull_requests_build_writes_nothing_that_a_release_takes(
    tmp_path: Path, filled: Workspace, cache: HttpCache
) -> None:
    """It has the bucket's credentials but not the key: its entries, which are there, are of nobody."""
    cache.objects.update(of_mallory(tmp_path))
    hers = len(cache.records())
    assert hers >= 14, "the attack was made"
    release = machine(tmp_path, "release")
    right(built(release, tier_at(cache.url)), release, filled)
    believer = machine(tmp_path, "believer")
    built(believer, tier_at(cache.url, believes=(MALLORY,)))
    made = (believer.project / "build/a.cu.o").read_bytes()
    assert made == EVIL, "for somebody who trusts her, the attack works: the test attacks in earnest"


def test_a_build_without_the_key_cannot_write(tmp_path: Path, cache: HttpCache) -> None:
    build = machine(tmp_path, "pull-request")
    built(build, tier_at(cache.url, believes=(ALICE,)))
    assert cache.objects == {}


Plant = Callable[[dict[str, bytes], dict[str, bytes]], dict[str, bytes]]


def under_alices_names(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    """Mallory's entries in place of Alice's."""
    names = [path for path in there if "/ac/" in path]
    return {**there, **hers, **dict(zip(names, (hers[path] for path in hers if "/ac/" in path), strict=False))}


def alices_exchanged(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    """Alice's own entries, each under the name of another one: yesterday's under today's."""
    names = [path for path in there if "/ac/" in path]
    return {**there, **{name: there[other] for name, other in zip(names, names[1:] + names[:1], strict=True)}}


def evil_blobs(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    """Alice's records, and other bytes under the names of her blobs."""
    stored = packed(EVIL)[1]
    return {path: (stored if "/cas/" in path else data) for path, data in there.items()}


def alices_words_with_evil_digests(hers: dict[str, bytes], there: dict[str, bytes]) -> dict[str, bytes]:
    """Alice's signatures on records that name, and carry, other blobs."""
    blob, stored = packed(EVIL)
    planted = {**there, f"/x/cas/{blob.sha256.hex()}": stored}

    def with_evil(found: ResultRecord | Carried) -> ResultRecord | Carried:
        changed = msgspec.structs.replace(found, blobs=[blob for _ in found.blobs])
        return (
            changed
            if isinstance(changed, ResultRecord)
            else Carried(changed.result, changed.blobs, [stored for _ in changed.blobs])
        )

    for path, entry in there.items():
        auxiliary = action_result.auxiliary_of(entry) if "/ac/" in path else None
        if auxiliary is None:
            continue
        writer, signature, body = msgspec.msgpack.decode(auxiliary)
        plain = decompress(body, 1 << 20) or b""
        for kind in (ResultRecord, InputsRecord):
            try:
                record: Any = msgspec.msgpack.decode(plain, type=kind)
            except msgspec.MsgspecError:
                continue
            if isinstance(record, ResultRecord):
                record = with_evil(record)
            else:
                sets = [
                    msgspec.structs.replace(led, carried=with_evil(led.carried) if led.carried else None)
                    for led in record.sets
                ]
                record = msgspec.structs.replace(record, sets=sets)
            body = compress(msgspec.msgpack.encode(record))
            planted[path] = action_result.encode([], "x", msgspec.msgpack.encode([writer, signature, body]))
    assert sum(planted[path] != entry for path, entry in there.items()) >= 3
    return planted


@pytest.mark.parametrize(
    ("filled", "plant"),
    [
        ("carried", under_alices_names),
        ("carried", alices_exchanged),
        ("carried", alices_words_with_evil_digests),
        ("alone", alices_words_with_evil_digests),
        ("alone", evil_blobs),
    ],
    indirect=["filled"],
)
def test_who_may_write_to_the_place_gets_nothing_in(
    tmp_path: Path, filled: Workspace, cache: HttpCache, plant: Plant
) -> None:
    cache.objects = plant(of_mallory(tmp_path), dict(cache.objects))
    victim = machine(tmp_path, "victim")
    tier = tier_at(cache.url)
    story = built(victim, tier)
    right(story, victim, filled)
    assert len(story.ran()) == 3, "what was planted is no hit"
    assert tier.figures.counts()[TierAnswer.REFUSED] > 0


def test_a_project_that_names_a_tier_is_refused(tmp_path: Path, cache: HttpCache) -> None:
    victim = machine(tmp_path, "victim")
    environment, _ = victim.set_in("buildd.toml", BUILDD_TIER=cache.url)
    with open(victim.project / "buildd.toml", "a") as file:
        file.write('[target.a]\nkind = "cuda"\nsources = ["src/a.cu"]\n')
    victim.options["make"] = None  # a real plan
    story = victim.build(environment=environment, file="buildd.toml")
    assert story.done.outcome is m.Outcome.REFUSED and "BUILDD_TIER" in story.done.message
    assert cache.asked == []


@pytest.mark.parametrize("filled", ["alone"], indirect=True)
def test_an_entry_is_checked_before_anything_of_it_is_in_the_store(
    tmp_path: Path, filled: Workspace, cache: HttpCache
) -> None:
    """The last blob of each result is bad. The good ones before it are not there either, and no row leads anywhere."""
    for path in [path for path in cache.objects if "/cas/" in path]:
        cache.objects[path] = cache.objects[path][:-1]
    victim = machine(tmp_path, "victim")
    tier = tier_at(cache.url)
    story = built(victim, tier)
    assert len(story.ran()) == 3 and victim.library == filled.library
    assert tier.figures.counts()[TierAnswer.REFUSED] > 0


@pytest.mark.parametrize("linked", ["cas", "ac"])
def test_a_link_in_a_shared_folder_leads_no_write_elsewhere(tmp_path: Path, linked: str) -> None:
    """Others may write in the folder: a link in place of an object is replaced, and what it leads to is left alone."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    folder = tmp_path / "tier"
    name = "ab" * 32
    (folder / linked / "ab").mkdir(parents=True)
    (folder / linked / "ab" / name).symlink_to(precious)
    kind = ObjectKind(linked)
    carrier = FolderCarrier(folder)
    carrier.put(kind, name, b"new", for_up_to(5, 5))
    assert precious.read_bytes() == b"mine"
    assert carrier.get(kind, name, for_up_to(5, 5)) == b"new"
    assert not (folder / linked / "ab" / name).is_symlink()
    assert os.listdir(folder / linked / "ab") == [name]


def test_signed_words_that_lead_elsewhere_are_not_followed(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    """Even of a trusted writer: an output's name leads out of its folder."""

    def leading_out(result: BundledResult) -> BundledResult:
        outputs = [(b"../../evil", digest, size, executable) for _, digest, size, executable in result.outputs]
        return msgspec.structs.replace(result, outputs=outputs)

    sign_again(filled, cache, lambda led, result: msgspec.structs.replace(result, result=leading_out(result.result)))
    victim = machine(tmp_path, "victim")
    tier = tier_at(cache.url)
    assert len(built(victim, tier).ran()) == 3
    assert tier.figures.counts()[TierAnswer.REFUSED] > 0 and not list(tmp_path.rglob("evil"))


Change = Callable[[SharedInputs | None, Any], Any]


def sign_again(workspace: Workspace, cache: HttpCache, change: Change) -> None:
    """Alice herself signs other words: each result is changed, in its own record and where it is carried."""
    with sqlite3.connect(workspace.store / "index.db") as connection:
        keys = [row[0] for row in connection.execute("SELECT key FROM results UNION SELECT first FROM input_sets")]
    connection.close()
    for path, entry in cache.records().items():
        for key in keys:
            for kind, form in ((Kind.RESULT, ResultRecord), (Kind.INPUTS, InputsRecord)):
                try:
                    record: Any = opened(entry, form, kind, key, ALICE.public)
                except RefusedRecord:
                    continue
                assert path.endswith(name_of(kind, key, ALICE.public).hex())
                if isinstance(record, InputsRecord):
                    sets = [
                        msgspec.structs.replace(led, carried=change(led, led.carried)) if led.carried else led
                        for led in record.sets
                    ]
                    cache.objects[path] = sealed(msgspec.structs.replace(record, sets=sets), ALICE)
                else:
                    cache.objects[path] = sealed(change(None, record), ALICE)


def of_another_action(led: SharedInputs | None, found: Any) -> Any:
    return msgspec.structs.replace(found, result=msgspec.structs.replace(found.result, key=b"o" * 32))


def more_objects(led: SharedInputs | None, found: Any) -> Any:
    return msgspec.structs.replace(found, objects=[*found.objects, b"more"]) if led else found


def other_bytes(led: SharedInputs | None, found: Any) -> Any:
    return msgspec.structs.replace(found, objects=[packed(EVIL)[1] for _ in found.objects]) if led else found


def smaller_than_it_is(led: SharedInputs | None, found: Any) -> Any:
    """Its frame unpacks to more than the record says."""
    outputs = [(name, digest, size - 1, executable) for name, digest, size, executable in found.result.outputs]
    blobs = [msgspec.structs.replace(blob, size=blob.size - 1) for blob in found.blobs]
    return msgspec.structs.replace(found, result=msgspec.structs.replace(found.result, outputs=outputs), blobs=blobs)


@pytest.mark.parametrize("filled", ["carried"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        of_another_action,
        smaller_than_it_is,
        pytest.param(more_objects, marks=pytest.mark.slow),
        pytest.param(other_bytes, marks=pytest.mark.slow),
    ],
)
def test_a_carried_result_is_checked_as_one_that_stands_alone(
    tmp_path: Path, filled: Workspace, cache: HttpCache, change: Change
) -> None:
    """A trusted machine whose memory is bad, or whose buildd has a fault, signs what is not so."""
    sign_again(filled, cache, change)
    victim = machine(tmp_path, "victim")
    tier = tier_at(cache.url)
    story = built(victim, tier)
    right(story, victim, filled)
    assert len(story.ran()) == 3 and tier.figures.counts()[TierAnswer.REFUSED] >= 3
