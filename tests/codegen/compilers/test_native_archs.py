"""arch = "native": a target is built for the GPUs of this machine, and its keys name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.compilers import native_archs
from tests.support.native_toolkit import toolkit_with
from tests.support.nvcc_project import KERNEL
from tests.support.user import User

pytestmark = pytest.mark.cuda

PROJECT = '[target.demo]\nkind = "cuda"\nsources = ["k.cu"]\noutput = "object"\narch = {arch}\n'


@pytest.fixture
def project(kept_user: User) -> Iterator[Path]:
    folder = kept_user.folder / "native-project"
    folder.mkdir(exist_ok=True)
    kernel = "#define FACTOR 3\n#define HOST 4\n" + KERNEL.replace('#include "always.h"\n', "")
    kernel = kernel.replace('#include "host.h"\n', "").replace("NAME", "first").replace("SECOND", "run_first")
    (folder / "k.cu").write_text(kernel)
    kept_user.environ["CUDA_HOME"] = str(toolkit_with(kept_user.folder / "native-archs-toolkit", "80"))
    yield folder
    kept_user.environ.pop("CUDA_HOME")
    kept_user.environ.pop("CUDA_VISIBLE_DEVICES", None)


def test_a_target_is_built_for_this_machines_gpus(kept_user: User, project: Path) -> None:
    (project / "buildd.toml").write_text(PROJECT.format(arch='["native"]'))
    status, text = kept_user.buildd("-C", str(project), "build")
    assert (status, "0 hits, 1 compiled" in text) == (0, True), text
    # The key names the GPUs, so a build that names them hits.
    status, text = kept_user.buildd("build", "-C", str(project), "--arch", "sm_80")
    assert (status, "1 hit, 0 compiled" in text) == (0, True), text
    # Another GPU: nothing in the project has changed.
    toolkit_with(Path(kept_user.environ["CUDA_HOME"]), "80, 90")
    status, text = kept_user.buildd("-C", str(project), "build")
    assert (status, "0 hits, 1 compiled" in text) == (0, True), text
    status, text = kept_user.buildd("build", "-C", str(project), "--arch", "sm_80,sm_90a")
    assert (status, "1 hit, 0 compiled" in text) == (0, True), text


def test_without_a_gpu_it_is_refused_with_what_to_write(kept_user: User, project: Path) -> None:
    (project / "buildd.toml").write_text(PROJECT.format(arch='["native", "sm_80"]'))
    kept_user.environ["CUDA_VISIBLE_DEVICES"] = ""
    status, text = kept_user.buildd("-C", str(project), "build")
    assert status == 2 and 'target "demo": arch = "native", and no GPU of this machine was found' in text, text
    assert 'next: name the architectures to build for, as in arch = ["sm_80", "sm_90a"]' in text


def test_amds_gpus_are_named_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, version in enumerate((0, 90010, 110001, 90402)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(f"cpu_cores_count 8\ngfx_target_version {version}\n")
    monkeypatch.setattr(native_archs, "_TOPOLOGY", f"{tmp_path}/*/properties")
    assert native_archs.amd_gpus() == ("gfx1101", "gfx90a", "gfx942")
