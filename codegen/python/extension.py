"""Generator of kind "extension": builds C++ and CUDA sources into a module for torch, with the flags of the client's
torch.

Knows the flags of torch.utils.cpp_extension (a worker asks for them) and which compiler gets which flag. As in torch,
the host compiler compiles C++ sources and links, and nvcc compiles CUDA sources, in steps. Knows no daemon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from codegen.compiled.cuda import nvcc_recipe
from codegen.compiled.recipe import Options, Recipe, Step, plan_compiled
from codegen.compilers import closure
from codegen.compilers.compiler import Compiler
from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.flags import inspect, refuse_defines, refuse_own
from codegen.plan import Argument, Discovery, Frozen, Place, Ref, Resources, Tool
from codegen.project.target import ExtensionTarget, OutputKind
from codegen.python.worker import FOLDER, worker_of
from codegen.search import include_folders, library_folders
from codegen.sources import check_folders, expand
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily

WORKER = FOLDER / "extension_worker.py"
RESOURCES = Resources(memory_bytes=1200 << 20, wall_s=15.0)
"""torch's headers take gcc as long as a CUTLASS kernel takes nvcc."""
MODULE = "BUILDD_MODULE"
CUDA = "/BUILDD_CUDA"
_DEVICE_LIBRARIES = ("-lc10_cuda", "-ltorch_cuda")


class Flags(Frozen, frozen=True):
    """torch's flags, with placeholders for the module's name and the toolkit's folder."""

    cxx: tuple[str, ...]
    cuda: tuple[str, ...]
    link: tuple[str, ...]


class ExtensionIdentity(Frozen, frozen=True):
    """The worker's answer about the installed torch."""

    torch: str
    cuda: str
    """The toolkit version that torch was built for; empty if none."""
    hip: str
    folder: str
    headers: str
    """Folder of Python's own headers."""
    suffix: str
    """Suffix of a module's file."""
    limited: str
    """Py_LIMITED_API of the oldest Python that torch supports; empty if torch does not say."""
    libraries: tuple[str, ...]
    """torch's own libraries."""
    plain: Flags
    mixed: Flags
    """Flags of an extension with CUDA sources."""


def plan_extension(context: Context, target: ExtensionTarget) -> Part:
    """Return the part of a target of kind "extension".

    Raises:
        ProbesNeeded: the interpreter's torch, or a compiler, must be asked first.
        RequestError: bad-project, missing-source, missing-folder, compiler-not-found, bad-arch, bad-flag.
    """
    sources, listed = expand(context.folder, target.sources, context.build, target.at("sources"))
    check_folders(context.folder, target.include, context.build, target.at("include"))
    device = tuple(source for source in sources if source.endswith(".cu"))
    environment = tool_environment(context.environment, ToolFamily.TORCH)
    worker = worker_of(context, WORKER.name, "torch", "torch", environment)
    identity = worker.identity(context, ExtensionIdentity)
    _check(target, identity)
    module = target.module or re.sub(r"\W", "_", target.name)
    flags = identity.mixed if device else identity.plain
    defines = (f"-DPy_LIMITED_API={identity.limited}",) if target.py_limited_api else ()
    roots = [("torch", identity.folder), ("python headers", identity.headers)]
    notices: tuple[str, ...] = ()
    compiled = Part()
    if device:
        toolkit = dict(context.toolchains.cuda(context.settings.host_compiler).tool.roots)["cuda"]
        roots.append(("cuda", toolkit))
        include, words = _divided(_filled(flags.cuda, module, toolkit), roots, "=")
        alone = _with_archs(context, target)
        recipe, notices = nvcc_recipe(
            context,
            alone,
            Options(
                output=OutputKind.SHARED,
                include=(*_own(target.include), *include),
                define=target.define,
                flags=(*_for_nvcc(words, target.cuda_flags), *defines, *target.cuda_flags),
            ),
            roots=tuple(roots[:-1]),  # nvcc has its own search folders
        )
        compiled = plan_compiled(context, alone, recipe, device, OutputKind.OBJECT, "")
    host = _host_recipe(context, target, flags, module, identity, tuple(roots), defines)
    suffix = ".abi3.so" if target.py_limited_api else identity.suffix
    if device and not identity.cuda:
        version = identity.torch.partition(" ")[0]
        notices = (*notices, f"{target.name}: torch {version} is a CPU build: buildd links without its CUDA libraries")
    linked = plan_compiled(
        context,
        target,
        host,
        tuple(source for source in sources if source not in device),
        OutputKind.SHARED,
        target.output_name or module.replace(".", "/") + suffix,
        notices=notices,
        read=listed,
        objects=compiled.link,
    )
    return msgspec.structs.replace(compiled, artifacts=(), link=linked.link).beside(linked)


