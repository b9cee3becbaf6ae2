"""Real projects from PyPI: their sdists, what they need to be built with CUDA, and what `buildd run` says of a build.

Knows no measurement. Needs an index for the sdists and for what builds them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
MISS = re.compile(r"ran (?!.*/CMakeScratch/|/tmp/tmp\w{8}\.)[^:()]+: (?!passed through)")
"""A line of `buildd explain` for a miss, but of what CMake or a setup.py compiles for a trial, under a random name."""
SUMMARY = re.compile(r"buildd: (?P<hits>\d+) hits?, (?P<misses>\d+) miss(?:es)?.*")


@dataclass(frozen=True, slots=True)
class Sdist:
    """A project as pip names it.

    Args:
        settings: --config-settings of pip.
        environment: variables of the build.
        wheels: packages of NVIDIA's whose headers and libraries it needs beside the toolkit's; of the toolkit's version
            unless they name another.
        needs_torch: it is built with a CUDA torch, which must be installed.
        part: sources of a part that is built in minutes, each by the end of its path.
        cmake: options of cmake for the part.
    """

    name: str
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    wheels: tuple[str, ...] = ()
    needs_torch: bool = False
    part: tuple[str, ...] = ()
    cmake: tuple[str, ...] = ()

    @property
    def project(self) -> str:
        return self.name.partition("==")[0]


_SM_80 = "-DCMAKE_CUDA_ARCHITECTURES=80"
_LIGHTGBM = ("-DUSE_CUDA=ON", "-DBUILD_WITH_SHARED_NCCL=ON", _SM_80)
SDISTS = (
    Sdist("cuvec==6.0.1", ("cmake.build-type=Release", "cmake.define.CMAKE_CUDA_ARCHITECTURES=80")),
    Sdist("pyvkfft==2025.1.1", environment={"VKFFT_BACKEND": "cuda"}, wheels=("nvidia-cuda-nvrtc",)),
    Sdist(
        "lightgbm",
        tuple(f"cmake.define.{option.removeprefix('-D')}" for option in _LIGHTGBM),
        wheels=("nvidia-nccl-cu13>=2",),
        part=("cuda_score_updater.cu", "cuda_binary_objective.cu", "cuda_rank_objective.cu", "cuda_rank_objective.cpp"),
        cmake=("-D__BUILD_FOR_PYTHON=ON", *_LIGHTGBM),
    ),
    Sdist(
        "llama-cpp-python",
        environment={"CMAKE_ARGS": f"-DGGML_CUDA=on {_SM_80}"},
        wheels=("nvidia-cublas",),
        part=("ggml-cuda.dir/acc.cu", "norm.cu", "rope.cu", "mmq-instance-q4_0.cu", "ggml.c", "ggml-alloc.c"),
        cmake=("-DGGML_CUDA=on", _SM_80),
    ),
    Sdist("causal-conv1d", environment={"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"}, needs_torch=True),
    Sdist("mamba-ssm", environment={"MAMBA_FORCE_BUILD": "TRUE"}, needs_torch=True),
    Sdist("gsplat", environment={"TORCH_CUDA_ARCH_LIST": "8.0"}, needs_torch=True),
    Sdist("flash-attn", environment={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "MAX_JOBS": "4"}, needs_torch=True),
)


def network() -> dict[str, str]:
    """What pip needs to know of this machine."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith(("_proxy", "_cert_file", "_ca_bundle"))
    }


def said_by(command: list[str], environ: Mapping[str, str]) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:300]} ended with status {done.returncode}:\n{said[-3000:]}")
    return said


def download(
    name: str, folder: Path, environ: Mapping[str, str], *, needs_torch: bool = False, pip: Sequence[str] = PIP
) -> Path:
    """The sdist of a project. Args: name: as pip's NAME or NAME==VERSION."""
    project = name.partition("==")[0]
    alone = ["--no-build-isolation"] if needs_torch else []
    said_by([*pip, "download", "--no-binary", project, "--no-deps", *alone, "-d", str(folder), name], environ)
    (archive,) = folder.iterdir()
    return archive


def add_wheels(names: tuple[str, ...], version: str, folder: Path, cuda: Path, environ: Mapping[str, str]) -> None:
    """Put headers and libraries of NVIDIA's wheels into a toolkit of ours.

    Args:
        version: the toolkit's, as "13.0".
        folder: for the wheels' content.
    """
    # In one command: pip adds nothing to a folder `nvidia` that an earlier one made.
    wanted = [name if ">=" in name else f"{name}=={version}.*" for name in names]
    if wanted:
        said_by([*PIP, "install", "-q", "--no-deps", "--target", str(folder), *wanted], environ)
    for kind, place in (("include", cuda / "include"), ("lib", cuda / "lib64")):
        for found in folder.glob(f"nvidia/*/{kind}/*"):
            plain = found.name.partition(".so")[0] + ".so" if ".so" in found.name else found.name
            for name in {found.name, plain}:
                if not (place / name).exists():
                    (place / name).symlink_to(found)


def make_stub(place: Path, name: str = "cuda") -> None:
    """A library to link with that this machine may lack, as the driver's: the toolkit has a stub of that, too."""
    source = "int cuInit(unsigned flags) { return (int)flags; }\n"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(place / f"lib{name}.so")]
    subprocess.run(command, input=source.encode(), check=True)
