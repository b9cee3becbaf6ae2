"""AIT_RECOMPILE=0: serves the last artifacts of a target, without building and without checking that they are current.

Artifacts in the project's folder stay as they are; those that are gone come from the store, by the build log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from buildd.builds.active_build import ActiveBuild
from buildd.store.store import Store
from codegen.errors import RequestError
from codegen.plan import NamedArtifact, Plan
from protocol import messages as m
from protocol.described import described

_SEARCHED = 200
"""How many builds back the log is searched."""


def serve(build: ActiveBuild, plan: Plan) -> None:
    """Answer a request with the artifacts that are there. In a worker thread.

    Raises:
        RequestError: "not-published": an artifact is neither in its place nor in the store.
    """
    missing = [artifact.path for artifact in plan.artifacts if not Path(build.project, artifact.path).is_file()]
    if missing:
        known = _published(build.store, build.project)
        for path in missing:
            before = known.get(path)
            if before is None or not build.store.restore(
                before.digest, Path(build.project, path), umask=build.request.umask
            ):
                raise RequestError(
                    "not-published",
                    f"{path} was never built here, or is no longer kept, and AIT_RECOMPILE=0 forbids building it",
                    file=path,
                    next_step="unset AIT_RECOMPILE, or set it to 1, and build once",
                )
    build.log.append(m.Notice(text="AIT_RECOMPILE=0: serving the last build, whatever changed since"))
    build.log.append(m.Planned(targets=plan.targets, actions=0))
    for artifact in plan.artifacts:
        if (placed := _placed(build, artifact)) is not None:
            build.log.append(placed)
    build.report.tell_done(m.Outcome.BUILT, message="served as it was")


def _placed(build: ActiveBuild, artifact: NamedArtifact) -> m.Artifact | None:
    fact = build.inputs.snapshot.files.fact(f"{build.project}/{artifact.path}")
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
