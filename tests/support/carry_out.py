"""Plans and carries plans out one action after another: for tests of generators, which need no daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from codegen.generate import make_plan
from codegen.plan import Action, Answer, Argument, Discovery, Knowledge, Place, Plan, Probe, ProbesNeeded
from protocol.messages import BuildId, Request, RequestId, spec_from

ResultT = TypeVar("ResultT")

KNOWLEDGE = Knowledge()
"""Answers of one test run: compilers do not change in it."""


def request_for(
    project: Path,
    *targets: str,
    environment: Mapping[str, str] | None = None,
    specs: Mapping[str, dict[str, Any]] | None = None,
    **fields: Any,
) -> Request:
    """A request as the CLI would make it in `project`, with this process's PATH unless told otherwise."""
    return Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(project),
        targets=targets,
        environment={"PATH": os.environ.get("PATH", os.defpath)} if environment is None else dict(environment),
        specs={name: spec_from(table) for name, table in (specs or {}).items()},
        **fields,
    )


def run_probe(probe: Probe) -> Answer:
    """Run a probe's command on this machine."""
    done = subprocess.run(
        probe.argv, env=dict(probe.environment), input=probe.payload, capture_output=True, timeout=probe.timeout_s
    )
    texts = [text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr)]
    return Answer(status=done.returncode, stdout=texts[0], stderr=texts[1])


def answered(
    ask: Callable[[], ResultT], knowledge: Knowledge = KNOWLEDGE, answer: Callable[[Probe], Answer] = run_probe
) -> ResultT:
    """Call `ask` until it needs no more probes; `answer` answers each of them."""
    for _ in range(16):
        try:
            return ask()
        except ProbesNeeded as needed:
            for probe in needed.probes:
                knowledge.learn(probe, answer(probe))
    raise AssertionError("the plan never stops asking")


def plan_for(request: Request, knowledge: Knowledge = KNOWLEDGE) -> Plan:
    """Plan a request with this machine's compilers."""
    return answered(lambda: make_plan(request, knowledge), knowledge)


def plan_with(request: Request, answer: Callable[[Probe], Answer]) -> Plan:
    """Plan a request from nothing; `answer` answers all its probes."""
    knowledge = Knowledge()
    return answered(lambda: make_plan(request, knowledge), knowledge, answer)


@dataclass
class Ran:
    action: Action
    status: int
    said: str
    depfile: str


def carry_out(plan: Plan, project: Path, scratch: Path, only: str = "") -> list[Ran]:
    """Runs the actions whose name starts with `only` in their order, with outputs where the plan wants them."""
    for file in plan.files:
        (project / file.path).parent.mkdir(parents=True, exist_ok=True)
        (project / file.path).write_bytes(file.content)
    tools = {tool.name: dict(tool.roots) for tool in plan.tools}
    ran = []
    for index, action in enumerate(plan.actions):
        if not action.name.startswith(only):
            continue
        private = scratch / str(index)
        private.mkdir(parents=True)
        outputs = {output.name: str(project / output.path) for output in action.outputs}
        for path in outputs.values():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        depfile = private / "inputs"

        def spelled(argument: Argument) -> str:
            if isinstance(argument, str):
                return argument
            values = {
                Place.OUTPUT: lambda: outputs[argument.name],  # noqa: B023
                Place.INPUT: lambda: str(project / argument.name),
                Place.TEMPORARY: lambda: str(private),  # noqa: B023
                Place.ROOT: lambda: tools[action.tool][argument.name],  # noqa: B023
                Place.DEPFILE: lambda: str(depfile),  # noqa: B023
            }
            return argument.prefix + values[argument.place]() + argument.suffix

        environment = {**dict(action.environment), "TMPDIR": str(private)}
        if action.discovery is Discovery.GCC:
            environment["SUNPRO_DEPENDENCIES"] = str(depfile)
        elif action.discovery is Discovery.CLANG:
            environment |= {"CC_PRINT_HEADERS": "1", "CC_PRINT_HEADERS_FILE": str(depfile)}
        done = subprocess.run(
            [spelled(argument) for argument in action.argv],
            cwd=project,
            env=environment,
            input=action.payload,
            capture_output=True,
            timeout=action.timeout_s,
        )
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        ran.append(Ran(action, done.returncode, said, depfile.read_text() if depfile.exists() else ""))
        if done.returncode:
            break
    return ran


def carry_out_all(plan: Plan, project: Path, scratch: Path) -> list[Ran]:
    """Like `carry_out`; an action that fails fails the test with what it said."""
    ran = carry_out(plan, project, scratch)
    assert ran and ran[-1].status == 0, f"{ran[-1].action.name}: {ran[-1].said}"
    return ran
