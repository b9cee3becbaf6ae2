"""What keeps JAX's programs, as far as it needs no JAX: names of entries, reasons, and figures of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.hooks import jax_installation, jax_why
from buildd.hooks.entries import Entry, Shelf
from buildd.store import shared_kernels
from buildd.store.bundle_manifest import KERNEL_NAME as BUNDLED

FACTS: jax_why.Facts = {
    "arguments": ["tensor<8x4xf32>", "tensor<4xf32>"],
    "program": "p",
    "jaxlib": "0.10.2",
    "platform": "cpu cpu",
    "flags": ["--xla_a=1"],
    "options": "o",
    "topology": "t",
    "compression": "zlib",
    "processor": "x",
    "libraries": "l",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"arguments": ["tensor<8x4xf32>", "tensor<4xbf16>"], "program": "q"},
            ["argument 1: tensor<4xf32> before, tensor<4xbf16> now"],
        ),
        ({"arguments": ["tensor<8x4xf32>"], "program": "q"}, ["it has 1 arguments, 2 before"]),
        ({"program": "q"}, ["its operations, constants, shardings or donated arguments: changed"]),
        (
            {"jaxlib": "0.11.2", "program": "q", "options": "n", "topology": "n", "libraries": "n"},
            ["jaxlib: 0.10.2 before, 0.11.2 now"],
        ),
        ({"flags": ["--xla_a=1", "--xla_a=1"], "options": "n"}, ["flag --xla_a=1: given before, given 2 times now"]),
        (
            {"arguments": ["f32"] * 9, "program": "q"},
            ["it has 9 arguments, 2 before"],
        ),
        ({"processor": "y"}, ["the processor: changed"]),
        ({"libraries": "m"}, ["the build of jaxlib, or a library of its plugin: changed"]),
    ],
)
def test_the_reason_is_the_part_that_differs(changes: jax_why.Facts, said: list[str]) -> None:
    far = {**FACTS, "arguments": ["tensor<1xf32>"], "processor": "z", "flags": [], "options": "n"}
    assert jax_why.reasons({**FACTS, **changes}, [far, FACTS, far]) == said


def test_of_many_changed_arguments_the_first_are_named() -> None:
    before, now = ({**FACTS, "arguments": [f"tensor<{size}xf32>"] * 9} for size in (8, 16))
    said = jax_why.reasons(now, [before])
    assert said[0] == "argument 0: tensor<8xf32> before, tensor<16xf32> now" and said[5:] == ["and 4 more arguments"]


def test_a_program_that_is_gone_or_new_has_a_reason_of_its_own() -> None:
    assert jax_why.reasons(FACTS, []) == ["no program of this name was compiled here before"]
    assert "the store no longer has it" in jax_why.reasons(FACTS, [FACTS])[0]


def test_the_processor_is_known_by_its_instructions_not_by_its_clock(tmp_path: Path) -> None:
    core = "processor\t: 0\nmodel name\t: Xeon\ncpu MHz\t\t: {}\nflags\t\t: fpu sse {}\n\nprocessor\t: 1\n"

    def digest(clock: str, flag: str) -> str:
        (tmp_path / "cpuinfo").write_text(core.format(clock, flag))
        return jax_installation.processor(str(tmp_path / "cpuinfo"))

    assert digest("2000.1", "avx2") == digest("3100.7", "avx2") != digest("2000.1", "avx512f")
    assert jax_installation.processor(str(tmp_path / "none"))


def test_another_build_of_a_library_is_another_one(tmp_path: Path) -> None:
    def site(name: str, digest: str, **versions: str) -> str:
        folder = tmp_path / name
        for wheel, version in {"jaxlib": "0.10.2", **versions}.items():
            record = folder / f"{wheel}-{version}.dist-info" / "RECORD"
            record.parent.mkdir(parents=True)
            record.write_text(f"{wheel}/x.so,sha256={digest},9\n{wheel}/x.py,sha256=py,1\nINSTALLER,sha256={name},4\n")
        return str(folder)

    same = [jax_installation.libraries(site(name, "one")) for name in ("a", "b")]
    others = [
        jax_installation.libraries(site("c", "two")),
        jax_installation.libraries(site("d", "one", nvidia_cudnn_cu13="9.1")),
        jax_installation.libraries(site("e", "one", nvidia_cudnn_cu13="9.2")),
        jax_installation.libraries(site("f", "one", jax_cuda13_pjrt="0.10.2")),
    ]
    assert same[0] == same[1] and len({*same, *others}) == 5


def test_a_library_that_no_wheel_brought_is_known_by_its_stamp(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        (tmp_path / name / "jaxlib").mkdir(parents=True)
        (tmp_path / name / "jaxlib" / "x.so").write_bytes(b"same")
        found.append(jax_installation.libraries(str(tmp_path / name)))
    assert found[0] != found[1] and found[0] == jax_installation.libraries(str(tmp_path / "a"))


def test_programs_share_the_bound_of_kernels_and_travel_in_bundles(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    shelf = Shelf(str(store), "jax")
    assert shelf.open()
    shelf.put(Entry("jit_step-00", "program", {"program": b"code"}))
    ((name, content),) = shared_kernels.sound(store)
    assert name.startswith("jax/") and BUNDLED.fullmatch(name.encode())
    assert shared_kernels.held(store)[0] == 1 and shared_kernels.clear(store) == 1
    assert shared_kernels.take_in(store, name, content)
    found = shelf.take("jit_step-00", "program")
    assert found is not None and found.files == {"program": b"code"}
