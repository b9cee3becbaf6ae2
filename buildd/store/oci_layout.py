"""A bundle as an OCI image layout: a folder that skopeo, podman, oras and cosign take to a registry and back.

The image has one layer, a tar with the bundle in it, so a runtime can mount it. It is deterministic: the same bundle
gives the same digests. Knows nothing of a bundle's content; an import still checks its signature.

Sources: OCI image layout 1.0, image manifest 1.1 and image configuration of the Open Container Initiative.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import msgspec

from buildd.errors import StoreError
from buildd.store.packing import named_file_error

BUNDLE = "kernels.buildd"
"""Name of the bundle in the layer."""
ARTIFACT = "application/vnd.buildd.bundle.v2"
_MANIFEST, _CONFIG, _LAYER = (
    f"application/vnd.oci.image.{name}" for name in ("manifest.v1+json", "config.v1+json", "layer.v1.tar")
)
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_MARK = "oci-layout"
_MOST_JSON_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_MOST_UNPACKED, _MOST_RATIO = 64 << 20, 20
"""A registry may have packed the layer. A bundle is packed already: it does not grow more than that."""


class _Descriptor(msgspec.Struct, rename="camel"):
    digest: str
    size: int
    media_type: str = ""


class _Index(msgspec.Struct):
    manifests: list[_Descriptor]


class _Manifest(msgspec.Struct):
    layers: list[_Descriptor]


def is_layout(place: Path) -> bool:
    """Whether a path is a folder in this format."""
    return (place / _MARK).is_file()


@contextmanager
def written(place: Path, store: Path) -> Iterator[Path]:
    """Make a layout of the bundle that the caller writes to the yielded path.

    Args:
        store: the store's folder.

    Raises: StoreError if something is there that is no such layout, or cannot be written.
    """
    if place.exists() and not is_layout(place) and (not place.is_dir() or any(place.iterdir())):
        raise StoreError(
            "something else is there already", file=str(place), next_step="name a new folder, or an OCI image layout"
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as aside:
            bundle = Path(aside, BUNDLE)
            yield bundle
            made = Path(aside, "made")
            _lay_out(made, bundle)
            if place.exists():
                shutil.rmtree(place)
            os.rename(made, place)
    except OSError as error:
        raise named_file_error(error, place, store) from error


def _lay_out(place: Path, bundle: Path) -> None:
    blobs = place / "blobs/sha256"
    blobs.mkdir(parents=True)
    tar = place / "layer"
    entry = tarfile.TarInfo(BUNDLE)
    entry.size, entry.mode = bundle.stat().st_size, 0o644
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive, open(bundle, "rb") as content:
        archive.addfile(entry, content)
    with open(tar, "rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
    described = {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": tar.stat().st_size}
    os.rename(tar, blobs / digest)
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "artifactType": ARTIFACT,
        "config": _blob(blobs, _CONFIG, config),
        "layers": [described],
    }
    named = {**_blob(blobs, _MANIFEST, manifest), "annotations": {"org.opencontainers.image.ref.name": "latest"}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]}
    (place / "index.json").write_bytes(_json(index))
    (place / _MARK).write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _blob(blobs: Path, media_type: str, value: dict[str, Any]) -> dict[str, Any]:
    content = _json(value)
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


@contextmanager
def bundle_of(place: Path) -> Iterator[Path]:
    """The bundle in a layout, as a file that is there inside the `with`. Raises StoreError."""
    try:
        index = msgspec.json.decode(_read(place / "index.json"), type=_Index)
        if len(index.manifests) != 1:
            raise ValueError("it has not exactly one image")
        manifest = msgspec.json.decode(_checked(place, index.manifests[0]), type=_Manifest)
        if len(manifest.layers) != 1:
            raise ValueError("its image has not exactly one layer")
        with TemporaryDirectory(prefix="buildd-oci-") as folder:
            bundle = Path(folder, BUNDLE)
            with _layer(place, manifest.layers[0]) as layer, tarfile.open(fileobj=layer, mode="r|*") as archive:
                # Only this one file's content is read; no name of the archive becomes a path.
                entry = next((each for each in archive if each.name == BUNDLE and each.isreg()), None)
                content = archive.extractfile(entry) if entry is not None else None
                if entry is None or content is None:
                    raise ValueError(f"its layer has no {BUNDLE}")
                if entry.size > max(_MOST_UNPACKED, _MOST_RATIO * manifest.layers[0].size):
                    raise ValueError(f"its {BUNDLE} is larger than its layer can tell")
                with open(bundle, "wb") as target:
                    shutil.copyfileobj(content, target, _CHUNK_BYTES)
            yield bundle
    except (OSError, ValueError, tarfile.TarError) as error:
        why = f"{error.filename or place}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise StoreError(
            f"this OCI image layout holds no bundle: {why}", file=str(place), next_step="export or fetch it again"
        ) from error


def _path(place: Path, descriptor: _Descriptor) -> Path:
    if not _DIGEST.fullmatch(descriptor.digest):
        raise ValueError(f"{descriptor.digest!r} is no SHA-256 digest")
    return place / "blobs/sha256" / descriptor.digest.removeprefix("sha256:")


def _checked(place: Path, descriptor: _Descriptor) -> bytes:
    content = _read(_path(place, descriptor))
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != descriptor.digest:
        raise ValueError(f"{descriptor.digest} has other content")
    return content


@contextmanager
def _layer(place: Path, descriptor: _Descriptor) -> Iterator[BinaryIO]:
    with open(_path(place, descriptor), "rb") as file:
        if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != descriptor.digest:
            raise ValueError(f"{descriptor.digest} has other content")
        file.seek(0)
        yield file


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_MOST_JSON_BYTES + 1)
    if len(content) > _MOST_JSON_BYTES:
        raise ValueError(f"{path.name} is too large")
    return content
