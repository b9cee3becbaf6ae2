"""Reads buildd.toml into typed settings and targets."""
