"""Odd compiler commands, and all that a caller sees of one: its status, words and files.

Knows no shim: the same driver runs with the compilers that are on its PATH.

    odd_commands.py FOLDER COMPILER OUT [NUMBER]...

runs the commands of a compiler, each in FOLDER, which is made anew for it, and writes what was seen as JSON to OUT.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FILES = {
    "a.c": '#include "h.h"\nint a(int x) { int unused; return x + H; }\n',
    "b b.c": '#include "h.h"\nint b(void) { return H; }\n',
    "e.c": '#include "h.h"\nint e( {\n',
    "m.c": '#include "h.h"\n#include "none.h"\nint m;\n',
    "main.c": "int main(void) { return 0; }\n",
    "h.h": "#define H 7\n",
    "asks.c": '#if __has_include("h.h") && __has_include(<i.h>) && !__has_include("none.h")\nint asks;\n#endif\n',
    "sub/i.h": "#define I 3\n",
    "args": "-c a.c -o r.o\n",
    "self": "@self -c a.c\n",
    "quoted": "-c 'b b.c' -o \"q q.o\"\n",
    "k.cu": '#include "h.h"\n__global__ void k(int *x) { *x = H; }\n',
    "asks.cu": '#if __has_include("h.h")\n#include <i.h>\n#endif\n__global__ void k() {}\n',
    "bad.cu": '#include "h.h"\n__global__ void k(int *x) { *x = ; }\n',
    "gone.cu": '#include "h.h"\n#include "none.h"\n__global__ void k() {}\n',
    "prog.cu": '#include "h.h"\n__global__ void k(int *x) { *x = H; }\nint main() { return H; }\n',
    "k.hip": '#include "h.h"\n__attribute__((global)) void k(int *x) { *x = H; }\n',
    "asks.hip": '#if __has_include("h.h")\n#include <i.h>\n#endif\n__attribute__((global)) void k();\n',
    "bad.hip": '#include "h.h"\n__attribute__((global)) void k(int *x) { *x = ; }\n',
    "gone.hip": '#include "h.h"\n#include "none.h"\n',
}

C = (
    "-c a.c", "-c a.c -o a.o", "-c ./a.c -o ./sub/a.o", "-c a.c -o none/a.o", "-c a.c -o sub", "-c a.c -o -",
    "-c a.c -o /dev/null", "-c a.c -MD", "-c a.c -MMD -MP", "-c a.c -MD -MF -", "-c a.c -MD -MF /dev/stdout",
    "-c a.c -MD -MF none/x.d", "-c a.c -MD -MF x.d -MT t -MQ 'q$ q'", "-c a.c -Wp,-MD,x.d", "-c e.c", "-c e.c -MD",
    "-c e.c -MD -MF x.d -o e.o", "-c e.c -MMD -MP -MT t", "-c m.c -MD", "-c m.c -MD -MF x.d", "-c m.c -MD -MG",
    "-c e.c -MD -MF -", "-c a.c -MD -Wall -Werror -MF x.d", "-M a.c", "-MM a.c", "-MM m.c", "-MM -MG m.c", "-E a.c",
    "-E a.c -o a.i", "-E -P a.c", "-E -dM a.c -o all", "-S a.c", "-S a.c -o -", "-S a.c -MD", "-fsyntax-only a.c",
    "-c a.c -Wall -Wextra", "-c a.c -Wall -Werror", "-c a.c -Wall -w", "-c none.c", "-c none.c -MD", "-c a.c e.c",
    "-c a.c main.c", "-c a.c main.c -o two.o", "-c 'b b.c' -o 'o o.o'", "-c a.c -g -gsplit-dwarf",
    "-c a.c --coverage", "-c a.c -save-temps", "-c a.c -###", "-c a.c -H", "-dumpversion", "--version",
    "-print-file-name=crt1.o", "", "-c", "-c a.c -o", "-o x", "@args", "@self", "@quoted", "@none", "-c @none",
    "-xc++ -c a.c", "-x none -c a.c", "-xc -c - < a.c", "-xc -c - -o s.o < a.c", "-xc -E - < a.c",
    "-c a.c -Inone -I sub -include i.h", "-c a.c -include none.h", "-c a.c '-DT=\"y z\"' -UH",
    "-c a.c -Wno-such-thing", "-c a.c -Wsuch-thing", "-c a.c --such-option", "-c a.c -fsuch",
    "-c a.c -std=c99 -pedantic", "-c a.c -std=such", "-c a.c -O9", "-c a.c -pipe", "-c a.c -flto",
    "-c a.c -march=such", "main.c -o prog", "a.c -o prog", "-shared -fPIC a.c -o liba.so", "-c a.c -c -c",
    "-c a.c -o x.o -o y.o", "-c args", "-c h.h -o h.gch", "-c . -o d.o", "-c a.c -fdiagnostics-color=always -Wall",
    "-c e.c -fdiagnostics-format=json", "-c a.c 2>&1 >&-", "-c e.c 2>&-", "-c a.c -o a.o <&-",
    "-c a.c -include /dev/fd/3 3<h.h", "-c a.c -o a.o; chmod 0 a.o", "-c asks.c -I sub -MD -MP",
    "-c asks.c -isystem sub -MMD", "-c a.c -MD -MF a.o", "-c a.c -MD -MMD", "-c a.c -MMD -MD -MF x.d",
)  # fmt: skip
"""Arguments as in a shell; redirections too."""
CUDA = (
    "-c k.cu", "-c k.cu -o k.o -arch=sm_80", "-c k.cu -MD", "-c k.cu -MD -MF x.d -o k.o", "-c k.cu -MMD -MP",
    "-c k.cu -MD -MMD -MF x.d -MT 't t'", "-c k.cu -MMD -MT a -MT b", "-ptx k.cu -MMD",
    "-c asks.cu -isystem sub -MD -MP",
    "-c bad.cu", "-c bad.cu -MD -MF x.d", "-c gone.cu -MD -MF x.d", "-c none.cu", "-c k.cu -o none/k.o", "-ptx k.cu",
    "-cubin k.cu -arch=sm_80", "-c k.cu -arch=sm_1", "-c k.cu --such-option", "--version", "",
    "-c k.cu -Xcompiler -Wall", "-M k.cu", "-c k.cu -o -", "prog.cu -o prog", "prog.cu -w -o none/prog",
    "bad.cu -o prog", "prog.cu -lnone -o prog", "prog.cu none.o -o prog", "-shared -Xcompiler -fPIC k.cu -o 'k k.so'",
    "-arch=native prog.cu", "-x cu prog.cu -Xcompiler -fopenmp -o prog", "prog.cu -MD -o prog",
    "-O1 -O2 prog.cu -o prog",
)  # fmt: skip
HIP = (
    "-c k.hip", "-c k.hip -o k.o", "-c k.hip -MD", "-c k.hip -MD -MF x.d -o k.o", "-c k.hip -MMD -MP",
    "-c asks.hip -isystem sub -MD", "-c bad.hip",
    "-c bad.hip -MD -MF x.d", "-c gone.hip -MD -MF x.d", "-c none.hip", "-c k.hip -o none/k.o", "-S k.hip",
    "-c k.hip --such-option", "--version", "-c k.hip -Wall", "-M k.hip", "-c k.hip -o -", "-E k.hip -o k.i",
)  # fmt: skip
CLANG = next((name for name in ("clang", *(f"clang-{n}" for n in range(30, 10, -1))) if shutil.which(name)), "clang")
_CLANG_FOR_HIP = "clang++-15 -x hip --offload-arch=gfx90a -nogpuinc -nogpulib"
COMPILERS = {
    "gcc": ("gcc", C),
    "clang": (CLANG, C),
    "nvcc": ("nvcc", CUDA),
    "hipcc": ("hipcc --offload-arch=gfx90a", HIP),
    "clang-hip": (_CLANG_FOR_HIP, HIP),
}
_RANDOM = re.compile(r"/tmp/(cc\w{6}|tmpxft_\w+-\w+|[\w.]+-[0-9a-f]{6})|tmpxft_[0-9a-f]+_[0-9a-f]+-\d+")


def program(compiler: str) -> str:
    """The first word of a compiler's commands."""
    return COMPILERS[compiler][0].split()[0]


