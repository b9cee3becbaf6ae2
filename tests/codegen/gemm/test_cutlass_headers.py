"""Headers that stand in for CUTLASS's own: only for the text that is known, and the same code comes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codegen.gemm.cutlass_headers import Headers, lighter_headers
from tests.support.carry_out import plan_for, request_for

TUPLE = "include/cute/container/tuple.hpp"
SOURCE = """
#include "cute/tensor.hpp"

template <class T, class... Elements>
constexpr bool elements_are =
    cute::is_same_v<cute::tuple<decltype(cute::get<0>(cute::declval<T>())), decltype(cute::get<1>(cute::declval<T>())),
                                decltype(cute::get<2>(cute::declval<T>())), decltype(cute::get<3>(cute::declval<T>()))>,
                    cute::tuple<Elements...>>;
using One = cute::C<1>;
using Mixed = cute::tuple<int, One, long, cute::tuple<One, char>>;
static_assert(elements_are<Mixed const&, int const&, One, long const&, cute::tuple<One, char> const&>);
static_assert(elements_are<Mixed&, int&, One, long&, cute::tuple<One, char>&>);
static_assert(elements_are<Mixed, int&&, One, long&&, cute::tuple<One, char>&&>);
using Constants = decltype(cute::make_tuple(One{}, cute::C<2>{}));
static_assert(cute::is_same_v<Constants, cute::tuple<One, cute::C<2>>> && cute::is_empty<Constants>::value);
static_assert(sizeof(Mixed) == sizeof(cute::tuple<int, long, char>));
using Wide = cute::tuple<int, One, long, char, One, short, double, One, float>;
static_assert(cute::is_same_v<decltype(cute::get<5>(cute::declval<Wide const&>())), short const&> &&
              cute::is_same_v<decltype(cute::get<7>(cute::declval<Wide&>())), One> &&
              cute::is_same_v<decltype(cute::get<8>(cute::declval<Wide>())), float&&>);
static_assert(cute::is_tuple<Wide>::value && cute::is_tuple<Wide const>::value &&
              cute::is_tuple<cute::tuple<>>::value &&
              cute::is_tuple<cute::Layout<One, One>>::value == cute::is_tuple<cute::Layout<int, int>>::value &&
              !cute::is_tuple<int>::value && !cute::is_tuple<One>::value);

__global__ void copied(float const* from, float* to, int rows, int columns) {
    auto layout = cute::make_layout(cute::make_shape(rows, columns, cute::Int<4>{}),
                                    cute::make_stride(columns * 4, cute::Int<4>{}, cute::Int<1>{}));
    auto tiled = cute::zipped_divide(layout, cute::make_tile(cute::Int<8>{}, cute::Int<16>{}));
    auto in = cute::make_tensor(cute::make_gmem_ptr(from), tiled);
    auto out = cute::make_tensor(cute::make_gmem_ptr(to), tiled);
    for (int i = threadIdx.x; i < cute::size<0>(in); i += blockDim.x) out(i, blockIdx.x) = in(i, blockIdx.x);
}
"""


def test_another_text_is_left_alone(tmp_path: Path) -> None:
    assert lighter_headers(str(tmp_path), "build") == Headers()
    header = tmp_path / TUPLE
    header.parent.mkdir(parents=True)
    header.write_text("struct tuple;\n")
    assert lighter_headers(str(tmp_path), "build") == Headers(read=(str(header),)), "who changes it is noticed"


@pytest.fixture(scope="module")
def roots() -> dict[str, str]:
    """The folders of the toolkit and of CUTLASS."""
    request = request_for(Path("/"), file="", specs={"g": {"kind": "gemm", "arch": ["sm_90a"]}})
    return {name: folder for tool in plan_for(request).tools for name, folder in tool.roots}


@pytest.mark.cuda
def test_the_known_one_goes_before_cutlass(roots: dict[str, str]) -> None:
    found = lighter_headers(roots["cutlass"], "build")
    (file,) = found.files
    assert (found.include, file.path) == (("-Ibuild/kernels/include",), f"build/kernels/{TUPLE}")
    assert found.read == (f"{roots['cutlass']}/{TUPLE}",) and lighter_headers(roots["cutlass"], "build") == found
    assert b"return eso::getv" in Path(found.read[0]).read_bytes() and b"return eso::getv" not in file.content


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_code_comes_of_it(roots: dict[str, str], tmp_path: Path) -> None:
    headers = lighter_headers(roots["cutlass"], "build")
    for file in headers.files:
        (tmp_path / file.path).parent.mkdir(parents=True)
        (tmp_path / file.path).write_bytes(file.content)
    (tmp_path / "copied.cu").write_text(SOURCE)
    texts = []
    for include in ((), headers.include):
        said = subprocess.run(
            [
                *(f"{roots['cuda']}/bin/nvcc", "-ptx", "-std=c++17", "--expt-relaxed-constexpr", "-arch=sm_90a", "-O3"),
                *(*include, f"-I{roots['cutlass']}/include", "-o", "copied.ptx", "copied.cu"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        texts.append((tmp_path / "copied.ptx").read_text())
    assert texts[0] == texts[1] and ".entry" in texts[0]
