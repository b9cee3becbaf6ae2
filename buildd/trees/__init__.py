"""Build trees of other tools, as a watch sees them."""
