"""The options that the installed nvcc lists are those that its table knows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from codegen.foreign.nvcc_options import TAKE_NONE, TAKE_VALUES

_LISTED = re.compile(r"^(--[\w-]+)( [<{[a-z]\S*)? +\(?(--?[\w-]+)\)? *$", re.MULTILINE)
"""A heading of `nvcc --help`: the long spelling, perhaps a value, the short spelling."""
_FILES = {"--options-file", "-optf"}
"""Read before the table is asked."""
_UNTOLD = {"--dependency-output", "-MF"}
"""They take a value that the list does not mention."""


def options() -> list[tuple[str, bool]]:
    """Every spelling of every option that nvcc lists, and whether it takes a value."""
    wheel = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "nvcc")
    nvcc = str(wheel) if wheel.exists() else shutil.which("nvcc")
    assert nvcc
    text = subprocess.run((nvcc, "--help"), capture_output=True, text=True, check=True).stdout
    return [
        (spelled, bool(value) or spelled in _UNTOLD)
        for long, value, short in _LISTED.findall(text)
        for spelled in (long, short)
        if spelled not in _FILES
    ]


@pytest.mark.cuda
def test_every_option_of_this_nvcc_is_known_in_both_spellings() -> None:
    listed = options()
    assert len(listed) > 200
    valued = {spelled for spelled, takes in listed if takes}
    assert valued - TAKE_VALUES == set(), "new options with a value: decide whether a cached compile may have them"
    assert {spelled for spelled, takes in listed if not takes} - TAKE_NONE == set(), "new options"


@pytest.mark.cuda
@pytest.mark.slow
def test_nvcc_takes_both_spellings_and_no_other_dash(tmp_path: Path) -> None:
    """A long option with one dash, or a short one with two, is no option of nvcc's: it may be the host compiler's."""
    nvcc = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "nvcc")
    names = {spelled for spelled, _ in options()}
    (tmp_path / "k.cu").write_text("")
    for name in sorted(names):
        for spelled in {name, f"-{name}" if not name.startswith("--") else name[1:]}:
            if re.match(r"-[IDULlOt].", spelled):
                continue  # a short option with its value
            command = (nvcc, "--dryrun", "-c", "k.cu", spelled, "1")
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert ("Unknown option" in done.stderr) == (spelled not in TAKE_VALUES | TAKE_NONE), spelled
