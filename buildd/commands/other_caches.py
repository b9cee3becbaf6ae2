"""Figures of the store in the words of ccache and sccache, for builds that ask those tools. Knows no command line."""

from __future__ import annotations

from buildd.store.figures import Stats

_GIB = 1 << 30


def figures_as(tool: str, found: Stats) -> list[str]:
    """Lines as `ccache --show-stats` (4.x) or `sccache --show-stats` would print them."""
    hits, misses = found.counters["hits"], found.counters["misses"]
    calls, passed = hits + misses, sum(found.passed_through.values())
    if tool == "sccache":
        rows = [
            ("Compile requests", str(calls + passed)),
            ("Compile requests executed", str(calls)),
            ("Cache hits", str(hits)),
            ("Cache misses", str(misses)),
            ("Non-cacheable calls", str(passed)),
            ("Cache location", f'Local disk: "{found.folder}"'),
            ("Cache size", f"{found.held_bytes / _GIB:.2f} GiB"),
            ("Max cache size", f"{found.limit_bytes / _GIB:.2f} GiB"),
        ]
        return [f"{name:<30}{value}" for name, value in rows]

    def share(part: int, whole: int) -> str:
        percent = f" ({100 * part / whole:.2f}%)" if whole else ""
        return f"{part} / {whole}{percent}"

    return [
        f"Cacheable calls:    {share(calls, calls + passed)}",
        f"  Hits:             {share(hits, calls)}",
        f"  Misses:           {share(misses, calls)}",
        f"Uncacheable calls:  {share(passed, calls + passed)}",
        "Local storage:",
        f"  Cache size (GiB): {found.held_bytes / _GIB:.1f} / {found.limit_bytes / _GIB:.1f}",
    ]
