"""How many jobs a foreign build may have at once: its share of the processors that the daemon hands out.

Asks the daemon how many jobs run for others. Knows no token. A daemon that does not answer changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from protocol.client import Client
from protocol.errors import ProtocolError
from protocol.messages import RequestStatus

_ANSWER_S = 2.0


class BudgetShare:
    """The share of one build; used by one thread at a time.

    Args:
        environ: says where the daemon is, and which build this is.
        limit: most jobs at once that the user allows this build; None for as many as the daemon runs.

    Attributes:
        most: jobs at once if no other build ran.
    """

    def __init__(self, environ: Mapping[str, str], limit: int | None) -> None:
        self._environ = dict(environ)
        self._build = environ.get("BUILDD_BUILD_ID", "")
        usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        self._limit = limit or (usable if usable < there else None)
        self.most = self._found = limit or usable
        self._client: Client | None = None

    def __call__(self) -> int:
        """Jobs at once from now on; what it was, if the daemon does not answer."""
        try:
            if self._client is None:
                self._client = Client.connect(environ=self._environ, timeout_s=_ANSWER_S)
            status = self._client.status()
        except (ProtocolError, OSError):
            self.close()
            return self._found
        if status.cpus:
            self.most = min(status.cpus, self._limit or status.cpus)
            others = (each for each in status.work if each.build_id != self._build)
            self._found = min(share(status.cpus, others), self.most)
        return self._found

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def share(cpus: int, others: Iterable[RequestStatus]) -> int:
    """The processors that other builds leave, but at least as many as if each build had as many as the others.

    Without this least number a build that came second would stay at one job while the first one has all the others.

    Args:
        cpus: all that the daemon hands out.
        others: requests of other builds.
    """
    running: dict[str, int] = {}
    for each in others:
        running[each.build_id] = running.get(each.build_id, 0) + each.jobs_running
    busy = [jobs for jobs in running.values() if jobs]
    return max(1, cpus - sum(busy), cpus // (len(busy) + 1))
