"""The content-addressed store: one index, blobs beside it, and what lives in them."""