def _check(target: ExtensionTarget, identity: ExtensionIdentity) -> None:
    if identity.hip:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": this torch is for AMD (ROCm {identity.hip}); kind extension does not translate',
            file=target.where,
            next_step="build it with torch's own BuildExtension under `buildd run`",
        )
    if not all(part.isidentifier() for part in (target.module or "_").split(".")):
        raise RequestError(
            "bad-project",
            f'target "{target.name}": "{target.module}" is not a valid module name',
            file=target.at("module"),
            next_step='write the name that Python imports: "package._C"',
        )
    if target.py_limited_api and not identity.limited:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": torch {identity.torch.partition(" ")[0]} does not support py_limited_api',
            file=target.at("py_limited_api"),
            next_step="remove the key",
        )
    refuse_own(target.flags, target.name, target.at("flags"))
    refuse_defines(target.define, target.name, target.at("define"))
    refuse_own(target.cuda_flags, target.name, target.at("cuda_flags"))


def _with_archs(context: Context, target: ExtensionTarget) -> ExtensionTarget:
    """Return the target for compiling its CUDA sources: without `deps`, which only the link needs, and with the
    architectures of TORCH_CUDA_ARCH_LIST if the target names none. The last architecture also gets PTX."""
    target = msgspec.structs.replace(target, deps=())
    listed = context.variables.text("TORCH_CUDA_ARCH_LIST")
    if target.arch or not listed:
        return target
    names = tuple(name.removesuffix("+PTX") for name in re.split(r"[; ]+", listed) if name)
    return msgspec.structs.replace(target, arch=names, where="TORCH_CUDA_ARCH_LIST")


def _host_recipe(
    context: Context,
    target: ExtensionTarget,
    flags: Flags,
    module: str,
    identity: ExtensionIdentity,
    roots: tuple[tuple[str, str], ...],
    defines: tuple[str, ...],
) -> Recipe:
    """Return the recipe for compiling C++ sources and linking all objects."""
    compiler = _host_compiler(context, roots)
    folders = dict(roots)
    theirs, words = _divided(_filled(flags.cxx, module, folders.get("cuda", "")), roots, "")
    plain = (
        *words,
        *defines,
        *(f"-D{name}" for name in target.define),
        *target.flags,
    )
    include: tuple[Argument, ...] = (*_own(target.include), *theirs)
    effects = inspect(plain)
    tail = _linked(_filled(flags.link, module, folders.get("cuda", "")), target, identity, roots)
    return Recipe(
        label="c++",
        compiler=compiler,
        steps=(Step(folder="obj", suffix=".o", options=("-c", *include, *plain)),),
        discovery=Discovery.CLANG if compiler.clang else Discovery.GCC,
        compile_effects=effects,
        resources=RESOURCES,
        link_options=(Ref(place=Place.DEPFILE, prefix="-Wl,--dependency-file="), *target.link_flags),
        link_tail=(*tail, *(f"-l{name}" for name in target.libraries)),
        link_effects=inspect(target.link_flags),
        whole_archive=(("-Wl,--whole-archive",), ("-Wl,--no-whole-archive",)),
        runpath=lambda folder: (f"-Wl,-rpath,{folder}",),
        search=(*include_folders(include, plain, folders, compiler.environment), *compiler.before),
        library_search=(
            *library_folders((*target.link_flags, *tail), compiler.environment, folders),
            *compiler.libraries,
        ),
    )


