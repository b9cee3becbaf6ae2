"""The two ids of a module: what they are made of, and how one becomes the other."""

from __future__ import annotations

import re

from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action, Output, Steps
from codegen.steps.module_ids import HIP_SYMBOL, NO_IDS, ModuleIds, ids_of


def ids(
    source: str,
    made: str = "o/a.o",
    folder: str = "/c",
    roots: Roots | None = None,
    content: str = "",
    *,
    hip: bool = False,
    argv: tuple[str, ...] = (),
) -> ModuleIds:
    action = Action(
        name="a", kind="nvcc", tool="nvcc", argv=argv, inputs=(source,), outputs=(Output(name="object", path=made),)
    )
    steps = Steps(name="", identity="", actions=(), silent=hip)
    return ids_of(steps, action, folder, (("checkout", folder),) if roots is None else roots, content)


def test_checkouts_share_an_id_and_have_one_of_their_own() -> None:
    one, two = ids("src/a.cu"), ids("src/a.cu", folder="/elsewhere/c")
    assert one.differ and one.shared == two.shared and one.own != two.own
    for each in (one.shared, one.own):
        assert re.fullmatch(rb"_[0-9a-f]{8}_4_a_cu_[0-9a-f]{8}", each), "one replaces the other"
    assert len({one.shared, ids("src/b/a.cu").shared, ids("src/a.cu", "o/b/a.o").shared}) == 3
    assert one.named(b"x" + one.shared + b"y" + two.own) == b"x" + one.own + b"y" + two.own
    # Device code alone has the id of the object beside it.
    assert ids("src/a.cu", "o/a.cubin") == one


def test_a_module_that_no_other_checkout_has_needs_one_id() -> None:
    installed = ids("/usr/share/x/a.cu")
    assert not installed.differ and installed.named(installed.shared) == installed.shared
    assert not ids("a.cu", roots=()).differ and not NO_IDS.differ
    # A folder of one build alone is in no name; the source's content tells its modules apart.
    temporary = (("pip-req-build", "/tmp/pip-req-build-abcd1234"),)
    one = ids("a.cu", folder=temporary[0][1], roots=temporary, content="1")
    assert not one.differ and one.own != ids("a.cu", folder=temporary[0][1], roots=temporary, content="2").own


def test_an_object_of_a_build_elsewhere_is_named_after_its_real_place() -> None:
    def apart(home: str) -> ModuleIds:
        roots = (("checkout", "/c"), ("checkout-apart-1", f"{home}/.cache"))
        return ids("/usr/share/x/a.cu", f"{home}/.cache/o/a.o", roots=roots)

    one, two = apart("/home/u"), apart("/home/v")
    assert one.differ and one.shared == two.shared and one.own != two.own


def test_checkouts_share_what_hips_modules_are_called_and_have_a_symbol_of_their_own() -> None:
    one, two = ids("src/a.hip", hip=True), ids("src/a.hip", folder="/elsewhere/c", hip=True)
    assert one.differ and one.shared == two.shared and one.unit == two.unit and one.own != two.own
    for each in (one.shared, one.own):
        assert re.fullmatch(HIP_SYMBOL + "[0-9a-f]{12}", each.decode())
    assert re.fullmatch("[0-9a-f]{16}", one.unit) and one.shared.decode().endswith(one.unit[:12])
    # Two objects of one source have one key.
    other = ids("src/a.hip", "o/b.o", hip=True)
    assert (other.shared, other.unit) == (one.shared, one.unit) and other.own not in (one.own, two.own)
    assert ids("src/b.hip", hip=True).unit not in ("", one.unit)
    assert ids("/usr/share/x/a.hip", hip=True).own == ids("/usr/share/x/a.hip", folder="/c", hip=True).own
    # What the user calls a module is in the key.
    assert ids("src/a.hip", hip=True, argv=("-cuid=1", "-cuid=mine")) == ModuleIds(unit="mine")
