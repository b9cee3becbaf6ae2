"""Reads the output of tools: objects, device code, diagnostics."""
