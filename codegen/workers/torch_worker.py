"""Compiles one exported model ahead of time with AOTInductor, or describes the installed torch. Run by the client's own
interpreter.

Knows nothing of buildd: it imports the standard library and torch only, reads a JSON spec on stdin and writes the
package that is named on its command line. Everything else that torch writes goes to the job's own folder; neither that
folder nor torch's own reaches the package.

    python torch_worker.py --identify
    python torch_worker.py --identify-gpu
    python torch_worker.py DEPFILE PACKAGE ARCHIVE [TRACE] < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which torch must not import.
    del sys.path[0]

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import types
import typing
import warnings
import zipfile
from typing import Any

sys.dont_write_bytecode = True


class Refused(Exception):
    """One message for the user: `where` is a file, if it is known."""

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


_files = _module_of("torch_files_worker.py")


def _import_torch() -> Any:
    # No pool of processes: this process does everything itself and then ends.
    os.environ["TORCH_WARM_POOL"] = "0"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # torch prints deprecation warnings in every process; the user of an ahead-of-time compile cannot act on them.
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        import torch
        import torch._inductor
        import torch._inductor.config
    except ImportError as error:
        raise Refused(f"torch cannot be imported by {sys.executable}: {error}") from error
    return torch


# ---------------------------------------------------------------- identity


_NO_COMPILER = ("__pycache__", "include", "testing", "onnx", "tensorboard", "benchmark", "bin", "share")
"""Folders of torch that take no part in a compile; headers are keyed where they are read."""
_DEVICES = re.compile(r"cuda|cudnn|nccl|nvshmem|cupti|hip|roc|xpu|shm|test")
"""Libraries of torch for other devices."""
_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}


def identify() -> dict[str, Any]:
    """Return everything other than the model that affects results: versions, options, and torch's files."""
    torch = _import_torch()
    import sysconfig

    from torch.utils import cpp_extension

    folder = os.path.dirname(os.path.abspath(torch.__file__))
    files = {"python": os.path.realpath(sys.executable)}
    for where, names, found in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _NO_COMPILER)
        for name in sorted(found):
            library = re.search(r"\.so(\.\d+)*$", name) and not _DEVICES.search(name)
            path = os.path.join(where, name)
            role = os.path.relpath(path, folder)
            # Inductor copies texts into what it generates.
            if name.endswith(".py") or library or role.startswith("_inductor" + os.sep):
                files["torch/" + role] = path
    files |= _partners()
    built = f"{torch.__version__} git {torch.version.git_version} cuda {torch.version.cuda} hip {torch.version.hip}"
    return {
        "torch": built,
        "python": "{}.{}.{} {}".format(*sys.version_info[:3], sys.implementation.cache_tag),
        "folder": folder,
        "site": sysconfig.get_path("purelib"),
        "include": [*cpp_extension.include_paths(), sysconfig.get_path("include")],
        "modes": sorted(torch._inductor.list_mode_options()),
        "backends": sorted(torch._dynamo.list_backends(exclude_tags=())),
        "options": _options(torch._inductor.config),
        "files": files,
    }


def identify_gpu() -> dict[str, Any]:
    """Return everything about the GPU on which generated code depends."""
    torch = _import_torch()
    from torch.utils import cpp_extension

    try:
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
    except (AssertionError, RuntimeError) as error:
        raise Refused(_said(error)) from error
    return {
        "name": found.name,
        "capability": getattr(found, "gcnArchName", "") if torch.version.hip else f"{found.major}.{found.minor}",
        "processors": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "include": cpp_extension.include_paths("cuda"),
    }


def _partners() -> dict[str, str]:
    """Return, for each of those packages, the installer's list of its files with their digests."""
    from importlib import metadata

    found = {}
    for name in _files.PARTNERS:
        try:
            record = metadata.distribution(name).locate_file("")
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if str(file).endswith(".dist-info/RECORD"):
                found[f"package {name}"] = os.path.join(str(record), str(file))
    return found


