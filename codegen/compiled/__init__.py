"""The kinds `cuda` and `hip`: the project's sources, compiled and linked."""
