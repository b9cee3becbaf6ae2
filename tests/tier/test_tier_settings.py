"""Who says which tier there is, whether it is written, and whose entries are taken: this user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.store import signing
from buildd.tier.opening import open_users_tier, status_of
from buildd.tier.tier_settings import TierSettings, of_user
from codegen.errors import RequestError
from codegen.variables.settings import project_table
from tests.support.tiers import ALICE, MALLORY


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "buildd").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


def settings(environ: dict[str, str], table: str = "", **variables: str) -> TierSettings | None:
    Path(environ["XDG_CONFIG_HOME"], "buildd/config.toml").write_text(table)
    return of_user({**environ, **variables})


def test_there_is_no_tier_unless_the_user_names_one(environ: dict[str, str]) -> None:
    assert settings(environ) is None
    named = settings(environ, '[tier]\nurl = "https://host/cache"\n')
    assert named is not None and (named.url, named.signer, named.believed) == ("https://host/cache", None, ())


def test_the_shell_comes_before_the_file(environ: dict[str, str]) -> None:
    file = '[tier]\nurl = "https://host/cache"\n'
    named = settings(environ, file, BUILDD_TIER="/mnt/tier")
    assert named is not None and named.url == "/mnt/tier"
    assert settings(environ, file, BUILDD_TIER="no") is None


def test_the_variables_count_in_config_toml_too(environ: dict[str, str]) -> None:
    own = signing.own(environ)
    named = settings(environ, '[environment]\nBUILDD_TIER = "/mnt/tier"\nBUILDD_TIER_WRITE = "1"\n')
    assert named is not None and (named.url, named.signer) == ("/mnt/tier", own)
    file = Path(environ["XDG_CONFIG_HOME"], "buildd/config.toml").read_text()
    named = settings(environ, file, BUILDD_TIER_WRITE="0")
    assert named is not None and named.signer is None, "the shell wins"


def test_headers_come_from_a_variable_and_are_not_shown(environ: dict[str, str]) -> None:
    """From the shell, or from config.toml."""
    file = '[tier]\nurl = "grpcs://host/main"\n'
    text = "authorization=Bearer a=b, X-BuildBuddy-Api-Key=k%2C1 ,"
    named = settings(environ, file, BUILDD_TIER_HEADERS=text)
    assert named is not None and "Bearer" not in repr(named)
    assert named.headers == (("authorization", "Bearer a=b"), ("x-buildbuddy-api-key", "k,1"))
    named = settings(environ, f'{file}[environment]\nBUILDD_TIER_HEADERS = "x-key=1"\n')
    assert named is not None and named.headers == (("x-key", "1"),)
    for wrong in ("s3cret", "a b=s3cret", "x=s3cret%0Ay", "=s3cret"):
        with pytest.raises(RequestError) as refused:
            settings(environ, file, BUILDD_TIER_HEADERS=wrong)
        assert "s3cret" not in str(refused.value) or wrong == "s3cret"


@pytest.mark.parametrize("variables", [{}, {"BUILDD_TIER_WRITE": "1"}])
def test_nothing_is_written_without_the_users_word_and_key(environ: dict[str, str], variables: dict[str, str]) -> None:
    named = settings(environ, '[tier]\nurl = "/t"\n', **variables)
    assert named is not None and named.signer is None and bool(named.unwritable) == bool(variables)
    assert not signing.key_file(environ).exists(), "a key that nobody asked for was made"
    own = signing.own(environ)
    named = settings(environ, '[tier]\nurl = "/t"\n', **variables)
    assert named is not None and named.signer == (own if variables else None)
    named = settings(environ, '[tier]\nurl = "/t"\nwrite = true\n')
    assert named is not None and named.signer == own


def test_trusted_keys_are_believed_or_those_of_them_that_are_named(environ: dict[str, str]) -> None:
    signing.trust(environ, ALICE.public, "alice")
    signing.trust(environ, MALLORY.public, "mallory")
    named = settings(environ, '[tier]\nurl = "/t"\n')
    assert named is not None and {name for _, name in named.believed} == {"alice", "mallory"}
    own = signing.own(environ).public
    named = settings(environ, '[tier]\nurl = "/t"\n')
    assert named is not None and own not in dict(named.believed), "nothing of it is there: the user only reads"
    for more in ("write = true", 'trust = ["this user"]'):
        named = settings(environ, f'[tier]\nurl = "/t"\n{more}\n')
        assert named is not None and own in dict(named.believed)
    for word in ("alice", ALICE.public.hex()):
        named = settings(environ, f'[tier]\nurl = "/t"\ntrust = ["{word}"]\n')
        assert named is not None and named.believed == ((ALICE.public, "alice"),)


@pytest.mark.parametrize(
    "table",
    [
        "[tier]\nurl = 5\n",
        '[tier]\nurl = "/t"\nwrite = "yes"\n',
        '[tier]\nurl = "/t"\ntrust = "alice"\n',
        '[tier]\nurl = "/t"\ntrust = ["nobody"]\n',
        '[tier]\nurl = "/t"\npassword = "x"\n',
        "tier = 5\n",
        "[tier\n",
    ],
)
def test_a_mistake_is_told_and_no_tier_is_used(environ: dict[str, str], table: str) -> None:
    with pytest.raises(RequestError) as told:
        settings(environ, table)
    assert "config.toml" in told.value.file and told.value.next_step
    opened = open_users_tier(environ)
    status = status_of(opened, ())
    assert opened.tier is None and status is not None and status.problem and not status.url


@pytest.mark.parametrize("name", ["BUILDD_TIER", "BUILDD_TIER_WRITE"])
def test_a_project_file_says_nothing_about_the_tier(name: str) -> None:
    with pytest.raises(RequestError, match="acts on the daemon when it starts"):
        project_table({name: "https://evil"}, "buildd.toml")


def test_too_many_writers_are_refused(environ: dict[str, str]) -> None:
    for number in range(9):
        signing.trust(environ, bytes([number]) * 32, f"w{number}")
    with pytest.raises(RequestError, match="at most 8"):
        settings(environ, '[tier]\nurl = "/t"\n')
