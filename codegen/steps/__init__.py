"""Splits a compile into the steps that nvcc or hipcc would run."""
