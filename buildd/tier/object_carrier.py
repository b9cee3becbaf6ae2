"""S3, Google's and Azure's object stores as a carrier, by `obstore` (extra `tier`).

obstore's own defaults wait for minutes on a server that is frozen, so it makes no second attempt here, and each
operation is ended from outside when its time is up. Knows no record.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, urlunsplit

from buildd.tier.carrier import MAX_OBJECT_BYTES, Carrier, CarrierError, LargeObject, ObjectKind, Patience, Trouble

T = TypeVar("T")
_CONNECT = "1s"
_LONGEST = "300s"
"""No operation is open for longer, whatever its patience."""
_CLOSED = ("ConnectionReset", "BrokenPipe", "IncompleteMessage")
"""What obstore says of a connection that was open and idle, and that the server has closed meanwhile."""


class ObjectCarrier(Carrier):
    """A bucket, or a folder in one.

    Args:
        url: such as `s3://bucket/prefix?region=eu-1&endpoint=https://host`. Credentials come from the environment or
            from the machine's role, as with every client of that store.

    Raises `ImportError` without obstore, `ValueError` for a URL that it does not know.
    """

    words = "a bucket"

    def __init__(self, url: SplitResult) -> None:
        import obstore
        from obstore import store
        from obstore.exceptions import BaseError

        self._obstore = obstore
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        options: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _LONGEST}
        if asked.get("endpoint", "").startswith("http://"):
            options["allow_http"] = True
        try:
            from_url: Any = store.from_url  # its overloads name every option of every store
            self._store = from_url(
                urlunsplit((url.scheme, url.netloc, url.path, "", "")),
                client_options=options,
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
                **asked,
            )
        except BaseError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tier-objects", daemon=True)
        self._thread.start()

    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        async def work() -> bytes | None:
            found = await self._obstore.get_async(self._store, f"{kind.value}/{name}")
            if found.meta["size"] > most_bytes:
                raise LargeObject
            return bytes(await found.bytes_async())

        return self._run(work, patience, absent=None)

    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        async def work() -> None:
            await self._obstore.put_async(self._store, f"{kind.value}/{name}", data, use_multipart=False)

        self._run(work, patience, absent=CarrierError(Trouble.UNREACHABLE, "there is no such bucket"))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        patience: Patience,
        *,
        absent: T | CarrierError,
        is_again: bool = False,
    ) -> T:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        # One limit for the whole: obstore does not tell how far an operation is.
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout=patience.left_s())
        except TimeoutError as error:
            future.cancel()
            raise CarrierError(Trouble.SLOW) from error
        except CancelledError as error:
            raise CarrierError(Trouble.UNREACHABLE, "the tier is closed") from error
        except FileNotFoundError as error:
            if isinstance(absent, CarrierError):
                raise absent from error
            return absent
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise CarrierError(Trouble.RIGHTS) from error
        except (BaseError, OSError) as error:
            text = str(error)
            if not is_again and any(sign in text for sign in _CLOSED):
                return self._run(work, patience, absent=absent, is_again=True)
            full = "InsufficientStorage" in text or "507" in text
            raise CarrierError(Trouble.FULL if full else Trouble.UNREACHABLE, text.splitlines()[0][:200]) from error
