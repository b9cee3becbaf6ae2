"""The environment variables that buildd knows."""
