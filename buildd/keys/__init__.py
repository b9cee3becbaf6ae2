"""From an action and its inputs to a digest, and from a digest to a stored result."""
