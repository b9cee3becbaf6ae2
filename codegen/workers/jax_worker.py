"""Compiles one lowered function of JAX ahead of time, or describes the installed JAX and its GPU. Run by the client's
own interpreter.

Knows nothing of buildd and runs no code of the user's: it imports the standard library, numpy and JAX only, reads a
JSON spec on stdin and writes the package that is named on its command line. A package is a zip file of XLA's executable
and its description; nothing in it is a pickle.

    python jax_worker.py --identify
    python jax_worker.py --identify-gpu
    python jax_worker.py --topology FILE COUNT
    python jax_worker.py LOWERED PACKAGE [PROFILE | --collect PROFILE] < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which JAX must not import.
    del sys.path[0]

import base64
import contextlib
import functools
import importlib.util
import json
import os
import re
import types
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

sys.dont_write_bytecode = True

FORMAT = 2
"""The format of topology files, lowered functions and packages."""
_CODE = re.compile(r"\.so(\.\d+)*$")
_PLUGINS = re.compile(r"(jax_cuda|jax_rocm)\w*$|jax_plugins$")
_PARTNERS = ("ml_dtypes", "numpy", "opt_einsum", "scipy", "flatbuffers")
"""Packages that JAX uses while it lowers a function."""
_REQUIRE = "xla_gpu_require_complete_aot_autotune_results"
_LEVEL = "xla_gpu_autotune_level"
_PROFILE_FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
_ABOUT = "about.json"
"""The part of a file of timings that says where they were made; the others are XLA's."""
_UNTUNED = re.compile(r"Failed to get configs for: (\d+) out of (\d+)|No cached config found|autotun", re.IGNORECASE)


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


_devices = _module_of("jax_devices.py")
Refused = _devices.Refused


@functools.cache
def warm_up() -> Any:
    """Import JAX, so that processes forked from this one need not. No backend is started."""
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    # No backend has been started where this process forks, so no thread of JAX is lost.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    try:
        import jax
        from jax._src import compiler, xla_bridge  # noqa: F401
        from jax._src.interpreters import mlir  # noqa: F401
    except ImportError as error:
        raise Refused(f"JAX cannot be imported by {sys.executable}: {error}") from error
    return jax


# ---------------------------------------------------------------- identity


def identify() -> dict[str, Any]:
    """Return everything other than the function that affects results: versions and JAX's files, those of its plugins
    apart."""
    jax = warm_up()
    from jax._src.lib import jaxlib

    folder = os.path.dirname(os.path.abspath(jax.__file__))
    site = os.path.dirname(os.path.dirname(os.path.abspath(jaxlib.__file__ or "")))
    files = {"python": os.path.realpath(sys.executable), **_code("jax", folder)}
    files |= _code("jaxlib", os.path.join(site, "jaxlib"))
    plugins: dict[str, str] = {}
    for path in dict.fromkeys((site, *filter(os.path.isdir, sys.path))):
        for name in sorted(os.listdir(path)):
            if _PLUGINS.match(name):
                plugins |= _code(name, os.path.join(path, name))
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "python": "{}.{}.{} {}".format(*sys.version_info[:3], sys.implementation.cache_tag),
        "files": files | _partners(),
        "plugins": plugins,
    }


def _code(package: str, folder: str) -> dict[str, str]:
    """Return the modules and libraries of a package by their roles."""
    found = {}
    for where, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py") or _CODE.search(name):
                path = os.path.join(where, name)
                found[f"{package}/{os.path.relpath(path, folder)}"] = path
    return found


def _partners() -> dict[str, str]:
    """Return, for each of those packages, the installer's list of its files with their digests."""
    from importlib import metadata

    found = {}
    for name in _PARTNERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            for file in metadata.distribution(name).files or ():
                if str(file).endswith(".dist-info/RECORD"):
                    found[f"package {name}"] = str(metadata.distribution(name).locate_file(file))
    return found


def identify_gpu() -> dict[str, Any]:
    """Return everything about the GPU on which compiled code depends."""
    (device,) = _devices.gpus(warm_up(), 1)
    return {"name": device.device_kind, "platform_version": device.client.platform_version}


# ---------------------------------------------------------------- topology


