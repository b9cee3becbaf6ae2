"""Rewrites a header of CUTLASS so that compiler front ends need less time for it and generate the same code.

A 3.x kernel instantiates some 50,000 functions. Half of them belong to `cute::tuple`: constructors, and three nested
calls for each access to an element. In the rewritten header an access to an element is one call. One class instead of
five of the standard library's finds an element's type. A tuple of constants constructs nothing. A specialisation says
which types are tuples. Knows the text of that one header. If any of the places differs, CUTLASS's own header is used.
"""

from __future__ import annotations

import os

from codegen.plan import Frozen, GeneratedFile
from codegen.reach import read_regular

_PATH = "cute/container/tuple.hpp"
_TRIVIAL = (
    """  CUTE_HOST_DEVICE constexpr
  ESO() {}

  CUTE_HOST_DEVICE constexpr
  ESO(First const&, Rest const&...) {}
""",
    """  ESO() = default;

  CUTE_HOST_DEVICE constexpr
  ESO(First const&, Rest const&...) {}
""",
)
_EMPTY = (
    """  CUTE_HOST_DEVICE constexpr
  tuple() {}
""",
    """  tuple() = default;
""",
)
_MADE = (
    """  return {t...};
""",
    """  if constexpr ((cute::is_empty<T>::value && ...)) {
    return {};
  } else {
    return {t...};
  }
""",
)
_CALLS = {
    "return eso::getv_cr<I>(t);": "R const&",
    "return eso::getv_r<I>(t);": "R&",
    "return eso::getv_rr<I>(static_cast<eso::ESO_t<T...>&&>(t));": "R&&",
}
_NTH = (
    """} // end namespace eso

template <class... T>
struct tuple : eso::ESO_t<T...>
""",
    """template <size_t I, class A, class... T>
struct nth : nth<I - 1, T...> {};
template <class A, class... T>
struct nth<0, A, T...> { using type = A; };
template <class A, class B, class... T>
struct nth<1, A, B, T...> { using type = B; };
template <class A, class B, class C, class... T>
struct nth<2, A, B, C, T...> { using type = C; };

} // end namespace eso

template <class... T>
struct tuple : eso::ESO_t<T...>
""",
)
_IS_TUPLE = (
    """struct is_tuple : decltype(detail::has_tuple_size((T*)0)) {};
""",
    """struct is_tuple : decltype(detail::has_tuple_size((T*)0)) {};
template <class... T>
struct is_tuple<tuple<T...>> : true_type {};
""",
)
_ELEMENT = """using R = typename eso::nth<I, T...>::type;
  if constexpr (cute::is_empty<R>::value) {{
    return R{{}};
  }} else if constexpr (I == 0) {{
    return static_cast<{kind}>(t.first_);
  }} else if constexpr (I == 1) {{
    return static_cast<{kind}>(t.rest_.first_);
  }} else if constexpr (I == 2) {{
    return static_cast<{kind}>(t.rest_.rest_.first_);
  }} else {{
    return eso::getr<{kind}, I>(static_cast<{whole}>(t));
  }}"""
_CHANGES = (
    _TRIVIAL,
    _EMPTY,
    _MADE,
    _NTH,
    _IS_TUPLE,
    *((call, _ELEMENT.format(kind=kind, whole=kind.replace("R", "tuple<T...>"))) for call, kind in _CALLS.items()),
)


class Headers(Frozen, frozen=True):
    """The replacements for CUTLASS's headers."""

    files: tuple[GeneratedFile, ...] = ()
    include: tuple[str, ...] = ()
    """Options that come before those for CUTLASS's own headers."""
    read: tuple[str, ...] = ()
    """Files that the replacements were made from."""


def lighter_headers(cutlass: str, build: str) -> Headers:
    """Return replacements that come before CUTLASS's headers; none if CUTLASS's headers are not the known ones.

    Args:
        cutlass: CUTLASS's folder.
        build: the folder of all outputs.
    """
    source = os.path.join(cutlass, "include", _PATH)
    try:
        text = read_regular(source).decode()
    except (OSError, UnicodeDecodeError):
        return Headers()
    for old, new in _CHANGES:
        if text.count(old) != 1:
            return Headers(read=(source,))
        text = text.replace(old, new)
    folder = f"{build}/kernels/include"
    return Headers(
        files=(GeneratedFile(path=f"{folder}/{_PATH}", content=text.encode()),),
        include=(f"-I{folder}",),
        read=(source,),
    )
