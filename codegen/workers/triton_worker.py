"""Compiles one Triton kernel ahead of time, or describes the installed Triton. Run by the client's own interpreter.

Knows nothing of buildd: it imports the standard library and triton only, reads a JSON spec on stdin and writes the
files named on its command line. No absolute path of the project, of Triton's folder or of a temporary folder reaches
them.

    python triton_worker.py --identify
    python triton_worker.py DEPFILE NAME=PATH... < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which the kernel must not import.
    del sys.path[0]

import contextlib
import functools
import importlib.util
import json
import os
import re
import types
import warnings
from collections.abc import Iterator
from typing import Any

sys.dont_write_bytecode = True


class Refused(Exception):
    """One message for the user: `where` is "FILE:LINE" or "FILE", if it is known."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def _module_of(name: str) -> types.ModuleType:
    """Return a script beside this one as a module."""
    # No user's module has such a name.
    found = importlib.util.spec_from_file_location(
        f"buildd {name}", os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    )
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


_errors = _module_of("triton_errors_worker.py")
_files = _module_of("triton_files_worker.py")
_questions = _module_of("triton_questions_worker.py")
_again = _module_of("triton_again_worker.py")
_sources = _module_of("triton_sources_worker.py")


# ---------------------------------------------------------------- identity


# Profilers, tests, headers and command line tools of Triton do not take part in a compile.
_NO_COMPILER = ("__pycache__", "profiler", "tools", "cupti", "cupti-blackwell", "include")


def identify() -> dict[str, Any]:
    """Return everything other than the kernel that affects results: versions, and Triton's files."""
    triton = _import_triton()
    folder = os.path.dirname(os.path.abspath(triton.__file__))
    files = {"python": os.path.realpath(sys.executable)}
    for where, names, found in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _NO_COMPILER)
        for name in sorted(found):
            path = os.path.join(where, name)
            role = "triton/" + os.path.relpath(path, folder)
            if name.endswith((".py", ".so", ".bc")) or name.startswith(("ptxas", "ld.lld")):
                files[role] = path
    for name, value in os.environ.items():
        if name.startswith("TRITON_") and name.endswith("_PATH") and os.path.isfile(value):
            files[name] = os.path.abspath(value)
    variables: dict[str, str] = {}
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars

        variables = {str(name): str(value) for name, value in get_cache_invalidating_env_vars().items()}
    except ImportError:
        pass
    return {
        "triton": str(triton.__version__),
        "python": "{}.{}.{} {}".format(*sys.version_info[:3], sys.implementation.cache_tag),
        "backends": sorted(triton.backends.backends),
        "files": files,
        "variables": variables,
    }


def _import_triton() -> Any:
    try:
        import triton
        import triton.backends
        import triton.compiler

        # Every compile needs this module, and Triton imports it only then.
        import triton.compiler.code_generator
    except ImportError as error:
        raise Refused(f"triton cannot be imported by {sys.executable}: {error}") from error
    for name in ("triton.runtime.cache", "triton.compiler.compiler"):
        # A digest of 500 MB of Triton's own files, used only to name an entry in the private cache: no result contains
        # it.
        if hasattr(sys.modules.get(name), "triton_key"):
            vars(sys.modules[name])["triton_key"] = lambda: "private"
    return triton


# ---------------------------------------------------------------- compiling


def compile_kernel(spec: dict[str, Any], outputs: dict[str, str], depfile: str) -> None:
    """Compile the kernel of `spec` for one architecture.

    Args:
        spec: source, module, kernel, signature, constants, backend, arch, warp_size, num_warps, num_stages, num_ctas,
            maxnreg.
        outputs: suffix of a stage ("cubin", "ttir") or "metadata" -> path.
        depfile: path of the list of files that were read, one per line, and of what else was asked of the file system.
    """
    temporary = os.environ.get("TMPDIR") or "/tmp"
    # Private and empty: a compile must not depend on an earlier one, nor affect a later one.
    os.environ["TRITON_HOME"] = temporary
    os.environ["TRITON_CACHE_DIR"] = os.path.join(temporary, "triton")
    triton_folder, reads, questions = warm_up()
    _sources.FOLDERS.add(os.getcwd(), "")
    sys.path_importer_cache.clear()
    triton = _import_triton()
    ignored = (*_files.own_folders(triton_folder), *outputs.values())
    reads.begin()
    questions.begin(ignored)
    kernel, function = _load(spec["source"], spec["module"], spec["kernel"])
    signature, constants, hints = _arguments(function, spec)
    written = _write_stages_once(outputs)
    compiled = _compile(triton, function, kernel, spec, signature, constants, hints)
    inputs = sorted({*reads.inputs(ignored), *questions.files(), *questions.start_files()})
    inputs += questions.lines(inputs)
    for name, path in outputs.items():
        content = _stage(compiled, name, spec)
        if name not in written:
            with open(path, "wb") as stream:
                stream.write(content)
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(path + "\n" for path in inputs)


