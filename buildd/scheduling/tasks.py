"""The scheduler's tasks. Each serves one request; a fault inside a task is reported for that request.

Knows requests by name only. The scheduler decides what a fault means for a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from protocol.messages import RequestId

_WAIT_S = 10.0
_log = logging.getLogger(__name__)


class Tasks:
    """Tasks on the running event loop.

    Args:
        failed: called with the request of a task and the exception that the task ended with.
        story: tells what led to a fault, for the log.
    """

    def __init__(self, failed: Callable[[RequestId, BaseException], None], story: Callable[[], str]) -> None:
        self._failed = failed
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._served: dict[asyncio.Task[None], RequestId] = {}

    def __len__(self) -> int:
        return len(self._served)

    def spawn(self, coroutine: Coroutine[object, object, None], request_id: RequestId) -> None:
        """Run a coroutine that serves a request."""
        task = self._loop.create_task(coroutine)
        self._served[task] = request_id
        task.add_done_callback(self._ended)

    async def all_ended(self) -> None:
        """Wait until no task is left, not even one that another task has spawned."""
        while self._served:
            await asyncio.wait(set(self._served), timeout=_WAIT_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        request_id = self._served.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("serving %s failed; what led here:\n%s", request_id, self._story(), exc_info=error)
            self._failed(request_id, error)
