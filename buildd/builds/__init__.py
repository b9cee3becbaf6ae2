"""One request from plan to outputs."""
