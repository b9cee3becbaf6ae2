"""Names of kernels in short: what tells one kernel from another stays."""

from __future__ import annotations

import pytest

from buildd.ui.kernel_names import in_short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("saxpy", "saxpy"),
        ("saxpy(int, float const*)", "saxpy"),
        ("void ns::scan<float, 4>(float const*, int)", "ns::scan<float, 4>"),
        ("void (anonymous namespace)::scan<2>(int)", "(anonymous namespace)::scan<2>"),
        ("(anonymous namespace)::k(int)", "(anonymous namespace)::k"),
        ("void g<a::A<float, (a::B)0> >(a::A<float, (a::B)0>::Params)", "g<a::A<float, (a::B)0> >"),
        ("void f<std::pair<int, int (*)(int)> >(int*)", "f<std::pair<int, int (*)(int)> >"),
        ("decltype(auto) z::q<int>(int)", "z::q<int>"),
        ("void k<3>(int) [clone .x]", "k<3>"),
        # Brackets that are no pairs: the name stays as it is.
        ("void a::operator()<int>(int)", "void a::operator()<int>(int)"),
        ("std::enable_if<(4>3), void>::type f<3>(int)", "std::enable_if<(4>3), void>::type f<3>(int)"),
        ("_Z3badi", "_Z3badi"),
    ],
)
def test_a_name_loses_its_return_type_and_parameters(name: str, short: str) -> None:
    assert in_short([name]) == [short]


def test_overloads_keep_their_parameters() -> None:
    overloads = ["void f<1>(int)", "void f<1>(float)", "void f<2>(int)"]
    assert in_short(overloads) == [*overloads[:2], "f<2>"]
    # One kernel for two architectures is no overload.
    assert in_short(["f(int)", "f(int)"]) == ["f", "f"]
