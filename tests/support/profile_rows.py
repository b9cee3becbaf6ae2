"""Profile rows of one GPU and one problem, for tests of the store's profiles. Knows no GPU."""

from __future__ import annotations

from typing import Any

from buildd.store.profiles import Outcome, Profile, Profiles
from buildd.store.store import Store
from codegen.gemm.best_kernels import Setting

H200 = Setting(gpu="NVIDIA H200", driver="580.1", toolkit="13.0.88", library="4.2.0", flags="-O3", capability="9.0")

PROBLEM = "gemm sm_90a fp16 m64 n64 k64"


def row(candidate: str = "a", **fields: Any) -> Profile:
    given: dict[str, Any] = {"setting": H200, "problem": PROBLEM, "outcome": Outcome.MEASURED, "checked": True}
    return Profile(candidate=candidate, **{**given, "time_us": 10.0, "measured_ns": 1, **fields})


def profiles_of(store: Store) -> Profiles:
    return Profiles(store.database, store.folder / "profiles")
