"""Where compilers are looked for, and what belongs to them."""

from __future__ import annotations

import os
import shutil
import stat
import sysconfig
from pathlib import Path

import pytest

from codegen.compiled.hip import architectures
from codegen.compilers import hipcc
from codegen.compilers.closure import host_compiler, script_files, search_folders, which
from codegen.compilers.compiler import Compiler
from codegen.compilers.toolchain import Toolchains
from codegen.errors import RequestError
from codegen.plan import Knowledge, Place, Ref
from codegen.project.project_file import ProjectSettings
from tests.support.carry_out import answered, request_for
from tests.support.paths import FAKES, ROOT

SYSTEM = "/usr/local/bin:/usr/bin:/bin"


def finder(
    tmp_path: Path, knowledge: Knowledge, settings: ProjectSettings | None = None, **environment: str
) -> Toolchains:
    request = request_for(tmp_path, environment={"PATH": "/usr/bin:/bin", **environment})
    return Toolchains(request, settings or ProjectSettings(), knowledge)


def found_nvcc(tmp_path: Path, settings: ProjectSettings | None = None, **environment: str) -> Compiler:
    knowledge = Knowledge()
    return answered(lambda: finder(tmp_path, knowledge, settings, **environment).cuda(), knowledge)


def toolkit(root: Path) -> Path:
    for name in (
        "bin/nvcc.profile",
        "bin/ptxas",
        "nvvm/bin/cicc",
        "nvvm/libdevice/libdevice.10.bc",
        "lib64/libcudart.so",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    shutil.copy2(FAKES / "fake-nvcc", root / "bin" / "nvcc")
    return root


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def roles(compiler: Compiler) -> dict[str, str]:
    return {file.role: file.path for file in compiler.tool.files}


def test_the_order_of_search(tmp_path: Path) -> None:
    first, second, third = (toolkit(tmp_path / name) for name in ("first", "second", "third"))
    path = f"{third}/bin:/usr/bin:/bin"
    everything = {"CUDA_HOME": str(second), "PATH": path}
    assert found_nvcc(tmp_path, ProjectSettings(cuda=str(first)), **everything).tool.roots[0] == ("cuda", str(first))
    assert found_nvcc(tmp_path, **everything).tool.roots[0] == ("cuda", str(second))
    assert found_nvcc(tmp_path, CUDACXX=f"{first}/bin/nvcc", **everything).tool.roots[0] == ("cuda", str(first))
    assert found_nvcc(tmp_path, CUDACXX="nvcc", **everything).tool.roots[0] == ("cuda", str(third)), "by the PATH"
    assert found_nvcc(tmp_path, CUDACXX="/usr/bin/clang++", **everything).tool.roots[0] == ("cuda", str(second))
    assert found_nvcc(tmp_path, CUDA_PATH=str(first), PATH=path).tool.roots[0] == ("cuda", str(first))
    assert found_nvcc(tmp_path, PATH=path).tool.roots[0] == ("cuda", str(third))


def test_what_the_project_names_must_be_there(tmp_path: Path) -> None:
    other = toolkit(tmp_path / "other")
    with pytest.raises(RequestError) as caught:
        found_nvcc(tmp_path, ProjectSettings(cuda=str(tmp_path / "gone")), CUDA_HOME=str(other))
    assert caught.value.code == "compiler-not-found"
    assert f"[toolchain] cuda: {tmp_path}/gone/bin/nvcc" in caught.value.message
    assert f'-m pip install "{ROOT}[cuda]"`' in caught.value.next_step, "a command that works here"


def test_a_stale_variable_is_passed_over_and_said(tmp_path: Path) -> None:
    real = toolkit(tmp_path / "real")
    knowledge = Knowledge()
    toolchains = [finder(tmp_path, knowledge, CUDA_HOME="/nowhere", PATH=f"{real}/bin:/usr/bin:/bin") for _ in range(1)]
    compiler = answered(toolchains[0].cuda, knowledge)
    assert compiler.source == f"PATH: {real}/bin/nvcc"
    assert any("CUDA_HOME" in notice and "/nowhere" in notice for notice in toolchains[0].notices)


def test_the_closure_has_what_runs(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    compiler = found_nvcc(tmp_path, CUDA_HOME=str(root))
    files = roles(compiler)
    assert files["cicc"] == str(root / "nvvm/bin/cicc")
    assert {
        "nvcc",
        "nvcc.profile",
        "ptxas",
        "libdevice.10.bc",
        "host gcc",
        "host cc1plus",
        "host as",
        "host ld",
    } <= set(files)
    assert all(os.path.isfile(path) for path in files.values())
    assert len(set(files)) == len(compiler.tool.files)
    assert compiler.tool.search[:2] == (str(root / "include"), str(root / "include/cccl"))
    assert any(folder.startswith("/usr/include") for folder in compiler.tool.search)
    assert dict(compiler.tool.facts)["nvcc"] == "13.0.88"
    assert compiler.program == Ref(place=Place.ROOT, name="cuda", suffix="/bin/nvcc")


def test_a_wrapper_is_called_and_is_part_of_the_tool(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    inner = script(tmp_path / "inner" / "nvcc", f'#!/bin/sh\nexec {root}/bin/nvcc "$@"\n')
    outer = script(
        tmp_path / "outer" / "nvcc", '#!/bin/sh\nexec "$INNER/nvcc" "$@"\n'.replace("$INNER", str(inner.parent))
    )
    compiler = found_nvcc(tmp_path, PATH=f"{outer.parent}:/usr/bin:/bin")
    assert compiler.program == Ref(place=Place.ROOT, name="nvcc", suffix="/nvcc")
    assert dict(compiler.tool.roots)["cuda"] == str(root)
    paths = set(roles(compiler).values())
    assert {str(outer), str(inner), str(root / "bin/nvcc")} <= paths


def test_a_wrappers_answers_are_forgotten_when_what_it_calls_is_replaced(tmp_path: Path) -> None:
    """The wrapper itself keeps its bytes, so the probe has to depend on more."""
    real = script(tmp_path / "real" / "nvcc", "#!/bin/sh\n")
    wrapper = script(tmp_path / "nvcc", '#!/bin/sh\nexec ${TOOLS}/nvcc "$@"\n')
    assert script_files(str(wrapper), {"TOOLS": str(real.parent)}) == (str(wrapper), str(real))


def test_a_link_to_nvcc_is_no_wrapper(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    (tmp_path / "current").symlink_to(root)
    compiler = found_nvcc(tmp_path, CUDA_HOME=str(tmp_path / "current"))
    assert compiler.program.name == "cuda"


def test_a_host_compiler_by_name_is_the_users(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    mine = script(tmp_path / "mine" / "gcc", '#!/bin/sh\nexec /usr/bin/gcc "$@"\n')
    compiler = found_nvcc(tmp_path, CUDA_HOME=str(root), PATH=f"{mine.parent}:/usr/bin:/bin")
    assert roles(compiler)["host gcc"] == str(mine)
    assert "/usr/bin/gcc" in roles(compiler).values()
    assert dict(compiler.environment)["PATH"].startswith(str(mine.parent) + ":")


@pytest.mark.parametrize(
    ("text", "is_wrapper"),
    [('exec /usr/bin/gcc "$@"', False), ('exec /usr/bin/gcc $MINE "$@"', True)],
)
def test_a_wrapper_as_host_compiler_is_told(tmp_path: Path, text: str, is_wrapper: bool) -> None:
    root = toolkit(tmp_path / "toolkit")
    mine = script(tmp_path / "mine" / "gcc", f"#!/bin/sh\n{text}\n")
    knowledge = Knowledge()
    toolchains = [finder(tmp_path, knowledge, CUDA_HOME=str(root), PATH=f"{mine.parent}:/usr/bin:/bin")]
    compiler = answered(toolchains[0].cuda, knowledge)
    assert compiler.wrapper == (str(mine) if is_wrapper else "")
    assert any(f"{mine} is a wrapper" in notice for notice in toolchains[0].notices) is is_wrapper


def test_a_wrapper_that_only_links_is_told_too(tmp_path: Path) -> None:
    mine = str(script(tmp_path / "g++", '#!/bin/sh\nexec /usr/bin/g++ $MINE "$@"\n'))
    knowledge, environment = Knowledge(), (("PATH", SYSTEM),)
    for programs, wrapper in ((("/usr/bin/gcc", "/usr/bin/g++"), ""), (("/usr/bin/gcc", mine), mine)):
        found = answered(lambda programs=programs: host_compiler(knowledge, programs, environment, SYSTEM), knowledge)
        assert found.wrapper == wrapper


def test_a_cache_before_the_host_compiler_is_passed_over(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    cache = script(tmp_path / "ccache", "#!/bin/sh\nexit 1\n")
    (tmp_path / "masked").mkdir()
    for name in ("gcc", "g++"):
        (tmp_path / "masked" / name).symlink_to(cache)
    compiler = found_nvcc(tmp_path, CUDA_HOME=str(root), PATH=f"{tmp_path}/masked:/usr/bin:/bin")
    assert roles(compiler)["host gcc"] == "/usr/bin/gcc" and not compiler.wrapper


def test_another_host_compiler_is_another_tool(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "toolkit")
    plain = found_nvcc(tmp_path, CUDA_HOME=str(root))
    other = found_nvcc(tmp_path, ProjectSettings(host_compiler="/usr/bin/g++"), CUDA_HOME=str(root))
    assert plain.tool.name != other.tool.name
    assert "/usr/bin/g++" in roles(other).values()


def test_a_broken_nvcc_says_what_it_said(tmp_path: Path) -> None:
    script(tmp_path / "broken" / "bin" / "nvcc", "#!/bin/sh\necho 'nvcc fatal: no licence' >&2\nexit 1\n")
    with pytest.raises(RequestError) as caught:
        found_nvcc(tmp_path, CUDA_HOME=str(tmp_path / "broken"))
    assert caught.value.code == "compiler-not-found" and "no licence" in caught.value.message


def test_hipcc_that_is_not_there_names_the_packages(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError) as caught:
        finder(tmp_path, Knowledge(), ProjectSettings(hip=str(tmp_path / "empty"))).hip()
    assert "apt install hipcc rocm-device-libs libamdhip64-dev" in caught.value.next_step


def test_no_archiver(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        finder(tmp_path, Knowledge(), PATH=str(tmp_path)).archiver()
    assert caught.value.code == "compiler-not-found"


# ------------------------------------------------------------ Python


def test_a_virtual_environment_is_read_and_not_run(tmp_path: Path) -> None:
    home = tmp_path / "venv"
    site = home / "lib" / "python3.12" / "site-packages"
    (site / "cutlass_library/source/include/cutlass").mkdir(parents=True)
    (site / "cutlass_library/source/include/cutlass/cutlass.h").write_text("")
    (home / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    script(home / "bin" / "python", "#!/bin/sh\nexit 1\n")
    request = request_for(tmp_path, interpreter=str(home / "bin" / "python"))
    toolchains = Toolchains(request, ProjectSettings(), Knowledge())
    own = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    assert toolchains.site_packages() == tuple(dict.fromkeys((str(site), *own)))
    assert toolchains.cutlass() == str(site / "cutlass_library/source")


def test_another_interpreter_is_asked(tmp_path: Path) -> None:
    answer = '["/somewhere/site-packages", "/somewhere/site-packages"]'
    python = script(tmp_path / "bin" / "python", f"#!/bin/sh\necho '{answer}'\n")
    knowledge = Knowledge()
    request = request_for(tmp_path, interpreter=str(python))
    sites = answered(lambda: Toolchains(request, ProjectSettings(), knowledge).site_packages(), knowledge)
    assert sites[0] == "/somewhere/site-packages"


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "bin" / "python", "#!/bin/sh\necho 'not here' >&2\nexit 3\n")
    knowledge = Knowledge()
    request = request_for(tmp_path, interpreter=str(python))
    with pytest.raises(RequestError) as caught:
        answered(lambda: Toolchains(request, ProjectSettings(), knowledge).site_packages(), knowledge)
    assert caught.value.code == "bad-interpreter" and "not here" in caught.value.message


# ------------------------------------------------------------ texts of tools


def test_folders_that_are_not_there_yet_can_shadow_too() -> None:
    text = 'ignoring nonexistent directory "/opt/x/include"\n#include "..." search starts here:\n /q\n'
    text += (
        "#include <...> search starts here:\n /usr/include/c++/12\n /usr/lib/gcc/x/../include\nEnd of search list.\n"
    )
    assert search_folders(text) == ("/opt/x/include", "/q", "/usr/include/c++/12", "/usr/lib/gcc/include")


def test_which_takes_only_what_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    assert which("tool", str(tmp_path)) == ""
    script(tmp_path / "tool", "#!/bin/sh\n")
    assert which("tool", f"/nowhere::{tmp_path}") == str(tmp_path / "tool")
    assert which("/nowhere/tool", "") == ""


@pytest.mark.cuda
def test_the_real_nvcc(tmp_path: Path) -> None:
    knowledge = Knowledge()
    request = request_for(tmp_path)
    compiler = answered(lambda: Toolchains(request, ProjectSettings(), knowledge).cuda(), knowledge)
    wanted = {
        "nvcc",
        "nvcc.profile",
        "cicc",
        "ptxas",
        "cudafe++",
        "fatbinary",
        "nvlink",
        "libdevice.10.bc",
        "crt/link.stub",
    }
    assert wanted <= set(roles(compiler))
    assert {"host cc1plus", "host as", "host collect2", "host ld"} <= set(roles(compiler))
    assert {"sm_80", "sm_90"} <= set(compiler.archs)
    again = Toolchains(request, ProjectSettings(), knowledge).cuda()
    assert again == compiler


@pytest.mark.hip
def test_the_real_hipcc(tmp_path: Path) -> None:
    knowledge = Knowledge()
    request = request_for(tmp_path)
    compiler = answered(lambda: Toolchains(request, ProjectSettings(), knowledge).hip(), knowledge)
    files = roles(compiler)
    assert {"hipcc", "clang", "lld", "clang-offload-bundler", "ld", "ocml.bc", "oclc_isa_version_90a.bc"} <= set(files)
    assert any("libLLVM" in role for role in files) and any("libclang-cpp" in role for role in files)
    assert "gfx90a" in compiler.archs
    assert dict(compiler.environment)["HIP_PLATFORM"] == "amd"
    assert not any("libc.so" in role for role in files)


def test_only_architectures_with_a_device_library() -> None:
    libraries = ("/rocm/ocml.bc", "/rocm/oclc_isa_version_90a.bc", "/rocm/oclc_isa_version_1030.bc")
    assert hipcc.with_library(("gfx1030", "gfx1100", "gfx90a"), libraries) == ("gfx1030", "gfx90a")
    assert hipcc.with_library(("gfx1100",), libraries[:1]) == ("gfx1100",), "one library for all, or none was found"


@pytest.mark.hip
def test_an_architecture_without_a_device_library_is_refused_with_the_cause(tmp_path: Path) -> None:
    knowledge = Knowledge()
    request = request_for(tmp_path)
    compiler = answered(lambda: Toolchains(request, ProjectSettings(), knowledge).hip(), knowledge)
    files = roles(compiler)
    for arch in compiler.archs:
        assert f"oclc_isa_version_{arch.removeprefix('gfx')}.bc" in files
    if not compiler.archs_without_library:
        pytest.skip("this ROCm has a device library for every architecture of its clang")
    missing = compiler.archs_without_library[-1]
    with pytest.raises(RequestError, match=f"no device library for it .oclc_isa_version_{missing[3:]}.bc") as caught:
        architectures((f"{missing}:xnack-",), compiler.archs, "buildd.toml:4", compiler.archs_without_library)
    assert missing not in caught.value.next_step and "newer ROCm" in caught.value.next_step