def _write_stages_once(outputs: dict[str, str]) -> set[str]:
    """Make Triton write its stages to the given paths. Returns the names of the stages that it will write."""
    cache: Any = sys.modules.get("triton.runtime.cache")
    knobs: Any = getattr(getattr(cache, "knobs", None), "cache", None)
    if not hasattr(knobs, "manager_class"):  # before 3.4
        return set()
    stages = {name: path for name, path in outputs.items() if name != "metadata"}
    knobs.manager_class = _files.stages_to(stages, cache.FileCacheManager)
    return set(stages)


@functools.cache
def warm_up() -> tuple[str, Any, Any]:
    """Import Triton, so that processes forked from this one need not. Returns its folder, and the recorders of files
    read and of questions asked."""
    reads, questions = _files.Reads(), _questions.Questions()
    location = importlib.util.find_spec("triton")
    if location is None or not location.submodule_search_locations:
        raise Refused(f"triton is not installed for {sys.executable}: {sys.executable} -m pip install triton")
    folder = next(iter(location.submodule_search_locations))
    _sources.FOLDERS.add(folder, "triton/")
    _sources.install()
    # Triton warns in every process about a default that will change; the user of an ahead-of-time compile cannot act on
    # it.
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    _import_triton()
    if __name__ != "__main__":
        _files.standard_library()
        _module_of("triton_first_worker.py").begin()
        _before()
    questions.install()
    return folder, reads, questions


@functools.cache
def _before() -> Any:
    return _again.Before(_sources.FOLDERS.shown)


def as_before() -> bool:
    """Tell whether this process may take another job; if so, the last job's module is removed."""
    return bool(_before().restore())


def _load(source: str, module_name: str, name: str) -> tuple[Any, Any]:
    """Return the kernel's object in the module, and the JIT function inside autotuners and heuristics."""
    from triton.runtime.jit import JITFunction

    folder = os.path.dirname(os.path.abspath(source))
    sys.path[:0] = list(dict.fromkeys((folder, os.getcwd())))
    if "." not in module_name and (module_name in sys.modules or not module_name.isidentifier()):
        module_name = "_kernel_" + re.sub(r"\W", "_", module_name)
    path = os.path.abspath(source)
    found = importlib.util.spec_from_file_location(module_name, path, loader=_sources.Loader(module_name, path))
    if found is None or found.loader is None:
        raise Refused("not a Python file", source)
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except SyntaxError as error:
        file = _sources.FOLDERS.hide(error.filename or source)
        raise Refused(f"{error.msg}", f"{file}:{error.lineno or 1}") from error
    except (Exception, SystemExit) as error:  # The user's code may raise anything while it is imported.
        raise Refused(_errors.said(error), _errors.raised(error, source)) from error
    value = getattr(module, name, None)
    if value is None:
        there = sorted(key for key, item in vars(module).items() if _errors.unwrapped(item, JITFunction) is not None)
        hint = f"; it has {', '.join(there)}" if there else "; it has no @triton.jit function"
        raise Refused(f"there is no kernel {name}{hint}", source)
    function = _errors.unwrapped(value, JITFunction)
    if function is None:
        line = getattr(getattr(value, "__code__", None), "co_firstlineno", 0)
        raise Refused(f"{name} is not a @triton.jit function", f"{source}:{line}" if line else source)
    return value, function


