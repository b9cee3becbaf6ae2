"""The process beside the daemon that runs the commands that `cli_client` passes."""
