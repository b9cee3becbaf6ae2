"""nvcc -M and -MM: the rules for make are nvcc's own, and follow what the source includes."""

from __future__ import annotations

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def cuda(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject.with_nvcc(user, request.node.name)
    made.write("include/always.h", "")
    made.write("include/device.h", "")
    made.write("k.cu", '#include "always.h"\n#ifdef __CUDA_ARCH__\n#include "device.h"\n#endif\n#include <vector>\n')
    return made


@pytest.mark.parametrize("option", ["-M", "-MM"])
def test_rules_on_standard_output_are_nvccs(cuda: ForeignProject, option: str) -> None:
    """As nccl's Makefiles ask for them."""
    command = ("nvcc", "-gencode=arch=compute_80,code=sm_80", "-Iinclude", option, "-dc", "k.cu")
    plain = cuda.plainly(*command)
    assert plain.returncode == 0 and b"include/device.h" in plain.stdout
    for counts in ((0, 1), (1, 1)):
        done = cuda.good(*command)
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        assert cuda.counts() == counts
    # A header of the host compiler's, which -MM leaves out, counts all the same: it may include another one tomorrow.
    cuda.write("include/vector", '#include_next <vector>\n#include "more.h"\n')
    cuda.write("include/more.h", "")
    done, plain = cuda.good(*command), cuda.plainly(*command)
    assert done.stdout == plain.stdout and b"more.h" in done.stdout
    cuda.write("include/device.h", '#include "deeper.h"\n')
    cuda.write("include/deeper.h", "")
    done, plain = cuda.good(*command), cuda.plainly(*command)
    assert done.stdout == plain.stdout and b"deeper.h" in done.stdout
    assert not list(cuda.folder.glob("*.o")) and not list(cuda.folder.glob("*dependencies*"))


def test_rules_in_a_file_are_nvccs(cuda: ForeignProject) -> None:
    command = ("nvcc", "-arch=sm_80", "-Iinclude", "-MM", "k.cu", "-o", "k.d")
    cuda.good(*command)
    ours = (cuda.folder / "k.d").read_bytes()
    (cuda.folder / "k.d").unlink()
    cuda.good(*command)
    assert (cuda.folder / "k.d").read_bytes() == ours and cuda.counts() == (1, 1)
    assert cuda.plainly(*command).returncode == 0
    assert (cuda.folder / "k.d").read_bytes() == ours


def test_rules_name_the_target_that_is_asked_for(cuda: ForeignProject) -> None:
    """As Kokkos' nvcc_wrapper asks for them."""
    for target in ("one.o", "dir/two.o", "dir/two.o"):
        command = ("nvcc", "-arch=sm_80", "-Iinclude", "-M", "-MT", target, "-o", "k.d", "k.cu")
        cuda.good(*command)
        ours = (cuda.folder / "k.d").read_bytes()
        assert cuda.plainly(*command).returncode == 0
        assert (cuda.folder / "k.d").read_bytes() == ours and ours.startswith(target.encode())
    assert cuda.counts() == (1, 2)


def test_a_missing_header_is_nvccs_error(cuda: ForeignProject) -> None:
    cuda.write("k.cu", '#include "missing.h"\n')
    command = ("nvcc", "-arch=sm_80", "-MM", "k.cu")
    done, plain = cuda.call(*command), cuda.plainly(*command)
    assert plain.returncode != 0
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