def _host_compiler(context: Context, roots: tuple[tuple[str, str], ...]) -> Compiler:
    """Return the host compiler that torch would call: CXX, else c++."""
    path = context.toolchains.program(context.environment.get("CXX", "") or "c++")
    environment = tool_environment(context.environment, ToolFamily.HOST, folders=(os.path.dirname(path),))
    found = closure.host_compiler(context.knowledge, (path,), environment, context.toolchains.path)
    tool = Tool(
        name="c++",
        files=found.files,
        facts=(("host compiler", found.version),),
        roots=(("c++", os.path.dirname(path)), *roots, ("project", context.folder)),
        search=found.search,
    )
    return Compiler(
        tool=tool,
        program=Ref(place=Place.ROOT, name="c++", suffix="/" + os.path.basename(path)),
        environment=environment,
        version=found.version,
        archs=(),
        libraries=found.libraries,
        before=found.before,
        clang=found.clang,
    )


def _filled(words: Iterable[str], module: str, toolkit: str) -> tuple[str, ...]:
    name = module.rpartition(".")[2]
    return tuple(word.replace(MODULE, name).replace(CUDA, toolkit) for word in words)


def _own(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"-I{os.path.normpath(folder)}" for folder in folders)


def _divided(
    words: tuple[str, ...], roots: Iterable[tuple[str, str]], equals: str
) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """Return torch's own include folders, each relative to a root, and all other flags.

    Args:
        equals: separator of option and folder: "=" for nvcc, empty for gcc and clang.
    """
    folders: list[Argument] = []
    rest: list[str] = []
    for before, word in pairwise(("", *words)):
        if before == "-isystem" and (found := _below(roots, word, f"-isystem{equals}")):
            folders.append(found)
            rest.pop()
        else:
            rest.append(word)
    return tuple(folders), tuple(rest)


def _below(roots: Iterable[tuple[str, str]], path: str, prefix: str) -> Ref | None:
    for name, root in roots:
        if path == root or path.startswith(root + "/"):
            return Ref(place=Place.ROOT, name=name, prefix=prefix, suffix=path[len(root) :])
    return None


def _for_nvcc(words: Iterable[str], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return flags without those that the recipe adds itself (-gencode, -fPIC), and without a second -std."""
    found: list[str] = []
    skipped = False
    for word in words:
        if skipped or word.startswith("-gencode"):
            skipped = False
        elif word == "--compiler-options":
            skipped = True
        elif not (word.startswith("-std=") and any(flag.startswith(("-std=", "--std")) for flag in own)):
            found.append(word)
    return tuple(found)


def _linked(
    words: tuple[str, ...], target: ExtensionTarget, identity: ExtensionIdentity, roots: Iterable[tuple[str, str]]
) -> tuple[Argument, ...]:
    """Return the libraries that torch links, as far as they exist."""
    folders = dict(roots)
    toolkit = folders.get("cuda", "")
    found: list[Argument] = []
    for word in words:
        if word == "-shared" or (word == "-ltorch_python" and target.py_limited_api):
            continue
        if word in _DEVICE_LIBRARIES and f"lib{word[2:]}.so" not in identity.libraries:
            continue
        if word == "-lcudart":
            found += _runtime(toolkit, identity)
        elif word.startswith("-L"):
            # CUDA's wheels have their libraries in lib.
            path = word[2:] if os.path.isdir(word[2:]) or not toolkit else word[2:].replace("/lib64", "/lib")
            found.append(_below(folders.items(), path, "-L") or word)
        else:
            found.append(word)
    return tuple(found)


def _runtime(toolkit: str, identity: ExtensionIdentity) -> tuple[str, ...]:
    """Return CUDA's runtime: torch's own, or the static one if torch has none. Wheels have only its full file name."""
    folder = next((path for path in (f"{toolkit}/lib64", f"{toolkit}/lib") if os.path.isdir(path)), "")
    names = sorted(os.listdir(folder)) if folder else []
    if not identity.cuda and "libcudart_static.a" in names:
        return "-lcudart_static", "-ldl", "-lrt", "-lpthread"
    versioned = [name for name in names if re.fullmatch(r"libcudart\.so\.\d+", name)]
    return ("-lcudart" if "libcudart.so" in names or not versioned else f"-l:{versioned[-1]}",)
