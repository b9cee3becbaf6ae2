"""The kinds that need the client's own Python: `triton`, `torch`, `extension`."""
