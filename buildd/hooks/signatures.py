"""Ed25519 signatures (RFC 8032) of entries, with this Python's OpenSSL, else in plain Python.

Runs in the user's own process: standard library only. Knows the files of the user's key and of trusted keys
(`buildd.store.signing` makes and edits them), and nothing of what is signed.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from typing import Any

KEY_BYTES = 32
SIGNATURE_BYTES = 64
KEY_FILE, TRUSTED_FILE = "signing.key", "trusted"
_OPEN_BITS, _WRITABLE_BITS = 0o077, 0o022
_MOST_BYTES = 1 << 20
_ED25519 = 1087
"""OpenSSL's number of this kind of key."""


class Unusable(ValueError):
    """The user's key, or the list of trusted keys, cannot be used."""


def folder_of(environ: Mapping[str, str]) -> str:
    """The folder of this user's keys, the same as `protocol.curve.key_folder`."""
    own = environ.get("BUILDD_KEY_DIR", "")
    if os.path.isabs(own):
        return own
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "buildd")


class Keys:
    """The user's key and the trusted keys.

    Args:
        seed: the secret half of the user's key, 32 bytes.
        trusted: public halves of other keys.
    """

    def __init__(self, seed: bytes, trusted: frozenset[bytes] = frozenset()) -> None:
        self._seed = seed
        self.public = public_of(seed)
        self.secret = hashlib.blake2b(key=seed, person=b"buildd own", digest_size=KEY_BYTES).digest()
        """Secret for data that is never shared."""
        self.trusted = trusted | {self.public}

    def sign(self, message: bytes) -> bytes:
        return _sign(self._seed, self.public, message)

    def check(self, public: bytes, message: bytes, signature: bytes) -> None:
        """Raises ValueError if a message is not signed by a trusted key."""
        if public not in self.trusted:
            raise ValueError(f"signed with a key that is not trusted: {public.hex()}")
        if not is_signed(public, message, signature):
            raise ValueError("not signed by the key that it names")


def keys(environ: Mapping[str, str]) -> Keys:
    """The keys in the files; makes the user's key if there is none. Raises Unusable."""
    folder = folder_of(environ)
    own, others = os.path.join(folder, KEY_FILE), os.path.join(folder, TRUSTED_FILE)
    try:
        stamp = _stamp(own)
        if stamp is None:
            make_key(folder)
            stamp = _stamp(own)
        return _keys(own, stamp, others, _stamp(others))
    except OSError as error:
        raise Unusable(f"{error.filename or own}: {error.strerror}") from error


def secret(environ: Mapping[str, str]) -> bytes:
    """A secret known only to the user. Raises Unusable."""
    return keys(environ).secret


@functools.lru_cache(maxsize=4)
def _keys(own: str, own_stamp: object, others: str, others_stamp: object) -> Keys:
    """Args: own_stamp, others_stamp: states of the files for which the result holds."""
    try:
        seed = bytes.fromhex(_read(own, _OPEN_BITS).decode("ascii").strip())
        listed = _read(others, _WRITABLE_BITS).decode(errors="replace") if others_stamp is not None else ""
        words = [line.split()[0] for line in listed.splitlines() if line.strip() and not line.startswith("#")]
        trusted = frozenset(map(bytes.fromhex, words))
    except ValueError as error:
        raise Unusable(f"{own} or {others} holds something other than keys: {error}") from error
    if any(len(key) != KEY_BYTES for key in (seed, *trusted)):
        raise Unusable(f"{own} or {others} holds something other than keys")
    return Keys(seed, trusted)


