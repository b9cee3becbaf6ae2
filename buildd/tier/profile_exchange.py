"""Measurements of kernels between one store and the tier: fetched before a GPU measures, written after it has.

A build asks for the rows of its GPU model, in which its store lacks a problem. They are checked as everything else that
comes from the tier. A row of the store stays if it is the later one. Knows no target and no GPU.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from buildd.errors import StoreError
from buildd.store.profiles import Profiles
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier import shared_profiles
from buildd.tier.carrier import CarrierError, Patience
from buildd.tier.fetcher import patience_of, waits_s
from buildd.tier.figures import TierAnswer
from buildd.tier.tier import Tier
from codegen.gemm.best_kernels import folders

MEASURING_S = 20.0
"""Candidates are compiled before they are measured: no build should wait for the tier for longer."""
MOST_NAME = 200
"""Characters of the name of a GPU."""
_log = logging.getLogger(__name__)


class ProfileExchange:
    """The measurements of one store. Every method may be called from any thread."""

    def __init__(self, tier: Tier, store: Store) -> None:
        self._tier, self._store = tier, store
        self._profiles = Profiles(store.database, store.folder.joinpath(folders({}, str(store.folder), "/")[0]))
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="tier-profiles")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="tier-put-profiles")
        self._lock = threading.Lock()
        self._open: dict[str, Future[bool]] = {}
        self._is_to_be_written = False

    def begin(self, gpu: str) -> tuple[Future[bool], float] | None:
        """Begin to fetch the rows of a GPU model: whether there were new ones, and how long that may take.

        None where asking is not worth it.
        """
        if self._store.read_only or not self._tier.settings.believed or not 0 < len(gpu) <= MOST_NAME:
            return None
        wait_s = waits_s(MEASURING_S)
        with self._lock:
            if (known := self._open.get(gpu)) is not None:
                return known, wait_s
            if not self._tier.may_be_asked():
                return None
            try:
                future = self._reading.submit(self._answer, gpu, patience_of(MEASURING_S))
            except RuntimeError:  # the store is being closed
                return None
            self._open[gpu] = future
        future.add_done_callback(lambda _: self._open.pop(gpu, None))
        return future, wait_s

    def measured(self) -> None:
        """Have the store's rows written in the background, if this user writes."""
        if self._tier.settings.signer is None or self._store.read_only:
            return
        with self._lock:
            if self._is_to_be_written:
                return
            try:
                self._writing.submit(self._write)
            except RuntimeError:  # the store is being closed
                return
            self._is_to_be_written = True

    def close(self) -> None:
        """Begin nothing more. What is under way ends when the carrier is closed."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._writing.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------------

    def _answer(self, gpu: str, patience: Callable[[], Patience]) -> bool:
        try:
            new = self._fetch(gpu, patience())
        except CarrierError:  # the tier's figures have it
            self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.FAILED.value)
            return False
        except StoreError as error:
            self._count(TierAnswer.FAILED, f"measurements cannot be stored: {error.message}")
            return False
        except Exception:  # the edge: no fault of the tier may reach a build
            _log.exception("a look-up of measurements failed inside")
            self._count(TierAnswer.FAILED, "a look-up failed inside; the log has the story")
            return False
        if new:
            self._count(TierAnswer.MEASUREMENTS, amount=new)
        else:
            self._count(TierAnswer.ABSENT)
        return new > 0

    def _fetch(self, gpu: str, patience: Patience) -> int:
        """How many rows are new. Raises `CarrierError`, `StoreError`."""
        rows = [row for row in shared_profiles.read(self._tier, patience) if row.setting.gpu == gpu]
        if not rows:
            return 0
        known = {(row.setting, row.problem, row.candidate): row.measured_ns for row in self._profiles.everything()}
        new = [row for row in rows if known.get((row.setting, row.problem, row.candidate), -1) < row.measured_ns]
        return len(new) if new and self._profiles.save(new, older=False) else 0

    def _write(self) -> None:
        with self._lock:
            self._is_to_be_written = False  # rows that are measured from now on are written in another round
        signer = self._tier.settings.signer
        if signer is None or not self._tier.may_be_written():
            return
        try:
            shared_profiles.write(self._tier, signer, self._profiles.everything())
        except CarrierError:  # the tier's figures have it; the next measurement, or a push, writes these rows too
            self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.UNKEPT.value)
        except StoreError as error:
            self._count(TierAnswer.UNKEPT, error.message)
        except Exception:  # the edge
            _log.exception("an upload of measurements failed inside")

    def _count(self, answer: TierAnswer, problem: str = "", amount: int = 1) -> None:
        self._tier.figures.count(answer, problem, amount)
        self._store.tally.count_reasoned(Reasoned.TIER, answer.value, amount)
