"""Where a variable's value comes from: one merge of the shell, buildd.toml and config.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.errors import RequestError
from codegen.variables.environment import all_variables
from codegen.variables.settings import Settings, project_table, read_settings, settings_of, user_values
from codegen.variables.variable import SetIn
from protocol.messages import BuildId, Request, RequestId


def written(folder: Path, project: str = "", user: str = "") -> tuple[dict[str, str], str]:
    """An environment and a project file; what is not empty stands below [environment] of the files."""
    (folder / ".config/buildd").mkdir(parents=True)
    if user:
        (folder / ".config/buildd/config.toml").write_text(f"[environment]\n{user}\n")
    (folder / "buildd.toml").write_text(f"[environment]\n{project}\n" if project else "")
    return {"HOME": str(folder)}, str(folder / "buildd.toml")


def test_the_shell_wins_over_the_project_and_the_project_over_the_user(tmp_path: Path) -> None:
    environ, file = written(
        tmp_path, "NUM_BUILDERS = 2\nLOGLEVEL = 'DEBUG'", "NUM_BUILDERS = 3\nCPATH = '/u'\nLOGLEVEL = 10"
    )
    request = Request(
        request_id=RequestId("r"), build_id=BuildId("b"), project=str(tmp_path), file="buildd.toml", environment=environ
    )
    assert settings_of(request).merged() == {**environ, "NUM_BUILDERS": "2", "LOGLEVEL": "DEBUG", "CPATH": "/u"}
    assert read_settings({**environ, "NUM_BUILDERS": "4"}, file).number("NUM_BUILDERS") == 4
    assert read_settings(environ).number("NUM_BUILDERS") == 3


def test_an_empty_value_in_the_shell_takes_back_what_a_file_says(tmp_path: Path) -> None:
    environ, file = written(tmp_path, "NUM_BUILDERS = 2\nCACHE_DIR = '/p'")
    settings = read_settings({**environ, "NUM_BUILDERS": "", "CACHE_DIR": ""}, file)
    assert settings.number("NUM_BUILDERS") is None
    assert settings.merged()["CACHE_DIR"] == ""


@pytest.mark.parametrize("text", ["[environment\n", "[environment]\nNO_SUCH = 1\n", "environment = 3\n", "\xff"])
def test_a_wrong_project_file_counts_as_empty_where_nothing_is_planned(tmp_path: Path, text: str) -> None:
    (tmp_path / "buildd.toml").write_bytes(text.encode("latin-1"))
    assert read_settings({"HOME": str(tmp_path)}, str(tmp_path / "buildd.toml")).merged() == {"HOME": str(tmp_path)}


def test_a_change_of_the_project_file_is_seen(tmp_path: Path) -> None:
    environ, file = written(tmp_path, "NUM_BUILDERS = 2")
    assert read_settings(environ, file).number("NUM_BUILDERS") == 2
    Path(file).write_text("[environment]\nNUM_BUILDERS = 3\n")
    assert read_settings(environ, file).number("NUM_BUILDERS") == 3


@pytest.mark.parametrize(
    "name", [row.name for row in all_variables() if row.set_in is not SetIn.ANYWHERE and not row.is_pattern]
)
def test_a_file_that_cannot_set_a_variable_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        project_table({name: "1"}, "buildd.toml")
    starts = next(row for row in all_variables() if row.name == name).set_in is SetIn.START
    assert ("config.toml" if starts else "shell") in caught.value.next_step
    environ, _ = written(tmp_path, user=f"{name} = '1'")
    if starts:
        assert Settings(user_values=user_values(environ)).value(name).raw == "1"
    else:
        with pytest.raises(RequestError, match="shell"):
            user_values(environ)


def test_a_variable_that_is_not_sent_cannot_stand_in_a_file() -> None:
    for name in ("SLURM_JOB_ID", "TMPDIR", "OPENAI_API_KEY", "BUILDD_JBOS"):
        with pytest.raises(RequestError, match=name):
            project_table({name: "x"}, "buildd.toml")
