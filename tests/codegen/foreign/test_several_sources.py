"""Commands with several sources, divided into commands with one."""

from __future__ import annotations

import pytest

from codegen.compilers.command_parser import PassThrough
from codegen.compilers.temporary_roots import is_part, named
from codegen.foreign.several_sources import Parts, divided, folder_of, new_folder

FOLDER = new_folder(bytes(8))


def parts(command: str) -> Parts | None:
    words = command.split()
    return divided((f"/usr/bin/{words[0]}", *words[1:]), "/project", FOLDER)


def said(command: str) -> list[str]:
    found = parts(command)
    return [" ".join(words) for words in found.commands] if found else []


def test_compiles_alone() -> None:
    assert said("g++ -O2 -c a.cpp b.cpp -MMD -MP -DX") == [
        "/usr/bin/g++ -O2 -c a.cpp -DX -MMD -MP",
        "/usr/bin/g++ -O2 -c b.cpp -DX -MMD -MP",
    ]
    assert said("nvcc -ccbin g++-12 -ptx a.cu b.cu") == [
        "/usr/bin/nvcc -ccbin g++-12 -ptx a.cu",
        "/usr/bin/nvcc -ccbin g++-12 -ptx b.cu",
    ]
    found = parts("g++ -c a.cpp b.cpp")
    assert found and found.keeps_going and not found.folder


def test_a_link_has_objects_in_the_places_of_sources() -> None:
    place = f"{FOLDER}/project/bin/prog"
    assert said("nvcc -x cu x.a.cpp b.cpp -lm -o bin/prog -rdc=true") == [
        f"/usr/bin/nvcc -x cu x.a.cpp -lm -rdc=true -c -o {place}/0/x.a.o",
        f"/usr/bin/nvcc -x cu b.cpp -lm -rdc=true -c -o {place}/1/b.o",
        f"/usr/bin/nvcc {place}/0/x.a.o {place}/1/b.o -lm -rdc=true -o bin/prog",
    ]
    assert said("nvcc -shared k.cu -Xlinker -rpath=/x -o k.so") == [
        f"/usr/bin/nvcc -shared k.cu -Xlinker -rpath=/x -c -o {FOLDER}/project/k.so/0/k.o",
        f"/usr/bin/nvcc -shared {FOLDER}/project/k.so/0/k.o -Xlinker -rpath=/x -o k.so",
    ]
    assert said("g++ a.o b.cpp libc.so.1 -shared")[1:] == [
        f"/usr/bin/g++ a.o {FOLDER}/project/a.out/0/b.o libc.so.1 -shared",
    ]
    found = parts("nvcc a.cu b.cu")
    assert found and found.folder == FOLDER and not found.keeps_going


def test_the_name_of_a_part_is_the_same_each_time() -> None:
    one, other = (
        divided(("/usr/bin/nvcc", "a.cu", "b.cu"), "/p", new_folder(random)) for random in (b"12345678", b"abcdefgh")
    )
    assert one and other and one != other
    names = [[named(words[-1], ()) for words in each.commands[:-1]] for each in (one, other)]
    assert names[0] == names[1] == ["/p/a.out/0/a.o", "/p/a.out/1/b.o"]
    assert is_part(one.commands[0][-1]) and not is_part("/p/a.o")


def test_the_folder_of_one_command_is_the_same_each_time() -> None:
    command = ("/usr/bin/nvcc", "a.cu", "-o", "prog")
    assert folder_of(command, "/p", 1) == folder_of(command, "/p", 1)
    others = {folder_of((*command, "-O1"), "/p", 1), folder_of(command, "/q", 1), folder_of(command, "/p", 2)}
    assert len({folder_of(command, "/p", 1), *others}) == 4


@pytest.mark.parametrize(
    "command",
    [
        "g++ a.o b.o -o prog",
        "g++ -c a.cpp",
        "g++ -c a.cpp b.o",
        "g++ -x c++ a.cpp b.o",
        "g++ a.cpp script.ld",
        "g++ -c a.cpp b.cpp -o both.o",
        "g++ -S a.cpp b.cpp",
        "g++ -MD a.cpp b.cpp",
        "g++ -MD -MF x.d -c a.cpp b.cpp",
        "g++ --coverage a.cpp b.cpp",
        "g++ -fprofile-use a.cpp b.cpp",
        "g++ -fstack-usage -c a.cpp b.cpp",
        "nvcc --keep a.cu b.cu",
        "nvcc -lib a.cu b.cu",
        "nvcc -dlink a.cu b.cu",
        "nvcc -M a.cu b.cu",
        "nvcc -x c a.cu -x cu b.cu",
    ],
)
def test_what_could_be_something_else_stays_whole(command: str) -> None:
    try:
        assert parts(command) is None
    except PassThrough:
        pass
