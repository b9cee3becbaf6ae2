"""Kernel candidates built, measured on GPUs, and the best of them kept."""
