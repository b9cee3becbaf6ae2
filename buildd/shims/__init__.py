"""Shims, which take the place of compilers below `buildd run`, and the environment that leads to them."""