def write_topology(path: str, count: int) -> None:
    """Write a description of this machine's first GPUs, with which a machine without them compiles for them."""
    jax = warm_up()
    from jax._src.lib import xla_client

    found = _devices.gpus(jax, count)
    device = found[0]
    topology = xla_client.get_topology_for_devices(found)
    if not hasattr(topology, "serialize"):
        raise Refused(
            f"jax {jax.__version__} cannot save a topology: take jax 0.11 or newer, or name a file of XLA's"
            " GpuTargetConfigProto (.txtpb) in the target"
        )
    described = {
        "format": FORMAT,
        "platform": "cuda",
        "device_kind": device.device_kind,
        "platform_version": device.client.platform_version,
        "jaxlib": _devices.jaxlib_version(),
        "topology": base64.b64encode(topology.serialize()).decode(),
    }
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(described, stream, indent=1)
        stream.write("\n")


# ---------------------------------------------------------------- compiling


class Lowered(NamedTuple):
    """A lowered function and what it is compiled for.

    Args:
        module: StableHLO as bytecode.
        devices: one, or those of the mesh.
        axes: the mesh, [["data", 2], ["model", 4]]; empty for one device.
        is_free: for each result, whether XLA chooses how to split it.
        is_ahead: the devices are those of a topology.
        where: its file, for messages.
    """

    module: bytes
    devices: list[Any]
    axes: list[list[Any]]
    is_free: list[bool]
    is_ahead: bool
    where: str


def compile_lowered(spec: dict[str, Any], lowered: str, package: str, profile: str = "", collected: str = "") -> None:
    """Compile a lowered function.

    Args:
        spec: device, options, processor.
        lowered: the file that jax_trace_worker.py wrote.
        package: path of the result.
        profile: a file of timings that XLA has kept, for a GPU; empty if there is none.
        collected: where to write the timings of this compile; empty if it is not for the GPU of this machine.
    """
    jax = warm_up()
    try:
        with zipfile.ZipFile(lowered) as stream:
            module, described = stream.read("module"), json.loads(stream.read("description.json"))
            topology = stream.read("topology") if "topology" in stream.namelist() else b""
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise Refused(f"is not a lowered function: {_devices.said(error)}", lowered) from error
    # XLA reads them when its first backend starts.
    os.environ["XLA_FLAGS"] = described["xla_flags"]
    axes = described["mesh"]
    count = _devices.size_of(axes)
    if topology:
        found = _devices.compile_only(jax, topology, described["topology_file"], count)
    else:
        found = _devices.processors(jax, count) if spec["device"] == "cpu" else _devices.gpus(jax, count)
    function = Lowered(module, found, axes, described["free"], bool(topology), lowered)
    with _profile_folder(profile) as folder:
        options = {**described["options"], **spec["options"]}
        if spec["device"] != "cpu":
            options[_PROFILE_FOLDER] = folder
        executable, specs, tuning = _tuned(function, options)
        versions = {"jax": jax.__version__, "jaxlib": _devices.jaxlib_version()}
        kind = _kind_of(found[0], topology)
        described |= {**versions, "device_kind": kind, "processor": spec["processor"], **tuning}
        described["splits"] = specs
        if collected:
            about = {
                "device_kind": kind,
                "jaxlib": versions["jaxlib"],
                "platform_version": found[0].client.platform_version,
            }
            parts = {name: _content(os.path.join(folder, name)) for name in _below(folder)}
            _pack(collected, {_ABOUT: json.dumps(about, sort_keys=True).encode(), **parts})
        _pack(package, {"description.json": json.dumps(described, sort_keys=True).encode(), "executable": executable})
    if described["tuned"] is False:
        missing = f" ({described['missing']} kernels have no timing)" if described["missing"] else ""
        print(
            f"{lowered}: warning: compiled untuned{missing}: it may run several times slower than natively, and the"
            " loader refuses it unless it is told untuned=True; name a profile of such a GPU with `autotune`",
            file=sys.stderr,
        )


def _kind_of(device: Any, topology: bytes) -> str:
    """Return what JAX calls such a device where it is."""
    described = json.loads(topology) if topology.lstrip().startswith(b"{") else {}
    return str(described.get("device_kind", device.device_kind))


