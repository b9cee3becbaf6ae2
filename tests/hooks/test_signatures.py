"""Signatures of entries: right with and without OpenSSL, by keys that the user's files name, and never in the way."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buildd.hooks import bytecode, entries, signatures, triton_cache
from buildd.hooks.entries import Entry, Shelf
from buildd.hooks.signatures import Unusable
from buildd.store import shared_kernels, signing
from protocol.curve import key_folder

KEY, GROUP, FILES = "KEY", "add.json", {"add.json": b'{"target": {"backend": "cuda"}}', "add.cubin": b"code" * 99}

# RFC 8032, 7.1: secret, public, message, signature.
VECTORS = (
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe2465"
        "5141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb0"
        "0d291612bb0c00",
    ),
)


@pytest.fixture(params=["OpenSSL", "plain Python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    signatures._keys.cache_clear()
    if request.param == "plain Python":
        monkeypatch.setattr(signatures, "_library", lambda: None)
    elif signatures._library() is None:
        pytest.skip("this Python lets nobody call its OpenSSL")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's keys are; those of others are beside it."""
    folder = tmp_path / "keys"
    monkeypatch.setenv("BUILDD_KEY_DIR", str(folder))
    return folder


@pytest.fixture
def shelf(tmp_path: Path, keys: Path) -> Shelf:
    (tmp_path / "store").mkdir(mode=0o700)
    made = Shelf(str(tmp_path / "store"), "triton")
    assert made.open()
    return made


@pytest.mark.usefixtures("either")
def test_signatures_are_those_of_the_standard() -> None:
    for vector in VECTORS:
        secret, public, message, signature = map(bytes.fromhex, vector)
        assert signatures.public_of(secret) == public and signatures.Keys(secret).sign(message) == signature
        assert signatures.is_signed(public, message, signature)


@pytest.mark.usefixtures("either")
def test_nothing_else_is_a_signature() -> None:
    chosen = random.Random(1)
    for number in range(12):
        key, message = signing.signer_of(chosen.randbytes(32)), chosen.randbytes(number)
        signature = key.sign(message)
        assert signatures.Keys(key.seed).sign(message) == signature
        assert signatures.is_signed(key.public, message, signature)
        altered = bytearray(signature)
        altered[chosen.randrange(64)] ^= 1 << chosen.randrange(8)
        assert not signatures.is_signed(key.public, message, bytes(altered))
        assert not signatures.is_signed(key.public, message + b"x", signature)
        assert not signatures.is_signed(signing.signer_of(bytes(32)).public, message, signature)
        # The same point with another number for it: RFC 8032, 5.1.7, lets it not pass.
        more = int.from_bytes(signature[32:], "little") + signatures._L
        assert not signatures.is_signed(key.public, message, signature[:32] + more.to_bytes(32, "little"))
        for public in (b"\xff" * 32, b"", key.public[:31], bytes([2]) + bytes(31)):
            assert not signatures.is_signed(public, message, signature)
        assert not signatures.is_signed(key.public, message, signature[:-1])


def test_keys_are_where_the_user_has_theirs(tmp_path: Path) -> None:
    for environ in (
        {"BUILDD_KEY_DIR": str(tmp_path / "a"), "XDG_CONFIG_HOME": str(tmp_path / "b")},
        {"BUILDD_KEY_DIR": "relative", "XDG_CONFIG_HOME": str(tmp_path / "b")},
        {"XDG_CONFIG_HOME": "relative", "HOME": str(tmp_path)},
    ):
        assert Path(signatures.folder_of(environ)) == key_folder(environ)
        made = signatures.keys(environ)
        assert made.public == signing.own(environ).public, "whichever made it"
        signing.trust(environ, b"o" * 32, "the CI")
        assert signatures.keys(environ).trusted == set(signing.trusted(environ))
        shutil.rmtree(key_folder(environ))
        assert signing.own(environ).public == signatures.keys(environ).public != made.public


