"""Where the repository and what tests bring along are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
DATA = TESTS / "data"
FAKES = TESTS / "fakes"
"""Small executables in the place of compilers and programs."""