def _tuned(function: Lowered, options: dict[str, Any]) -> tuple[bytes, list[list[Any]], dict[str, Any]]:
    """Return the executable, how its results are split, and whether XLA had a timing for each kernel that it tunes.

    XLA by itself falls back to a default where a timing is missing, and says nothing.
    """
    is_cpu = function.devices[0].platform == "cpu"
    if not is_cpu and _measures_nothing(options):
        return *_compiled(function, options), {"tuned": False, "missing": ""}
    if not function.is_ahead:
        return *_compiled(function, options), {"tuned": None if is_cpu else True, "missing": ""}
    try:
        # XLA logs each kernel that it has no timing for, straight to the file descriptor.
        with _silent():
            return *_compiled(function, {**options, _REQUIRE: True}), {"tuned": True, "missing": ""}
    except Refused as error:
        if not (said := _UNTUNED.search(str(error))):
            raise
        missing = f"{said[1]} of {said[2]}" if said[1] else ""
    return *_compiled(function, options), {"tuned": False, "missing": missing}


def _measures_nothing(options: dict[str, Any]) -> bool:
    """Tell whether the user has turned XLA's measurements off."""
    said = re.findall(rf"--{_LEVEL}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    level = options.get(_LEVEL, said[-1] if said else None)
    return level is not None and str(level) == "0"


def _compiled(function: Lowered, options: dict[str, Any]) -> tuple[bytes, list[list[Any]]]:
    """Return the executable and, if it is for a mesh, how its results are split over it."""
    jax = warm_up()
    import numpy
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    client = function.devices[0].client
    assigned = numpy.array([[device.id for device in function.devices]])
    try:
        settings = compiler.get_compile_options(
            1, len(function.devices), device_assignment=assigned, env_options_overrides=options
        )
        if function.axes:
            settings.executable_build_options.allow_spmd_sharding_propagation_to_output = function.is_free
        with mlir.make_ir_context():
            parsed = ir.Module.parse(function.module)
            # The client of a topology's device can load nothing.
            make = client.compile if function.is_ahead else client.compile_and_load
            places = xla_client.DeviceList(tuple(function.devices))
            made = make(parsed, executable_devices=places, compile_options=settings)
        specs = []
        if len(function.devices) > 1:
            mesh = _devices.mesh_of(jax, function.axes, function.devices)
            specs = _devices.result_specs(made, mesh, len(function.is_free))
        elif function.axes:
            specs = [[] for _ in function.is_free]
        return bytes(made.serialize() if hasattr(made, "serialize") else client.serialize_executable(made)), specs
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise Refused(f"cannot be compiled: {_devices.said(error)}", function.where) from error


@contextlib.contextmanager
def _profile_folder(profile: str) -> Iterator[str]:
    """Provide a folder of XLA's timings, with those of a profile."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="timings-") as folder:
        if profile:
            try:
                with zipfile.ZipFile(profile) as stream:
                    for name in stream.namelist():
                        if name == _ABOUT:
                            continue
                        if os.path.normpath(name) != name or name.startswith(("/", "..")):
                            raise Refused(f"holds a file outside of it: {name}", profile)
                        place = os.path.join(folder, name)
                        os.makedirs(os.path.dirname(place), exist_ok=True)
                        with open(place, "wb") as file:
                            file.write(stream.read(name))
            except (OSError, zipfile.BadZipFile) as error:
                raise Refused(f"is not a profile of kind jax: {_devices.said(error)}", profile) from error
        yield folder


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _below(folder: str) -> list[str]:
    """Return the files of a folder. XLA keeps its timings in a folder for each kind of GPU and version."""
    found = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return sorted(os.path.relpath(path, folder) for path in found)


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _pack(path: str, parts: dict[str, bytes]) -> None:
    """Write a zip file that depends on its content only."""
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in parts.items():
            stream.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED, compresslevel=1)


# ---------------------------------------------------------------- messages


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["--identify"]:
                print(json.dumps(identify()))
            case ["--identify-gpu"]:
                print(json.dumps(identify_gpu()))
            case ["--topology", path, count]:
                write_topology(path, int(count))
            case [lowered, package, "--collect", collected]:
                compile_lowered(json.load(sys.stdin), lowered, package, collected=collected)
            case [lowered, package, *profile]:
                compile_lowered(json.load(sys.stdin), lowered, package, *profile)
    except Refused as error:
        where = f"{error.where}: " if error.where else ""
        print(f"{where}error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
