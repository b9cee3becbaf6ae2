"""A JAX program for tests, which prints what its process compiled and found.

Knows the events that JAX reports about its persistent cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.user import User

PROGRAM = """
import json, os, sys, collections
import jax
import jax.numpy as jnp

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **more: events.update([name.rpartition("/")[2]]))
width = int(sys.argv[1]) if len(sys.argv) > 1 else 64

def layer(x, pair):
    first, second = pair
    return x + jnp.tanh(x @ first) @ second

def loss(parameters, x):
    for pair in parameters:
        x = layer(x, pair)
    return (x ** 2).mean()

@jax.jit
def step(parameters, x):
    value, slope = jax.value_and_grad(loss)(parameters, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, slope)

parameters = [(jnp.full((width, width), 0.01 * n), jnp.full((width, width), 0.02)) for n in range(4)]
value, parameters = step(parameters, jnp.ones((8, width)))
print(json.dumps({"loss": float(value), "asked": events["compile_requests_use_cache"], "hits": events["cache_hits"],
    "folder": str(jax.config.jax_compilation_cache_dir)}))
"""


class JaxProgram:
    """A program of one user, run under `buildd run` or plainly."""

    def __init__(self, user: User, code: str = PROGRAM) -> None:
        self.user = user
        self._code = code

    def run(self, *arguments: str, through_us: bool = True, cwd: Path | None = None, **variables: str) -> Ran:
        """Run it in a folder."""
        return self.end(self.start(*arguments, through_us=through_us, cwd=cwd, **variables))

    @contextlib.contextmanager
    def configured(self, name: str, **variables: str) -> Iterator[None]:
        """Set variables in the user's own file."""
        file = Path(self.user.environ["HOME"]) / ".config/buildd" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "[environment]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in variables.items())
        )
        try:
            yield
        finally:
            file.unlink()

    def start(
        self, *arguments: str, through_us: bool = True, cwd: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        ours = (sys.executable, "-P", "-m", "buildd", "run", "--") if through_us else ()
        return subprocess.Popen(
            [*ours, sys.executable, "-c", self._code, *arguments],
            cwd=cwd or self.user.folder,
            env={**self.user.environ, "JAX_PLATFORMS": "cpu", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str]) -> Ran:
        output, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors[-3000:]
        return Ran(json.loads(output.splitlines()[-1]), errors)


class Ran:
    """What a process printed."""

    def __init__(self, said: dict[str, object], errors: str) -> None:
        self.loss = said["loss"]
        self.asked = int(str(said["asked"]))
        """How many programs it asked the cache for."""
        self.hits = int(str(said["hits"]))
        self.folder = said["folder"]
        self.errors = errors

    @property
    def compiled(self) -> int:
        return self.asked - self.hits


def entries_of(user: User) -> list[Path]:
    """The programs in the store."""
    folder = user.store / "jax"
    return sorted(path for path in folder.iterdir() if "." not in path.name) if folder.is_dir() else []


def damaged(path: Path, how: str) -> None:
    """Damage a file as a killed writer, a bad disk or another user would."""
    content = path.read_bytes()
    new = {"torn": content[: len(content) // 2], "empty": b"", "altered": content[:-9] + bytes(9)}[how]
    aside = path.with_name(".aside")
    aside.write_bytes(new)
    os.replace(aside, path)
