"""The walk: what makes a key, what does not, and how a difference is told."""

from __future__ import annotations

from buildd.keys import action_key
from codegen.plan import Action, Output, Place, Ref, Tool, ToolFile
from protocol.messages import Digest

TOOL = Tool(name="nvcc", files=(ToolFile(role="cicc", path="/t/cicc"),), facts=(("version", "13.0"),))
D = {"a.cu": Digest("a" * 64), "b.cu": Digest("b" * 64), "/t/cicc": Digest("c" * 64)}


def action(**changes: object) -> Action:
    fields: dict = {
        "name": "t/a.o",
        "kind": "nvcc",
        "tool": "nvcc",
        "argv": ("nvcc", "-c", "a.cu", "-o", Ref(place=Place.OUTPUT, name="object")),
        "environment": (("PATH", "/usr/bin"),),
        "inputs": ("a.cu",),
        "outputs": (Output(name="object", path="build/a.o"),),
    }
    return Action(**{**fields, **changes})


def walk(a: Action, *, project: str = "/p", digests: dict | None = None) -> list[action_key.Component]:
    tool = action_key.digest(action_key.tool_components(TOOL, D.get))
    return list(action_key.action_components(a, tool, (digests or D).get, project=project, roots=(("cuda", "/cuda"),)))


def test_where_an_output_goes_and_what_the_action_is_called_is_no_part_of_the_key() -> None:
    moved = action(name="other", outputs=(Output(name="object", path="elsewhere/a.o"),))
    assert action_key.digest(walk(moved)) == action_key.digest(walk(action()))


def test_each_other_field_is() -> None:
    variants = [
        action(argv=("nvcc", "-c", "a.cu", "-O3", "-o", Ref(place=Place.OUTPUT, name="object"))),
        action(environment=(("PATH", "/usr/local/bin"),)),
        action(inputs=("a.cu", "b.cu")),
        action(payload=b"x"),
        action(outputs=(Output(name="object", path="build/a.o", executable=True),)),
        action(path_sensitive=True),
    ]
    assert len({action_key.digest(walk(v)) for v in [action(), *variants]}) == len(variants) + 1
    assert action_key.digest(walk(action(), digests={**D, "a.cu": D["b.cu"]})) != action_key.digest(walk(action()))


def test_the_locale_counts_however_its_variables_spell_it() -> None:
    def key(**variables: str) -> Digest:
        return action_key.digest(walk(action(environment=tuple(variables.items()))))

    assert key(LANG="C.UTF-8") == key(LC_ALL="C.utf8", LANG="de_DE") != key() == key(LANG="POSIX")
    told = action_key.difference(walk(action(environment=(("LANG", "C.UTF-8"),))), walk(action(environment=())))
    assert told == ("locale: C.UTF-8 -> C",)


def test_arguments_do_not_run_into_each_other() -> None:
    lists = [("-DA", "B"), ("-DA B",), ("-D", "A", "B"), ("",), (), ("", ""), ("@output",), ("=x",)]
    refs = [(Ref(place=Place.OUTPUT),), (Ref(place=Place.OUTPUT, name="s"),), (Ref(place=Place.OUTPUT, suffix="n"),)]
    digests = {action_key.digest(walk(action(argv=arguments))) for arguments in [*lists, *refs]}
    assert len(digests) == len(lists) + len(refs)


def test_the_folder_counts_only_where_paths_reach_the_result() -> None:
    assert action_key.digest(walk(action(), project="/q")) == action_key.digest(walk(action()))
    sensitive = action(path_sensitive=True)
    assert action_key.digest(walk(sensitive, project="/q")) != action_key.digest(walk(sensitive))


def test_a_tool_is_its_closure() -> None:
    patched = action_key.digest(action_key.tool_components(TOOL, {**D, "/t/cicc": Digest("d" * 64)}.get))
    assert patched != action_key.digest(action_key.tool_components(TOOL, D.get))
    assert action_key.difference(
        action_key.tool_components(TOOL, D.get), action_key.tool_components(TOOL, {"/t/cicc": Digest("d" * 64)}.get)
    ) == ("tool nvcc: cicc: content changed",)


def test_a_difference_names_what_changed() -> None:
    new = action(
        argv=("nvcc", "-c", "a.cu", "-G", "-o", Ref(place=Place.OUTPUT, name="object")),
        environment=(("NVCC_APPEND_FLAGS", "-w"), ("PATH", "/opt")),
    )
    told = action_key.difference(walk(action()), walk(new, digests={**D, "a.cu": D["b.cu"]}))
    assert told == (
        "command: added -G",
        "variable NVCC_APPEND_FLAGS: new (-w)",
        "variable PATH: /usr/bin -> /opt",
        "input a.cu: content changed",
    )
    assert action_key.difference(walk(action()), walk(action(), digests={"none": D["a.cu"]})) == (
        "input a.cu: no longer there",
    )
    assert action_key.difference(walk(action()), walk(action())) == ()


