"""Writes a plan's CUDA and HIP targets as a CMake project, for editors that load one (AIT_USE_CMAKE_COMPILATION). Pure.

Knows plans and CMake's language, no generator. The plan gives sources and options. Under `buildd run` CMake's own
compiler calls go through the launcher and are cached. Targets of other kinds are left out. HIP sources are C++ for
CMake, with hipcc as the C++ compiler: CMake's own language HIP calls clang, and does not find Debian's ROCm.
"""

from __future__ import annotations

import os

from codegen.plan import Action, Argument, GeneratedFile, Place, Plan, Ref

FOLDER = "cmake"
_NOT_PASSED = ("-c", "-Xptxas=-v")
_UNIT = "-cuid="
"""buildd gives a compile of another build system a unit of its own, and passes through one that has one."""
_FOR_AMD = (
    "set(ENV{HIP_PLATFORM} amd)  # where there is an nvcc, hipcc would call it",
    *(
        f'set_property(GLOBAL PROPERTY RULE_LAUNCH_{rule} "${{CMAKE_COMMAND}} -E env HIP_PLATFORM=amd")'
        for rule in ("COMPILE", "LINK")
    ),
)
_LANGUAGES = {"nvcc": "CUDA", "hipcc": "CXX"}
"""The kind of a compile -> the language that calls its compiler."""
_OWN = {"CUDA": (".cu",), "CXX": (".cpp", ".cc", ".cxx", ".C")}
"""Language -> the endings for which CMake chooses it."""


def cmake_project(plan: Plan, project: str, name: str, build: str) -> GeneratedFile:
    """Return the CMakeLists.txt of a plan.

    Args:
        project: absolute folder of the project.
        name: the project's name.
        build: the folder of all outputs, relative to the project.
    """
    made = {output.path: action for action in plan.actions for output in action.outputs}
    targets: list[str] = []
    for action in plan.actions:
        compiles = [made[path] for path in action.inputs if path in made and made[path].kind in _LANGUAGES]
        if action.kind in ("link", "ar") and compiles:
            targets += _target(plan, action, compiles, made)
    kinds = {action.kind: action for action in plan.actions}
    languages = " ".join(("CXX", *(("CUDA",) if "nvcc" in kinds else ())))
    hipcc = [_program(plan, kinds["hipcc"])] if "hipcc" in kinds else []
    above = os.path.relpath(project, f"{project}/{build}/{FOLDER}")
    lines = [
        "# Generated from the project file; edit that instead. Cached where buildd runs it:",
        f"#   buildd run -- cmake -S {build}/{FOLDER} -B {build}/{FOLDER}/out",
        f"#   buildd run -- cmake --build {build}/{FOLDER}/out",
        "cmake_minimum_required(VERSION 3.18)",
        "set(CMAKE_CUDA_ARCHITECTURES OFF)  # each source has its own",
        *(f"set(CMAKE_CXX_COMPILER {_quoted(program)})  # for HIP" for program in hipcc),
        *(_FOR_AMD if hipcc else ()),
        f"project({_quoted(name)} LANGUAGES {languages})",
        'set(CMAKE_CUDA_FLAGS_DEBUG "")',
        'set(CMAKE_CUDA_FLAGS_RELEASE "")',
        f'get_filename_component(ROOT "${{CMAKE_CURRENT_SOURCE_DIR}}/{above}" ABSOLUTE)',
        *targets,
    ]
    return GeneratedFile(path=f"{build}/{FOLDER}/CMakeLists.txt", content=("\n".join(lines) + "\n").encode())


def _target(plan: Plan, link: Action, compiles: list[Action], made: dict[str, Action]) -> list[str]:
    (output,) = link.outputs
    name = link.name.partition("/")[0]
    file = os.path.basename(output.path)
    kind = "STATIC" if link.kind == "ar" else "SHARED" if "-shared" in link.argv else ""
    command = f"add_library({_quoted(name)} {kind}" if kind else f"add_executable({_quoted(name)}"
    sources = [_source(action) for action in compiles]
    lines = ["", f"{command} {' '.join(_path(source) for source in sources)})"]
    for action, source in zip(compiles, sources, strict=True):
        options = " ".join(_quoted(option) for option in _options(plan, action))
        lines.append(f"set_property(SOURCE {_path(source)} PROPERTY COMPILE_OPTIONS {options})")
        language = _LANGUAGES[action.kind]
        if not source.endswith(_OWN[language]):
            # The options are this compiler's, so CMake must call it for this source too.
            lines.append(f"set_property(SOURCE {_path(source)} PROPERTY LANGUAGE {language})")
    lines.append(f'set_target_properties({_quoted(name)} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME {_quoted(file)})')
    libraries = [argument for argument in link.argv if isinstance(argument, str) and argument.startswith("-l")]
    others = [
        made[path].name.partition("/")[0] for path in link.inputs if path in made and made[path].kind not in _LANGUAGES
    ]
    if wanted := [*dict.fromkeys(others), *libraries]:
        lines.append(f"target_link_libraries({_quoted(name)} PRIVATE {' '.join(map(_quoted, wanted))})")
    return lines


def _program(plan: Plan, action: Action) -> str:
    return _spelled(action.argv[0], dict(next(tool.roots for tool in plan.tools if tool.name == action.tool)))


def _source(action: Action) -> str:
    return action.inputs[0]


def _options(plan: Plan, action: Action) -> list[str]:
    """Return the options of a compile: the words between the compiler and -o."""
    roots = dict(next(tool.roots for tool in plan.tools if tool.name == action.tool))
    end = action.argv.index("-o")
    found = [_spelled(argument, roots) for argument in action.argv[1:end]]
    return [
        f"-I${{ROOT}}/{option[2:]}" if option.startswith("-I") and not option.startswith("-I/") else option
        for option in found
        if option not in _NOT_PASSED and not option.startswith(_UNIT)
    ]


def _spelled(argument: Argument, roots: dict[str, str]) -> str:
    if isinstance(argument, Ref):
        value = roots.get(argument.name, "") if argument.place is Place.ROOT else ""
        return argument.prefix + value + argument.suffix
    return argument


def _path(source: str) -> str:
    return _quoted(source) if source.startswith("/") else f'"${{ROOT}}/{_escaped(source)}"'


def _quoted(text: str) -> str:
    # ${ROOT} is this file's own variable; every other dollar sign is literal.
    return '"' + _escaped(text).replace("\\${ROOT}", "${ROOT}") + '"'


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in '\\"$;' else letter for letter in text)
