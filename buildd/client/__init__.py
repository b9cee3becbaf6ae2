"""The client's library: commands, the language server and torch's backend reach the daemon through it."""