def _options(config: Any) -> dict[str, list[str]]:
    """Return the plain types of each option; none if only code can set its value."""
    entries = getattr(config, "_config", {})
    found = {}
    for name, value in config.get_config_copy().items():
        declared = getattr(entries.get(name), "value_type", None)
        kinds = _plain_types(declared) if declared is not None else []
        if not kinds and type(value) in _PLAIN:
            kinds = [_PLAIN[type(value)]]
        found[name] = kinds
    return found


def _plain_types(declared: Any) -> list[str]:
    if declared in _PLAIN:
        return [_PLAIN[declared]]
    origin = typing.get_origin(declared)
    if origin in (typing.Union, types.UnionType):
        return list(dict.fromkeys(kind for part in typing.get_args(declared) for kind in _plain_types(part)))
    if origin is typing.Literal:
        return list(dict.fromkeys(_PLAIN[type(value)] for value in typing.get_args(declared) if type(value) in _PLAIN))
    return ["list"] if origin is list else []


# ---------------------------------------------------------------- compiling


def compile_model(spec: dict[str, Any], archive: str, package: str, depfile: str, trace: str = "") -> None:
    """Compile an exported model for this machine's CPU or GPU.

    Args:
        spec: name, mode, options, threads, compiler, device.
        archive: the file that torch.export.save wrote.
        package: path of the result.
        depfile: path of the list of files that were read, one per line.
        trace: path of torch's structured trace of the compile; empty if it is not wanted.
    """
    private = os.environ.get("TMPDIR") or "/tmp"
    compiler = _path_of(spec["compiler"])
    headers = _files.private_places(private)
    _check(archive)
    torch, before = warm_up()
    if trace:
        _trace_into(os.path.join(private, "trace"))
    folder = os.path.dirname(os.path.abspath(torch.__file__))
    _files.write_compiler(private, compiler, folder, headers)
    torch.set_num_threads(spec["threads"])
    program = _load(torch, archive)
    if spec["device"] != "cpu":
        program = _on_gpu(torch, program, archive)
    _check_devices(program, archive, spec["device"])
    _files.clean_sources(private, folder)
    configuration = {
        # Each source is compiled once: a precompiled header would cost more time than it saves.
        "aot_inductor.precompile_headers": False,
        "aot_inductor.model_name_for_generated_files": spec["name"],
        "cpp.threads": spec["threads"],
        "cpp.cxx": (None, spec["compiler"]),
        **(torch._inductor.list_mode_options(spec["mode"]) if spec["mode"] else spec["options"]),
    }
    known = torch._inductor.config.get_config_copy()
    configuration = {name: value for name, value in configuration.items() if name in known}
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=configuration)
    except Exception as error:  # Inductor's passes and the host compiler raise errors of many types.
        raise Refused(f"cannot be compiled: {_said(error)}", archive) from error
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(path + "\n" for path in _files.inputs(private, folder, headers, before))
    if trace:
        _join_trace(os.path.join(private, "trace"), trace)


def _trace_into(folder: str) -> None:
    """Let torch trace as with TORCH_TRACE, which it reads once, when it is imported."""
    from torch._logging import _internal

    os.environ["TORCH_TRACE"] = folder
    _internal.LOG_TRACE_HANDLER = None
    _internal._init_logs()


def _join_trace(folder: str, trace: str) -> None:
    with open(trace, "wb") as joined:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            with open(os.path.join(folder, name), "rb") as part:
                shutil.copyfileobj(part, joined)


@functools.cache
def warm_up() -> tuple[Any, frozenset[str]]:
    """Import torch and the modules that a compile needs, so that processes forked from this one need not. Returns torch
    and the modules imported before."""
    before = frozenset(sys.modules)
    torch = _import_torch()
    for name in ("torch._inductor.compile_fx", "torch._inductor.package", "torch.export"):
        importlib.import_module(name)
    if __name__ != "__main__":
        for name in (*_LATER, *_patterns()):
            # Other versions of torch have other modules: a job imports the rest itself.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    return torch, before


