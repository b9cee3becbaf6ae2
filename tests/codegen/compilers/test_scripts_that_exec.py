"""Scripts that do nothing but exec a compiler: what buildd reads in them is what the shell does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codegen.compilers import closure

SHOWS = "/usr/bin/printf"
"""In place of a compiler: it shows its arguments if the first is a format."""

FOLLOWED = {
    "nothing": ('exec {} "$@"', ()),
    "options": ('# ours\n\n  exec "{}" -B/x/ -isystem /y -DA=1 -m64 "$@"\n', ("-B/x/", "-isystem /y", "-DA=1", "-m64")),
    "lines": ('exec {} \\\n  -B /x \\\n\t-pthread "$@"\n\n', ("-B /x", "-pthread")),
}
NOT_FOLLOWED = {
    "another option": 'exec {} -I/x "$@"',
    "a variable": 'exec {} -DA=$X "$@"',
    "a pattern": 'exec {} -B/x* "$@"',
    "quotes": "exec {} -DA='b' \"$@\"",
    "a builtin macro": 'exec {} -D__FILE__=1 "$@"',
    "a command before": 'set -e\nexec {} "$@"',
    "a command after a comment that looks continued": '# \\\nX=1\nexec {} "$@"',
    "a command after": 'exec {} "$@"\nid',
    "no arguments": 'exec {} -m64\n"$@"',
    "a joined word": 'exec {}\\\n"$@"',
    "one argument": 'exec {} "$*"',
    "a carriage return": 'exec {} "$@"\r',
    "no exec": '{} "$@"',
    "a relative path": 'exec g++ "$@"',
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_the_shell_does_is_read(name: str, tmp_path: Path) -> None:
    text, options = FOLLOWED[name]
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + text.format(SHOWS))
    script.chmod(0o755)
    assert closure._read_exec(str(script)) == (SHOWS, options)
    assert closure.handed_to(str(script)) == ("" if options else SHOWS)
    # The same, with a format before its options.
    script.write_text("#!/bin/sh\n" + text.replace("{}", "{} %s,", 1).replace('"{} %s,"', '"{}" %s,').format(SHOWS))
    said = subprocess.run([script, "a b", "c"], capture_output=True, text=True, check=True).stdout
    assert said.split(",")[:-1] == [*" ".join(options).split(), "a b", "c"]


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_any_other_script_is_not_followed(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + NOT_FOLLOWED[name].format(SHOWS), newline="")
    assert closure._read_exec(str(script)) == ("", ())
