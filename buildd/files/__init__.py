"""Files as keys see them: stamps, digests, listings, and writing them safely."""
