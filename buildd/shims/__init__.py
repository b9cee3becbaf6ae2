"""Shims, which take the place of compilers under `buildd run`, and the environment that leads to them."""