def make_key(folder: str) -> None:
    """Make a key file, closed to others; processes that make it at once end with the same key. Raises OSError."""
    os.makedirs(folder, 0o700, exist_ok=True)
    path = os.path.join(folder, KEY_FILE)
    scratch = f"{path}.{os.getpid()}.new"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(os.urandom(KEY_BYTES).hex())
        try:
            os.link(scratch, path)
        except FileExistsError:
            pass
    finally:
        os.unlink(scratch)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: str, forbidden_bits: int) -> bytes:
    """Read a file of the user's own. Raises OSError, and Unusable if its mode gives others too much."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & forbidden_bits:
            raise Unusable(f"{path} is open to others: chmod 600 {path}")
        return file.read(_MOST_BYTES)


# ---------------------------------------------------------------- OpenSSL


class _Refused(Exception):
    """OpenSSL refuses: it lacks this kind of key, or its mode forbids it."""


class _Library:
    """The functions of OpenSSL that are needed.

    Args:
        library: as ctypes loads it.
    """

    def __init__(self, library: Any) -> None:
        from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        raw = (c_int, c_void_p, c_char_p, c_size_t)
        size = POINTER(c_size_t)
        init = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
        self.private_key = function("EVP_PKEY_new_raw_private_key", c_void_p, *raw)
        self.public_key = function("EVP_PKEY_new_raw_public_key", c_void_p, *raw)
        self.raw_public_key = function("EVP_PKEY_get_raw_public_key", c_int, c_void_p, c_char_p, size)
        self.free_key = function("EVP_PKEY_free", None, c_void_p)
        self.context = function("EVP_MD_CTX_new", c_void_p)
        self.free_context = function("EVP_MD_CTX_free", None, c_void_p)
        self.sign_init = function("EVP_DigestSignInit", c_int, *init)
        self.sign = function("EVP_DigestSign", c_int, c_void_p, c_char_p, size, c_char_p, c_size_t)
        self.verify_init = function("EVP_DigestVerifyInit", c_int, *init)
        self.verify = function("EVP_DigestVerify", c_int, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t)

    def public_of(self, seed: bytes) -> bytes:
        from ctypes import byref, c_size_t, create_string_buffer

        key = self.private_key(_ED25519, None, seed, KEY_BYTES)
        try:
            found, size = create_string_buffer(KEY_BYTES), c_size_t(KEY_BYTES)
            if not key or self.raw_public_key(key, found, byref(size)) != 1:
                raise _Refused
            return found.raw
        finally:
            self.free_key(key)

    def signed(self, seed: bytes, message: bytes) -> bytes:
        from ctypes import byref, c_size_t, create_string_buffer

        key, context = self.private_key(_ED25519, None, seed, KEY_BYTES), self.context()
        try:
            found, size = create_string_buffer(SIGNATURE_BYTES), c_size_t(SIGNATURE_BYTES)
            if (
                not (key and context)
                or self.sign_init(context, None, None, None, key) != 1
                or self.sign(context, found, byref(size), message, len(message)) != 1
            ):
                raise _Refused
            return found.raw
        finally:
            self.free_context(context)
            self.free_key(key)

    def is_signed(self, public: bytes, message: bytes, signature: bytes) -> bool:
        key, context = self.public_key(_ED25519, None, public, KEY_BYTES), self.context()
        try:
            if not (key and context) or self.verify_init(context, None, None, None, key) != 1:
                raise _Refused
            return bool(self.verify(context, signature, len(signature), message, len(message)) == 1)
        finally:
            self.free_context(context)
            self.free_key(key)


@functools.lru_cache(maxsize=1)
def _library() -> _Library | None:
    """The OpenSSL that hashlib has loaded, if it has this kind of key and can be called."""
    try:
        import _hashlib
        import ctypes

        found = _Library(ctypes.CDLL(_hashlib.__file__))
        seed = bytes(KEY_BYTES)
        works = found.is_signed(found.public_of(seed), b"", found.signed(seed, b""))
    except (ImportError, OSError, AttributeError, _Refused, TypeError):
        # Built into Python without its symbols, too old, or in a mode that forbids it.
        return None
    return found if works else None


def public_of(seed: bytes) -> bytes:
    """The public half of a key."""
    library = _library()
    return library.public_of(seed) if library is not None else _encoded(_sum(_scalar(seed), _BASE))


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature is this key's, of this message."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    library = _library()
    if library is None:
        return _is_signed(public, message, signature)
    try:
        return library.is_signed(public, message, signature)
    except _Refused:  # not a point of the curve
        return False


def _sign(seed: bytes, public: bytes, message: bytes) -> bytes:
    library = _library()
    return library.signed(seed, message) if library is not None else _signed(seed, public, message)


# ---------------------------------------------------------------- plain Python

# RFC 8032, 5.1, with its names. A signature takes a millisecond, its check two. Nothing here runs in
# constant time: an attacker who can measure a process of this user can read the key anyway.

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]
"""Extended coordinates: x = X/Z, y = Y/Z, xy = T/Z."""
_ZERO: _Point = (0, 1, 1, 0)
_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960
_BASE: _Point = (_X, _Y, 1, _X * _Y % _P)


def _added(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _sum(first: int, one: _Point, second: int = 0, other: _Point = _ZERO) -> _Point:
    """The sum of first times one and second times other."""
    table = (_ZERO, one, other, _added(one, other))
    found = _ZERO
    for bit in reversed(range(max(first.bit_length(), second.bit_length()))):
        found = _added(found, found)
        which = first >> bit & 1 | (second >> bit & 1) << 1
        if which:
            found = _added(found, table[which])
    return found


def _encoded(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(KEY_BYTES, "little")


def _decoded(text: bytes) -> _Point | None:
    number = int.from_bytes(text, "little")
    sign, y = number >> 255, number & ~(1 << 255)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    x = _P - x if x & 1 != sign else x
    return x, y, 1, x * y % _P


def _scalar(seed: bytes) -> int:
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return number & (1 << 254) - 8 | 1 << 254


def _hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _L


def _signed(seed: bytes, public: bytes, message: bytes) -> bytes:
    once = _hashed(hashlib.sha512(seed).digest()[32:], message)
    r = _encoded(_sum(once, _BASE))
    s = (once + _hashed(r, public, message) * _scalar(seed)) % _L
    return r + s.to_bytes(32, "little")


def _is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    r, s, point = signature[:32], int.from_bytes(signature[32:], "little"), _decoded(public)
    if point is None or s >= _L:
        return False
    x, y, z, t = point
    return _encoded(_sum(s, _BASE, _hashed(r, public, message), (_P - x, y, z, _P - t))) == r