def furnish(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "sub").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)


def seen(folder: Path, command: str) -> dict[str, Any]:
    """Run a command in a new folder; what its caller sees."""
    furnish(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.read_bytes() != before.get(path):
            content = path.read_bytes()
            mode = f"{path.stat().st_mode:o}"
            shown = content.decode(errors="replace")[:200] if path.suffix == "" else ""
            if path.suffix == ".d":
                # Where a line of a depfile ends says nothing.
                shown = re.sub(
                    r" :( |$)", r":\1", " ".join(content.decode(errors="replace").replace("\\\n", " ").split())
                )
                content = shown.encode()
            files[str(path.relative_to(folder))] = [mode, hashlib.sha256(content).hexdigest(), shown]
        elif path not in before and path.is_dir() and path.name != "sub":
            files[str(path.relative_to(folder))] = ["folder", "", ""]
    words = [_RANDOM.sub("RANDOM", text.decode(errors="replace")) for text in (done.stdout, done.stderr)]
    return {"status": done.returncode, "stdout": words[0], "stderr": words[1], "files": files}


def main() -> None:
    folder, (program, commands), out = Path(sys.argv[1]), COMPILERS[sys.argv[2]], Path(sys.argv[3])
    numbers = [int(word) for word in sys.argv[4:]] or range(len(commands))
    out.write_text(json.dumps({number: seen(folder, f"{program} {commands[number]}") for number in numbers}))


if __name__ == "__main__":
    main()