def test_a_link_of_one_more_object_names_the_object() -> None:
    def link(*objects: str, flags: tuple[str, ...] = ()) -> list[action_key.Component]:
        argv = ("nvcc", *flags, *(Ref(place=Place.INPUT, name=path) for path in objects))
        return walk(action(argv=argv, inputs=objects), digests=dict.fromkeys(("a.o", "b.o", "c.o"), D["a.cu"]))

    assert action_key.difference(link("a.o", "b.o"), link("a.o", "b.o", "c.o")) == ("input c.o: new",)
    assert action_key.difference(link("a.o", "b.o"), link("a.o")) == ("input b.o: no longer there",)
    assert action_key.difference(link("a.o", "b.o"), link("b.o", "a.o")) == ("command: order of arguments changed",)
    assert action_key.difference(link("a.o", flags=("-x", "-y")), link("a.o", flags=("-y", "-x"))) == (
        "command: order of arguments changed",
    )
    assert action_key.difference(link("a.o", flags=("-x",)), link("a.o", flags=("-x", "-x"))) == ("command: added -x",)


def test_folders_that_begin_to_count_are_not_told_as_new_or_gone() -> None:
    """They are there before and after: the flag that makes them count is the reason."""
    plain, roots = walk(action()), [("folder of cuda", "/cuda")]
    debug = [*walk(action(argv=(*action().argv, "-lineinfo"), path_sensitive=True)), *roots]
    assert action_key.difference(plain, debug) == ("command: added -lineinfo",)
    assert action_key.difference(debug, plain) == ("command: removed -lineinfo",)
    alone = [*walk(action(path_sensitive=True)), *roots]
    assert action_key.difference(plain, alone) == ("folder of the project: the result may contain its path",)
    assert action_key.difference(alone, [*alone[:-1], ("folder of cuda", "/other")]) == (
        "folder of cuda: /cuda -> /other",
    )


def test_search_folders_that_only_move_are_not_told() -> None:
    """They are numbered, and only those that a link leads to are in a walk."""

    def searched(*folders: str, first: int = 0, flags: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        named = [(f"search folder {number}", folder) for number, folder in enumerate(folders, first)]
        return [*walk(action(argv=(*action().argv, *flags))), *named]

    plain = searched("/cuda/cccl", "/cuda/include")
    assert action_key.difference(plain, searched("/cuda/cccl", "/cuda/include", first=1, flags=("-Iinc",))) == (
        "command: added -Iinc",
    )
    linked = searched("inc", "/cuda/cccl", "/cuda/include", flags=("-Ilink",))
    assert action_key.difference(plain, linked) == ("command: added -Ilink", "searched first now: inc")
    assert action_key.difference(linked, plain) == ("command: removed -Ilink", "no longer searched: inc")
    assert action_key.difference(plain, searched("/cuda/cccl", "x", "/cuda/include")) == ("searched now: x",)
    assert action_key.difference(plain, searched("/cuda/cccl", "/other")) == (
        "search folder 1: /cuda/include -> /other",
    )
    (moved,) = action_key.difference(plain, searched("/cuda/cccl", "/cuda/include", first=1))
    assert moved == "search folders: their order changed"


def test_another_compiler_is_one_line() -> None:
    """Which of its files and folders the other one had says nothing more."""
    moved = action(argv=(Ref(place=Place.ROOT, name="cuda", suffix="/bin/nvcc"), *action().argv[1:], "-G"))
    before = [*walk(action()), ("tool nvcc: nvcc wrapper 0", "a" * 64), ("search folder 1", "/usr/include")]
    told = action_key.difference(before, walk(moved, digests={**D, "a.cu": D["b.cu"]}), "/venv/cuda/bin/nvcc")
    assert told == (
        "tool nvcc: it is now /venv/cuda/bin/nvcc, and was another one",
        "command: added -G",
        "input a.cu: content changed",
    )


def test_bytes_that_are_no_utf8_come_back() -> None:
    components = [("input \udce9.cu", "value \udcff")]
    assert action_key.decode(action_key.encode(components)) == components


def test_a_result_is_keyed_by_the_files_that_were_read() -> None:
    first = Digest("f" * 64)
    one = action_key.result_digest(first, [("a.h", D["a.cu"])])
    assert one != action_key.result_digest(first, [("a.h", D["b.cu"])])
    assert one != action_key.result_digest(first, [("a.h", D["a.cu"])], [("cuda", "/x")])
