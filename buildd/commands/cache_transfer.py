"""`buildd cache export` and `import`: results and profiles from one store to another, as a bundle.

Knows neither a bundle's form (`store.bundle_format`) nor how figures are printed (`commands.cache`).
"""

from __future__ import annotations

import os
from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING

from buildd.client.request import PROJECT_FILE, with_files
from buildd.errors import NoSuchFile
from buildd.ui.problems import print_note
from buildd.ui.text import count, size

if TYPE_CHECKING:
    from buildd.client.in_process import Exportable
    from buildd.store.bundle_format import Contents
    from buildd.store.profiles import Profile
    from buildd.store.store import Store


def exported(store: Store, options: Namespace) -> tuple[object, list[str]]:
    """Write a bundle; its figures, and the lines that tell them."""
    from buildd.profiling import xla_timings
    from buildd.store import oci_layout, signing
    from buildd.store.bundle_export import export
    from buildd.store.profile_cache import open_profiles

    if options.xla:
        return _export_timings(store, options)
    needed = None if options.all else _needed(options, store)
    # A plan uses the kernels that profiles show to be best: without these another machine would make other plans.
    folder = options.directory or os.getcwd()
    with (
        open_profiles(with_files(os.environ, folder, PROJECT_FILE), store, folder) as cache,
        oci_layout.written(options.file, store.folder) if options.oci else nullcontext(options.file) as file,
    ):
        xla_timings.take_in(store.folder, cache)
        found = export(
            store, needed and needed.keys, file, signing.own(options.environ), cache.everything(), options.file
        )
        written = size(file.stat().st_size)
    if options.all and _is_empty(found):
        print_note(f"buildd: the store at {store.folder} is empty")
    lines = [f"{options.file}: {_held(found)}, {written}"]
    if needed and needed.left_out:
        lines.append(f"left out, because it is never stored: {', '.join(needed.left_out)}")
    if needed and (others := _others(store, found)):
        lines.append(f"left out, because these targets do not need it: {others}; --all exports it too")
    return found, lines


def _others(store: Store, found: Contents) -> str:
    """What the store keeps beyond an export of targets, in words; empty if that is nothing."""
    from buildd.store import figures

    held = figures.stats(store)
    kernels = held.areas.get("kernels")
    results, entries = held.results - found.results, kernels.entries if kernels is not None else 0
    said = [count(results, "result")] if results > 0 else []
    if entries:
        of = "of Triton, torch.compile, JAX and ccache"
        said.append(count(entries, f"entry {of}", f"entries {of}"))
    return " and ".join(said)


def _is_empty(found: Contents) -> bool:
    """Whether a bundle holds nothing that a build could use."""
    return not any((found.results, found.profiles, found.kernels, found.graph_entries, found.programs, found.values))


def _held(found: Contents) -> str:
    """What a bundle holds, in words."""
    said = [count(found.results, "result"), count(found.blobs, "blob")]
    if found.profiles:
        said.append(count(found.profiles, "profile"))
    if found.kernels:
        said.append(count(found.kernels, "Triton kernel"))
    if found.graph_entries:
        said.append(count(found.graph_entries, "entry of torch.compile", "entries of torch.compile"))
    if found.programs:
        said.append(count(found.programs, "JAX program"))
    if found.values:
        said.append(count(found.values, "ccache value"))
    return ", ".join(said)


def _needed(options: Namespace, store: Store) -> Exportable:
    """The results that the targets need; they must be in the store already (`buildd warm`)."""
    from buildd.client.in_process import needed_here
    from buildd.client.request import request_from
    from protocol.messages import Mode

    wanted = Namespace(directory=options.directory, file=options.project_file, arch=options.arch, jobs=None)
    environ = {**os.environ, "BUILDD_DIR": str(store.folder)}
    return needed_here(request_from(wanted, tuple(options.targets), Mode.PROVE, environ))


def imported(store: Store, options: Namespace) -> tuple[object, list[str]]:
    """Take a bundle, or profiles of AITemplate or XLA, into the store; the figures, and the lines that tell them."""
    if options.aitemplate:
        return _import_profiles(store, options)
    if options.xla:
        return _import_timings(store, options)
    from buildd.store import oci_layout, signing
    from buildd.store.bundle_import import import_

    trusted = signing.trusted(options.environ)
    is_layout = oci_layout.is_layout(options.file)
    if options.file.is_dir() and not is_layout:
        raise NoSuchFile(
            f"{options.file} is a folder, and no OCI image layout: it has no file oci-layout",
            next_step="name a file of `buildd cache export FILE`, or a folder of `buildd cache export FOLDER --oci`",
        )
    with oci_layout.bundle_of(options.file) if is_layout else nullcontext(options.file) as file:
        found = import_(store, file, trusted, lambda profiles: _keep_profiles(store, profiles))
    if _is_empty(found):
        print_note(f"buildd: {options.file} holds nothing: the store that it was exported from was empty")
    lines = [f"{_held(found)} imported"]
    if found.known == found.results > 0:
        lines = [f"{_held(found)}: the store had all of these results already"]
    elif found.known:
        lines.append(f"{count(found.known, 'result')} of these {'was' if found.known == 1 else 'were'} there already")
    return found, lines


def _keep_profiles(store: Store, profiles: list[Profile], *, older: bool = False) -> None:
    from buildd.errors import StoreError
    from buildd.profiling import xla_timings
    from buildd.store.profile_cache import open_profiles

    with open_profiles(with_files(os.environ, os.getcwd(), PROJECT_FILE), store, os.getcwd()) as cache:
        for notice in cache.notices:
            print_note(notice)
        if not cache.save(profiles, older=older):
            raise StoreError(
                "the store is read-only, so no profiles were imported",
                file=str(store.folder),
                next_step="check the folder's permissions, or set BUILDD_DIR to a folder that you may write",
            )
    xla_timings.put_out(store.folder, profiles)


def _import_profiles(store: Store, options: Namespace) -> tuple[object, list[str]]:
    from buildd.profiling import aitemplate_cache

    profiles = aitemplate_cache.read(options.file)
    _keep_profiles(store, profiles, older=True)
    found = aitemplate_cache.figures(profiles)
    return found, [f"{found.rows} profiles imported, {found.usable} of kernels that buildd makes as well"]


def _import_timings(store: Store, options: Namespace) -> tuple[object, list[str]]:
    from buildd.profiling import xla_timings

    rows = xla_timings.read(options.file)
    _keep_profiles(store, rows, older=True)
    found = xla_timings.figures(rows)
    return found, [f"{count(found.timings, 'timing')} of {found.gpu} and jaxlib {found.jaxlib} imported"]


def _export_timings(store: Store, options: Namespace) -> tuple[object, list[str]]:
    from buildd.profiling import xla_timings
    from buildd.store.profile_cache import open_profiles

    folder = options.directory or os.getcwd()
    with open_profiles(with_files(os.environ, folder, PROJECT_FILE), store, folder) as cache:
        xla_timings.take_in(store.folder, cache)
        found = xla_timings.write(cache.everything(), options.gpu, options.file)
    return found, [f"{options.file}: {count(found.timings, 'timing')} of {found.gpu} and jaxlib {found.jaxlib}"]
