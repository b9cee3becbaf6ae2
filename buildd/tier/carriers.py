"""Opens a carrier by URL.

`file:` and absolute paths are folders, `http:` and `https:` Bazel's cache, `grpc:` and `grpcs:` REAPI, and buckets'
schemes are obstore's. For any other scheme a storage helper of ccache's is looked for. Imports only the one that is
asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from buildd.errors import BuilddError
from buildd.tier.carrier import Carrier


class TierError(BuilddError):
    """The tier that the user named cannot be used."""

    code = "tier"


def carrier_of(url: str, headers: Sequence[tuple[str, str]] = ()) -> Carrier:
    """The carrier. Raises `TierError`.

    Args:
        headers: sent with each request of http: and grpc:.
    """
    try:
        if os.path.isabs(url):
            parts = urlsplit(f"file://{url}")
        else:
            parts = urlsplit(url)
            parts.port  # noqa: B018 (raises ValueError for a port that is no number)
        match parts.scheme:
            case "file":
                from buildd.tier.folder_carrier import FolderCarrier

                return FolderCarrier(Path(url if os.path.isabs(url) else unquote(parts.path)))
            case "http" | "https" if parts.hostname:
                from buildd.tier.http_carrier import HttpCarrier

                return HttpCarrier(parts, headers)
            case "grpc" | "grpcs" if parts.hostname:
                from buildd.tier.grpc_carrier import GrpcCarrier
                from buildd.tier.grpc_place import GrpcPlace

                return GrpcCarrier(GrpcPlace(parts, headers))
            case "s3" | "s3a" | "gs" | "az" | "azure" | "abfs" | "abfss" | "adl":
                from buildd.tier.object_carrier import ObjectCarrier

                return ObjectCarrier(parts)
            case scheme:
                from buildd.tier.helper_carrier import HelperCarrier, program_of

                if (program := program_of(scheme)) is not None:
                    return HelperCarrier(program, url)
    except ImportError as error:
        raise TierError(
            f"the tier {shown(url)} needs the package {(error.name or 'obstore').partition('.')[0]}",
            next_step="install what tiers need: pip install 'buildd[tier]'",
        ) from error
    except ValueError as error:
        raise TierError(f"the tier's URL cannot be read: {error}", next_step=_NEXT_STEP) from error
    raise TierError(f"the tier's URL cannot be read: {shown(url)!r}", next_step=_NEXT_STEP)


_NEXT_STEP = (
    "give a folder, or a URL that begins with http://, https://, grpc://, grpcs://, s3://, gs:// or az://, or with "
    "NAME: where the program ccache-storage-NAME is on PATH"
)


def shown(url: str) -> str:
    """The URL without what may be secret in it."""
    if os.path.isabs(url):
        return url
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return url.partition(":")[0]
