"""Signatures of bundles: this user's Ed25519 key, which signs exports, and the keys whose bundles the user trusts.

The key is beside the user's other settings, so it outlives every store; CI runners get theirs from a secret. Knows no
bundle: it signs and checks bytes. An import without a trusted signature is refused before its content is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from buildd.errors import BuilddError
from protocol.curve import key_folder, private_file, read_private
from protocol.errors import EndpointError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_OPEN_BITS = 0o077
_WRITABLE_BITS = 0o022


class SigningError(BuilddError):
    """A key, or the list of trusted keys, cannot be used."""

    code = "bad-key"


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs. `seed` is the secret part."""

    public: bytes
    seed: bytes

    def sign(self, content: bytes) -> bytes:
        """The signature: 64 bytes, always the same for the same content."""
        from nacl.signing import SigningKey

        return bytes(SigningKey(self.seed).sign(content).signature)


def signer_of(seed: bytes) -> Signer:
    """The key with this secret (32 bytes)."""
    from nacl.signing import SigningKey  # here: its import takes 0.1 s

    return Signer(bytes(SigningKey(seed).verify_key), seed)


def is_signed(content: bytes, public: bytes, signature: bytes) -> bool:
    """Whether this key made this signature of this content."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(public).verify(content, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def key_file(environ: Mapping[str, str]) -> Path:
    """The file with the user's key: 64 hexadecimal digits, readable by the user alone."""
    return key_folder(environ) / "signing.key"


def trusted_file(environ: Mapping[str, str]) -> Path:
    """The file with the keys that the user trusts besides their own: a line `KEY NAME` each."""
    return key_folder(environ) / "trusted"


def own(environ: Mapping[str, str]) -> Signer:
    """The user's key, made at the first call. Raises `SigningError`."""
    path = key_file(environ)
    try:
        text = private_file(path, lambda: os.urandom(KEY_BYTES).hex().encode())
        seed = bytes.fromhex(text.decode("ascii").strip())
    except EndpointError as error:
        raise SigningError(error.message, file=str(path), next_step=error.next_step) from error
    except OSError as error:
        raise SigningError(f"the signing key cannot be used: {error.strerror}", file=str(path)) from error
    except ValueError as error:
        raise _no_key(path) from error
    if len(seed) != KEY_BYTES:
        raise _no_key(path)
    return signer_of(seed)


def _no_key(path: Path) -> SigningError:
    return SigningError(
        f"the signing key cannot be used: its file does not hold {2 * KEY_BYTES} hexadecimal digits and nothing else",
        file=str(path),
        next_step="write the key into it, or remove it: buildd makes another key then, which nobody trusts yet",
    )


def trusted(environ: Mapping[str, str]) -> dict[bytes, str]:
    """Key -> name of everybody whose bundles are imported, the user included. Raises `SigningError`."""
    return {own(environ).public: "this user", **listed(environ)}


def listed(environ: Mapping[str, str]) -> dict[bytes, str]:
    """Key -> name of the other people whom the user trusts. Raises `SigningError`, which names the line."""
    path = trusted_file(environ)
    try:
        text = read_private(path, _WRITABLE_BITS).decode(errors="replace")
    except FileNotFoundError:
        return {}
    except EndpointError as error:
        raise SigningError(
            "the list of trusted keys can be written by others", file=str(path), next_step=f"chmod 600 {path}"
        ) from error
    except OSError as error:
        raise SigningError(f"the list of trusted keys cannot be read: {error.strerror}", file=str(path)) from error
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            word, _, name = line.strip().partition(" ")
            found[public_of(word, f"{path}:{number}")] = name.strip()
    return found


def public_of(text: str, where: str = "") -> bytes:
    """A public key from its 64 hexadecimal digits. Raises `SigningError`."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SigningError(
            f'"{text}" is no public key',
            file=where,
            next_step="run `buildd cache key` on the machine that exports: it prints the key",
        )
    return key


def trust(environ: Mapping[str, str], key: bytes, name: str, *, remove: bool = False) -> None:
    """Add a key to the list of trusted keys, or remove it. Raises `SigningError`."""
    path = trusted_file(environ)
    keys = {known: label for known, label in listed(environ).items() if known != key}
    if not remove:
        keys[key] = " ".join(name.split())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as stream:
            stream.writelines(f"{known.hex()} {label}".strip() + "\n" for known, label in sorted(keys.items()))
        os.replace(scratch, path)
    except OSError as error:
        raise SigningError(f"the list of trusted keys cannot be written: {error.strerror}", file=str(path)) from error
