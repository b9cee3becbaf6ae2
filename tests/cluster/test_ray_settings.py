"""Who says which cluster there is: this user alone. Without one, nothing of it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buildd.cluster.opening import open_cluster
from buildd.cluster.ray_settings import RaySettings, read
from codegen.errors import RequestError
from codegen.variables.settings import Settings, project_table, user_values


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "buildd").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


def settings(environ: dict[str, str], file: str = "", **variables: str) -> RaySettings | None:
    Path(environ["XDG_CONFIG_HOME"], "buildd/config.toml").write_text(file)
    environ = {**environ, **variables}
    return read(Settings(request_env=environ, user_values=user_values(environ)), environ)


def test_there_is_no_cluster_unless_the_user_names_one(environ: dict[str, str]) -> None:
    assert settings(environ) is None
    assert settings(environ, RAY_ADDRESS="head:6379") == RaySettings("head:6379", sys.executable)
    assert settings(environ, '[ray]\naddress = "a:1"\npython = "/p"\n') == RaySettings("a:1", "/p")


def test_the_variable_counts_in_config_toml_too(environ: dict[str, str]) -> None:
    assert settings(environ, '[environment]\nRAY_ADDRESS = "auto"\n') == RaySettings("auto", sys.executable)
    file = Path(environ["XDG_CONFIG_HOME"], "buildd/config.toml").read_text()
    assert settings(environ, file, RAY_ADDRESS="no") is None, "the shell wins"


def test_the_file_comes_before_a_variable_that_is_meant_for_training(environ: dict[str, str]) -> None:
    named = settings(environ, '[ray]\naddress = "other:1"\n', RAY_ADDRESS="head:6379")
    assert named is not None and named.address == "other:1"
    assert settings(environ, '[ray]\naddress = "no"\n', RAY_ADDRESS="head:6379") is None
    assert settings(environ, RAY_ADDRESS="local") is None


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ('[ray]\nadress = "a:1"\n', "adress is no setting"),
        ("[ray]\naddress = 3\n", "address must be text"),
        ('ray = "a:1"\n', "must be a table"),
        ('[ray]\naddress = "ray://a:10001"\n', "not through Ray's client"),
    ],
)
def test_what_is_wrong_is_told_and_builds_go_on(environ: dict[str, str], file: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        settings(environ, file)
    opened = open_cluster(Settings(request_env=environ), environ)
    assert opened.engine is None and message in opened.problem
    status = opened.status()
    assert status is not None and not status.address and message in status.problem


def test_a_project_names_no_cluster() -> None:
    with pytest.raises(RequestError, match="acts on the daemon when it starts"):
        project_table({"RAY_ADDRESS": "evil:6379"}, "buildd.toml")


def test_without_a_cluster_its_modules_are_not_imported() -> None:
    code = "import buildd.daemon.daemon, sys\nprint(*sorted(name for name in sys.modules if '.cluster' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["buildd.cluster", "buildd.cluster.opening", "buildd.cluster.ray_settings"]