_LATER = (
    "torch.export._unlift",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
    "torch.utils.serialization",
    "torch._dynamo.repro.aoti",
    "torch._export.passes._node_metadata_hook",
    "torch._inductor.choices",
    "torch._inductor.codegen.cpp_wrapper_cpu_array_ref",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.mps",
    "torch._inductor.codegen.pallas",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.extern_node_serializer",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.freezing_patterns",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "sympy.tensor.tensor",
)
"""Modules that Inductor imports during a compile (torch 2.13), which import the others."""


def _patterns() -> list[str]:
    """The same of a package of some thirty modules."""
    name = "torch._inductor.fx_passes.serialized_patterns"
    with contextlib.suppress(ImportError):
        return [f"{name}.{one.name}" for one in pkgutil.iter_modules(importlib.import_module(name).__path__)]
    return []


def _path_of(compiler: str) -> str:
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which(compiler, path=path)
    if found is None:
        raise Refused(f"there is no {compiler} on the PATH ({path})")
    return found


def _check(archive: str) -> None:
    """Raise Refused for a damaged archive: torch itself does not check weights."""
    try:
        with zipfile.ZipFile(archive) as stream:
            bad = stream.testzip()
            names = stream.namelist()
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise Refused(f"is not an archive of torch.export.save: {error}", archive) from error
    if bad is not None:
        raise Refused(f"is damaged: the content of {bad} in it has changed", archive)
    if not any("/models/" in name or name.endswith("serialized_exported_program.json") for name in names):
        raise Refused("contains no exported program; write it with torch.export.save, not torch.save", archive)


def _load(torch: Any, archive: str) -> Any:
    try:
        return torch.export.load(archive)
    except Exception as error:  # torch's errors for an archive of another version, or with unknown operators.
        raise Refused(f"cannot be loaded by torch {torch.__version__}: {_said(error)}", archive) from error


def _on_gpu(torch: Any, program: Any, archive: str) -> Any:
    """Return the program on the GPU, whatever device it was exported on; its timings take turns with others there."""
    passes = importlib.import_module("torch.export.passes")
    # Both packages lie side by side; without buildd's, the timings take no turns.
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "buildd", "hooks", "gpu_turns.py")
    found = importlib.util.spec_from_file_location("buildd gpu_turns", place)
    if found is not None and found.loader is not None and os.path.isfile(place):
        turns = importlib.util.module_from_spec(found)
        found.loader.exec_module(turns)
        turns.begin_inductor(importlib.import_module("torch._inductor.runtime.benchmarking"))
    try:
        return passes.move_to_device_pass(program, "cuda")
    except RuntimeError as error:  # among them: the model needs more memory than the GPU has
        raise Refused(f"cannot be moved to the GPU: {_said(error)}", archive) from error


def _check_devices(program: Any, archive: str, device: str) -> None:
    devices = {str(value.device) for value in program.state_dict.values() if hasattr(value, "device")}
    devices |= {str(value.device) for value in program.constants.values() if hasattr(value, "device")}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if hasattr(value, "device"):
            devices.add(str(value.device))
    others = sorted(devices - {"cpu", "meta"})
    if others and device == "cpu":
        raise Refused(f'is a model on {", ".join(others)}: write device = "cuda", or export it on the CPU', archive)


# ---------------------------------------------------------------- messages


def _said(error: BaseException) -> str:
    """Return an error's message: a compiler's own errors, else the first lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"\berror: ", line)]
    text = "; ".join((wrong or lines)[:3]) or "no message"
    return f"{type(error).__name__}: {text[:1000]}"


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--identify"]:
            print(json.dumps(identify()))
        elif arguments == ["--identify-gpu"]:
            print(json.dumps(identify_gpu()))
        else:
            depfile, package, archive, *trace = arguments
            compile_model(json.load(sys.stdin), archive, package, depfile, *trace)
    except Refused as error:
        where = f"{error.where}: " if error.where else ""
        print(f"{where}error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