def _open_key(folder: Path) -> None:
    (folder / "signing.key").chmod(0o644)


def _no_key(folder: Path) -> None:
    (folder / "signing.key").write_text("no key")


def _short_key(folder: Path) -> None:
    (folder / "signing.key").write_text("ab" * 31)


def _open_list(folder: Path) -> None:
    (folder / "trusted").write_text("")
    (folder / "trusted").chmod(0o666)


def _bad_list(folder: Path) -> None:
    (folder / "trusted").write_text("zz somebody\n")
    (folder / "trusted").chmod(0o600)


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("spoil", [_open_key, _no_key, _short_key, _open_list, _bad_list, _no_folder])
def test_keys_that_cannot_be_believed_are_none(
    shelf: Shelf, keys: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    shelf.put(Entry(KEY, GROUP, FILES))
    spoil(keys)
    with pytest.raises(Unusable, match=str(keys)):
        shelf.take(KEY, GROUP)
    with pytest.raises(Unusable):
        shelf.put(Entry("OTHER", GROUP, FILES))
    entries._told.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with triton_cache._fails_open("not looked up"):
                shelf.take(KEY, GROUP)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], "the user is told once"
    assert "buildd: not looked up: " in caplog.text and str(keys) in caplog.text


def test_an_entry_is_taken_from_who_is_trusted(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put(Entry(KEY, GROUP, FILES))
    author = signatures.keys(os.environ).public
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "reader"))
    with pytest.raises(ValueError, match=f"not trusted: {author.hex()}"):
        shelf.take(KEY, GROUP)
    assert list(shared_kernels.sound(tmp_path / "store")) == [], "nor is it handed on"
    signing.trust(os.environ, author, "the author")
    assert shelf.take(KEY, GROUP) is not None
    assert [name for name, _ in shared_kernels.sound(tmp_path / "store")] == [shelf.name_of(KEY, GROUP)]
    signing.trust(os.environ, author, "", remove=True)
    with pytest.raises(ValueError, match="not trusted"):
        shelf.take(KEY, GROUP)


def test_a_signature_is_of_one_entry_under_one_name(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put(Entry(KEY, GROUP, FILES))
    place = Path(shelf.folder, shelf.name_of(KEY, GROUP))
    content = place.read_bytes()
    unsigned = Entry(KEY, GROUP, FILES).encode()
    assert len(unsigned) == len(content) and Entry.decode(unsigned).files == FILES
    other = Entry(KEY, GROUP, {**FILES, "add.cubin": b"evil" * 99}).encode()
    head = slice(len(entries.MAGIC), len(entries.MAGIC) + entries._UNSIGNED)
    forged = other[: head.start] + content[head] + other[head.stop :]
    for bad in (unsigned, forged):
        place.write_bytes(bad)
        with pytest.raises(ValueError, match=r"not trusted|not signed"):
            shelf.take(KEY, GROUP)
    graphs = Shelf(str(tmp_path / "store"), "inductor")
    assert graphs.open()
    Path(graphs.folder, place.name).write_bytes(content)
    with pytest.raises(ValueError, match="not signed"):
        graphs.take(KEY, GROUP)
    place.write_bytes(content)
    assert shelf.take(KEY, GROUP) is not None


def test_bytecode_is_taken_from_the_user_alone(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bytecode.BytecodeStore(str(tmp_path), signatures.secret(os.environ))
    assert made.open()
    name = made.name_of(b"1", "x.py", 0)
    made.put(name, compile("1", "x.py", "eval"))
    assert bytecode.BytecodeStore(str(tmp_path), signatures.secret(os.environ)).take(name) is not None
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "reader"))
    with pytest.raises(ValueError, match="damaged"):
        bytecode.BytecodeStore(str(tmp_path), signatures.secret(os.environ)).take(name)


def test_no_openssl_that_can_be_called_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ctypes: Any = pytest.importorskip("ctypes")
    signatures._library.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", lambda path: object())
            assert signatures._library() is None
    finally:
        signatures._library.cache_clear()
