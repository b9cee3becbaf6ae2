"""For editors: the language server and the files that editors read."""
