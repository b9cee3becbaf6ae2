"""The shell parts of examples/ci, run without their hosts; and a store on a cloned disk."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.own_programs import lend_programs
from tests.support.paths import ROOT
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")

RECIPES = ROOT / "examples/ci"
SERVE = """
import pathlib, subprocess
pathlib.Path("gen").mkdir(exist_ok=True)
pathlib.Path("gen/k.c").write_text("int k = 1;\\n")
subprocess.run(["gcc", "-O1", "-c", "k.c"], cwd="gen", check=True)
"""


class Ci:
    """A checkout with a recording, and runners that have nothing but it."""

    def __init__(self, user: User, name: str) -> None:
        self.folder = user.folder / name
        (self.folder / "bin").mkdir(parents=True)
        tool = self.folder / "bin/buildd"
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m buildd "$@"\n')
        tool.chmod(0o755)
        self.environ = {**user.environ, "PATH": f"{tool.parent}:{user.environ['PATH']}"}
        self.checkout("author")
        self.sh("author", "buildd run --quiet --record serve.jsonl -- python3 serve.py")
        self.recording = (self.folder / "author/serve.jsonl").read_bytes()

    def checkout(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir()
        (place / "serve.py").write_text(SERVE)
        (place / "examples").mkdir()
        (place / "examples/ci").symlink_to(RECIPES)
        if name != "author":
            (place / "serve.jsonl").write_bytes(self.recording)
        return place

    def sh(self, name: str, script: str, **variables: str) -> str:
        """What a script says in a checkout whose runner has a store of its own."""
        store = {"BUILDD_DIR": str(self.folder / f"{name}-store")}
        lend_programs(self.folder / f"{name}-store")
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=self.folder / name,
            env={**self.environ, **store, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def ci(user: User) -> Ci:
    return Ci(user, "ci")


def test_the_plain_scripts_and_gitlab(ci: Ci) -> None:
    text = (RECIPES / "gitlab-ci.yml").read_text()
    scripts = [re.findall(r"^    - (.*)", part, re.MULTILINE) for part in re.split(r"^  script:", text, flags=re.M)[1:]]
    assert [len(lines) for lines in scripts] == [3, 1]
    ci.checkout("gitlab-warm")
    key = ci.folder / "key"
    key.write_text("5e" * 32 + "\n")
    assert "1 compiled" in ci.sh("gitlab-warm", "\n".join(scripts[0]), SIGNING_KEY=str(key))
    place = ci.checkout("gitlab-prove")
    (place / "kernels.buildd").write_bytes((ci.folder / "gitlab-warm/kernels.buildd").read_bytes())
    assert "the command compiled nothing" in ci.sh("gitlab-prove", "\n".join(scripts[1]))
    # As an OCI image layout.
    ci.sh("gitlab-warm", "OCI=1 examples/ci/fill.sh layout serve.jsonl")
    ci.checkout("pod")
    assert "compiled nothing" in ci.sh("pod", "examples/ci/use.sh ../gitlab-warm/layout python3 serve.py")


@pytest.mark.slow  # the same commands as the plain scripts; each runner needs seconds
def test_the_action_and_its_workflow(ci: Ci) -> None:
    action = (RECIPES / "action/action.yml").read_text()
    script = textwrap.dedent(action.partition("      run: |\n")[2])
    given = {"ARCH": "", "BUNDLE": "kernels.buildd", "RECORDING": "serve.jsonl", "SIGNING_KEY": "5e" * 32}
    assert {name for name in re.findall(r"\$\{?([A-Z_]+)", script)} == set(given)
    ci.checkout("runner")
    assert "1 compiled" in ci.sh("runner", script, **given)
    assert "1 hit" in ci.sh("runner", script, **given)  # the next run, with the store of actions/cache
    workflow = (RECIPES / "github.yml").read_text()
    assert workflow.count("path: buildd-source") == 2 and "uses: ./buildd-source/examples/ci/action" in workflow
    (prove,) = re.findall(r"- run: buildd-source/(examples/ci/use\.sh .*)", workflow)
    ci.checkout("gpu")
    (ci.folder / "gpu/kernels.buildd").write_bytes((ci.folder / "runner/kernels.buildd").read_bytes())
    assert "compiled nothing" in ci.sh("gpu", prove)


def test_the_jobs_of_a_repository_with_make(ci: Ci) -> None:
    first, later = (RECIPES / "github-make.yml").read_text().split("\n  later:")
    step = re.compile(r"^ +(?:- )?run: ((?:buildd|echo) .*?)(?: #.*)?$", re.MULTILINE)  # without those that install
    scripts = [step.findall(job) for job in (first, later)]
    assert [len(job) for job in scripts] == [3, 3], scripts
    said = []
    for name, job in zip(("make", "make-later"), scripts, strict=True):
        place = ci.folder / name
        (place / "home").mkdir(parents=True)
        (place / "Makefile").write_text("k.o: k.c; gcc -g -c $(CURDIR)/k.c -o k.o\n")
        (place / "k.c").write_text("int k;\n")
        os.mkdir(place / "r", 0o700)
        own = {"HOME": f"{place}/home", "BUILDD_RUNTIME_DIR": f"{place}/r", "GITHUB_OUTPUT": f"{place}/output"}
        if said:
            (place / "results.buildd").write_bytes((ci.folder / "make/results.buildd").read_bytes())
            public = (ci.folder / "make/output").read_text().strip().removeprefix("public=")
            job = [line.replace("${{ needs.build.outputs.public }}", public) for line in job]
        try:
            said.append(ci.sh(name, "\n".join(job), **own))
        finally:
            ci.sh(name, "buildd down", **own)
    assert "0 hits, 1 miss" in said[0] and "results.buildd: 1 result," in said[0]
    assert "1 hit, 0 misses" in said[1] and "--fail-on-miss" not in said[1]


@pytest.mark.slow  # the same commands as the plain scripts; each runner needs seconds
def test_the_steps_of_the_dockerfile(ci: Ci) -> None:
    text = (RECIPES / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [re.sub(r"--mount=\S+", "", line.removeprefix("RUN ")) for line in text.splitlines() if line[:4] == "RUN "]
    assert len(steps) == 2 and text.count("type=cache") == 1
    place = ci.checkout("docker")
    fill, use = (
        step.replace("/var/cache/buildd", f"{place}/c").replace("/kernels", f"{place}/kernels") for step in steps
    )
    assert "1 compiled" in ci.sh("docker", fill)
    command = shlex.join(json.loads(text.partition("CMD ")[2]))
    assert "1 hit, 0 misses" in ci.sh("docker", f"{use}\n{command}")


def test_a_store_on_a_cloned_disk_serves_another_machine(ci: Ci) -> None:
    ci.sh("author", "buildd down")
    copy = ci.folder / "clone-store"
    subprocess.run(["cp", "-a", ci.folder / "author-store", copy], check=True)
    ci.checkout("clone")
    # Another machine has another runtime folder, its own keys and none of the daemons.
    other = {"BUILDD_RUNTIME_DIR": str(ci.folder / "r"), "HOME": str(ci.folder / "clone")}
    os.mkdir(ci.folder / "r", 0o700)
    try:
        assert "compiled nothing" in ci.sh("clone", "buildd warm --prove -- python3 serve.py", **other)
        assert "everything is sound" in ci.sh("clone", "buildd cache verify", **other)
    finally:
        ci.sh("clone", "buildd down", **other)
