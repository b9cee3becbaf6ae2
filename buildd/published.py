"""AIT_RECOMPILE=0: the artifacts that a target had last, without building and without asking whether they are current.

What is in the project's folder stays as it is; what is gone comes from the store, as the build log names it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from buildd.building import Building
from buildd.store import Store
from codegen.plan import NamedArtifact, Plan, RequestError
from protocol import messages as m
from protocol.described import described

_SEARCHED = 200
"""Builds back."""


def serve(building: Building, plan: Plan) -> None:
    """Answer a request with what is there. In a worker thread.

    Raises:
        RequestError: "not-published": an artifact is neither in its place nor in the store.
    """
    missing = [artifact.path for artifact in plan.artifacts if not Path(building.project, artifact.path).is_file()]
    if missing:
        known = _published(building.store, building.project)
        for path in missing:
            before = known.get(path)
            if before is None or not building.store.restore(before.digest, Path(building.project, path)):
                raise RequestError(
                    "not-published",
                    f"{path} was never built here, or is no longer kept, and AIT_RECOMPILE=0 forbids to build it",
                    file=path,
                    next_step="unset AIT_RECOMPILE, or set it to 1, and build once",
                )
    building.log.append(m.Notice(text="AIT_RECOMPILE=0: what was built last, whatever changed since"))
    building.log.append(m.Planned(targets=plan.targets, actions=0))
    for artifact in plan.artifacts:
        if (placed := _placed(building, artifact)) is not None:
            building.log.append(placed)
    building.tell_done(m.Outcome.BUILT, message="served as it was")


def _placed(building: Building, artifact: NamedArtifact) -> m.Artifact | None:
    fact = building.snapshot.files.fact(f"{building.project}/{artifact.path}")
    if fact is None:
        return None
    return m.Artifact(
        target=artifact.target,
        name=artifact.name,
        path=artifact.path,
        digest=fact.digest,
        size_bytes=fact.stamp.size,
    )


def _published(store: Store, project: str) -> dict[str, m.Artifact]:
    """The last artifact of every path that a build of this project has published."""
    found: dict[str, m.Artifact] = {}
    for build in store.builds(_SEARCHED):
        if build.project != project or build.outcome is not m.Outcome.BUILT:
            continue
        events = store.build_events(build.request_id)
        for event in msgspec.msgpack.decode(events, type=described(list[m.Event])) if events else ():
            if isinstance(event.body, m.Artifact):
                found.setdefault(event.body.path, event.body)
    return found
