"""Decides which kernels a profiling run tries for which problems."""