def _arguments(function: Any, spec: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
    """Return signature, constants and alignment hints in Triton's form, checked against the kernel's parameters."""
    where = _errors.definition(function, spec["source"], _sources.FOLDERS.hide)
    names = list(function.arg_names)
    types_of: dict[str, str] = dict(spec["signature"])
    constants: dict[str, Any] = dict(spec["constants"])
    label = f"{spec['kernel']}({', '.join(names)})"
    for table, given in (("signature", types_of), ("constants", constants)):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise Refused(f"{table} names {', '.join(unknown)}, which is not an argument of {label}", where)
    both = [name for name in types_of if name in constants]
    if both:
        raise Refused(f"{', '.join(both)} is both in signature and in constants", where)
    signature: dict[str, str] = {}
    hints: dict[tuple[int], Any] = {}
    missing = []
    for index, parameter in enumerate(function.params):
        name = parameter.name
        if name in types_of:
            if parameter.is_constexpr:
                raise Refused(f"{name} is a tl.constexpr: it needs a value in constants, not a type", where)
            kind, _, hint = types_of[name].partition(":")
            if hint not in ("", "1", "16"):
                raise Refused(f'{name}: "{types_of[name]}" has a hint other than 1 and 16', where)
            _check_type(name, kind, where)
            if hint == "16":
                hints[(index,)] = [["tt.divisibility", 16]]
            if hint == "1":
                constants[name] = 1
                kind = "constexpr"
            signature[name] = kind
        elif name in constants:
            signature[name] = "constexpr"
        elif parameter.is_constexpr and parameter.has_default:
            constants[name] = parameter.default
            signature[name] = "constexpr"
        else:
            missing.append(f"{name} ({'constants' if parameter.is_constexpr else 'signature'})")
    if missing:
        raise Refused(f"{label}: signature and constants lack {', '.join(missing)}", where)
    return signature, constants, hints


def _check_type(name: str, kind: str, where: str) -> None:
    if not re.fullmatch(
        r"\*?k?(i(1|8|16|32|64)|u(1|8|16|32|64)|fp(8\w*|16|32|64)|bf16)|\*k?\*\w+|tensordesc<.*>", kind
    ):
        raise Refused(f'{name}: "{kind}" is not a type; examples: "*fp32", "fp32", "i32", "*bf16:16"', where)


def _compile(
    triton: Any,
    function: Any,
    kernel: Any,
    spec: dict[str, Any],
    signature: dict[str, str],
    constants: dict[str, Any],
    hints: dict[tuple[int], Any],
) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.errors import CompilationError

    where = _errors.definition(function, spec["source"], _sources.FOLDERS.hide)
    source = triton.compiler.ASTSource(fn=function, signature=signature, constexprs=constants, attrs=hints)
    target = GPUTarget(spec["backend"], spec["arch"], spec["warp_size"])
    options = {name: spec[name] for name in ("num_warps", "num_stages", "num_ctas")}
    if spec["maxnreg"]:
        options["maxnreg"] = spec["maxnreg"]
    try:
        with _reporting(triton, spec["backend"]):
            return triton.compile(source, target=target, options=options)
    except CompilationError as error:
        raise Refused(*_errors.innermost(error, function, spec["source"], _sources.FOLDERS.hide)) from error
    except Exception as error:  # Triton's passes, LLVM and ptxas raise errors of many types.
        raise Refused(f"cannot be compiled for {spec['arch']}: {_errors.said(error)}", where) from error


@contextlib.contextmanager
def _reporting(triton: Any, backend: str) -> Iterator[None]:
    """Let Triton print the report of `ptxas -v` on standard error, where buildd reads it, if this version can."""
    knobs: Any = getattr(getattr(triton, "knobs", None), "nvidia", None)
    module = sys.modules.get("triton.backends.nvidia.compiler")
    if backend != "cuda" or module is None or not hasattr(knobs, "dump_ptxas_log"):
        yield
        return

    def tell(*words: Any, **named: Any) -> None:
        # The assembler names itself by its program's name; the time of a compile is not part of its result.
        report = re.sub(r"^ptxas[\w.-]* info ", "ptxas info ", str(words[0]) if words else "", flags=re.MULTILINE)
        if not report.startswith("ptxas info "):
            print(*words, **named)
            return
        lines = [line for line in report.splitlines() if line.strip() and "Compile time" not in line]
        print(*lines, sep="\n", file=sys.stderr)

    before = knobs.dump_ptxas_log
    knobs.dump_ptxas_log = True
    vars(module)["print"] = tell
    try:
        yield
    finally:
        del vars(module)["print"]
        knobs.dump_ptxas_log = before


def _stage(compiled: Any, name: str, spec: dict[str, Any]) -> bytes:
    if name == "metadata":
        # Triton's own hash includes absolute paths (3.7 on AMD) and names an entry of its private cache.
        values = {key: value for key, value in compiled.metadata._asdict().items() if key != "hash"}
        plain = json.loads(json.dumps(values, default=_plain, sort_keys=True))
        return (json.dumps(_sources.FOLDERS.hide_all(plain), indent=1, sort_keys=True) + "\n").encode()
    try:
        content = compiled.asm[name]
    except KeyError:
        raise Refused(f"this Triton makes no {name} for {spec['arch']}", spec["source"]) from None
    return content if isinstance(content, bytes) else str(content).encode()


def _plain(value: Any) -> Any:
    return vars(value) if hasattr(value, "__dict__") else str(value)


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--identify"]:
            print(json.dumps(identify()))
        else:
            outputs = dict(argument.split("=", 1) for argument in arguments[1:])
            compile_kernel(json.load(sys.stdin), outputs, arguments[0])
    except Refused as error:
        where = f"{error.where}: " if error.where else ""
        print(f"{where}error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
