"""The table of variables: complete against the reference documents, read by its own truth, never leaking."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from codegen.errors import RequestError
from codegen.variables.aitemplate_flags import aitemplate_flags, job_cap, time_line, visible_devices
from codegen.variables.environment import all_variables, find, misspelt, select, tool_environment, unsendable
from codegen.variables.settings import Resolved, Settings, Source, project_table, settings_of, user_values
from codegen.variables.variable import SECRET, STRIP, Kind, Section, ToolFamily, size_bytes
from tests.support.carry_out import request_for
from tests.support.paths import ROOT
from tests.support.places import FROM_EACH_PLACE, with_set

REFERENCE = (ROOT / "tests/data/reference_variables.txt").read_text(encoding="utf-8").split()


def documents() -> Path | None:
    """The folder of environment.md and seeds/, where this machine has it."""
    named = os.environ.get("BUILDD_REFERENCE_DOCUMENTS")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if (folder / "environment.md").is_file() and (folder / "seeds").is_dir() else None


# ---------------------------------------------------------------- completeness


def test_every_reference_variable_has_a_row_of_its_own() -> None:
    rows = {variable.name for variable in all_variables()}
    assert [name for name in REFERENCE if name not in rows] == []
    assert len(REFERENCE) > 300


def test_the_list_of_names_is_what_the_documents_say() -> None:
    folder = documents()
    if folder is None:
        pytest.skip("the reference documents are not on this machine")
    extract = runpy.run_path(str(ROOT / "scripts/extract-variables"))["names"]
    assert sorted(extract(folder)) == REFERENCE


def test_the_script_finds_names_in_each_shape_of_document(tmp_path: Path) -> None:
    (tmp_path / "seeds").mkdir()
    (tmp_path / "environment.md").write_text(
        "- The table has two more sections than this page: host (CPATH, LC_*, LANG).\n"
        "What is in no section does not reach tools.\n"
        "| variable | what |\n|---|---|\n"
        "| FIRST_ONE, _SECOND, LOGLEVEL | `-DNO_MACRO=1` |\n| TORCHINDUCTOR_A*, COORDINATE_DESCENT_* | |\n"
        "Prose with SOME_NAME.\n".replace("(CPATH, LC_*, LANG).\nWhat", "(CPATH, LC_*, LANG). What")
    )
    (tmp_path / "seeds/0.txt").write_text("**BOLD_NAME**: text\n**bold**: no\n")
    (tmp_path / "seeds/1.txt").write_text(
        'a = os.environ.get("READ_ONE") == "1"\nb = os.environ.get(\n    "READ_TWO", "0"\n)\n'
        'c: bool = Config(env_name_force="FORCED")\nif "IN_IT" in os.environ: pass\n'
    )
    (tmp_path / "seeds/3.txt").write_text(
        "# X environment flags\n- `SET_IT=8` (why)\n- `XLA_FLAGS` adds:\n| `CELL` | `NOT_THIS` | x |\n"
    )
    script = [sys.executable, str(ROOT / "scripts/extract-variables"), str(tmp_path)]
    names = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    assert names == sorted(
        {
            *("BOLD_NAME", "CELL", "CPATH", "FIRST_ONE", "FIRST_SECOND", "FORCED", "IN_IT", "LANG", "LC_*", "LOGLEVEL"),
            *("READ_ONE", "READ_TWO", "SET_IT", "SOME_NAME", "TORCHINDUCTOR_A*"),
            *("TORCHINDUCTOR_COORDINATE_DESCENT_*", "XLA_FLAGS"),
        }
    )


def test_rows_are_unique_and_say_what_happens() -> None:
    names = [variable.name for variable in all_variables()]
    assert len(names) == len(set(names))
    for variable in all_variables():
        assert variable.classes and variable.effect, variable.name
        assert variable.meaning or variable.section is Section.BUILDD, variable.name
        assert variable.kind is not Kind.CHOICE or variable.choices, variable.name
        if variable.default:
            variable.read(variable.default)


@pytest.mark.parametrize("section", [section for section in Section if section is not Section.BUILDD])
def test_each_section_of_the_documents_is_there(section: Section) -> None:
    assert sum(variable.section is section for variable in all_variables()) > 20


# ---------------------------------------------------------------- lookup and selection


def test_find_prefers_the_own_row_then_the_longest_prefix() -> None:
    assert find("TORCHINDUCTOR_FREEZING").name == "TORCHINDUCTOR_FREEZING"  # type: ignore[union-attr]
    assert find("TORCHINDUCTOR_COORDINATE_DESCENT_NEW").name == "TORCHINDUCTOR_COORDINATE_DESCENT_*"  # type: ignore[union-attr]
    assert find("TORCHINDUCTOR_NEW").name == "TORCHINDUCTOR_*"  # type: ignore[union-attr]
    assert find("LC_MESSAGES").name == "LC_*"  # type: ignore[union-attr]
    assert find("LC_*").name == "LC_*"  # type: ignore[union-attr]
    assert find("EDITOR") is None
    assert find("") is None


def test_select_sends_what_the_table_has_and_nothing_else() -> None:
    environ = {"NUM_BUILDERS": "4", "EDITOR": "vi", "TORCHINDUCTOR_NEW": "1", "DATABASE_PASSWORD": "x"}
    assert select(environ) == {"NUM_BUILDERS": "4", "TORCHINDUCTOR_NEW": "1"}


def test_secrets_and_identities_are_never_sent() -> None:
    hidden = [v.name for v in all_variables() if SECRET in v.classes or STRIP in v.classes]
    assert {"OPENAI_API_KEY", "EASYDEL_GCS_CLIENT", "SLURM_JOB_ID", "TPU_NAME"} <= set(hidden)
    environ = {name.replace("*", "X"): "value" for name in hidden}
    assert select(environ) == {}
    for family in ToolFamily:
        assert not {name for name, _ in tool_environment(environ, family)} & set(environ)


def test_a_value_that_is_not_utf8_is_named_not_sent() -> None:
    environ = {"CPATH": os.fsdecode(b"/caf\xe9"), "CXX": "g++-é", "EDITOR": os.fsdecode(b"\xff")}
    assert select(environ) == {"CXX": "g++-é"}
    assert unsendable(environ) == ("CPATH",)
    msgspec.msgpack.encode(select(environ))


# ---------------------------------------------------------------- what tools see


def test_a_tool_gets_its_own_variables_a_fixed_path_and_a_plain_locale() -> None:
    environ = {
        "PATH": "/home/me/bin",
        "HOME": "/home/me",
        "TMPDIR": "/scratch",
        "CPATH": "/inc",
        "NVCC_APPEND_FLAGS": "-lineinfo",
        "HIP_PATH": "/opt/hip",
        "NUM_BUILDERS": "4",
        "AIT_NDEBUG": "0",
        "CCACHE_DIR": "/x",
    }
    path = ("PATH", "/cuda/bin:/usr/local/bin:/usr/bin:/bin")
    locale = ("LC_ALL", "C.UTF-8")
    assert tool_environment(environ, ToolFamily.CUDA, folders=["/cuda/bin"]) == (
        ("CPATH", "/inc"),
        locale,
        ("NVCC_APPEND_FLAGS", "-lineinfo"),
        path,
    )
    hip = dict(tool_environment(environ, ToolFamily.HIP))
    assert set(hip) == {"CPATH", "HIP_PATH", "LC_ALL", "PATH"}
    assert set(dict(tool_environment(environ, ToolFamily.HOST))) == {"CPATH", "LC_ALL", "PATH"}
    assert set(dict(tool_environment(environ, ToolFamily.TRITON))) == {"LC_ALL", "PATH"}


def test_a_locale_that_is_set_is_kept() -> None:
    assert dict(tool_environment({"LANG": "de_DE.UTF-8"}, ToolFamily.HOST)).get("LC_ALL") is None
    assert dict(tool_environment({"LC_ALL": "C"}, ToolFamily.HOST))["LC_ALL"] == "C"


def test_the_locale_that_python_itself_sets_is_no_variable_of_the_user() -> None:
    for plain in ({}, {"LANG": "C"}, {"LANG": ""}):
        coerced = plain | {"LC_CTYPE": "C.UTF-8"}
        assert select(coerced) == plain
        assert tool_environment(coerced, ToolFamily.CUDA) == tool_environment(plain, ToolFamily.CUDA)
    for meant in ({"LC_CTYPE": "de_DE.UTF-8"}, {"LC_CTYPE": "C.UTF-8", "LANG": "de_DE.UTF-8"}):
        assert select(meant) == meant


def test_tool_environment_does_not_depend_on_the_order_of_the_clients() -> None:
    environ = {"CPATH": "/b", "C_INCLUDE_PATH": "/a", "LANG": "C"}
    turned = dict(reversed(environ.items()))
    assert tool_environment(environ, ToolFamily.CUDA) == tool_environment(turned, ToolFamily.CUDA)


def test_only_the_section_of_tools_reaches_tools_and_frameworks_their_own() -> None:
    own = {
        Section.TRITON: {ToolFamily.TRITON, ToolFamily.TORCH, ToolFamily.JAX},
        Section.TORCH: {ToolFamily.TORCH},
        Section.JAX: {ToolFamily.JAX},
        Section.TOOLS: set(ToolFamily),
    }
    for variable in all_variables():
        assert set(variable.families) <= own.get(variable.section, set()), variable.name
        assert not variable.families or variable.is_sent, variable.name


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("AIT_USE_FAST_MATH", ("1",), ("0", "", "true", "yes", "2", " 1")),
        ("EASYDEL_AUTO", ("true", "YES", "ok", "1", "Easy"), ("0", "on", "", " 1", "false")),
        ("LOG_SHARDING_MOVE", ("true", "yes", "1", "on"), ("TRUE", "ok", "0")),
        ("AIT_BUILD_DOCS", ("0", "", "1"), ()),
        ("COMBINE_PROFILER_MULTI_SOURCES", ("1", "2", "-1"), ("0",)),
        ("AIT_RECOMPILE", ("1", "01"), ("0", "2")),
        ("BUILDD_DISABLE", ("1", "Yes", "on", "TRUE"), ("0", "no", "off", "")),
        ("FLUSH_PROFILE_CACHE", ("1",), ("0", "yes")),
    ],
)
def test_each_switch_has_its_own_truth(name: str, on: tuple[str, ...], off: tuple[str, ...]) -> None:
    for raw in on:
        assert Settings({name: raw}).is_on(name), raw
    for raw in off:
        if raw or name not in ("COMBINE_PROFILER_MULTI_SOURCES", "AIT_RECOMPILE"):
            assert not Settings({name: raw}).is_on(name), raw


def test_option_beats_environment_beats_project_beats_user_beats_default() -> None:
    layers: list[tuple[Source, dict[str, dict[str, str]]]] = [
        (Source.DEFAULT, {}),
        (Source.USER, {"user_values": {"AIT_COMPILER_OPT": "-O1"}}),
        (Source.PROJECT, {"project_values": {"AIT_COMPILER_OPT": "-O2"}}),
        (Source.ENVIRONMENT, {"request_env": {"AIT_COMPILER_OPT": "-O0"}}),
        (Source.OPTION, {"options": {"AIT_COMPILER_OPT": "-Os"}}),
    ]
    given: dict[str, dict[str, str]] = {}
    seen = []
    for source, layer in layers:
        given |= layer
        resolved = Settings(**given).value("AIT_COMPILER_OPT")
        assert resolved.source is source
        seen.append(resolved.raw)
    assert seen == ["-O3", "-O1", "-O2", "-O0", "-Os"]


@pytest.mark.parametrize(
    ("name", "raw", "accepted"),
    [
        ("NUM_BUILDERS", "many", "a whole number, 1 or more"),
        ("NUM_BUILDERS", "0", "a whole number, 1 or more"),
        ("AIT_RECOMPILE", "yes", '"1" or another whole number'),
        ("BUILDD_CACHE_SIZE", "big", "20GiB"),
        ("BUILDD_DISABLE", "perhaps", "true, yes, on"),
        ("LOGLEVEL", "LOUD", "DEBUG, INFO"),
        ("CUDA_VISIBLE_DEVICES", "0;1", '"0,1"'),
        ("AIT_MULTISTREAM_MODE", "2", "0, 1"),
        ("AIT_COMPILER_OPT", "-O3 'x", "quoted as for a shell"),
        ("NUM_BUILDERS", "1" * 5000, "a whole number, 1 or more"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_that_names_everything(name: str, raw: str, accepted: str) -> None:
    with pytest.raises(RequestError) as caught:
        Settings({name: raw}).value(name)
    assert caught.value.code == "bad-variable"
    assert name in caught.value.message
    assert raw[:20].replace("\n", "\\n") in caught.value.message
    assert accepted in caught.value.message
    assert len(caught.value.message) < 400


def test_what_cannot_be_read_is_one_notice_where_nothing_is_strict() -> None:
    settings = Settings({"NUM_BUILDERS": "many"}, {"NUM_BUILDERS": "3"}, strict=False)
    assert settings.number("NUM_BUILDERS") == 3
    assert settings.number("NUM_BUILDERS") == 3
    assert settings.notices == ['NUM_BUILDERS="many" cannot be read; accepted: a whole number, 1 or more; ignored']


def test_a_switch_that_looks_meant_otherwise_is_said() -> None:
    settings = Settings({"AIT_USE_FAST_MATH": "true"})
    assert not settings.is_on("AIT_USE_FAST_MATH")
    assert settings.notices == ['AIT_USE_FAST_MATH="true" counts as off: only "1" is on']


def test_check_reads_what_acts_and_nothing_else() -> None:
    Settings({"NUM_BUILDERS": "3", "EJKERNEL_RDA_MAX_CANDIDATES": "not read by us", "EDITOR": "vi"}).check()
    with pytest.raises(RequestError, match="NUM_BUILDERS"):
        Settings({"NUM_BUILDERS": "x"}).check()
    with pytest.raises(RequestError, match=r"SLURM_CPUS_ON_NODE.*buildd.toml"):
        Settings(project_values={"SLURM_CPUS_ON_NODE": "x"}).check()


def test_an_empty_number_or_path_counts_as_not_set() -> None:
    settings = Settings({"NUM_BUILDERS": "", "CACHE_DIR": ""})
    assert settings.value("NUM_BUILDERS").source is Source.DEFAULT
    assert settings.text("CACHE_DIR") == "~/.aitemplate"


def test_messages_are_printable() -> None:
    with pytest.raises(RequestError) as caught:
        Settings({"NUM_BUILDERS": "\x1b[31m\n" + os.fsdecode(b"\xff")}).value("NUM_BUILDERS")
    assert caught.value.message.isprintable()
    caught.value.message.encode()


def test_sizes() -> None:
    assert size_bytes("512") == 512
    assert size_bytes("1.5GiB") == 3 << 29
    assert size_bytes("20 gb") == 20 << 30
    for bad in ("", "GiB", "-1", "1PB", "1e3"):
        with pytest.raises(ValueError, match=r".*"):
            size_bytes(bad)


# ---------------------------------------------------------------- the user's file


def test_the_users_file_holds_variables(tmp_path: Path) -> None:
    (tmp_path / "buildd").mkdir()
    (tmp_path / "buildd/config.toml").write_text(
        '[environment]\nBUILDD_CACHE_SIZE = "5GiB"\nNUM_BUILDERS = 3\nAIT_NDEBUG = false\n'
        'JAX_PLATFORMS = ["cuda", "cpu"]\n'
    )
    values = user_values({"XDG_CONFIG_HOME": str(tmp_path)})
    assert values == {"BUILDD_CACHE_SIZE": "5GiB", "NUM_BUILDERS": "3", "AIT_NDEBUG": "0", "JAX_PLATFORMS": "cuda,cpu"}
    assert Settings(user_values=values).number("BUILDD_CACHE_SIZE") == 5 << 30
    assert user_values({"HOME": str(tmp_path / "nobody")}) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[environment]\nNUM_BUILDER = 3\n", "did you mean"),
        ("[environment]\nOPENAI_API_KEY = 'x'\n", "secret"),
        ("[environment]\nNUM_BUILDERS = {}\n", "must be text"),
        ("environment = 3\n", "must be a table"),
        ("[environment\n", "cannot be read"),
    ],
)
def test_a_wrong_users_file_is_said_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "buildd").mkdir()
    file = tmp_path / "buildd/config.toml"
    file.write_text(text)
    with pytest.raises(RequestError, match=message) as caught:
        user_values({"XDG_CONFIG_HOME": str(tmp_path)})
    assert caught.value.file.startswith(str(file))


def test_project_values_come_from_a_plain_table() -> None:
    assert project_table({"AIT_NDEBUG": True}, "buildd.toml") == {"AIT_NDEBUG": "1"}


# ---------------------------------------------------------------- AITemplate's flags


def test_aitemplates_defaults_are_those_of_its_own_compile_line() -> None:
    flags = aitemplate_flags(Settings(), "cuda", aitemplate_shaped=True)
    assert flags.optimization == ("-O3",)
    assert flags.flags == ("-DCUTLASS_DEBUG_TRACE_LEVEL=0", "-DNDEBUG", "--use_fast_math", "-DAIT_USE_FAST_MATH=1")
    assert flags.applied == ()
    hip = aitemplate_flags(Settings(), "hip", aitemplate_shaped=True)
    assert (hip.optimization, hip.flags) == (("-O3",), ("-DNDEBUG",))


@pytest.mark.parametrize("platform", ["cuda", "hip"])
def test_other_targets_get_nothing_unless_it_is_set(platform: str) -> None:
    nothing = aitemplate_flags(Settings({"PATH": "/bin"}), platform, aitemplate_shaped=False)  # type: ignore[arg-type]
    assert nothing == type(nothing)()


def test_a_variable_that_is_set_acts_on_every_target_and_is_shown() -> None:
    flags = aitemplate_flags(
        Settings({"AIT_USE_FAST_MATH": "1", "AIT_NDEBUG": "0", "AIT_COMPILER_OPT": "-O0 -fno-inline"}),
        "cuda",
        aitemplate_shaped=False,
    )
    assert flags.flags == ("--use_fast_math", "-DAIT_USE_FAST_MATH=1")
    assert flags.optimization == ("-O0", "-fno-inline")
    assert flags.applied == (
        "AIT_COMPILER_OPT=-O0 -fno-inline (environment): -O0 -fno-inline",
        "AIT_NDEBUG=0 (environment): no flag",
        "AIT_USE_FAST_MATH=1 (environment): --use_fast_math -DAIT_USE_FAST_MATH=1",
    )


def test_fast_math_and_friends_say_nothing_to_hipcc() -> None:
    environ = {"AIT_USE_FAST_MATH": "1", "AIT_CUDA_DEBUG_LEVEL": "2", "AIT_ENABLE_PTXAS_INFO": "1", "AIT_NDEBUG": "1"}
    assert aitemplate_flags(Settings(environ), "hip", aitemplate_shaped=False).flags == ("-DNDEBUG",)


@pytest.mark.parametrize(
    ("raw", "flags", "path_sensitive"),
    [
        ("0", (), False),
        ("1", ("-lineinfo",), True),
        ("2", ("-g", "-G"), True),
        ("-g -G", ("-g", "-G"), True),
        ("--ptxas-options=-v", ("--ptxas-options=-v",), False),
        ("", (), False),
    ],
)
def test_debug_levels(raw: str, flags: tuple[str, ...], path_sensitive: bool) -> None:
    result = aitemplate_flags(Settings({"AIT_CUDA_DEBUG_LEVEL": raw}), "cuda", aitemplate_shaped=False)
    assert result.flags == flags
    assert result.path_sensitive is path_sensitive


@pytest.mark.parametrize("raw", ["3", "x.cu", "'"])
def test_a_debug_level_that_nvcc_would_take_for_a_file_is_refused(raw: str) -> None:
    with pytest.raises(RequestError, match="AIT_CUDA_DEBUG_LEVEL"):
        aitemplate_flags(Settings({"AIT_CUDA_DEBUG_LEVEL": raw}), "cuda", aitemplate_shaped=False)


def test_the_variables_that_only_the_code_has() -> None:
    flags = aitemplate_flags(
        Settings(
            {
                "AIT_NVCC_CCBIN": "/usr/bin/g++-12",
                "AIT_ENABLE_CUDA_LTO": "1",
                "AIT_USE_TANH_FOR_SIGMOID": "1",
                "CUTLASS_DEBUG_TRACE_LEVEL": "2",
                "AIT_ENABLE_PTXAS_INFO": "1",
            }
        ),
        "cuda",
        aitemplate_shaped=False,
    )
    assert flags.host_compiler == "/usr/bin/g++-12"
    assert flags.device_lto and flags.keep_ptx and flags.path_sensitive
    assert "-DCUTLASS_DEBUG_TRACE_LEVEL=2" in flags.flags
    assert "-DCUTLASS_USE_TANH_FOR_SIGMOID=1" in flags.flags
    assert "--resource-usage" in flags.flags


# ---------------------------------------------------------------- sched and log


@FROM_EACH_PLACE
def test_caps_of_jobs(tmp_path: Path, place: str) -> None:
    assert job_cap(set_in(tmp_path, place)) is None
    assert job_cap(set_in(tmp_path, place, NUM_BUILDERS="12")) == 12
    assert job_cap(set_in(tmp_path, place, NUM_BUILDERS="12", SLURM_CPUS_ON_NODE="4")) == 4


def set_in(folder: Path, place: str, **values: str) -> Settings:
    """What a request reads if variables are set in a place."""
    return settings_of(with_set(request_for(folder, environment={}), place, **values))


@pytest.mark.parametrize(
    ("raw", "devices"),
    [
        ("0,1", ("0", "1")),
        (" 0 , 2 ", ("0", "2")),
        ("", ()),
        ("0,-1,1", ("0",)),
        ("-1", ()),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",)),
    ],
)
@FROM_EACH_PLACE
def test_visible_devices(tmp_path: Path, raw: str, devices: tuple[str, ...], place: str) -> None:
    assert visible_devices(set_in(tmp_path, place, CUDA_VISIBLE_DEVICES=raw), "cuda") == devices


@FROM_EACH_PLACE
def test_hip_obeys_its_own_devices_first(tmp_path: Path, place: str) -> None:
    both = set_in(tmp_path, place, HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    assert visible_devices(both, "hip") == ("1",)
    assert visible_devices(both, "cuda") == ("0",)
    assert visible_devices(set_in(tmp_path, place, CUDA_VISIBLE_DEVICES="0"), "hip") == ("0",)
    assert visible_devices(set_in(tmp_path, place), "hip") is None


def test_the_time_line_starts_as_gnu_time_writes_it() -> None:
    line = time_line(
        ["nvcc", "-c", "a b.cu"], exit_status=0, wall_s=0.168, user_s=0.1, system_s=0.02, peak_rss_bytes=3 << 20
    )
    assert line.startswith("exit_status=0 elapsed_sec=0.17 argv=\"nvcc -c 'a b.cu'\"")
    assert line.endswith("user_sec=0.10 system_sec=0.02 peak_rss_kib=3072")


# ---------------------------------------------------------------- cost


def test_the_table_is_loaded_only_when_it_is_asked() -> None:
    loaded = "[m for m in sys.modules if m.startswith('codegen.variables.catalog')]"
    program = f"import codegen.variables.environment, sys; print({loaded})"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_resolved_names_its_origin() -> None:
    assert Resolved("A", 1, Source.PROJECT, "1").origin == "A=1 (buildd.toml)"


# ---------------------------------------------------------------- misspelt names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NUM_BULDERS", "NUM_BUILDERS"),
        ("NUM_BUILDERSS", "NUM_BUILDERS"),
        ("NUM_BUILDERZ", "NUM_BUILDERS"),
        ("CACHE_DRI", "CACHE_DIR"),
        ("FLUSH_PROFIL_CACHE", "FLUSH_PROFILE_CACHE"),
        ("AIT_NDEBG", "AIT_NDEBUG"),
        ("BUILDD_JBOS", "BUILDD_JOBS"),
        ("NUM_BUILDERS", ""),
        ("NUM_BILDER", ""),
        ("CXXX", ""),
        ("SLURM_JOBID", ""),
        ("CACHE", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_one_slip_from_a_known_one_is_told(name: str, meant: str) -> None:
    assert list(misspelt({name: "1"})) == ([(name, meant)] if meant else [])


def test_no_variable_of_the_table_is_taken_for_another() -> None:
    exact = {row.name: "1" for row in all_variables() if not row.is_pattern}
    assert not list(misspelt(exact))
