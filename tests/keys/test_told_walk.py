"""Reasons of misses name folders as people know them, not as keys do."""

from __future__ import annotations

from buildd.keys.action_key import Component, action_components, difference
from buildd.keys.file_names import names_below
from buildd.keys.told_walk import told
from codegen.compilers import temporary_roots
from codegen.compilers.command_parser import Family
from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action, Argument, Output, Place, Ref
from protocol.messages import Digest

BUILD = "/home/u/p/build"
TOP, RUN = (("checkout-1", "/home/u/p"),), (("checkout-run", "/home/u/p"),)
MAPPED = ((temporary_roots.BUILD, "/home/u/p"),)


def walk(roots: Roots, *flags: Argument, output: str = "object", source: str = "/home/u/p/src/a.cu") -> list[Component]:
    """The components of a compile in BUILD."""
    given = temporary_roots.referring((*(f for f in flags if isinstance(f, str)), "-I/home/u/p/include"), roots)
    refs = (f for f in flags if isinstance(f, Ref))
    action = Action(
        name="a.o",
        kind="g++",
        tool="gcc",
        argv=(
            "g++",
            *given,
            *refs,
            *temporary_roots.mapping(Family.GCC, roots),
            "-o",
            Ref(place=Place.OUTPUT, name=output),
        ),
        inputs=(source,),
        outputs=(Output(name=output, path="a.o"),),
    )
    return list(
        action_components(
            action,
            Digest("t" * 64),
            lambda path: Digest("a" * 64),
            name_of=names_below(roots, BUILD).name,
            project=BUILD,
        )
    )


def why(before: list[Component], now: list[Component], roots: Roots) -> tuple[str, ...]:
    return difference(*told(before, now, roots, BUILD))


def test_a_flag_with_which_no_folder_is_a_root_is_the_only_reason() -> None:
    plain, whole = walk(TOP, "-O2"), walk((), "-O2", "-flto")
    assert why(plain, whole, ()) == ("command: added -flto",)
    assert why(whole, plain, TOP) == ("command: removed -flto",)


def test_a_folder_that_only_the_last_walk_names_is_known_by_the_input() -> None:
    assert why(walk(RUN, "-O2"), walk(TOP, "-O3"), TOP) == ("command: added -O3; removed -O2",)
    assert why(walk(MAPPED), walk(TOP), TOP) == ("command: removed --map-paths",)
    assert why(walk(TOP), walk(MAPPED), MAPPED) == ("command: added --map-paths",)
    # The same words, and another key.
    assert why(walk(RUN), walk(TOP), TOP) == ()


def test_a_folder_that_nobody_knows_has_no_name_of_a_key() -> None:
    away = (("pip", "/tmp/pip-req-build-abcdefgh"),)
    reasons = why(walk(away, "-I/tmp/pip-req-build-abcdefgh/x", source="/s/b.cu"), walk(TOP), TOP)
    assert reasons[0] == "command: removed -I.../x" and not any("pip" in reason for reason in reasons)


def test_an_output_is_named_without_its_digest() -> None:
    name = "object 5f3e0123456789ab"
    assert why(walk(TOP, output=name), walk(TOP, output=f"{name} with its depfile"), TOP) == ("depfile: new",)
    listed = Ref(place=Place.DEPFILE, prefix="-MF")
    assert why(walk(TOP), walk(TOP, listed), TOP) == ("command: added -MF",)


def test_variables_of_ours_are_told_as_what_they_stand_for() -> None:
    plain = walk(TOP, "-O2")
    shown = [*plain, ("variable PWD", BUILD)]
    assert why(plain, shown, TOP) == (f"folder that the result shows: new ({BUILD})",)
    assert why(shown, plain, TOP) == ("folder that the result shows: no longer there",)
    moved = [*plain, ("variable PWD", "/home/u/q")]
    assert why(shown, moved, TOP) == (f"folder that the result shows: {BUILD} -> /home/u/q",)
    mapped = [*plain, ("variable BUILDD_SHOWN", "{+build}/sub")]
    assert why(mapped, moved, TOP) == ("folder that the result shows: /build/sub -> /home/u/q",)
