"""Keys: the user's own is made once and kept closed; whom they trust is a file that they can read and edit."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from buildd.client import machine_checks as checks
from buildd.store import signing
from buildd.store.signing import SigningError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def _public(environ: dict[str, str]) -> bytes:
    return signing.own(environ).public


def test_a_key_is_made_once_and_is_closed_to_others(environ: dict[str, str]) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        (key,) = set(pool.map(_public, [environ] * 8))
    assert signing.trusted(environ) == {key: "this user"}
    file = signing.key_file(environ)
    assert file.stat().st_mode & 0o777 == 0o600 and len(file.read_text()) == 64
    assert key.hex() not in file.read_text()
    file.chmod(0o644)
    with pytest.raises(SigningError, match="open to others") as found:
        signing.own(environ)
    assert found.value.next_step == f"chmod 600 {file}"


@pytest.mark.parametrize("content", ["", "no key", "ab" * 31, "ä" * 32])
def test_a_file_that_holds_no_key_is_told(environ: dict[str, str], content: str) -> None:
    signing.own(environ)
    signing.key_file(environ).write_text(content)
    with pytest.raises(SigningError, match=r"^the signing key cannot be used: its file does not hold 64 hex") as found:
        signing.own(environ)
    assert found.value.file == str(signing.key_file(environ))


def test_a_signature_is_of_one_content_and_one_key() -> None:
    one, two = signing.signer_of(b"1" * 32), signing.signer_of(b"2" * 32)
    signature = one.sign(b"content")
    assert len(signature) == signing.SIGNATURE_BYTES and signature == one.sign(b"content")
    assert signing.is_signed(b"content", one.public, signature)
    assert not signing.is_signed(b"Content", one.public, signature)
    assert not signing.is_signed(b"content", two.public, signature)
    assert not signing.is_signed(b"content", one.public, signature[:-1])
    assert not signing.is_signed(b"content", b"short", signature)


def test_whom_one_trusts(environ: dict[str, str]) -> None:
    own, other, third = signing.own(environ).public, b"o" * 32, b"t" * 32
    signing.trust(environ, other, "the CI")
    signing.trust(environ, third, "")
    signing.trust(environ, other, "the\nCI again")
    assert signing.trusted(environ) == {own: "this user", other: "the CI again", third: ""}
    signing.trust(environ, third, "", remove=True)
    file = signing.trusted_file(environ)
    assert file.read_text() == f"{other.hex()} the CI again\n"
    file.write_text(f"# ours\n\n{other.hex()}\nzz somebody\n")
    with pytest.raises(SigningError, match='"zz" is no public key') as found:
        signing.trusted(environ)
    assert found.value.file == f"{file}:4"
    # Who else can write it, decides whose code runs here.
    file.chmod(0o666)
    with pytest.raises(SigningError, match="written by others"):
        signing.trusted(environ)


def test_the_doctor_tells_who_is_trusted(environ: dict[str, str]) -> None:
    (found,) = checks.keys(environ)
    assert found.level is checks.Level.OK and "no key yet" in found.text and found.text.endswith("nobody")
    assert not signing.key_file(environ).exists(), "who only looks makes no key"
    signing.trust(environ, b"o" * 32, "the CI")
    key = signing.own(environ).public.hex()
    (found,) = checks.keys(environ)
    assert found.text == f"signs with: {key}; also trusts: the CI"
    signing.key_file(environ).chmod(0o644)
    (found,) = checks.keys(environ)
    assert found.level is checks.Level.FAIL and found.next_step.startswith("chmod 600 ")
