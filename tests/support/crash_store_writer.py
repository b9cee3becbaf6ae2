"""A process that writes to a store until it is killed, or for a number of rounds; run by the store's crash tests.

    crash_store_writer.py FOLDER SEED ROUNDS LIMIT [MODE]

Prints a line for every result after its publish has returned: the killer knows what was acknowledged. MODE
"shared" makes every writer put the same contents, so that collections and puts of equal blobs meet.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from buildd.errors import StoreError
from buildd.store import garbage_collection
from buildd.store.store import InputSet, Result, Store, StoredOutput
from buildd.store.values import digest_of
from protocol.messages import Digest


def content_of(seed: int) -> bytes:
    """Contents are made from their number, so that a reader can check them without being told."""
    chance = random.Random(seed)
    size = (10, 3_000, 70_000, 300_000)[seed % 4]
    return b"%d\n" % seed + (chance.randbytes(size) if seed % 3 else b"packs well " * (size // 11))


def key_of(what: str, seed: int) -> Digest:
    return digest_of(f"{what} {seed}".encode())


def publish(store: Store, seed: int) -> None:
    content = content_of(seed)
    output, said = store.put_bytes(content), store.put_bytes(b"said %d" % seed)
    result = Result(
        key=key_of("result", seed), action=f"a{seed}", outputs=(StoredOutput("o", output, len(content)),), stdout=said
    )
    files = tuple((f"{number}.h", key_of("h", number)) for number in range(seed % 50))
    store.publish(key_of("first", seed), InputSet(files=files, key=result.key), result)


def is_served(store: Store, seed: int) -> bool:
    """Whether the result is found whole; fails where what is found is not what was put."""
    known = store.input_sets(key_of("first", seed))
    result = store.result(known[0].key) if known else None
    if result is None or result.stdout is None:
        return False
    content, said = store.get(result.outputs[0].digest), store.get(result.stdout)
    assert content in (None, content_of(seed))
    return content is not None and said == b"said %d" % seed


def main() -> None:
    folder, seed, rounds, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    mode = sys.argv[5] if len(sys.argv) > 5 else "own"
    chance = random.Random(seed)
    with Store.open(folder, limit_bytes=limit) as store:
        assert not store.take_notices()
        for number in range(rounds):
            one = chance.randrange(12) if mode == "shared" else seed * 10_000 + number
            if mode == "collect":
                garbage_collection.gc(store, limit_bytes=chance.choice((0, 200_000)))
                continue
            publish(store, one)
            if mode == "shared":
                # Leased from before it is looked at: no collection may take it from here on.
                with store.lease([key_of("result", one)]):
                    if store.result(key_of("result", one)) is not None and not is_served(store, one):
                        raise StoreError(f"a published result lost a blob: {one}")
            sys.stdout.write(f"{one}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
